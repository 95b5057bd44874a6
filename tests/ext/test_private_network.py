"""A command in a network of its own is out of reach, and is in everything else the command that it was."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil
import pytest
from omegaconf import OmegaConf

from r3_ext.doctor import network
from r3_ext.doctor.finding import FAIL, OK, WARN
from r3_ext.host import private_network
from r3_ext.settings.compose import compose_config

pytestmark = pytest.mark.slow

LISTEN = """
import socket, sys
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
while server.accept()[0].close() is None: pass
"""
TREE = f"""
import socket, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {LISTEN!r}], stdout=subprocess.PIPE, text=True)
port = int(child.stdout.readline())
socket.create_connection(("127.0.0.1", port)).close()
print(port, flush=True)
time.sleep(60)
"""
"""A program whose child listens on every address; it says the port when it has reached it itself."""
ADDRESS = """
import os, socket
import ray
print(ray.util.get_node_ip_address(), os.environ["VLLM_HOST_IP"])
try:
    socket.create_connection(("192.0.2.1", 80), 20)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in (private_network.VARIABLE, "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def allowed():
    if reason := private_network.forbidden():
        pytest.skip(reason)


def own(*code: str) -> list[str]:
    """A Python program in a network of its own."""
    return private_network.wrap([sys.executable, "-c", *code], [])


def own_addresses() -> set[str]:
    return {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    } | {"127.0.0.1"}


def reached(port: int) -> list[str]:
    """The addresses of this machine under which the port takes a connection."""
    found = []
    for address in sorted(own_addresses()):
        try:
            socket.create_connection((address, port), 2).close()
            found.append(address)
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("allowed")
class TestNetwork:
    @pytest.mark.parametrize("private", [True, False])
    def test_what_listens_inside_is_reached_from_inside_only(self, private):
        command = [sys.executable, "-c", TREE]
        command = own(TREE) if private else command
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            port = int(process.stdout.readline())
            try:
                assert reached(port) == ([] if private else sorted(own_addresses()))
            finally:
                os.killpg(process.pid, signal.SIGKILL)

    def test_its_address_is_loopback_and_nothing_outside_is_waited_for(self):
        done = subprocess.run(own(ADDRESS), capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.splitlines() == ["127.0.0.1 127.0.0.1", "OSError 101"], "network is unreachable"

    def test_names_of_interfaces_that_are_not_there_are_replaced(self, monkeypatch):
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        code = "import os; print([os.environ.get(name) for name in ('NCCL_SOCKET_IFNAME', 'GLOO_SOCKET_IFNAME')])"
        assert subprocess.run(own(code), capture_output=True, text=True, check=True).stdout == "['lo', None]\n"

    @pytest.mark.parametrize("code", [0, 3])
    def test_the_exit_code_is_the_commands(self, code):
        assert subprocess.run(own(f"raise SystemExit({code})")).returncode == code

    def test_ctrl_c_and_the_supervisor_end_it_with_its_orphans(self, tmp_path):
        orphan = (
            "import os, time; os.setsid() if not os.fork() else None; print(os.getpid(), flush=True); time.sleep(60)"
        )
        script = (
            "import os, sys; from pathlib import Path; from r3_ext.host import private_network, supervise\n"
            "command = private_network.wrap([sys.executable, '-c', sys.argv[1]], [])\n"
            "try:\n"
            "    supervise.run(command, dict(os.environ), Path(sys.argv[2]), lambda: None)\n"
            "except KeyboardInterrupt:\n"
            "    sys.exit(130)\n"
        )
        log = tmp_path / "log"
        process = subprocess.Popen([sys.executable, "-c", script, orphan, str(log)])
        deadline = time.monotonic() + 20
        while not log.exists() or len(log.read_text().split()) < 2:
            assert time.monotonic() < deadline and process.poll() is None, "the command did not start"
            time.sleep(0.1)
        pids = [int(pid) for pid in log.read_text().split()]
        here = os.readlink("/proc/self/ns/net")
        assert all(os.readlink(f"/proc/{pid}/ns/net") != here for pid in pids)
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 130
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


ORDINARY = """
import ctypes, os, sys
from pathlib import Path
from r3_ext.host import private_network
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(4321, 4321, 4321)
    os.setresuid(4321, 4321, 4321)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again: else its own files in /proc are not its own
uid, file, here = os.getuid(), Path(sys.argv[1]) / "mine", os.readlink("/proc/self/ns/net")
said, saying = os.pipe()
heard, ending = os.pipe()
if not (inside := os.fork()):
    os.close(ending)
    try:
        private_network.enter()
        os.write(saying, b"in")
    except OSError as error:
        os.write(saying, str(error).encode())
    os.read(heard, 1)  # until the other process ends
    os._exit(0)
if (answer := os.read(said, 100)) != b"in":
    sys.exit(f"skip: {answer.decode()}")
there = os.readlink(f"/proc/{inside}/ns/net")
private_network.join(inside)
assert os.readlink("/proc/self/ns/net") == there != here
file.touch()
file.chmod(0o400)
assert file.stat().st_uid == os.getuid() == uid
try:
    file.open("w")
except PermissionError:
    sys.exit(0)
sys.exit("a file that is read-only was written")
"""


def test_an_ordinary_user_stays_who_he_is_without_a_right_more():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # pytest's own folders are closed to the user that root becomes here
        done = subprocess.run([sys.executable, "-c", ORDINARY, folder], capture_output=True, text=True, timeout=30)
    if done.stderr.startswith("skip: "):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def composed():
    return compose_config(["+profile=embedded", "+method=r3"])


@pytest.fixture
def config(composed, tmp_path):
    """A run on this machine that needs nothing from outside."""
    paths = {
        "data": {"train_files": str(tmp_path / "train.parquet"), "val_files": str(tmp_path / "val.parquet")},
        "actor_rollout_ref": {"model": {"path": str(tmp_path)}},
        "trainer": {"logger": ["file", "tensorboard"]},
    }
    return OmegaConf.merge(composed, paths)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("trainer.logger", ["file", "console"], None),
        ("trainer.logger", "console", None),
        ("trainer.logger", ["file", "wandb"], "the tracker wandb"),
        ("trainer.logger", "mlflow", "the tracker mlflow"),
        ("actor_rollout_ref.model.path", "someone/model-1.5B", "the model someone/model-1.5B from the hub"),
        ("actor_rollout_ref.model.path", "/no/such/folder", None),
        ("data.train_files", ["a.parquet", "hdfs://host/b.parquet"], "hdfs://host/b.parquet"),
        ("trainer.default_hdfs_dir", "hdfs://host/checkpoints", "hdfs://host/checkpoints"),
        ("reward.sandbox_fusion.url", "http://host/run", "http://host/run"),
        ("trainer.device", "cuda", private_network.GPUS),
    ],
)
def test_what_a_run_needs_from_outside(config, key, value, named):
    OmegaConf.update(config, key, value)
    assert network.needs(config) == ([named] if named else [])


