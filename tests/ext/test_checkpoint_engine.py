"""What separate_async needs without a GPU: weights reach every rollout worker or an error ends the call, the old
policy of a step is a copy, and the trainer starts without hybrid replicas."""

import json
import subprocess

import pytest

from r3_ext.cpu.fork import environment as forks
from r3_ext.cpu.fork import server as forkserver
from r3_ext.host import supervise

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, ray, torch, verl
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.trainer.ppo.v1 import trainer_separate_async
from r3_ext.cpu import checkpoint_engine


def weights_of(model):
    return [getattr(one, "_local_tensor", one).detach().tolist() for one in model.parameters()]


def old_policy():
    # As verl's worker does, at its first save.
    from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    old, optimizer = weights_of(model), torch.optim.SGD(model.parameters(), lr=1.0)
    saved = fsdp2_sharded_save_to_cpu(model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    changed = [before != after for before, after in zip(old, weights_of(model))]
    fsdp2_sharded_load_from_cpu(model, *saved)
    return {"changed": changed, "restored": weights_of(model) == old}


def hybrid_replicas_message():
    # The call in the trainer's _setup: with the level at INFO this is a TypeError.
    trainer_separate_async.logger.info("[V1SepAsync] hybrid replicas disabled", flush=True)
    return "went on"


class Worker:
    # The two methods of verl's workers that the engine is called through.
    def __init__(self, **settings):
        from r3_ext.cpu import checkpoint_engine, weight_sync
        from verl.checkpoint_engine import CheckpointEngineRegistry
        weight_sync.DEADLINE_S = 2.0
        self.engine = CheckpointEngineRegistry.new("ray", bucket_size=1, **settings)

    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.engine, method)(*args, **kwargs)

    async def send(self, factor):
        table = torch.arange(6.0).reshape(3, 2) * factor
        await self.engine.send_weights((name, part) for name, part in [("a", table[1]), ("b", table.bfloat16())])

    async def receive(self):
        return [(name, weight.tolist(), str(weight.dtype)) async for name, weight in self.engine.receive_weights()]


def connect(senders, receivers):
    # verl's CheckpointEngineManager.build_process_group.
    every = senders + receivers
    prepared = ray.get([one.execute_checkpoint_engine.remote("prepare") for one in every])
    build = checkpoint_engine.RayCheckpointEngine.build_topology
    send, receive = build(len(senders), len(receivers), prepared)
    calls = zip(every, send["receivers"] + receive["receivers"], strict=True)
    ray.get([one.execute_checkpoint_engine.remote("init_process_group", receivers=to) for one, to in calls])


def error_of(*calls):
    try:
        return ray.get(list(calls))
    except Exception as error:
        return type(error).__name__ + ": " + str(error).strip().splitlines()[-1]


def transfers():
    cls = ray.remote(Worker)
    senders, receivers = [cls.remote(is_master=rank == 0) for rank in range(2)], [cls.remote() for _ in range(2)]
    said = {"syncs": []}
    for factor in (1, 2):
        connect(senders, receivers)
        calls = [one.send.remote(factor) for one in senders] + [one.receive.remote() for one in receivers]
        said["syncs"].append(ray.get(calls)[2:])
        ray.get([one.execute_checkpoint_engine.remote("finalize") for one in senders + receivers])
    connect(senders, receivers)
    said["silent sender"] = error_of(receivers[0].receive.remote())
    ray.kill(receivers[1])
    said["dead receiver"] = error_of(senders[0].send.remote(1), receivers[0].receive.remote())
    connect(senders, receivers[:1])
    waiting = receivers[0].receive.remote()
    ray.kill(senders[0])
    said["dead sender"] = error_of(senders[0].send.remote(1), waiting)
    return said


said = {"old policy": old_policy(), "message": hybrid_replicas_message()}
forks = {"py_executable": os.environ["R3_FORKING_PYTHON"]}
local = {"num_cpus": 4, "object_store_memory": 100 * 2**20, "include_dashboard": False, "log_to_driver": False}
ray.init("local", runtime_env=forks, **local)
print("said:" + json.dumps(said | transfers()))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def said() -> dict:
    """What `PROGRAM` found, as a program of the CPU platform; its Ray workers are forks as well."""
    with supervise.scratch_folder() as folder, forkserver.serving(folder) as python:
        (folder / "program.py").write_text(PROGRAM)
        changed = {"VERL_PLATFORM": "cpu", "RAY_TMPDIR": str(folder), forks.VARIABLE: str(python)}
        command, env = [str(python), str(folder / "program.py")], {**forks.environment(), **changed}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("said:")]
    return json.loads(line.removeprefix("said:"))


def test_every_rollout_worker_gets_all_weights_of_every_sync(said):
    def taken(factor: float) -> list:
        table = [[factor * value for value in row] for row in ([0, 1], [2, 3], [4, 5])]
        return [["a", table[1], "torch.float32"], ["b", table, "torch.bfloat16"]]

    assert said["syncs"] == [[taken(factor)] * 2 for factor in (1, 2)]


def test_a_peer_that_is_gone_or_silent_ends_the_sync_with_an_error(said):
    assert said["silent sender"].endswith("the trainer has sent no weights to this rollout worker for 2 s")
    assert "ActorDiedError" in said["dead receiver"]
    assert "ActorDiedError" in said["dead sender"]


def test_the_old_policy_of_a_step_outlives_the_optimizer(said):
    assert said["old policy"] == {"changed": [True] * 4, "restored": True}


def test_the_trainer_may_say_that_there_are_no_hybrid_replicas(said):
    assert said["message"] == "went on"
