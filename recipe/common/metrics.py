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
"""What a step did to its groups, and the metric series of rows of several kinds, which never mix.

Names avoid the substrings by which verl's MetricsAggregator would sum, min or max them over several updates.
"""

import numpy as np

from recipe.common.outcome import dead_outcome
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import Origin, RowTag, groups_of, sessions_of, tags_of

LEDGER = (
    *("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "ranked", "still_dead", "still_wrong"),
    "no_signal",
)


def group_ledger(batch: KVBatchMeta, ranked: dict[str, list[float]]) -> dict[str, int]:
    """Counts of plain groups under `groups/`, and the same of reflection groups under `reflection/groups/`; of restart
    groups, where there are any, under `restart/groups/`.

    total = mixed + all_correct + all_wrong. A dead group (all_correct or all_wrong) is rescued_by_replay when it
    holds a replayed row, ranked when the ranking gave its rows unequal rewards (it can be both), else still_dead.
    still_wrong are those of still_dead that are all wrong: with `replay.outcome=correct` nothing is to rescue the rest.

    Dead says that all answers are equally correct, no_signal that all rows have one reward, so that nothing is
    learned from them: with a length bonus, an all-correct group of unequal lengths is dead and trains to be short.
    A group that further answers joined counts as it is with them. Without their group they are one of those that were
    asked again.

    Args:
        batch: rows of a step with the tags of rows.py.
        ranked: group uid -> rewards of its fresh rows, for the groups in which some rows were ranked.
    """
    rows = tags_of(batch)
    prefixes = ["groups", "reflection/groups", *(["restart/groups"] if any(tag.is_restart for tag in rows) else [])]
    ledger = {f"{prefix}/{name}": 0 for prefix in prefixes for name in LEDGER}
    for uid, positions in groups_of(batch.keys, rows).items():
        tags = [rows[position] for position in positions]
        prefix = "groups" if any(tag.is_plain for tag in tags) else "reflection/groups"
        prefix = "restart/groups" if tags[0].is_restart else prefix
        outcome = dead_outcome(tags)
        kind = {None: "mixed", True: "all_correct", False: "all_wrong"}[outcome]
        ledger[f"{prefix}/total"] += 1
        ledger[f"{prefix}/{kind}"] += 1
        replayed = [tag.score for tag in tags if tag.is_replayed]
        rewards = [*ranked.get(uid, [tag.score for tag in tags if tag.is_fresh]), *replayed]
        taken_off = {tag.taken_off for tag in tags if tag.is_fresh} if uid in ranked else {0.0}
        ledger[f"{prefix}/no_signal"] += len(set(rewards)) == len(taken_off) == 1
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
    """Means over fresh plain rows (`fresh/`), replayed rows (`replay/`) and those of groups that were asked again
    (`reflection/`), plainly or with a reflection prompt; over rows that began at a state (`restart/`), where there are
    any. Tokens are those that were generated, so without the state's; the length of a response is its whole.

    A session of several rows counts once, by its last row; all of its rows count as rows, and in the mean length.
    `trained/rows` and `trained/tokens` (of responses) are those of all.
    """
    tags = tags_of(batch)
    kept = [position for position, tag in enumerate(tags) if tag.origin is not Origin.PADDING]
    series = {
        "fresh": [position for position in kept if tags[position].is_plain],
        "reflection": [at for at in kept if tags[at].is_fresh and not (tags[at].is_plain or tags[at].is_restart)],
        "replay": [position for position in kept if tags[position].is_replayed],
    }
    if restarts := [position for position in kept if tags[position].is_restart]:
        series["restart"] = restarts
    metrics = {}
    for name, rows in series.items():
        sessions = [rows[positions[-1]] for positions in sessions_of(batch.keys[at] for at in rows).values()]
        figures = _figures([tags[at] for at in rows], [tags[at] for at in sessions])
        metrics |= {f"{name}/{figure}": value for figure, value in figures.items()}
    if errors := sum(tags[at].reward_error for at in kept if tags[at].is_fresh):
        metrics["reward/errors"] = errors
    for name in ("rows", "tokens"):
        metrics[f"trained/{name}"] = sum(metrics[f"{kind}/{name}"] for kind in series)
    if series["replay"]:
        metrics["replay/age/mean"] = float(np.mean([tags[at].replay_age or 0 for at in series["replay"]]))
    solved = {tags[at].group for at in series["reflection"] if tags[at].correct}
    metrics["reflection/solved"] = len(solved)
    return metrics


def _figures(rows: list[RowTag], sessions: list[RowTag]) -> dict[str, float]:
    """Those of one series; means only where it has a row.

    Args:
        sessions: the last row of each.
    """
    sums: dict[str, float] = {"rows": len(rows), "tokens": sum(row.generated_len for row in rows)}
    sums["prompt_tokens"] = sum(row.prompt_len for row in rows)
    if not rows:
        return sums
    columns = {
        "score": [row.score for row in sessions],
        "acc": [row.correct for row in sessions],
        "truncated": [row.truncated for row in sessions],
        "response_length": [row.response_len for row in rows],
        "mixed_versions": [row.versions > 1 for row in sessions],
    }
    return sums | {f"{name}/mean": float(np.mean(values)) for name, values in columns.items()}


def add_all_work(metrics: dict, batch: KVBatchMeta) -> None:
    """Make verl's tokens and throughput those of all rows, where it was given a part of them: the time is all rows'."""
    tokens, part = sum(tag["seq_len"] for tag in batch.tags), metrics["perf/total_num_tokens"]
    metrics["perf/total_num_tokens"] = tokens
    metrics["perf/throughput"] *= tokens / part
