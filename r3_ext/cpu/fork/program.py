"""What a fork does to become the process that was asked for, and how it ends."""

import atexit
import fcntl
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from r3_ext.cpu.fork.environment import set_environment
from r3_ext.cpu.fork.protocol import Request
from r3_ext.host import private_network


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


def to_the_end(program: Callable[[], None]) -> NoReturn:
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
