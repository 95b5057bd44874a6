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
"""Processes that answer questions: killed at a deadline, started again, gone when this process is gone.

verl scores in threads and asyncio, where a time limit by signal cannot work, and what is asked of model output can take
for ever or fill the memory. concurrent.futures cannot kill a worker, hence this pool.

A module that is asked has a function `serve(pipe, parent_pid, *arguments)`, which sends b"ready" once it can answer,
and for each question that it receives the answer's bytes: `questions` is its loop.
"""

import contextlib
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

START_TIMEOUT_S = 120
"""A worker imports in seconds; this much is for a node that is starting everything at once."""

START_ATTEMPTS = 3
"""A worker may be killed for memory while it starts; one that cannot start fails each time."""

MEMORY_LIMIT_BYTES = 2 * 2**30
"""Address space for answers, beyond what a worker has loaded. What needs more has none, and the machine keeps its
memory."""

IDLE_CHECK_S = 1.0
"""How often an idle worker looks whether its parent still lives."""


class Worker:
    """One process, started again after it was killed, ran out of memory or crashed.

    Args:
        module: whose `serve` runs in it.
        arguments: further ones of `serve`, texts.
        advice: what to look at when it does not start.
    """

    def __init__(self, module: str, arguments: tuple[str, ...] = (), advice: str = ""):
        self._module, self._arguments, self._advice = module, arguments, advice
        self._start()

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        # A fresh interpreter, as multiprocessing's spawn gives, but without running the main script a second time.
        # The path is set once Python is up: on PYTHONPATH, a re.py beside the main script would keep it from starting.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {self._module} import serve; "
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + f"serve({theirs.fileno()}, {os.getpid()}, *{self._arguments!r})"],
            env=os.environ | {"PYTHONHASHSEED": "0"},  # makes sympy, and so a verdict, repeatable
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._ready = False

    def stop(self) -> None:
        self._process.kill()
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
                    self._ready = self._connection.poll(START_TIMEOUT_S) and self._connection.recv_bytes() == b"ready"
            if self._ready:
                return
            self._restart()
        raise RuntimeError(
            f"{self._module} did not start in {START_ATTEMPTS} attempts, its error is on stderr. {self._advice}"
        )

    def ask(self, question: object, timeout_s: float) -> bytes | None:
        """The answer. None: none in time, or the process died on it."""
        self._ensure_ready()
        answer = None
        try:
            with contextlib.suppress(EOFError, OSError):
                self._connection.send((question, timeout_s))
                if self._connection.poll(timeout_s):
                    answer = self._connection.recv_bytes()
        finally:
            if answer is None:  # a late answer must never be taken for the answer to the next question
                self._restart()
        return answer


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


def questions(connection: Connection, parent_pid: int) -> Iterator[object]:
    """In a worker: the questions, each to be answered with `connection.send_bytes`, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    loaded = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft = loaded + MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(loaded + MEMORY_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    connection.send_bytes(b"ready")
    while True:
        while not connection.poll(IDLE_CHECK_S):
            # A forked sibling may hold the other end open, so the end of the pipe alone does not tell.
            if os.getppid() != parent_pid:
                return
        question, timeout_s = connection.recv()
        # The parent kills at the deadline. If it is dead, the kernel does, even inside one endless C call.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)
        yield question
        signal.setitimer(signal.ITIMER_REAL, 0)