NEEDS = ["the tracker wandb"]


@pytest.mark.parametrize(
    ("wish", "needed", "cluster", "forbidden", "expected"),
    [
        ("", [], None, None, None),
        ("1", [], None, None, None),
        ("1", NEEDS, None, None, None),
        ("", NEEDS, None, None, "not by default with the tracker wandb"),
        ("", [], None, "EPERM", "EPERM"),
        ("1", [], None, "EPERM", ValueError),
        ("0", [], None, None, "R3_PRIVATE=0, or --no-private"),
        ("", [], "RAY_ADDRESS=auto", None, "a run with RAY_ADDRESS=auto is one of several machines"),
        ("1", [], "RAY_ADDRESS=auto", None, ValueError),
        ("yes", [], None, None, ValueError),
    ],
)
def test_who_gets_a_network(monkeypatch, wish, needed, cluster, forbidden, expected):
    monkeypatch.setenv(private_network.VARIABLE, wish)
    monkeypatch.setattr(private_network, "forbidden", lambda: forbidden)
    if expected is ValueError:
        with pytest.raises(ValueError, match=private_network.VARIABLE):
            private_network.wrap(["program"], needed, cluster)
        return
    assert private_network.obstacle(needed, cluster) == expected
    wrapped = private_network.wrap(["program"], needed, cluster)
    assert (wrapped == ["program"]) == (expected is not None) and wrapped[-1] == "program"
    assert ("WANDB_MODE=offline" in wrapped) == (wish == "1" and needed == NEEDS)


