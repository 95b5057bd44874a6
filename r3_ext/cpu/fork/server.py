r"""Python processes that have torch, transformers and vLLM loaded when they begin, as forks of one that loaded them.

A run is ten processes, and what takes each of them longest is to import the same libraries. `start` imports them in
this process, forks a server off it and returns the path of an executable that stands for the Python interpreter:
whatever is started with it begins as a fork of the server. Ray takes it as `py_executable`, multiprocessing as the
executable for spawned processes.

`serving` does the same in a process of its own, for several runs that follow each other: the first process of each run
is a fork too, which has the libraries already when it starts a server for its own processes.

Nothing of Ray, verl or this project is loaded in the server. Ray reads the job that a process belongs to when its
library is loaded, verl picks its platform and external modules then; each fork does that by itself, in about a second.

A process whose environment differs from the server's in a variable that is read while libraries load is not a fork: it
starts as a new interpreter, and its standard error says why. So a fork behaves as a process that was started anew; only
Python's hash seed is the same in all of them.
"""

import gc
import os
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from r3_ext.cpu.fork.environment import (
    READ_LATER,
    READ_WHILE_LOADING,
    VARIABLE,
    environment,
    load_libraries,
    set_environment,
    torch_came_before,
)
from r3_ext.cpu.fork.program import become, to_the_end
from r3_ext.cpu.fork.protocol import Request, receive, tell
from r3_ext.host import guard

CLIENT = Path(__file__).with_name("client.py")
SOCKET, EXECUTABLE, LOG = "socket", "python", "forkserver.log"
READY = "ready"
ORPHAN_CHECK_S = 5.0


def start(folder: Path) -> Path:
    """Import the libraries, fork the server and return its executable.

    Raises:
        RuntimeError: this process has Ray loaded, or other threads, which a fork would not have; or torch, which read
            the environment as it was.
    """
    if torch_came_before():
        raise RuntimeError("the fork server must start before torch is loaded, which reads OMP_NUM_THREADS then")
    set_environment(environment())
    before = dict(os.environ)
    with _output_in(folder / LOG):
        load_libraries()
    if "ray" in sys.modules or threading.active_count() > 1:
        raise RuntimeError(f"the fork server must start before Ray and threads, found {threading.enumerate()}")
    listener = _listen(folder)
    os.environ[VARIABLE] = str(folder / EXECUTABLE)
    sys.stdout.flush()
    sys.stderr.flush()
    # What is alive now stays: collecting garbage must not touch, and so copy, the pages that the forks share.
    gc.collect()
    gc.freeze()
    parent = os.getpid()
    if not os.fork():
        to_the_end(lambda: ForkServer(listener, before, folder / LOG).serve(parent))
    gc.unfreeze()
    listener.close()
    return folder / EXECUTABLE


@contextmanager
def serving(folder: Path):
    """A server for several runs; yields its executable. Runs are to be started with `environment()`."""
    command = [sys.executable, "-m", "r3_ext.cpu.fork.server", str(folder)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout.readline().strip() != READY:
                raise RuntimeError(f"the fork server did not start, see {folder / LOG}")
            yield folder / EXECUTABLE
        finally:
            process.terminate()


@contextmanager
def _output_in(log: Path):
    """Standard output and error of this process, its C libraries' included, go to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    _redirect_output(log)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _redirect_output(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _listen(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    command = [sys.executable, "-IS", str(CLIENT), str(folder / SOCKET)]
    executable = folder / EXECUTABLE
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    executable.chmod(0o700)
    return listener


class ForkServer:
    """Forks for every request; a fork becomes what was asked for, and its client lives as long as it does."""

    def __init__(self, listener: socket.socket, before: dict[str, str], log: Path):
        """before: the environment in which the libraries were loaded; some of them changed it."""
        # Ctrl-C at the terminal is for the run, which ends its processes in order.
        os.setsid()
        guard.forget()
        _redirect_output(log)
        self.listener, self.before = listener, before
        self.changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
        self.clients: dict[int, socket.socket] = {}
        """By process id of the fork."""
        self.wakeup, self._wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_in)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self._reap)

    def serve(self, parent: int) -> None:
        """Until `parent` is gone and no fork is left. Returns in a fork when its program has ended."""
        while self.clients or os.getppid() == parent:
            for key, _ in self.selector.select(ORPHAN_CHECK_S):
                if (program := key.data(key.fileobj)) is not None:
                    return program()

    def _accept(self, listener: socket.socket) -> Callable[[], None] | None:
        """In a new fork its program, else None."""
        client, _ = listener.accept()
        try:
            request, fds = receive(client)
        except (ValueError, OSError) as error:
            print(f"refused: {error!r}", file=sys.stderr, flush=True)
            client.close()
            return None
        if reason := self._refusal(request):
            tell(client, reason)
            client.close()
        elif pid := os.fork():
            self.clients[pid] = client
            self.selector.register(client, selectors.EVENT_READ, lambda _: self._hung_up(pid))
            tell(client, str(pid))
        else:
            of_client = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            client.close()
            self._forget()
            return lambda: become(request, fds, self.changed, of_client)
        for fd in fds:
            os.close(fd)
        return None

    def _refusal(self, request: Request) -> str | None:
        """Why a fork would not be what a new interpreter is, or None."""
        if not request.argv or (request.argv[0].startswith("-") and request.argv[0] not in ("-B", "-c", "-m")):
            return f"arguments of the interpreter: {request.argv[:1]}"
        names = {name for name in (*request.env, *self.before) if name.startswith(READ_WHILE_LOADING)} - READ_LATER
        # A process that has loaded the libraries hands on what they changed.
        known = {name: (self.before.get(name), os.environ.get(name)) for name in names}
        different = sorted(name for name in names if request.env.get(name) not in known[name])
        return f"other values of {', '.join(different)}" if different else None

    def _hung_up(self, pid: int) -> None:
        """The client was killed, by somebody who means the process that it stands for."""
        if pid in self.clients:  # else it ended at the same moment
            self.selector.unregister(self.clients[pid])
            os.kill(pid, signal.SIGKILL)

    def _reap(self, wakeup: int) -> None:
        os.read(wakeup, 4096)
        while self.clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self.clients.pop(pid)
            if client in self.selector.get_map():
                self.selector.unregister(client)
                tell(client, str(os.waitstatus_to_exitcode(status)))
            client.close()

    def _forget(self) -> None:
        """In a fork: let go of what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for connection in (self.listener, *self.clients.values()):
            connection.close()
        os.close(self.wakeup)
        os.close(self._wakeup_in)


def main() -> None:
    folder, parent = Path(sys.argv[1]), os.getppid()
    start(folder)
    print(READY, flush=True)
    # Whoever started it may be killed: nothing is left then.
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)


if __name__ == "__main__":
    main()
