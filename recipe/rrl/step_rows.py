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
"""What a step's rows tell of states: answers to cut, tries of the states that were restarted, and figures of these."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import RowTag, tags_of, uid_of
from recipe.rrl.collect import Answer


@dataclass(frozen=True)
class StepRow:
    group: str
    """Its uid."""
    query_id: str
    tag: RowTag
    tokens: np.ndarray
    """(L,) ids of the response, those of a state included."""
    values: np.ndarray | None
    """(L,) V(s_t) before the step's update; None without a critic."""
    log_probs: np.ndarray
    """(L,) of the policy before the step's update."""

    @property
    def is_tried(self) -> bool:
        """Whether it is a restart that wrote something and that somebody judged."""
        return self.tag.is_restart and not self.tag.reward_error and self.tag.prefix_len < len(self.tokens)


def read_rows(described: KVBatchMeta, with_values: bool) -> list[StepRow]:
    """described: rows with the tags of rows.py, padding left out."""
    fields = ["responses", "query_id", "old_log_probs", *(["values"] if with_values else [])]
    rows = queue.read(described, fields)
    return [
        StepRow(
            group=uid_of(key),
            query_id=str(row["query_id"]),
            tag=tag,
            tokens=row["responses"].numpy(force=True),
            # numpy has no bf16, in which a critic trains on GPUs.
            values=row["values"].float().numpy(force=True) if with_values else None,
            log_probs=row["old_log_probs"].float().numpy(force=True),
        )
        for key, tag, row in zip(described.keys, tags_of(described), rows, strict=True)
    ]


def answers_of(rows: Iterable[StepRow]) -> list[Answer]:
    """Those that were written from the start and that somebody judged."""
    return [
        Answer(row.query_id, row.group, row.tokens, row.tag.correct, row.values)
        for row in rows
        if row.tag.is_plain and not row.tag.reward_error
    ]


def tries_of(rows: Iterable[StepRow]) -> dict[tuple[str, tuple[int, ...]], tuple[int, int]]:
    """(tries, successes) by state, which is a problem and the tokens of a prefix; in their order."""
    counts = defaultdict(lambda: [0, 0])
    for row in rows:
        if row.is_tried:
            state = row.query_id, tuple(row.tokens[: row.tag.prefix_len].tolist())
            counts[state][0] += 1
            counts[state][1] += row.tag.correct
    return {state: (tries, right) for state, (tries, right) in sorted(counts.items())}


def restart_figures(rows: Iterable[StepRow], is_bypassed: bool = False) -> dict[str, float]:
    """Of the restarts of a step that wrote something, nothing without any.

    restart/prefix_tokens          tokens of states, which nobody generated
    restart/prefix_log_prob        mean log-prob of these under the present policy: whether it would still write them;
                                   absent where all begin at the start
    restart/value/mean             V at the cut
    restart/value_correlation      of that with success, where both differ between rows

    Args:
        is_bypassed: whether log-probs are those of the rollout (rollout_correction.bypass_mode), which has none of what
            it did not write.
    """
    own = [row for row in rows if row.tag.is_restart and row.tag.prefix_len < len(row.tokens)]
    if not own:
        return {}
    cuts = [row.tag.prefix_len for row in own]
    found: dict[str, float] = {"restart/prefix_tokens": sum(cuts)}
    if not is_bypassed and any(cuts):
        prefixes = np.concatenate([row.log_probs[:cut] for row, cut in zip(own, cuts, strict=True)])
        found["restart/prefix_log_prob"] = float(prefixes.mean())
    if any(row.values is None for row in own):
        return found
    values = np.array([row.values[cut] for row, cut in zip(own, cuts, strict=True)], dtype=np.float64)
    found["restart/value/mean"] = float(values.mean())
    right = np.array([row.tag.correct for row in own], dtype=np.float64)
    if values.std() > 0 and right.std() > 0:
        found["restart/value_correlation"] = float(np.corrcoef(values, right)[0, 1])
    return found
