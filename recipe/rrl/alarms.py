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

from recipe.common.validation import is_no_better

WARN_AFTER_STEPS = 20
FILE = "restarts.json"
"""In a checkpoint."""


class Comparison:
    """Restarts against fresh attempts at the same problems.

    A problem gives states when few of its answers are right, and its newest states are drawn first. Set against the
    attempts by which it was found hard, restarts that change nothing would seem to double success; against all that
    came since, a policy that learns makes them look better still. So restarts wait until their problem comes again, and
    are compared with its attempts then, less what all fresh attempts rose by meanwhile.

    In a run of one epoch no problem comes again. There the warning takes the attempts that found it hard: restarts that
    are no better than these are no better than others.

    It is saved with each checkpoint, so that a run that goes on tells what it would have told.

    Args:
        patience: steps of which a warning is about.
    """

    def __init__(self, patience: int):
        self.now = 0
        self.level = 0.0
        """Share of the fresh attempts of the last step that were right."""
        self.last: dict[str, list[int]] = {}
        """By problem: the step in which it was last tried afresh, its attempts then, and how many were right."""
        self.waiting: dict[str, list[float]] = {}
        """By problem: restarts since then, how many were right, and the sum of the levels when they were made."""
        self.made: list[tuple[str, bool]] = []
        """Restarts of the step that goes on, all its updates together."""
        self.steps: dict[str, deque[list[float]]] = {kind: deque(maxlen=patience) for kind in ("later", "before")}
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
        self.made += restarts

    def close(self) -> dict[str, float]:
        """The metrics of the step; none where no problem came again that was restarted since it came last."""
        came = {name: counts[1:] for name, counts in self.last.items() if counts[0] == self.now}
        if came:
            tries, right = (sum(column) for column in zip(*came.values(), strict=True))
            self.level = right / tries
        known = [(own, self.last[name]) for name, own in self.made if name in self.last and name not in came]
        if known:
            fresh = sum(right / tries for _, (_, tries, right) in known)
            self.steps["before"].append([len(known), sum(own for own, _ in known), fresh])
        for name, own in self.made:
            counts = self.waiting.setdefault(name, [0, 0, 0.0])
            for at, value in enumerate((1, own, self.level)):
                counts[at] += value
        self.now, self.made = self.now + 1, []
        return self._compare(came)

    def _compare(self, came: dict[str, list[int]]) -> dict[str, float]:
        number, own, fresh = 0.0, 0.0, 0.0
        for name in sorted(came.keys() & self.waiting.keys()):
            restarts, succeeded, level = self.waiting.pop(name)
            tries, right = came[name]
            number, own = number + restarts, own + succeeded
            fresh += restarts * (right / tries - self.level) + level
        if not number:
            return {}
        self.steps["later"].append([number, own, fresh])
        return {"restart/compared": number, "restart/success": own / number, "restart/fresh_success": fresh / number}

    def warning(self) -> str | None:
        """What is due where restarts succeeded no more often; told once, then the count begins anew."""
        is_later = bool(self.steps["later"])
        steps = self.steps["later" if is_later else "before"]
        if len(steps) < (steps.maxlen or 1):
            return None
        number, own, fresh = (sum(column) for column in zip(*steps, strict=True))
        # Without an error restarts that are worth a little would be told, too. Of attempts that found a problem hard
        # there is no need of one: they are fewer right than others.
        if not is_no_better(number, own / number, fresh / number, errors=1.0 if is_later else 0.0):
            return None
        length = len(steps)
        for kept in self.steps.values():  # else the attempts before would be looked at next
            kept.clear()
        return (
            f"of {number:,.0f} restarts in {length} steps {own / number:.2f} succeeded, of fresh attempts at the same "
            f"problems {fresh / number:.2f}: restarts cost and do not help; set algorithm.rrl.restarts.share=0, or "
            "another algorithm.rrl.states.origin"
        )

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        told = {name: dict(sorted(getattr(self, name).items())) for name in ("last", "waiting")}
        told |= {"now": self.now, "level": self.level}
        told |= {"steps": {kind: list(steps) for kind, steps in self.steps.items()}}
        (checkpoint / FILE).write_text(json.dumps(told))

    def load(self, checkpoint: Path) -> None:
        """Nothing where the checkpoint is one of a run without restarts, or of before they were compared so."""
        file = checkpoint / FILE
        told = json.loads(file.read_text()) if file.is_file() else {}
        if "level" not in told:
            return
        for name in ("now", "level", "last", "waiting"):
            setattr(self, name, told[name])
        for kind, steps in self.steps.items():
            steps.extend(told["steps"][kind])
