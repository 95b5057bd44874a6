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
"""Processes that answer questions: killed at a deadline, with what they started, and gone when this process is gone.

verl scores in threads and asyncio, where a time limit by signal cannot work, and what is asked of model output can take
for ever or fill the memory. concurrent.futures cannot kill a worker, hence this pool.

A module that is asked has a function `serve(pipe, parent_pid, *arguments)`: `questions` is its loop.
"""

import atexit
import contextlib
import multiprocessing
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120
"""A worker imports in seconds; this much is for a node that is starting everything at once."""

START_ATTEMPTS = 3
"""A worker may be killed for memory while it starts; one that cannot start fails each time."""

FIRST_CALL_S = START_TIMEOUT_S
"""What the first answer of a fresh process may take beyond its deadline. Much code loads its libraries, or starts
processes, when it is first called, which is as much as starting: seconds, on a busy node many."""

FIRST_CALLS_IN_VAIN = 3
"""So many first answers may use up all of that without coming. Were it more, a function that hangs would cost minutes
for each answer, where its deadline is seconds."""

MEMORY_LIMIT_BYTES = 2 * 2**30
"""Address space for answers, beyond what a worker has loaded. What needs more has none, and the machine keeps its
memory."""

ALIVE_CHECK_S = 1.0
"""How often a worker looks whether its parent still lives."""

MOST_ANSWER_BYTES = 2**20
NUMBER_BYTES = 8
"""A message of a worker: the question's number, 1 or 0 for whether it takes another one, the answer."""


