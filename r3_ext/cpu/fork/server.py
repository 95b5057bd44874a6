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

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

from r3_ext.cpu import vllm_distribution
from r3_ext.host import private_network

LIBRARIES = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "tensordict",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "datasets",
    "peft",
    "hydra",
    "fastapi",
    "openai",
    "math_verify",
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_model_runner",
)
"""What a run's processes import of other projects, and what does not import Ray."""

ENVIRONMENT = {
    # Actor and vLLM take turns, small matrices gain nothing from a second thread, and threads that wait spin: on a
    # busy machine two of them make a step several times as long.
    "OMP_NUM_THREADS": "1",
    # vLLM's sampler would be compiled: a step takes as long without (benchmarks/README.md), and needs no C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # What verl sets in the processes of a run, and vLLM in those that it spawns there.
    "TOKENIZERS_PARALLELISM": "true",
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_BATCH_INVARIANT": "0",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Given to a run from its start on, where the user has not set them, so that its processes agree with the server."""

READ_WHILE_LOADING = (
    *("HF_", "GOMP_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TOKENIZERS_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE", "TORCH_LOGS", "TRANSFORMERS_", "TRITON_", "VLLM_"),
)
"""How the names of the variables begin in which a fork and the server must agree."""

READ_LATER = {
    "PYTHONBREAKPOINT",  # Ray sets it
    "LD_PRELOAD",  # vLLM gives its engine another allocator, which no result depends on
    "VLLM_SSM_CONV_STATE_LAYOUT",  # vLLM sets it where the processor has AMX; read when a state-space model is built
}

VARIABLE = "R3_FORKING_PYTHON"
"""Tells the processes of a run where the executable is."""

CLIENT = Path(__file__).with_name("client.py")
SOCKET, EXECUTABLE, LOG = "socket", "python", "forkserver.log"
READY = "ready"
ORPHAN_CHECK_S = 5.0
MOST_FDS = 250


class Request(NamedTuple):
    """What `client.py` sends: the arguments after the interpreter, and what a process inherits."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    fds: list[int]
    """Numbers under which the passed file descriptors were open."""


def use_for_spawned_processes() -> None:
    """Let multiprocessing start its processes as forks too, where this process's run has a server."""
    if executable := os.environ.get(VARIABLE):
        multiprocessing.set_executable(executable)


def start(folder: Path) -> Path:
    """Import the libraries, fork the server and return its executable.

    Raises:
        RuntimeError: this process has Ray loaded, or other threads, which a fork would not have.
    """
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
        _to_the_end(lambda: ForkServer(listener, before, folder / LOG).serve(parent))
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


def environment() -> dict[str, str]:
    """This process's environment with what a run sets in its own."""
    return {**ENVIRONMENT, **os.environ}


def load_libraries() -> None:
    vllm_distribution.present()
    for name in LIBRARIES:
        importlib.import_module(name)


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
            _tell(client, reason)
            client.close()
        elif pid := os.fork():
            self.clients[pid] = client
            self.selector.register(client, selectors.EVENT_READ, lambda _: self._hung_up(pid))
            _tell(client, str(pid))
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
                _tell(client, str(os.waitstatus_to_exitcode(status)))
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


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """A request, a line of JSON, and the file descriptors that come with its first byte.

    Raises:
        ValueError: the client broke off.
    """
    text, fds, _, _ = socket.recv_fds(client, 1 << 16, MOST_FDS)
    while not text.endswith(b"\n"):
        if not (more := client.recv(1 << 16)):
            raise ValueError("the request ends before its end of line")
        text += more
    return Request(**json.loads(text)), fds


def _tell(client: socket.socket, line: str) -> None:
    with suppress(OSError):  # it was killed
        client.sendall(f"{line}\n".encode())


def become(request: Request, fds: list[int], changed: dict[str, str], client: int) -> None:
    """Make this fork the process that was asked for, and run its program.

    changed: environment variables that loading the libraries set. client: process id of the client, whose network the
    fork is in, as a child of it would be.
    """
    private_network.join(client)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _place(fds, request.fds)
    set_environment(request.env | changed)
    os.chdir(request.cwd)
    # The server's answer to a question that depends on TMPDIR; a run's is another folder, which goes with the run.
    tempfile.tempdir = None
    import numpy
    import torch

    # Python's own generator is seeded anew in every fork already.
    numpy.random.seed()
    torch.seed()
    run_program(request.argv)


def set_environment(wanted: dict[str, str]) -> None:
    """Touches what differs only: Ray and vLLM, to set a process's title, look for its place beside the variables that
    the process was started with."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _place(fds: list[int], numbers: list[int]) -> None:
    """Give open file descriptors other numbers, inheritable ones."""
    free = max((2, *fds, *numbers)) + 1
    for fd, number in zip([_moved(fd, free) for fd in fds], numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _moved(fd: int, least: int) -> int:
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return copy


def run_program(argv: list[str]) -> None:
    """As `python *argv` does, for a script, -m and -c."""
    if argv[0] == "-B":  # multiprocessing hands it on
        sys.dont_write_bytecode = True
        argv = argv[1:]
    first, *rest = argv
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


def _to_the_end(program: Callable[[], None]) -> NoReturn:
    """Run `program` and end this process as the interpreter would; nothing of the caller runs in it any more."""
    code = 0
    try:
        program()
    except SystemExit as end:
        if end.code is not None:
            code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        traceback.print_exc()
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def main() -> None:
    folder, parent = Path(sys.argv[1]), os.getppid()
    start(folder)
    print(READY, flush=True)
    # Whoever started it may be killed: nothing is left then.
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)


if __name__ == "__main__":
    main()
