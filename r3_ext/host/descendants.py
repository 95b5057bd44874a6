"""Processes below this one: how it gets to know of all of them, and how they end."""

import ctypes
import os
import signal
import subprocess

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on this process gets the descendants whose parents are gone, those in sessions of their own too."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Between fork and exec: the kernel sends this process `number` when the thread that forked it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_all(child: subprocess.Popen | None = None, patience_s: float = 10.0) -> None:
    """End the command and everything that this process and it started: politely, then by force."""
    if child is not None and child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
    import psutil  # not for a guard, which has nothing to end as a rule

    for send in ("terminate", "kill"):
        processes = psutil.Process().children(recursive=True)
        for process in processes:
            try:
                getattr(process, send)()
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(processes, timeout=patience_s / 2)
        if not left:
            break
    _reap()


def _reap() -> None:
    """Collect adopted zombies."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