@contextlib.contextmanager
def calling_after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act`, in a thread, when the block takes longer; not once the block is over."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextlib.contextmanager
def within(connection: Connection, seconds: float) -> Iterator[None]:
    """Ends sending and receiving when time is up, in the middle of a message too: the connection is of no use then.

    Raises:
        OSError, EOFError: time was up.
    """
    is_late = False

    def shut() -> None:
        nonlocal is_late
        is_late = True
        # To close it is not enough: a fork of the worker may hold the other end open.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    with calling_after(seconds, shut):
        yield
    if is_late:  # and the message came at the same moment
        raise TimeoutError


def start_process(module: str, pipe: int, arguments: tuple[str, ...] = ()) -> subprocess.Popen:
    """A fresh interpreter that runs `serve(pipe, parent_pid, *arguments)` of a module, in a group with what it starts.

    As multiprocessing's spawn gives it, but without running the main script a second time.

    Args:
        pipe: file descriptor that it inherits.
    """
    # The path is set once Python is up: on PYTHONPATH, a re.py beside the main script would keep it from starting.
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import serve; "
    return subprocess.Popen(
        [sys.executable, "-c", code + f"serve({pipe}, {os.getpid()}, *{arguments!r})"],
        env=os.environ | {"PYTHONHASHSEED": "0"},  # makes sympy, and so a verdict, repeatable
        pass_fds=[pipe],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def limit_memory(beyond_bytes: int) -> None:
    """Let this process's address space grow by so much, and no more."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    loaded = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft = loaded + beyond_bytes if hard == resource.RLIM_INFINITY else min(loaded + beyond_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class FirstCalls:
    """What the first answers of fresh processes of one kind may take beyond their deadline.

    A process that was killed loads everything again, so each fresh one has FIRST_CALL_S. Once FIRST_CALLS_IN_VAIN of
    them were killed on a first answer all the same, it is twice what the longest that came took: 14 s after one of 7 s.
    """

    def __init__(self):
        self._in_vain, self._longest_s = 0, 0.0

    def allowance_s(self) -> float:
        return FIRST_CALL_S if self._in_vain < FIRST_CALLS_IN_VAIN else min(2 * self._longest_s, FIRST_CALL_S)

    def note(self, took_s: float, came: bool) -> None:
        if came:
            self._longest_s = max(self._longest_s, took_s)
        elif took_s >= FIRST_CALL_S:  # and was killed: what ends its process costs no time
            self._in_vain += 1


class Worker:
    """One process, started again after it was killed, ran out of memory or crashed.

    Args:
        module: whose `serve` runs in it.
        arguments: further ones of `serve`, texts.
        advice: what to look at when it does not start.
        first_calls: shared by the workers of a pool. None: a first answer has its deadline alone.
    """

    def __init__(
        self, module: str, arguments: tuple[str, ...] = (), advice: str = "", first_calls: FirstCalls | None = None
    ):
        self._module, self._arguments, self._advice, self._first_calls = module, arguments, advice, first_calls
        self._start()

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._process = start_process(self._module, theirs.fileno(), self._arguments)
        theirs.close()
        self._ready, self._asked = False, 0

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _restart(self) -> None:
        self.stop()
        self._start()

    def _ensure_ready(self) -> None:
        if self._process.poll() is not None:
            self._restart()
        for _ in range(START_ATTEMPTS):
            if not self._ready:
                with contextlib.suppress(EOFError, OSError):  # what a dead process looks like from here
                    self._ready = self._receive_ready()
            if self._ready:
                return
            self._restart()
        raise RuntimeError(
            f"{self._module} did not start in {START_ATTEMPTS} attempts, its error is on stderr. {self._advice}"
        )

    def _receive_ready(self) -> bool:
        with within(self._connection, START_TIMEOUT_S):
            return self._connection.recv_bytes(MOST_ANSWER_BYTES) == b"ready"

    def ask(self, question: object, timeout_s: float) -> bytes | None:
        """The answer. None: none in time, or the process died on it."""
        self._ensure_ready()
        first = self._first_calls if self._asked == 0 else None
        answer, goes_on, begin = None, False, time.monotonic()
        try:
            with contextlib.suppress(EOFError, OSError):
                answer, goes_on = self._exchange(question, timeout_s + (first.allowance_s() if first else 0))
        finally:
            if first:
                first.note(time.monotonic() - begin, answer is not None)
            if not goes_on:
                self._restart()
        return answer

    def _exchange(self, question: object, timeout_s: float) -> tuple[bytes, bool]:
        """The answer, and whether the process takes further questions."""
        self._asked += 1
        number = self._asked.to_bytes(NUMBER_BYTES, "big")
        with within(self._connection, timeout_s):
            self._connection.send((number, question, timeout_s))
            message = b""
            while not message.startswith(number):  # what else may come belongs to an earlier question
                message = self._connection.recv_bytes(MOST_ANSWER_BYTES)
        return message[NUMBER_BYTES + 1 :], message[NUMBER_BYTES : NUMBER_BYTES + 1] == b"1"


class Pool:
    """Workers of one kind, shared by all threads of this process.

    Args:
        make: a new worker.
    """

    def __init__(self, make):
        self._make = make
        self._workers: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def grow(self, num_workers: int) -> None:
        with self._lock:
            while len(self._workers) < num_workers:
                self._workers.append(self._make())
                self._idle.put(self._workers[-1])

    def ask(self, question: object, timeout_s: float) -> bytes | None:
        """As Worker.ask. Waiting for a free worker does not count against the deadline."""
        worker = self._idle.get()
        try:
            return worker.ask(question, timeout_s)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        with self._lock:
            for worker in self._workers:
                worker.stop()


def questions(connection: Connection, parent_pid: int) -> Iterator[tuple[Any, Callable]]:
    """In a worker, until its parent is gone: the questions, each with the function that takes the answer's bytes, and
    `last=True` where a fresh process shall have the next one."""
    own_pid = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # A forked sibling may hold the other end open, so the end of the pipe alone does not tell.
    threading.Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    atexit.register(_end_group, own_pid)
    limit_memory(MEMORY_LIMIT_BYTES)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    connection.send_bytes(b"ready")
    while True:
        number, question, timeout_s = connection.recv()
        # The parent kills at the deadline. If it is dead, the kernel does, even inside one endless C call.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)
        yield question, partial(_reply, connection, own_pid, number)


def _reply(connection: Connection, own_pid: int, number: bytes, answer: bytes, last: bool = False) -> None:
    if os.getpid() != own_pid:  # a fork that was made while answering came back: the answer is not its own to give
        os._exit(1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    connection.send_bytes(number + (b"0" if last else b"1") + answer)
    if last:
        os._exit(0)


def _end_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(ALIVE_CHECK_S)
    _end_group(os.getpid())


def _end_group(own_pid: int) -> None:
    """End this process and what it started; not so in its forks."""
    if os.getpid() == own_pid:
        os.killpg(own_pid, signal.SIGKILL)
