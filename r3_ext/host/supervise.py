"""Runs a training command so that it cannot hang and leaves nothing behind.

The supervisor adopts every descendant (Linux child subreaper), so it sees Ray actors and vLLM engines even after their
parents are gone. A worker that dies while the run goes on gives the trainer `GRACE_S` to notice; then the run is ended.
The command dies with the supervisor; that one's own end is the guard's matter (guard.py).
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from r3_ext.host import descendants, guard, locks
from recipe.common.config.machine_rules import has_room_for_sockets

GRACE_S = 60.0
VITAL = (
    "ray::TaskRunner",
    "ray::WorkerDict",
    "ray::vLLMHttpServer",
    "ray::CheckpointEngineWorker",
    "ray::AgentLoopWorker",
    "ray::RewardLoopWorker",
    "ray::SimpleStorageUnit",
    "ray::TransferQueueController",
    "VLLM::",
    "raylet",
    "gcs_server",
)
"""Process titles without which a run cannot go on."""
SHARED_MEMORY = ("psm_*", "verl_weights_*", "sem.mp-*")
"""What Python, verl and vLLM leave in /dev/shm when they are killed."""
SCRATCH = "r3-"
OWNER = "supervisor.lock"
"""File in a scratch folder that its supervisor keeps locked as long as it lives."""

LOCK = Path("/tmp/verl-local-run.lock")
SOCKETS = "rl-colocate-zmq-*.sock"
"""verl names its weight sync sockets in /tmp after the Ray job id, which every local Ray cluster starts at 1."""


class WorkerDied(RuntimeError):
    """A vital process ended while the run went on."""


class MachineBusy(RuntimeError):
    """Another local run is using the socket names that this one would use."""


@contextmanager
def only_local_run():
    """Hold the machine's lock on local runs: the weights of one of two at once would arrive in the other.

    Yields the file descriptor that holds it, for `run`.

    Raises:
        MachineBusy: another run holds it.
    """
    try:
        locks.make(LOCK)
        with locks.locked(LOCK) as lock:
            yield lock
    except PermissionError as error:
        raise MachineBusy(f"{LOCK} of another user cannot be read ({error.strerror}): have it removed") from None
    except locks.Taken as taken:
        raise MachineBusy(
            "another run is training on this machine, and verl's weight sync sockets of two local Ray clusters "
            f"collide: the machine is taken {taken}"
        ) from None


def run(
    command: list[str],
    env: dict[str, str],
    log: Path,
    on_poll: Callable[[], None],
    vital: tuple[str, ...] | None = None,
    on_sigterm: Callable[[], None] | None = None,
    held: tuple[int, ...] = (),
) -> int:
    """Run `command` with its output in `log` until it ends, calling `on_poll` about twice a second.

    `vital` are the beginnings of titles of processes without which the command cannot go on (None: `VITAL`).
    `on_sigterm` asks the command to end by itself at the first SIGTERM; the second one ends it as Ctrl-C does.
    `held` are file descriptors of locks, which the command inherits: they are taken as long as it lives.
    Returns the exit code. Whatever happens, Ctrl-C included, no process, shared memory or socket of the run is left.

    Raises:
        WorkerDied: a vital process ended and the command did not react within `GRACE_S`.
        KeyboardInterrupt: on SIGINT, and on SIGTERM where nothing else is said, after the cleanup.
    """
    descendants.adopt_orphans()
    asked = False

    def sigterm(*_) -> None:
        nonlocal asked
        if on_sigterm is None or asked:
            raise KeyboardInterrupt
        asked = True
        on_sigterm()

    before = signal.signal(signal.SIGTERM, sigterm)
    started = time.time()
    with open(log, "ab") as output, scratch_folder() as scratch:
        env = {**env, "TMPDIR": str(scratch), "RAY_TMPDIR": str(scratch)}
        child = subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=held,
            preexec_fn=descendants.die_with_parent,
        )
        try:
            return _watch(child, on_poll, VITAL if vital is None else vital)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            with guard.not_now():
                descendants.end_all(child)
                remove_unused(Path("/dev/shm"), SHARED_MEMORY, started)
                remove_unused(Path("/tmp"), (SOCKETS,), started)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, before)


@contextmanager
def scratch_folder():
    """A temporary folder that goes with this process, at the latest when the next one is made.

    Its path is short, in /tmp where TMPDIR is too long: Ray, zmq and the fork server put sockets into it.
    """
    folder = tempfile.gettempdir()
    if not has_room_for_sockets(f"{folder}/{SCRATCH}12345678/ray"):
        folder = "/tmp"
    remove_abandoned(Path(folder))
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    try:
        with open(scratch / OWNER, "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _watch(child: subprocess.Popen, on_poll: Callable[[], None], titles: tuple[str, ...]) -> int:
    vital: dict[int, str] = {}
    died_at, name = None, ""
    while (code := child.poll()) is None:
        on_poll()
        alive = _titles()
        vital.update({pid: title for pid, title in alive.items() if title.startswith(titles)})
        gone = [pid for pid in vital if pid not in alive]
        if gone and died_at is None:
            died_at, name = time.monotonic(), vital[gone[0]]
        if died_at is not None and time.monotonic() - died_at > GRACE_S:
            raise WorkerDied(f"{name} (pid {gone[0]}) died and the trainer did not end within {GRACE_S:.0f} s")
        time.sleep(0.5)
    on_poll()
    return code


def _titles() -> dict[int, str]:
    """Title of every living descendant, without the forks of one.

    A worker that starts a program is there twice until its fork becomes that program: the end of the fork is no death.
    """
    import psutil  # without which the doctor says so

    living = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                title = " ".join(process.cmdline()).strip()
                # At once: the process may end between any two of these questions.
                living[process.pid] = title if not title.startswith("/") else process.name(), process.ppid()
        except psutil.NoSuchProcess:
            continue
    return {pid: title for pid, (title, parent) in living.items() if living.get(parent, (None,))[0] != title}


def remove_unused(folder: Path, patterns: tuple[str, ...], since: float) -> list[str]:
    """Delete this user's files created after `since` that no living process maps or holds open; returns their names."""
    stale = [
        path
        for pattern in patterns
        for path in folder.glob(pattern)
        if path.stat().st_uid == os.getuid() and path.stat().st_mtime >= since
    ]
    used = _paths_in_use() if stale else set()
    removed = [path for path in stale if str(path) not in used]
    for path in removed:
        path.unlink(missing_ok=True)
    return [path.name for path in removed]


def remove_abandoned(folder: Path) -> None:
    """Delete the scratch folders of this user whose supervisor was killed: nobody holds the lock in them any more."""
    for scratch in folder.glob(SCRATCH + "*"):
        try:
            with open(scratch / OWNER, "r+") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError:
            # In use, another user's, or not one of ours.
            continue


def _paths_in_use() -> set[str]:
    import psutil

    used = set()
    for process in psutil.process_iter():
        try:
            used.update(entry.path for entry in process.memory_maps(grouped=True))
            used.update(entry.path for entry in process.open_files())
            used.update(entry.laddr for entry in process.net_connections("unix") if entry.laddr)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return used
