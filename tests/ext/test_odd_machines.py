"""Machines and users that are not as usual: it works, or a sentence tells it before Ray starts."""

import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
from omegaconf import OmegaConf

from r3_ext.doctor import machine
from r3_ext.doctor.finding import FAIL
from r3_ext.host import hardware, locks, supervise
from r3_ext.run.environment import replace_read_only_home, writing_to
from r3_ext.settings.compose import ROOT
from recipe.common.config import machine_rules
from tests.ext.doctored import only

NOBODYS = 54321
"""A user id without a name."""


def python(code: str, **options) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, **options)


# users


def test_a_user_without_an_entry_gets_a_name_and_the_home_of_container_engines(monkeypatch):
    for name in ("HOME", "USER"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    machine_rules.name_the_user()
    assert "HOME" not in os.environ, "who has an entry needs none"
    monkeypatch.setattr(os, "getuid", lambda: NOBODYS)
    machine_rules.name_the_user()
    assert (os.environ["HOME"], os.environ["USER"]) == ("/", str(NOBODYS))
    monkeypatch.setenv("HOME", "/mine")
    machine_rules.name_the_user()
    assert os.environ["HOME"] == "/mine"


def test_a_home_without_room_for_rays_token_is_told_where_ray_needs_one(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(machine_rules.home()) == []
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    assert f"{tmp_path}/none cannot be written" in next(machine_rules.home())[0]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert list(machine_rules.home()) == []


def test_neither_home_nor_cache_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"the cache {tmp_path}/file/cache cannot be written .*--cache"):
        replace_read_only_home(tmp_path / "file" / "cache", print)


def test_only_what_the_cache_refuses_is_told_of_the_cache(tmp_path):
    with pytest.raises(ValueError, match="--cache"), writing_to(tmp_path):
        (tmp_path / "none" / "rows.parquet").touch()
    with pytest.raises(FileNotFoundError), writing_to(tmp_path / "cache"):
        (tmp_path / "none" / "rows.parquet").touch()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_the_next_user_can_lock_the_machine():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        lock, before = Path(folder, "lock"), os.umask(0o077)
        try:
            locks.make(lock)
        finally:
            os.umask(before)
        if not (child := os.fork()):
            _lock_as_another_user(lock)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def _lock_as_another_user(lock: Path) -> NoReturn:
    try:
        os.setgroups([])
        os.setgid(NOBODYS)
        os.setuid(NOBODYS)
        locks.make(lock)
        with locks.locked(lock):
            os._exit(42)
    finally:
        os._exit(1)


def test_a_lock_that_cannot_be_read_is_a_sentence(monkeypatch, tmp_path):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(locks, "make", refuse)
    with pytest.raises(supervise.MachineBusy, match="of another user cannot be read"), supervise.only_local_run():
        pass


# folders


def test_a_temporary_folder_too_long_for_sockets_is_not_taken(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with supervise.scratch_folder() as scratch:
        assert scratch.parent.as_posix() == "/tmp"
        with socket.socket(socket.AF_UNIX) as bound:  # what Ray does below it
            path = scratch / "ray" / machine_rules.LONGEST_SOCKET
            path.parent.mkdir(parents=True)
            bound.bind(str(path))
    assert not scratch.exists()


@pytest.mark.parametrize("length, fits", [(39, True), (40, False)])
def test_how_long_the_training_commands_temporary_folder_may_be(monkeypatch, length, fits):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/" + "x" * (length - 1))
    told = list(machine_rules.socket_paths({}))
    assert (not told) == fits
    if told:
        assert "at most 39 bytes" in told[0][1]
        monkeypatch.setenv("TMPDIR", "/tmp")
        assert not list(machine_rules.socket_paths({})), "the advice works"


def test_no_shared_memory(monkeypatch, tmp_path, composed):
    monkeypatch.setattr(machine_rules, "SHARED_MEMORY", str(tmp_path / "shm"))
    assert "mount -t tmpfs" in only(machine.check_shared_memory(composed["embedded"]), FAIL).advice


@pytest.mark.parametrize("limit, told", [(128, True), (256, False)])
def test_few_open_files(limit, told):
    code = "from recipe.common.config import machine_rules; print(*machine_rules.open_files())"
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < limit:
        pytest.skip("the limit here is lower")
    done = python(code, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    assert ("ulimit" in done.stdout) == told, done.stderr


def test_the_address_of_a_cluster_that_is_gone(monkeypatch, tmp_path):
    file = tmp_path / "ray_current_cluster"
    assert list(machine_rules.dead_cluster({"_temp_dir": str(tmp_path)})) == []
    with socket.create_server(("127.0.0.1", 0)) as alive:
        address = f"127.0.0.1:{alive.getsockname()[1]}"
        file.write_text(address)
        assert list(machine_rules.dead_cluster({"_temp_dir": str(tmp_path)})) == []
    ((found, advice),) = machine_rules.dead_cluster({"_temp_dir": str(tmp_path)})
    assert "does not answer" in found and advice == f"rm {file}"
    file.write_text("no address")
    assert len(list(machine_rules.dead_cluster({"_temp_dir": str(tmp_path)}))) == 1


def test_an_address_that_is_named_is_not_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", "/" + "x" * 100)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {}}, "trainer": {}})
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert list(machine_rules.of_this_machine(config)) == []
    monkeypatch.delenv("RAY_ADDRESS")
    assert "sockets" in str(next(machine_rules.of_this_machine(config)))


# the tracker


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logging_to(*loggers: str, **variables: str):
    init = {"runtime_env": {"env_vars": variables}}
    return OmegaConf.create({"ray_kwargs": {"ray_init": init}, "trainer": {"logger": list(loggers)}})


def test_wandb_without_a_key_is_told_with_what_works(no_key):
    (told,) = machine_rules.tracker(logging_to("console", "wandb"))
    assert "W&B has no key" in str(told) and told.ways == ("'trainer.logger=[console]'",)
    assert not list(machine_rules.tracker(logging_to("console")))


def test_wandb_with_a_key_or_without_a_network(no_key, monkeypatch):
    config = logging_to("wandb")
    for name, value in (("WANDB_API_KEY", "a" * 40), ("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled")):
        with monkeypatch.context() as here:
            here.setenv(name, value)
            assert not list(machine_rules.tracker(config))
    assert not list(machine_rules.tracker(logging_to("wandb", WANDB_API_KEY="a" * 40)))
    assert len(list(machine_rules.tracker(config))) == 1
    (no_key / ".netrc").write_text("machine models.example.com\n  login wandb\n  password p")
    assert len(list(machine_rules.tracker(config))) == 1, "a key for another machine"
    (no_key / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password " + "a" * 40)
    assert not list(machine_rules.tracker(config))


# the console and the packages


def test_a_console_that_is_ascii_gets_escapes():
    code = "from r3_ext import cli; cli._suit_the_console(); print('größe')"
    done = python(code, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert (done.returncode, done.stdout) == (0, "gr\\xf6\\xdfe\n"), done.stderr


def test_a_missing_package_that_the_doctor_knows_is_a_finding():
    hide = "from r3_ext.host import hardware as h; have = h.installed_version; sys.modules['psutil'] = None"
    hide += "; h.installed_version = lambda name: None if name == 'psutil' else have(name)"
    done = python(f"import sys; {hide}; from r3_ext import cli; sys.exit(cli.main(['doctor']))")
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    assert "missing: psutil" in done.stdout and "examples/install.sh" in done.stdout


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_a_missing_package_of_which_nothing_is_known_is_a_sentence(package):
    code = f"import sys; sys.modules['{package}'] = None; from r3_ext import cli; sys.exit(cli.main(['doctor']))"
    done = python(code)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"error: import of {package} halted" in done.stderr and "examples/install.sh" in done.stderr


# limits of a container


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """A function that lays out control groups: this process's, and the files by path."""

    def lay(own: str, **files: str) -> None:
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(hardware, "OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(hardware, "CONTROL_GROUPS", tmp_path / "groups")

    return lay


MIB = 2**20
LAYOUTS = {
    "version 2, at the group around": (
        "0::/pod/box\n",
        {"pod/memory.max": f"{100 * MIB}", "pod/memory.current": f"{60 * MIB}", "pod/cpu.max": "50000 100000"}
        | {"pod/memory.stat": f"anon 1\ninactive_file {20 * MIB}\n"}
        | {"pod/box/memory.max": "max", "pod/box/memory.current": "1", "pod/box/cpu.max": "max 100000"},
    ),
    "version 1": (
        "4:memory:/pod/box\n1:cpu,cpuacct:/pod/box\n0::/\n",
        {"memory/pod/box/memory.limit_in_bytes": f"{100 * MIB}", "memory/pod/box/memory.usage_in_bytes": f"{60 * MIB}"}
        | {"memory/pod/box/memory.stat": f"inactive_file 0\ntotal_inactive_file {20 * MIB}\n"}
        | {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"}
        | {"cpu/pod/box/cpu.cfs_quota_us": "50000", "cpu/pod/box/cpu.cfs_period_us": "100000"}
        | {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    ),
    "a path of the host, and the own group on top": (
        "0::/docker/0123\n",
        {"memory.max": f"{100 * MIB}", "memory.current": f"{40 * MIB}", "cpu.max": "50000 100000"},
    ),
}


@pytest.mark.parametrize("own, files", LAYOUTS.values(), ids=LAYOUTS)
def test_limits_of_control_groups(groups, own, files):
    groups(own, **files)
    assert hardware.main_memory() == (60 * MIB, 100 * MIB)
    assert hardware.core_count() == 1


def test_without_limits_it_is_the_machine(groups):
    groups("0::/\n")
    assert hardware.core_count() == len(os.sched_getaffinity(0))
    assert hardware.main_memory()[1] > 2**30
