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

    A problem gives states when few of its answers are right. Set against these, restarts that change nothing would seem
    to double success; so the metrics are of attempts since then. The warning does not wait for a problem to come again:
    restarts that are no better than what their problems were found hard by are no better than others.

    It is saved with each checkpoint, so that a run that goes on tells what it would have told.
    """

    def __init__(self, patience: int):
        self.fresh: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """By problem: attempts from the start, and how many of them were right."""
        self.later: dict[str, list[int]] = {}
        """The same of problems that gave a state, since then."""
        self.steps: deque[tuple[int, float, float]] = deque(maxlen=patience)
        """Of each step: restarts, those that were right, and as many as fresh attempts would have got right."""
        self.step: list[tuple[bool, float, bool]] = []
        """Of the step that goes on, all its updates together: whether each restart was right, the share of fresh
        attempts that was, and whether these came after the problem gave a state."""

    def watch(self, query_ids: Iterable[str]) -> None:
        """These problems have given states."""
        for query_id in query_ids:
            self.later.setdefault(query_id, [0, 0])

    def add_fresh(self, query_id: str, is_right: bool) -> None:
        for counts in (self.fresh[query_id], self.later.get(query_id, [0, 0])):
            counts[0] += 1
            counts[1] += is_right

    def add_restarts(self, restarts: Iterable[tuple[str, bool]]) -> None:
        """(problem, whether it was right) of each restart of an update, of problems that were tried afresh before."""
        for name, is_right in restarts:
            is_later = self.later.get(name, [0, 0])[0] > 0
            tries, right = self.later[name] if is_later else self.fresh.get(name, [0, 0])
            if tries:
                self.step.append((is_right, right / tries, is_later))

    def close(self) -> dict[str, float]:
        """The metrics of the step; none where it had no restarts that can be compared."""
        found, self.step = self.step, []
        if found:
            self.steps.append((len(found), sum(own for own, _, _ in found), sum(fresh for _, fresh, _ in found)))
        later = [(own, fresh) for own, fresh, is_later in found if is_later]
        if not later:
            return {}
        own, fresh = (sum(column) / len(later) for column in zip(*later, strict=True))
        return {"restart/compared": len(later), "restart/success": own, "restart/fresh_success": fresh}

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
        told = {name: dict(sorted(getattr(self, name).items())) for name in ("fresh", "later")}
        told |= {"steps": list(self.steps)}
        (checkpoint / FILE).write_text(json.dumps(told))

    def load(self, checkpoint: Path) -> None:
        """Nothing where the checkpoint is one of a run without restarts."""
        if (file := checkpoint / FILE).is_file():
            told = json.loads(file.read_text())
            self.fresh.update(told["fresh"])
            self.later.update(told.get("later", {}))
            self.steps.extend(map(tuple, told["steps"]))
