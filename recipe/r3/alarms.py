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
"""Warnings in the log of a run: replay that does not fire, answers that grow longer and not better."""

from collections import deque

import numpy as np

WARN_AFTER_STEPS = 20


class DeadGroupAlarm:
    """Warns once after `patience` steps in a row that had all wrong groups and rescued no group."""

    def __init__(self, patience: int):
        self.patience = patience
        self.steps = 0

    def update(self, ledger: dict[str, int]) -> str | None:
        """The warning due after a step with this ledger, or None."""
        dead = ledger["groups/all_correct"] + ledger["groups/all_wrong"]
        rescued = dead - ledger["groups/still_dead"]
        if rescued:
            self.steps = 0
        elif ledger["groups/all_wrong"]:
            self.steps += 1
            if self.steps == self.patience:
                return (
                    f"{self.patience} steps with all wrong groups and none rescued: answers of earlier epochs are "
                    "replayed from the second one on; if this is one, check reward_extra_info.acc and "
                    "algorithm.r3.*.enable"
                )
        return None


class LengthAlarm:
    """Sees answers grow longer, or more of them hit the limit, while accuracy does not follow.

    Compares the means of two spans of `patience` steps, one after the other: length up by a tenth, or the truncated
    share up by 0.05, and accuracy not up by 0.01; then starts anew. Ranking rewards, which pay for
    truncated answers, are the known cause.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self.rows: deque[tuple[float, float, float]] = deque(maxlen=2 * patience)

    def update(self, metrics: dict[str, float]) -> str | None:
        """The warning due after a step with these `fresh/` metrics, or None."""
        if not metrics.get("fresh/rows"):
            return None
        names = ("response_length", "truncated", "acc")
        self.rows.append(tuple(metrics[f"fresh/{name}/mean"] for name in names))
        if len(self.rows) < 2 * self.patience:
            return None
        rows = np.asarray(self.rows)
        before, after = rows[: self.patience].mean(axis=0), rows[self.patience :].mean(axis=0)
        grew = after[0] > 1.1 * before[0] or after[1] > before[1] + 0.05
        if not grew or after[2] > before[2] + 0.01:
            return None
        changes = zip(names, before, after, strict=True)
        self.rows.clear()
        told = ", ".join(f"{name} {old:.3g} to {new:.3g}" for name, old, new in changes)
        return (
            f"answers grow without getting better ({told}, means of {self.patience} steps): if this goes on, turn "
            "algorithm.r3.ranking.enable off, or set finished_reward=mean there if it is zero"
        )
