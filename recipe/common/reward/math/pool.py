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
"""Answers are graded in processes (process_pool.py): math-verify's own time limit, a signal, does not work in threads,
and model output can keep a symbolic grader busy for ever or fill the memory."""

import atexit
import os
import re
import sys
from collections.abc import Sequence

from recipe.common.process_pool import START_TIMEOUT_S, Pool, Worker
from recipe.common.reward.math import equivalence as grader
from recipe.common.reward.math.answer_text import final_answer, normalize
from recipe.common.reward.math.units import units_contradict

DIGIT = re.compile("[0-9]")

__all__ = ["START_TIMEOUT_S", "GraderPool", "GraderWorker", "grade"]


class GraderWorker(Worker):
    """One grading process."""

    def __init__(self):
        import_test = f"`{sys.executable} -c 'import math_verify'`"
        super().__init__(grader.__name__, advice=f"Check {import_test}, or pip install math-verify==0.9.0")

    def grade(self, pred: str, golds: Sequence[str], timeout_s: float) -> bool | None:
        """Verdict on a normalized answer. None: no verdict in time, or the process died on it."""
        return verdict_of(self.ask((pred, golds), timeout_s))


class GraderPool(Pool):
    """Grading processes shared by all threads of this process."""

    def __init__(self):
        super().__init__(GraderWorker)

    def grade(self, pred: str, golds: Sequence[str], timeout_s: float) -> bool | None:
        """As GraderWorker.grade. Waiting for a free worker does not count against the deadline."""
        return verdict_of(self.ask((pred, golds), timeout_s))


def verdict_of(answer: bytes | None) -> bool | None:
    return None if answer is None else answer == b"1"


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
    # Some reference answers of DeepScaleR are themselves boxed.
    golds = [final_answer(reference) or reference for reference in references]
    if answer in golds:  # and it is not empty: a digit stays, whatever else is dropped
        return DIGIT.search(answer) is not None or normalize(answer) != ""
    pred = normalize(answer)
    golds = [normalize(gold) for gold in golds if not units_contradict(gold, answer)]
    verdicts = [grader.quick_verdict(gold, pred) for gold in golds]
    if True in verdicts:
        return True
    undecided = [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict is None]
    if not undecided:
        return False
    _pool.grow(num_workers)
    return _pool.grade(pred, undecided, timeout_s)
