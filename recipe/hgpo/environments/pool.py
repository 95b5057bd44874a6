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
"""Sessions in text worlds beside each other, a process each: what one of them does to its process, it does to itself.

    pool = EnvironmentPool(Limits(processes=64))
    async with pool.open(task) as session:
        while not done:
            played = await session.step(answer)

For one event loop, whose other tasks go on while a world thinks.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe.common.process_pool import MEMORY_LIMIT_BYTES, START_ATTEMPTS, START_TIMEOUT_S, start_process
from recipe.hgpo.environments import template, wire
from recipe.hgpo.environments.base import Observation, Step, match, refused

CRASHED, HUNG, LIED, REFUSED = REASONS = ("crashed", "hung", "lied", "refused")
"""Why a session ended: its process did; no answer came in time; the answer is none; the task cannot be played."""

LATE_S = 0.2
"""More time for an answer that may be there already: at a deadline, it may be this process that was busy."""
END_S = 2.0
"""What a world may take to close."""


class EnvironmentFailed(Exception):
    """A session ended, and only this one.

    Args:
        reason: one of REASONS.
        told: a sentence or the end of a traceback.
    """

    def __init__(self, reason: str, told: str):
        super().__init__(reason, told)
        self.reason = reason

    def __str__(self) -> str:
        return f"the environment {self.args[0]}: {self.args[1]}"


@dataclass(frozen=True)
class Limits:
    processes: int = 64
    """Sessions at a time; others wait until one is over, and that counts against no deadline."""
    deadline_s: float = 30.0
    """What a world may take to begin an episode, and for a step."""
    memory_bytes: int | None = MEMORY_LIMIT_BYTES
    """Address space of a session beyond what its adapter has loaded. None for worlds in Java, which reserve much."""


@dataclass(frozen=True)
class Played:
    command: str | None
    """What was played. None: nothing, the answer was not admissible, and the world was not asked."""
    step: Step


class Session:
    """An episode: `observation` is what is to be seen now."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits):
        self.observation = Observation("")
        self.done = False
        self.seconds = 0.0
        """In the environment so far."""
        self._reader, self._writer, self._limits, self._asked = reader, writer, limits, 0
        self._is_answering = False

    async def begin(self, task: Mapping[str, Any]) -> None:
        with _lying():
            self.observation = wire.observation_of(await self._ask(task, wire.OBSERVATION))

    async def step(self, answer: str) -> Played:
        """What a model's answer leads to.

        Raises:
            EnvironmentFailed: this session is over.
        """
        assert not (self.done or self._is_answering), "nobody plays on after the end"
        command = match(answer, self.observation.commands)
        if command is None:
            played = Played(None, refused(self.observation))
        else:
            with _lying():
                played = Played(command, wire.step_of(await self._ask(command, wire.STEP)))
        self.observation, self.done = played.step.observation, played.step.done
        return played

    async def _ask(self, question: Any, wanted: str) -> Any:
        begin, deadline_s = time.monotonic(), self._limits.deadline_s
        self._is_answering = True
        try:
            asked = wire.question(self._asked, question)
        except TypeError as error:
            raise EnvironmentFailed(REFUSED, f"the column task: {error}") from None
        try:
            self._writer.write(asked)
            kind, value = wire.unpacked(await self._line(deadline_s), self._asked)
        except TimeoutError:
            raise EnvironmentFailed(HUNG, f"no answer in {deadline_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EnvironmentFailed(CRASHED, "its process ended") from None
        except asyncio.LimitOverrunError:
            raise EnvironmentFailed(LIED, f"its answer has more than {wire.MOST_BYTES} bytes") from None
        finally:
            self._asked += 1
            self.seconds += time.monotonic() - begin
        if kind in (REFUSED, CRASHED):
            raise EnvironmentFailed(kind, str(value).strip())
        if kind != wanted:
            raise EnvironmentFailed(LIED, f"its answer must be of kind {wanted}, got {kind!r}")
        self._is_answering = False
        return value

    async def _line(self, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._reader.readuntil()
        except TimeoutError:
            async with asyncio.timeout(LATE_S):
                return await self._reader.readuntil()

    async def close(self) -> None:
        """Let the world close, unless it owes an answer; returns when its process is gone, or has had its time."""
        if self._is_answering:
            return
        with contextlib.suppress(TimeoutError, ConnectionError):
            self._writer.write(wire.question(self._asked, None))
            async with asyncio.timeout(END_S):
                while await self._reader.read(wire.MOST_BYTES):
                    pass


@contextlib.contextmanager
def _lying():
    """What is not as a world has to answer."""
    try:
        yield
    except ValueError as error:
        raise EnvironmentFailed(LIED, str(error)[:500]) from error


class _Template:
    """The process of a world that sessions are forked from, see `template`."""

    def __init__(self, world: str, memory_bytes: int | None):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.folder = tempfile.mkdtemp(prefix="worlds-")
        arguments = (world, self.folder, "" if memory_bytes is None else str(memory_bytes))
        self.process = start_process(template.__name__, theirs.fileno(), arguments)
        theirs.close()

    async def ready(self) -> None:
        """
        Raises:
            EnvironmentFailed: it did not start.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                told = await asyncio.get_running_loop().sock_recv(self.control, template.MOST_REQUEST_BYTES)
        except TimeoutError:
            raise EnvironmentFailed(HUNG, f"its adapter did not load in {START_TIMEOUT_S} s") from None
        if not told:
            raise EnvironmentFailed(CRASHED, "its adapter did not load, the error is on stderr")
        if told != template.READY:
            raise EnvironmentFailed(REFUSED, told.decode(errors="replace"))

    def ask(self, kind: str, number: int, fds: list[int]) -> bool:
        """Whether the request was taken. Else the process is of no use any more, and ends."""
        try:
            socket.send_fds(self.control, [json.dumps({kind: number}).encode()], fds)
        except OSError:  # it ended, is stuck, or was closed
            self.process.kill()
            return False
        return True

    def close(self) -> None:
        """End it with its sessions."""
        self.control.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel kills its sessions then
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class EnvironmentPool:
    """Sessions of any worlds, for one event loop. What is still open ends with `close`, or with this process."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.processes)
        self._starting: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By world: one that takes long to load keeps no other waiting."""
        self._templates: dict[str, _Template] = {}
        self._failed: dict[str, list[EnvironmentFailed]] = {}
        """By world, what its starts ended with, one after the other."""
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def open(self, task: Any) -> AsyncIterator[Session]:
        """A session of a task whose `world` names the adapter; its process ends with the block.

        Raises:
            EnvironmentFailed: it could not begin.
        """
        if not isinstance(task, Mapping):
            raise EnvironmentFailed(REFUSED, f"the column task must hold a task with its `world`, got {task!r:.100}")
        async with self._slots:
            parent = await self._template(str(task.get("world")))
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=wire.MOST_BYTES)
            number, session = next(self._numbers), Session(reader, writer, self._limits)
            try:
                taken = parent.ask("open", number, [theirs.fileno()])
                theirs.close()
                if not taken:
                    raise EnvironmentFailed(CRASHED, "the process that sessions are forked from ended")
                await session.begin(task)
                yield session
                await session.close()
            finally:
                parent.ask("end", number, [])
                writer.close()

    async def _template(self, world: str) -> _Template:
        async with self._starting[world]:
            found = self._templates.get(world)
            if found and found.process.poll() is None:
                return found
            if found:
                self._templates.pop(world).close()
            failed = self._failed.setdefault(world, [])
            if len(failed) == START_ATTEMPTS or (failed and failed[-1].reason == REFUSED):
                raise EnvironmentFailed(*failed[-1].args)
            with contextlib.ExitStack() as undo:
                started = _Template(world, self._limits.memory_bytes)
                undo.callback(started.close)
                try:
                    await started.ready()
                except EnvironmentFailed as error:
                    failed.append(error)
                    raise
                undo.pop_all()
            failed.clear()
            self._templates[world] = started
            return started

    def close(self) -> None:
        """End every process of it."""
        for each in self._templates.values():
            each.close()
        self._templates.clear()
