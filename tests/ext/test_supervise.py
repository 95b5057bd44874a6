"""The supervisor ends what it started, however the command ends, and deletes only what nobody uses."""

import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from r3_ext.host import supervise

ORPHAN = "import os, time; os.setsid() if not os.fork() else None; print(os.getpid(), flush=True); time.sleep(600)"


def run_supervised(tmp_path, command: str, grace: float = 60.0, on_sigterm: str = "None") -> subprocess.Popen:
    """A process that runs `python -c command` under the supervisor; its exit code is the command's."""
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from r3_ext.host import supervise
        supervise.GRACE_S = {grace}
        supervise.VITAL = ("vital",)
        try:
            code = supervise.run([sys.executable, "-c", {command!r}], dict(__import__("os").environ),
                                 Path({str(tmp_path / "log")!r}), lambda: None, on_sigterm={on_sigterm})
        except supervise.WorkerDied as error:
            sys.exit(f"died: {{error}}")
        except KeyboardInterrupt:
            sys.exit(130)
        sys.exit(code)
        """
    )
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)


def pids_in(log: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if log.exists() and len(pids := log.read_text().split()) >= count:
            return [int(pid) for pid in pids]
        time.sleep(0.1)
    raise AssertionError("the command did not start")


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(tmp_path, code):
    assert run_supervised(tmp_path, f"raise SystemExit({code})").wait(30) == code


def test_ctrl_c_ends_the_command_and_its_orphans(tmp_path):
    # The fork moves into a session of its own and outlives its parent, as Ray's daemons do.
    process = run_supervised(tmp_path, ORPHAN)
    pids = pids_in(tmp_path / "log", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize("signals, code", [(1, 0), (2, 130)])
def test_the_first_sigterm_asks_and_the_second_one_ends(tmp_path, signals, code):
    asked = tmp_path / "asked"
    command = (
        "import os, sys, time; print(os.getpid(), flush=True)\n"
        f"while not os.path.exists({str(asked)!r}): time.sleep(0.05)\n"
        f"time.sleep({0 if signals == 1 else 600})"
    )
    process = run_supervised(tmp_path, command, on_sigterm=f"Path({str(asked)!r}).touch")
    pids_in(tmp_path / "log", 1)
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    assert process.wait(40) == code and asked.exists()


@pytest.mark.slow
def test_a_dead_vital_process_ends_a_command_that_waits_for_ever(tmp_path):
    # setproctitle is what Ray and vLLM use; argv[0] is what the supervisor reads.
    command = (
        "import subprocess, time; p = subprocess.Popen(['vital worker', '5'], executable='/bin/sleep'); "
        "time.sleep(2); p.kill(); p.wait(); time.sleep(600)"
    )
    process = run_supervised(tmp_path, command, grace=1.0)
    assert process.wait(40) == 1
    assert "vital worker" in process.stderr.read()


@pytest.mark.slow
def test_a_fork_of_a_vital_process_may_end(tmp_path):
    # A worker that starts a program: its fork bears its title, and is gone when it has become the program.
    worker = "import os, time; os._exit(0) if os.fork() == 0 and not time.sleep(3) else time.sleep(9)"
    command = f"import subprocess, sys; subprocess.run(['vital worker', '-c', {worker!r}], executable=sys.executable)"
    assert run_supervised(tmp_path, command, grace=1.0).wait(60) == 0


def test_only_unused_files_of_this_run_are_deleted(tmp_path):
    old, used, stale = (tmp_path / f"psm_{name}" for name in ("old", "used", "stale"))
    for file in (old, used, stale):
        file.write_bytes(b"x" * 4096)
    os.utime(old, (1, 1))
    with open(used, "r+b") as handle, mmap.mmap(handle.fileno(), 4096):
        assert supervise.remove_unused(tmp_path, ("psm_*",), since=time.time() - 60) == ["psm_stale"]
    assert old.exists() and used.exists() and not stale.exists()


def test_the_folder_of_a_killed_supervisor_goes_with_the_next_run_and_that_of_a_living_one_stays(tmp_path, monkeypatch):
    short = Path(tempfile.mkdtemp(dir="/tmp"))  # a longer one is not taken
    monkeypatch.setenv("TMPDIR", str(short))
    log = tmp_path / "log"
    killed = run_supervised(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    [child] = pids_in(log, 1)
    [abandoned] = short.glob("r3-*")
    foreign = short / "r3-foreign"
    foreign.mkdir()
    supervise.remove_abandoned(short)
    assert abandoned.exists(), "its supervisor lives"
    killed.kill()
    killed.wait()
    os.kill(child, signal.SIGKILL)
    assert run_supervised(tmp_path, "pass").wait(30) == 0
    assert [path.name for path in short.glob("r3-*")] == [foreign.name]
    shutil.rmtree(short)


def test_a_second_local_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "LOCK", tmp_path / "lock")
    with supervise.only_local_run():
        with pytest.raises(supervise.MachineBusy, match="another run is training"):
            with supervise.only_local_run():
                pass
    with supervise.only_local_run():
        pass


@pytest.mark.parametrize("question", ["status", "cmdline", "ppid"])
def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(question, monkeypatch):
    asked = getattr(psutil.Process, question)

    def ended(process):
        if process.pid == ends.pid:
            raise psutil.NoSuchProcess(process.pid)
        return asked(process)

    with subprocess.Popen(["sleep", "60"]) as ends, subprocess.Popen(["sleep", "60"]) as stays:
        monkeypatch.setattr(psutil.Process, question, ended)
        seen = supervise._titles()
        ends.kill()
        stays.kill()
    assert ends.pid not in seen and stays.pid in seen
