"""A command as two processes, so that it leaves nothing behind, however it is ended.

The guard is the process that was called: it waits, and hands on the signals that it gets. The command itself runs in a
child, in a session of its own. A guard that is killed takes its command along: the kernel tells the child, which ends
what it started. A child that is killed leaves that to the guard. A terminal that closes, and SIGKILL to all processes
of a shell's job, reach the guard only.

Whoever wants a run to outlive the terminal says so as always: `nohup` ignores SIGHUP, and the child does too.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from r3_ext.host import descendants

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
GUARD_DIED = signal.SIGUSR1
"""What the kernel sends the child then."""
_gone = False


class HungUp(KeyboardInterrupt):
    """The terminal or the guard is gone, and nobody waits for what the command would still say."""


def is_gone() -> bool:
    """Whether this process was told that nobody waits for it."""
    return _gone


def stand_in() -> None:
    """Return in a child, which goes on with the command; the process that called stays behind as its guard."""
    descendants.adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    guard, terminals = os.getpid(), [fd for fd in (1, 2) if _is_terminal(fd)]
    if child := os.fork():
        _guard(child)
    os.setsid()

    def end(number: int, _) -> None:
        global _gone
        # The shell and the kernel both tell of a closed terminal: what the first one began is not to be broken off.
        for told in (signal.SIGHUP, GUARD_DIED):
            signal.signal(told, signal.SIG_IGN)
        _gone = True
        _let_go(terminals)
        raise HungUp

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, end)
    signal.signal(GUARD_DIED, end)
    descendants.die_with_parent(GUARD_DIED)
    if os.getppid() != guard:  # before the kernel knew that it is to tell
        os.kill(os.getpid(), GUARD_DIED)


@contextmanager
def not_now() -> Iterator[None]:
    """Inside, being told that nobody waits changes nothing; what is told meanwhile is heard at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, GUARD_DIED))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget() -> None:
    """In a fork of the child that becomes another program: what its guard would tell is not for it."""
    for number in (signal.SIGHUP, GUARD_DIED):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _is_terminal(fd: int) -> bool:
    with suppress(OSError):
        return os.isatty(fd)
    return False


def _let_go(terminals: list[int]) -> None:
    """What is still written goes nowhere: writing to a terminal that closed would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in terminals:
        if not _is_terminal(fd):
            os.dup2(nowhere, fd)
    os.close(nowhere)


def _guard(child: int) -> NoReturn:
    def hand_on(number: int, _) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in HANDED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hand_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_what_is_left()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_what_is_left() -> None:
    """Of a child that was killed before it could do so."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    descendants.end_all()
