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
"""What a step did to its groups, and the metric series of fresh, replayed and reflection rows, which never mix.

Names avoid the substrings by which verl's MetricsAggregator would sum, min or max them over several updates.
"""

from collections import deque

import numpy as np
from transfer_queue import KVBatchMeta

from recipe.r3.history.store import PLAIN, REFLECTION
from recipe.r3.replay.buffer import dead_outcome, groups_of, is_fresh

LEDGER = (
    *("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "ranked", "still_dead", "still_wrong"),
    "no_signal",
)


def group_ledger(batch: KVBatchMeta, ranked: dict[str, list[float]]) -> dict[str, int]:
    """Counts of plain groups under `groups/`, and the same of reflection groups under `reflection/groups/`.

    total = mixed + all_correct + all_wrong. A dead group (all_correct or all_wrong) is rescued_by_replay when it
    holds a replayed row, ranked when the ranking gave its rows unequal rewards (it can be both), else still_dead.
    still_wrong are those of still_dead that are all wrong: with `replay.outcome=correct` nothing is to rescue the rest.

    Dead says that all answers are equally correct, no_signal that all rows have one reward, so that nothing is
    learned from them: with a length bonus, an all-correct group of unequal lengths is dead and trains to be short.

    Args:
        batch: rows of a step with the tags of replay_buffer.py.
        ranked: group uid -> rewards of its fresh rows, for the groups in which some rows were ranked.
    """
    ledger = {f"{prefix}/{name}": 0 for prefix in ("groups", "reflection/groups") for name in LEDGER}
    for uid, positions in groups_of(batch).items():
        tags = [batch.tags[position] for position in positions]
        prefix = "groups" if tags[0]["variant"] == PLAIN else "reflection/groups"
        outcome = dead_outcome(tags)
        kind = {None: "mixed", True: "all_correct", False: "all_wrong"}[outcome]
        ledger[f"{prefix}/total"] += 1
        ledger[f"{prefix}/{kind}"] += 1
        replayed = [tag["score"] for tag in tags if "replay_age" in tag]
        rewards = [*ranked.get(uid, [tag["score"] for tag in tags if is_fresh(tag)]), *replayed]
        ledger[f"{prefix}/no_signal"] += len(set(rewards)) == 1
        if outcome is None:
            continue
        spread = len(set(ranked.get(uid, []))) > 1
        ledger[f"{prefix}/rescued_by_replay"] += bool(replayed)
        ledger[f"{prefix}/ranked"] += spread
        is_left = not (replayed or spread)
        ledger[f"{prefix}/still_dead"] += is_left
        ledger[f"{prefix}/still_wrong"] += is_left and not outcome
    return ledger


def series_metrics(batch: KVBatchMeta) -> dict[str, float]:
    """Means over fresh plain rows (`fresh/`), replayed rows (`replay/`) and fresh reflection rows (`reflection/`).

    `trained/rows` and `trained/tokens` (of responses) are those of all three.
    """
    tags = [tag for tag in batch.tags if not tag.get("is_padding", False)]
    series = {
        "fresh": [tag for tag in tags if is_fresh(tag) and tag["variant"] == PLAIN],
        "reflection": [tag for tag in tags if is_fresh(tag) and tag["variant"] == REFLECTION],
        "replay": [tag for tag in tags if "replay_age" in tag],
    }
    metrics = {}
    for name, rows in series.items():
        metrics[f"{name}/rows"] = len(rows)
        metrics[f"{name}/tokens"] = sum(tag["response_len"] for tag in rows)
        metrics[f"{name}/prompt_tokens"] = sum(tag["prompt_len"] for tag in rows)
        if not rows:
            continue
        metrics[f"{name}/score/mean"] = float(np.mean([tag["score"] for tag in rows]))
        metrics[f"{name}/acc/mean"] = float(np.mean([tag["correct"] for tag in rows]))
        metrics[f"{name}/truncated/mean"] = float(np.mean([tag["truncated"] for tag in rows]))
        metrics[f"{name}/response_length/mean"] = float(np.mean([tag["response_len"] for tag in rows]))
        if "versions" in rows[0]:
            metrics[f"{name}/mixed_versions/mean"] = float(np.mean([tag["versions"] > 1 for tag in rows]))
    if errors := sum("reward_error" in tag for tag in tags if is_fresh(tag)):
        metrics["reward/errors"] = errors
    for name in ("rows", "tokens"):
        metrics[f"trained/{name}"] = sum(metrics[f"{kind}/{name}"] for kind in series)
    if series["replay"]:
        metrics["replay/age/mean"] = float(np.mean([tag["replay_age"] for tag in series["replay"]]))
    solved = {tag["group"] for tag in series["reflection"] if tag["correct"]}
    metrics["reflection/solved"] = len(solved)
    return metrics


class DeadGroupAlarm:
    """Warns once after `patience` steps in a row that had all wrong groups and rescued no group; 0 never warns."""

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
        if self.patience and self.steps == self.patience:
            return (
                f"{self.patience} steps with all wrong groups and none rescued: replay finds right answers from the "
                "second epoch on; if this is one already, check reward_extra_info.acc and algorithm.r3.*.enable"
            )
        return None


class LengthAlarm:
    """Sees answers grow longer, or more of them hit the limit, while accuracy does not follow.

    Compares the means of two spans of `patience` steps, one after the other: length up by a tenth, or the truncated
    share up by 0.05, and accuracy not up by 0.01; then starts anew. 0 never warns. Ranking rewards, which pay for
    truncated answers, are the known cause.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self.rows: deque[tuple[float, float, float]] = deque(maxlen=2 * patience)

    def update(self, metrics: dict[str, float]) -> str | None:
        """The warning due after a step with these `fresh/` metrics, or None."""
        if not self.patience or not metrics.get("fresh/rows"):
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
