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
from collections import deque
from collections.abc import Iterable
from pathlib import Path

WARN_AFTER_STEPS = 20
FILE = "restarts.json"
"""In a checkpoint."""


class Comparison:
    """Restarts against fresh attempts at the same problems.

    A problem gives states when few of its answers are right, and its newest states are drawn first. Set against the
    attempts by which it was found hard, restarts that change nothing would seem to double success; against all that
    came since, a policy that learns makes them look better still. So restarts wait until their problem comes again, and
    are compared with its attempts then.

    The warning does not wait so long in a run of one epoch: restarts that are no better than what their problem was
    last found by, are no better than others.

    It is saved with each checkpoint, so that a run that goes on tells what it would have told.

    Args:
        patience: steps of which a warning is about.
    """

    def __init__(self, patience: int):
        self.now = 0
        self.last: dict[str, list[int]] = {}
        """By problem: the step in which it was last tried afresh, its attempts then, and how many were right."""
        self.waiting: dict[str, list[int]] = {}
        """By problem: restarts since then, and how many were right."""
        self.at_once: list[tuple[bool, float]] = []
        """Of the step that goes on, all its updates together: whether a restart was right, and the share of its
        problem's last attempts that was."""
        self.steps: dict[str, deque[list[float]]] = {kind: deque(maxlen=patience) for kind in ("later", "at_once")}
        """Of each step that had some: restarts, those that were right, and as many as fresh attempts would have got
        right."""

    def add_fresh(self, query_id: str, is_right: bool) -> None:
        counts = self.last.get(query_id)
        if counts is None or counts[0] != self.now:
            self.last[query_id] = counts = [self.now, 0, 0]
        counts[1] += 1
        counts[2] += is_right

    def add_restarts(self, restarts: Iterable[tuple[str, bool]]) -> None:
        """(problem, whether it was right) of each restart of an update."""
        for query_id, is_right in restarts:
            counts = self.waiting.setdefault(query_id, [0, 0])
            counts[0] += 1
            counts[1] += is_right
            last, tries, right = self.last.get(query_id, (self.now, 0, 0))
            if last < self.now:  # else it came again in this step
                self.at_once.append((is_right, right / tries))

    def close(self) -> dict[str, float]:
        """The metrics of the step; none where no problem came again that was restarted since it came last."""
        if found := self.at_once:
            self.steps["at_once"].append([len(found), sum(own for own, _ in found), sum(fresh for _, fresh in found)])
        came = [name for name in self.waiting if name in self.last and self.last[name][0] == self.now]
        number, own, fresh = 0, 0, 0.0
        for name in came:
            restarts, succeeded = self.waiting.pop(name)
            _, tries, right = self.last[name]
            number, own, fresh = number + restarts, own + succeeded, fresh + restarts * right / tries
        self.now, self.at_once = self.now + 1, []
        if not number:
            return {}
        self.steps["later"].append([number, own, fresh])
        return {"restart/compared": number, "restart/success": own / number, "restart/fresh_success": fresh / number}

    def warning(self) -> str | None:
        """What is due where restarts succeeded no more often; told once, then the count begins anew."""
        for steps in self.steps.values():
            number, own, fresh = (sum(column) for column in zip(*steps, strict=True)) if steps else (0, 0, 0)
            if len(steps) == steps.maxlen and own <= fresh:
                length = len(steps)
                for each in self.steps.values():
                    each.clear()
                return (
                    f"of {number:,} restarts in {length} steps {own / number:.2f} succeeded, of fresh attempts at "
                    f"the same problems {fresh / number:.2f}: restarts cost and do not help; set "
                    "algorithm.rrl.restarts.share=0, or another algorithm.rrl.states.origin"
                )
        return None

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        told = {name: dict(sorted(getattr(self, name).items())) for name in ("last", "waiting")}
        told |= {"now": self.now, "steps": {kind: list(steps) for kind, steps in self.steps.items()}}
        (checkpoint / FILE).write_text(json.dumps(told))

    def load(self, checkpoint: Path) -> None:
        """Nothing where the checkpoint is one of a run without restarts."""
        if (file := checkpoint / FILE).is_file():
            told = json.loads(file.read_text())
            self.now, self.last, self.waiting = told["now"], told["last"], told["waiting"]
            for kind, steps in self.steps.items():
                steps.extend(told["steps"][kind])