class TestDoctor:
    @pytest.fixture
    def forbidden(self, monkeypatch):
        monkeypatch.setattr(private_network, "forbidden", lambda: "forbidden here")

    def test_a_run_of_its_own_is_fine(self, config, monkeypatch):
        monkeypatch.setattr(private_network, "forbidden", lambda: None)
        [finding] = network.check_network(config)
        assert finding.level == OK

    def test_a_tracker_names_the_flag(self, config, monkeypatch):
        monkeypatch.setattr(private_network, "forbidden", lambda: None)
        monkeypatch.setattr(network, "reaching_hosts", lambda: ["hosts of its network (10.0.0.1)"])
        config.trainer.logger = ["wandb"]
        [finding] = network.check_network(config)
        assert finding.level == WARN and "--private" in finding.advice and "10.0.0.1" in finding.found
        monkeypatch.setenv(private_network.VARIABLE, "1")
        assert network.check_network(config)[0].level == OK

    @pytest.mark.usefixtures("forbidden")
    @pytest.mark.parametrize(
        ("hosts", "users", "level"),
        [([], [], OK), (["hosts"], [], WARN), ([], ["the user ann"], WARN)],
    )
    def test_without_one_it_depends_on_who_is_there(self, config, monkeypatch, hosts, users, level):
        monkeypatch.setattr(network, "reaching_hosts", lambda: hosts)
        monkeypatch.setattr(network, "other_users", lambda: users)
        [finding] = network.check_network(config)
        assert finding.level == level and "forbidden here" in finding.found
        assert all(name in finding.found for name in (*hosts, *users))

    @pytest.mark.usefixtures("forbidden")
    def test_insisting_in_vain_is_a_failure(self, config, monkeypatch):
        monkeypatch.setenv(private_network.VARIABLE, "1")
        assert [finding.level for finding in network.check_network(config)] == [FAIL]

    @pytest.mark.parametrize(
        ("address", "words"),
        [("127.0.0.1", []), ("10.1.2.3", ["hosts of its network"]), ("9.9.9.9", ["everybody on the internet"])],
    )
    def test_the_address_is_the_one_that_ray_takes(self, monkeypatch, address, words):
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda: address)
        assert network.reaching_hosts() == [f"{word} ({address})" for word in words]

    def test_users_are_those_who_run_something(self, monkeypatch):
        if os.geteuid() != 0:
            pytest.skip("only root can start a process of another user")
        before = network.other_users()
        process = subprocess.Popen(["sleep", "60"], user=54321)
        try:
            assert "54321" not in str(before) and "54321" in str(network.other_users())
        finally:
            process.kill()
            process.wait()

    @pytest.mark.parametrize(
        ("variables", "file", "level"),
        [
            ({}, False, WARN),
            ({}, True, WARN),
            ({"RAY_AUTH_MODE": "token"}, False, FAIL),
            ({"RAY_AUTH_MODE": "token"}, True, OK),
            ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}, False, OK),
            ({"RAY_AUTH_MODE": "disabled"}, True, WARN),
        ],
    )
    def test_a_cluster_is_open_and_asks_for_a_token(self, config, monkeypatch, tmp_path, variables, file, level):
        monkeypatch.setenv("HOME", str(tmp_path))
        if file:
            (tmp_path / ".ray").mkdir()
            (tmp_path / ".ray" / "auth_token").write_text("secret")
        for name, value in {"RAY_ADDRESS": "10.0.0.1:6379", **variables}.items():
            monkeypatch.setenv(name, value)
        cluster, token = network.check_network(config)
        assert cluster.level == WARN and "RAY_ADDRESS=10.0.0.1:6379" in cluster.found
        assert token.level == level and "secret" not in token.found
