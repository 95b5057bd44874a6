"""A command that is ended in any way takes its processes with it, those in sessions of their own too."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

TRAINING = """
import os, subprocess, sys, time
os.write(1, b"%d\\n" % os.getpid())
for depth in range(2):  # daemons: a fork in a session of its own, whose parent ends at once
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(600)
time.sleep({seconds})
"""


@pytest.fixture(autouse=True)
def sighup_as_at_a_terminal():
    """Also where the tests themselves run under nohup, which their commands would inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def script(log: Path, seconds: float = 600, more: str = "") -> list[str]:
    """A guarded command that trains under the supervisor; guard, child and all that train write their ids to `log`."""
    text = textwrap.dedent(
        f"""
        import os, sys
        from pathlib import Path
        from r3_ext.host import guard, supervise
        guard.stand_in()
        Path({str(log)!r}).write_text(f"{{os.getppid()}}\\n{{os.getpid()}}\\n")
        {more}
        command = [sys.executable, "-c", {TRAINING.format(seconds=seconds)!r}]
        try:
            code = supervise.run(command, dict(os.environ), Path({str(log)!r}), lambda: None, vital=())
        except KeyboardInterrupt:
            print("in order", file=sys.stderr, flush=True)
            code = 130
        sys.exit(code)
        """
    )
    return [sys.executable, "-c", text]


def started(log: Path, count: int = 5) -> list[psutil.Process]:
    """Guard, child, training and its two daemons."""
    deadline = time.monotonic() + 30
    while not log.exists() or len(log.read_text().split()) < count:
        assert time.monotonic() < deadline, "it did not start"
        time.sleep(0.1)
    return [psutil.Process(int(pid)) for pid in log.read_text().split()]


def assert_nothing_is_left(family: list[psutil.Process], seconds: float = 25) -> None:
    _, alive = psutil.wait_procs(family, timeout=seconds)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_a_guard_that_goes_takes_everything_with_it(tmp_path, number):
    guard = subprocess.Popen(script(tmp_path / "log"), stderr=subprocess.PIPE, text=True)
    family = started(tmp_path / "log")
    guard.send_signal(number)
    assert guard.wait(25) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert_nothing_is_left(family)
    assert guard.stderr.read() == "in order\n", "the child ended its run itself"


def test_a_child_that_is_killed_leaves_it_to_the_guard(tmp_path):
    guard = subprocess.Popen(script(tmp_path / "log"))
    family = started(tmp_path / "log")
    family[1].kill()
    assert guard.wait(30) == -signal.SIGKILL
    assert_nothing_is_left(family, 0.5)


def test_sigkill_to_the_whole_job_of_a_shell_reaches_the_guard_only(tmp_path):
    guard = subprocess.Popen(script(tmp_path / "log"), start_new_session=True)
    family = started(tmp_path / "log")
    os.killpg(guard.pid, signal.SIGKILL)
    guard.wait()
    assert_nothing_is_left(family)


def test_what_trains_dies_with_guard_and_child_where_both_are_killed(tmp_path):
    guard = subprocess.Popen(script(tmp_path / "log"))
    family = started(tmp_path / "log")
    for process in family[:2]:
        process.suspend()  # neither has time to do anything
    for process in family[:2]:
        process.kill()
    guard.wait()
    try:
        assert_nothing_is_left(family[:3], 5)
    finally:  # Ray's daemons die with the driver; these do not know it
        for process in family[3:]:
            process.kill()


def test_a_terminal_that_closes_ends_the_run_and_nobody_writes_to_it(tmp_path):
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, script(tmp_path / "log"))
    family = started(tmp_path / "log")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, "writing what is left to say is no error"
    assert_nothing_is_left(family)


def test_nohup_outlives_its_terminal(tmp_path):
    guard = subprocess.Popen(["nohup", *script(tmp_path / "log", seconds=4)], stderr=subprocess.DEVNULL)
    family = started(tmp_path / "log")
    for process in family[:2]:
        process.send_signal(signal.SIGHUP)
    assert guard.wait(30) == 0, "it ended by itself"
    assert_nothing_is_left(family)


def test_nohup_is_no_protection_from_sigkill(tmp_path):
    guard = subprocess.Popen(["nohup", *script(tmp_path / "log")], stderr=subprocess.DEVNULL)
    family = started(tmp_path / "log")
    guard.kill()
    guard.wait()
    assert_nothing_is_left(family)


@pytest.mark.parametrize("end, code", [("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", -15)])
def test_the_guard_ends_as_its_child_did(tmp_path, end, code):
    assert subprocess.run(script(tmp_path / "log", more=end), check=False).returncode == code


@pytest.mark.parametrize("name, number", [("SIGTERM", signal.SIGTERM), ("SIGINT", signal.SIGINT)])
def test_signals_are_handed_on(tmp_path, name, number):
    wait = f"import signal, time; signal.signal(signal.{name}, lambda *_: sys.exit(9)); time.sleep(60)"
    guard = subprocess.Popen(script(tmp_path / "log", more=wait))
    started(tmp_path / "log", 2)
    time.sleep(0.5)
    guard.send_signal(number)
    assert guard.wait(20) == 9


def test_the_commands_that_start_processes_are_guarded():
    from r3_ext.cli import COMMANDS, GUARDED

    assert set(GUARDED) < set(COMMANDS)
    code = "import psutil, os; from r3_ext.run import command; command.main = lambda argv: print(os.getppid()) or 0; "
    code += "import sys; sys.argv = ['r3', 'run']; from r3_ext import cli; sys.exit(cli.main())"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert int(process.communicate()[0]) == process.pid and process.returncode == 0
