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
"""Grading processes: they are killed at a deadline, start again, and are gone when this process is gone.

verl scores in threads and asyncio, where math-verify's own time limit (SIGALRM) cannot work, and model output can keep
a symbolic grader busy for ever or fill the memory. concurrent.futures cannot kill a worker, hence this pool.
"""

import atexit
import contextlib
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence

from . import grader
from .answer_text import final_answer, normalize
from .grader_units import units_contradict

START_TIMEOUT_S = 120
"""A worker imports sympy in half a second; this much is for a node that is starting everything at once."""

START_ATTEMPTS = 3
"""A worker may be killed for memory while it starts; one that cannot start fails each time."""


class GraderWorker:
    """One grading process, started again after it was killed, ran out of memory or crashed."""

    def __init__(self):
        self._start()

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        # A fresh interpreter, as multiprocessing's spawn gives, but without running the main script a second time.
        # The path is set once Python is up: on PYTHONPATH, a re.py beside the main script would keep it from starting.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {grader.__name__} import serve; "
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + f"serve({theirs.fileno()}, {os.getpid()})"],
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
            f"the answer grader did not start in {START_ATTEMPTS} attempts, its error is on stderr. "
            f"Check `{sys.executable} -c 'import math_verify'`, or pip install math-verify==0.9.0"
        )

    def grade(self, pred: str, golds: Sequence[str], timeout_s: float) -> bool | None:
        """Verdict on a normalized answer. None: no verdict in time, or the process died on it."""
        self._ensure_ready()
        verdict = None
        try:
            with contextlib.suppress(EOFError, OSError):
                self._connection.send((pred, golds, timeout_s))
                if self._connection.poll(timeout_s):
                    verdict = self._connection.recv_bytes() == b"1"
        finally:
            if verdict is None:  # a late answer must never be taken for the answer to the next question
                self._restart()
        return verdict


class GraderPool:
    """Grading processes shared by all threads of this process."""

    def __init__(self):
        self._workers: list[GraderWorker] = []
        self._idle: queue.SimpleQueue[GraderWorker] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def grow(self, num_workers: int) -> None:
        with self._lock:
            while len(self._workers) < num_workers:
                self._workers.append(GraderWorker())
                self._idle.put(self._workers[-1])

    def grade(self, pred: str, golds: Sequence[str], timeout_s: float) -> bool | None:
        """As GraderWorker.grade. Waiting for a free worker does not count against the deadline."""
        worker = self._idle.get()
        try:
            return worker.grade(pred, golds, timeout_s)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        with self._lock:
            for worker in self._workers:
                worker.stop()


_pool = GraderPool()


def _new_pool_in_forked_child() -> None:
    # The workers belong to the parent: a child that used its pipes would mix up the answers.
    global _pool
    _pool = GraderPool()


os.register_at_fork(after_in_child=_new_pool_in_forked_child)
atexit.register(lambda: _pool.close())


def grade(response: str, references: Sequence[str], timeout_s: float = 5.0, num_workers: int = 2) -> bool | None:
    """Whether the final answer of the response equals one of the references. None: the grader came to no verdict."""
    answer = final_answer(response)
    if answer is None:
        return False
    pred = normalize(answer)
    # Some reference answers of DeepScaleR are themselves boxed.
    golds = [final_answer(reference) or reference for reference in references]
    golds = [normalize(gold) for gold in golds if not units_contradict(gold, answer)]
    verdicts = [grader.quick_verdict(gold, pred) for gold in golds]
    if True in verdicts:
        return True
    undecided = [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict is None]
    if not undecided:
        return False
    _pool.grow(num_workers)
    return _pool.grade(pred, undecided, timeout_s)
