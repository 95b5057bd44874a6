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
"""The first thing to know of a run: whether restarts succeed more often than fresh attempts at the same problems."""

import json
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

WARN_AFTER_STEPS = 20
FILE = "restarts.json"
"""In a checkpoint."""


class Comparison:
    """Restarts against fresh attempts at the same problems, over the last `patience` steps that had restarts.

    It is saved with each checkpoint, so that a run that goes on tells what it would have told.
    """

    def __init__(self, patience: int):
        self.fresh: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """By problem: attempts from the start, and how many of them were right."""
        self.steps: deque[tuple[int, float, float]] = deque(maxlen=patience)
        """Of each step: restarts, those that were right, and as many as fresh attempts would have got right."""
        self.step = (0, 0.0, 0.0)
        """The same of the step that goes on, all its updates together."""

    def add_fresh(self, query_id: str, is_right: bool) -> None:
        self.fresh[query_id][0] += 1
        self.fresh[query_id][1] += is_right

    def add_restarts(self, restarts: Iterable[tuple[str, bool]]) -> None:
        """(problem, whether it was right) of each restart of an update, of problems that were tried afresh before."""
        known = [(is_right, *self.fresh[name]) for name, is_right in restarts if name in self.fresh]
        number, own, fresh = self.step
        expected = sum(right / tries for _, tries, right in known)
        self.step = number + len(known), own + sum(is_right for is_right, _, _ in known), fresh + expected

    def close(self) -> dict[str, float]:
        """The metrics of the step; none where it had no restarts that can be compared."""
        (number, own, fresh), self.step = self.step, (0, 0.0, 0.0)
        if not number:
            return {}
        self.steps.append((number, own, fresh))
        return {"restart/compared": number, "restart/success": own / number, "restart/fresh_success": fresh / number}

    def warning(self) -> str | None:
        """What is due where restarts succeeded no more often; told once, then the count begins anew."""
        if len(self.steps) < (self.steps.maxlen or 1):
            return None
        number, own, fresh = (sum(column) for column in zip(*self.steps, strict=True))
        if own > fresh:
            return None
        patience = len(self.steps)
        self.steps.clear()
        return (
            f"of {number:,} restarts in {patience} steps {own / number:.2f} succeeded, of fresh attempts at the same "
            f"problems {fresh / number:.2f}: restarts cost and do not help; set "
            "algorithm.rrl.states.origin=right, or algorithm.rrl.restarts.share=0"
        )

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        told = {"fresh": dict(sorted(self.fresh.items())), "steps": list(self.steps)}
        (checkpoint / FILE).write_text(json.dumps(told))

    def load(self, checkpoint: Path) -> None:
        """Nothing where the checkpoint is one of a run without restarts."""
        if (file := checkpoint / FILE).is_file():
            told = json.loads(file.read_text())
            self.fresh.update(told["fresh"])
            self.steps.extend(map(tuple, told["steps"]))
