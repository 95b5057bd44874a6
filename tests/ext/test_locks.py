"""A lock belongs to what trains: it is taken as long as that lives, and whoever is refused is told who has it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from r3_ext.host import locks, supervise
from r3_ext.record.folder import held, is_held

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def trainer(tmp_path):
    """A process that goes on with the lock of `tmp_path` after the one that took it is gone."""
    code = (
        "import subprocess, sys; from pathlib import Path; from r3_ext.record.folder import held\n"
        f"with held(Path({str(tmp_path)!r})) as lock:\n"
        "    nowhere = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        f"    print(subprocess.Popen({SLEEPER!r}, pass_fds=(lock,), **nowhere).pid, flush=True)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_folder_is_in_use_as_long_as_what_trains_lives_and_its_process_is_named(trainer, tmp_path):
    with pytest.raises(ValueError, match=rf"is training now, by process {trainer}; .*`kill {trainer}`"):
        with held(tmp_path):
            pass
    assert is_held(tmp_path)
    os.kill(trainer, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_held(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    with held(tmp_path):
        assert not locks.holders(tmp_path), "its own lock is no obstacle"


def test_one_who_has_the_folder_open_without_its_lock_is_not_named(trainer, tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    with subprocess.Popen(SLEEPER, pass_fds=(handle,)) as reader:
        assert locks.holders(tmp_path) == [trainer]
        reader.kill()
    os.close(handle)


def test_the_supervised_command_has_the_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "LOCK", tmp_path / "machine")
    seen = []
    with held(tmp_path) as folder, supervise.only_local_run() as machine:
        places = tmp_path, tmp_path / "machine"

        def look() -> None:
            seen.append([len(locks.holders(place)) for place in places])

        command = [sys.executable, "-c", "import time; time.sleep(2)"]
        env = dict(os.environ)
        assert supervise.run(command, env, tmp_path / "log", look, vital=(), held=(folder, machine)) == 0
    assert [1, 1] in seen


def test_an_error_inside_is_not_taken_for_a_lock(tmp_path):
    with pytest.raises(BlockingIOError):
        with held(tmp_path):
            raise BlockingIOError
