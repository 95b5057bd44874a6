"""Locks that belong to what trains: an open file that the training inherits, so that they outlive whoever took them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Taken(Exception):
    """Another process has the lock. Its text ends a sentence: which one, as far as it can be seen."""


def make(path: Path) -> None:
    """A file to lock, whoever made it: one that is there is not written to, which another user's would refuse."""
    with suppress(FileExistsError):
        handle = os.open(path, os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(handle, 0o644)  # whatever the umask says: the next user reads it
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Keep a file or a folder for this process, and for those to which it hands the file descriptor that is yielded.

    Raises:
        Taken: by another one.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Taken(_told(holders(path))) from None
        yield handle
    finally:
        os.close(handle)


def holders(path: Path) -> list[int]:
    """Process ids of those who have the lock, the oldest first; of other users' processes nothing can be seen."""
    import psutil  # without which the doctor says so

    place, found = os.path.realpath(path), []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and _has_lock(process.pid, place):
                found.append((process.create_time(), process.pid))
        except (psutil.NoSuchProcess, OSError):
            continue
    return [pid for _, pid in sorted(found)]


def _has_lock(pid: int, place: str) -> bool:
    """The kernel lists the locks of an open file beside it."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}") == place:
                with open(f"/proc/{pid}/fdinfo/{fd}") as info:
                    if any(line.startswith("lock:") for line in info):
                        return True
        except OSError:  # closed meanwhile
            continue
    return False


def _told(pids: list[int]) -> str:
    if not pids:
        return "by a process that cannot be seen from here: another user's, or another container's"
    others = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
    return f"by process {pids[0]}{others}; wait for it, or end it in order with `kill {pids[0]}`"
