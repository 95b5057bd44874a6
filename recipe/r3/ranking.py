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
"""Structural entropy ranking rewards on the rows of a batch: which are ranked, and what they earn instead."""

from dataclasses import dataclass, field, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from recipe.common import queue
from recipe.common.outcome import dead_outcome, outcome_reward
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import TrainedUid, groups_of, tags_of
from recipe.r3.config.r3_config import RankingConfig
from recipe.r3.core_algos import group_rewards, structural_entropy_ranking_reward


@dataclass(frozen=True)
class Ranked:
    """What the ranking changed in a batch."""

    rewards: dict[str, list[float]] = field(default_factory=dict)
    """By group uid: what its rows earn by their ranks."""
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    """By key: what `rm_scores` held, (L,)."""


def ranked_groups(batch: KVBatchMeta, config: RankingConfig) -> dict[str, tuple[list[str], list[str]]]:
    """Keys of the truncated rows, which are ranked, and of the finished ones, of each all-wrong group that has both or
    the first; by group uid."""
    groups, tags = {}, tags_of(batch)
    for uid, positions in groups_of(batch.keys, tags).items() if config.enable else ():
        if dead_outcome([tags[position] for position in positions]) is not False:
            continue
        fresh = [position for position in positions if tags[position].is_fresh]
        truncated = [batch.keys[position] for position in fresh if tags[position].truncated]
        if truncated:
            groups[uid] = truncated, [batch.keys[position] for position in fresh if not tags[position].truncated]
    return groups


def rank(batch: KVBatchMeta, config: RankingConfig) -> Ranked:
    """Overwrite the rewards of fresh rows in all-wrong groups with truncated rows, and mark them as ranked.

    What a reward manager takes off the grade of an answer, such as dapo's penalty for long ones, is taken off here.
    """
    groups = ranked_groups(batch, config)
    if not groups:
        return Ranked()
    keys = [key for rows, finished in groups.values() for key in (*rows, *finished)]
    rows = queue.read(batch.select_keys(keys), ["entropy", "response_mask", "rm_scores", "uid"])
    data = dict(zip(keys, rows, strict=True))
    ranked = {
        uid: group_rewards(_rewards([data[key] for key in rows], config), len(finished), config.finished_reward)
        for uid, (rows, finished) in groups.items()
    }
    tags = dict(zip(batch.keys, tags_of(batch), strict=True))
    rewards = [reward for group in ranked.values() for reward in group]
    changed = [
        {
            "rm_scores": outcome_reward(data[key]["rm_scores"], reward + tags[key].taken_off),
            "uid": str(replace(TrainedUid.parse(data[key]["uid"]), is_ranked=True)),
        }
        for key, reward in zip(keys, rewards, strict=True)
    ]
    queue.write(batch.partition_id, keys, changed)
    return Ranked(ranked, {key: data[key]["rm_scores"] for key in keys})


def _rewards(rows: list[dict], config: RankingConfig) -> list[float]:
    """The ranking rewards of the truncated rows of one group."""
    entropies = pad_sequence([row["entropy"] for row in rows], batch_first=True)
    mask = pad_sequence([row["response_mask"] for row in rows], batch_first=True)
    return structural_entropy_ranking_reward(entropies, mask, config.top_ratio, config.max_reward).tolist()


def put_back(batch: KVBatchMeta, ranked: Ranked, with_penalty: bool) -> None:
    """Write the scores of the answers again, once advantages are there: verl's metrics are to see those.

    with_penalty: verl's KL penalty was taken off the rewards, and its metrics show rewards less the penalty.
    """
    if not ranked.before:
        return
    fields = [{"rm_scores": score} for score in ranked.before.values()]
    if with_penalty:
        part = batch.select_keys(list(ranked.before))
        for changed, row in zip(fields, queue.read(part, ["rm_scores", "token_level_rewards"]), strict=True):
            changed["token_level_rewards"] = changed["rm_scores"] + row["token_level_rewards"] - row["rm_scores"]
    queue.write(batch.partition_id, list(ranked.before), fields)
