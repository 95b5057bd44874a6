# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The process that sessions of one world are forked from, and what a session's process does.

It loads the world's adapter once (TextWorld: 1.3 CPU seconds) and forks for each session, in a few milliseconds. So a
session that hangs in C, uses up memory or crashes is a process of its own, and ends alone.

multiprocessing's forkserver would not do: each of its children runs the main script again, it can load modules but call
nothing, and there is one in a process, for whoever comes first.

Nothing is left behind: a session dies with this process (the kernel sees to it), with all that it started, and so does
its folder, where its working directory and temporary files are; this process ends when its parent does.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import traceback
from pathlib import Path

from recipe.common.process_pool import ALIVE_CHECK_S, limit_memory
from recipe.hgpo.environments import wire
from recipe.hgpo.environments.base import Environment, adapter

READY = b"ready"
PR_SET_PDEATHSIG = 1
MOST_REQUEST_BYTES = 4096
MOST_REASON_CHARS = 2000


def serve(pipe: int, parent_pid: int, world: str, folder: str, memory_bytes: str) -> None:
    """Fork a session for each request, until the parent is gone.

    Args:
        pipe: a socket that keeps messages apart. Requests are {"open": number} with the session's socket, and
            {"end": number}. The first answer is READY, or why the world cannot be loaded; there is no other.
        folder: an empty one for the sessions' own; it goes with this process.
        memory_bytes: what a session may use beyond what is loaded; "" for no limit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=pipe)
    try:
        played = adapter(world)
        if warm_up := getattr(played, "warm_up", None):
            warm_up()
    except ValueError as error:
        control.send(str(error).encode()[:MOST_REQUEST_BYTES])
        return
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, the pages of all that is loaded
    control.send(READY)
    sessions = Sessions(played, Path(folder), int(memory_bytes) if memory_bytes else None)
    with contextlib.suppress(ConnectionError):
        while os.getppid() == parent_pid:
            sessions.reap()
            # A fork of the parent may hold its end open: the end of the pipe alone does not tell.
            if not select.select([control], [], [], ALIVE_CHECK_S)[0]:
                continue
            request, fds, _, _ = socket.recv_fds(control, MOST_REQUEST_BYTES, 1)
            if not request:
                break
            (kind, number), *_ = json.loads(request).items()
            if kind == "end":
                sessions.end(number)
            else:
                sessions.open(number, fds[0], control)
    sessions.close()


class Sessions:
    """The forks of this process."""

    def __init__(self, played: type[Environment], folder: Path, memory_bytes: int | None):
        self._played, self._folder, self._memory_bytes = played, folder, memory_bytes
        self._pids: dict[int, int] = {}
        """By the number of the session."""

    def open(self, number: int, fd: int, control: socket.socket) -> None:
        own_pid = os.getpid()
        folder = self._folder / str(number)
        try:
            folder.mkdir()
            pid = os.fork()
        except OSError:  # a full disk, too many processes: this session's end alone, the others go on
            traceback.print_exc()
            os.close(fd)
            return
        if pid:
            with contextlib.suppress(OSError):  # it is over already
                os.setpgid(pid, pid)
            self._pids[number] = pid
            os.close(fd)
            return
        try:
            control.close()
            _stand_alone(own_pid, folder)
            if self._memory_bytes is not None:
                limit_memory(self._memory_bytes)
            play(socket.socket(fileno=fd), self._played)
        finally:
            os._exit(0)

    def end(self, number: int) -> None:
        """Kill a session with what it started, and wait for that: it cannot take long."""
        if pid := self._pids.pop(number, None):
            with contextlib.suppress(ProcessLookupError):  # it died before it had a group
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(self._folder / str(number), ignore_errors=True)

    def reap(self) -> None:
        """What sessions that ended by themselves leave: children of theirs, and their folders."""
        while self._pids:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            self.end(next(number for number, pid in self._pids.items() if pid == ended.si_pid))

    def close(self) -> None:
        for number in list(self._pids):
            self.end(number)
        shutil.rmtree(self._folder, ignore_errors=True)


def _stand_alone(parent_pid: int, folder: Path) -> None:
    """In a fork: its own group, folder and output, and it ends with its parent."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def play(connection: socket.socket, played: type[Environment]) -> None:
    """One session: answers what its pool asks, see `wire`."""
    questions = connection.makefile("rb")
    environment = None
    number = 0
    try:
        while line := questions.readline():
            number, value = json.loads(line)
            if value is None:
                break
            if environment is None:
                environment = played(value)
                connection.sendall(wire.answer(number, wire.OBSERVATION, environment.reset()))
            else:
                connection.sendall(wire.answer(number, wire.STEP, environment.step(value)))
        if environment is not None:
            environment.close()
    except Exception as error:  # whatever the world's code raises is told, and ends this session only
        refuses = number == 0 and isinstance(error, ValueError | OSError)
        reason = str(error) if refuses else "".join(traceback.format_exception(error, limit=-3))
        kind = wire.REFUSED if refuses else wire.CRASHED
        connection.sendall(wire.answer(number, kind, reason[-MOST_REASON_CHARS:]))
