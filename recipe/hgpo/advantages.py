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
"""The advantages of a batch: those of nested groups over verl's GRPO, written where the workers read them."""

import numpy as np
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.hgpo.config.hgpo_config import PENALISE, STDS, HGPOConfig
from recipe.hgpo.core_algos import compute_hgpo_advantage, context_groups, discounted_returns
from recipe.hgpo.turns import Turn, level_metrics, session_metrics


def put_advantages(batch: KVBatchMeta, hgpo: HGPOConfig, expected: int | None = None) -> dict[str, float]:
    """Replace the advantages of a batch, which are verl's GRPO over sessions; returns what is told of turns and groups.

    A row gets episode_weight times verl's advantage plus step_weight times that of its nested groups, on each token
    that trains. verl's empty padding rows are in no group.

    Args:
        expected: sessions that were asked for.
    """
    kept = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    keys = [batch.keys[at] for at in kept]
    table = queue.read_table(batch, ["advantages", "response_mask", "extra_fields"])
    extras = queue.column(table["extra_fields"])
    turns = [Turn.of(key, extras[at]) for key, at in zip(keys, kept, strict=True)]
    step_B, metrics = step_advantages(turns, hgpo, expected)
    if hgpo.step_weight == 0 and hgpo.episode_weight == 1:
        return metrics
    by_row = np.zeros(len(batch.keys))
    by_row[kept] = hgpo.step_weight * step_B
    masks, verls = (queue.column(table[name]) for name in ("response_mask", "advantages"))
    values = [
        hgpo.episode_weight * verl + torch.as_tensor(step, dtype=verl.dtype) * mask
        for verl, step, mask in zip(verls, by_row, masks, strict=True)
    ]
    for field in ("advantages", "returns"):
        queue.write_column(str(batch.partition_id), batch.keys, field, values)
    return metrics


def step_advantages(
    turns: list[Turn], hgpo: HGPOConfig, expected: int | None = None
) -> tuple[np.ndarray, dict[str, float]]:
    """(B,) advantages of turns in any order, and the metrics of sessions and groups."""
    trajectory, index = [turn.trajectory for turn in turns], [turn.index for turn in turns]
    rewards = [turn.reward for turn in turns]
    returns_B = discounted_returns(rewards, trajectory, index, hgpo.gamma)
    loses_B = np.array([turn.answer in PENALISE[hgpo.penalise] for turn in turns], dtype=bool)
    rows = {
        "state_keys": [turn.state for turn in turns],
        "uid": [turn.uid for turn in turns],
        "trajectory": trajectory,
        "turn": index,
        "depth": hgpo.depth,
    }
    how = {"alpha": hgpo.alpha, "norm": hgpo.norm, "mode": hgpo.weights, "ddof": STDS[hgpo.std]}
    step_B = compute_hgpo_advantage(returns_B - hgpo.penalty * loses_B, **rows, **how)
    metrics = session_metrics(turns, expected) | level_metrics(context_groups(**rows), trajectory)
    metrics["hgpo/turns_with_signal"] = float(np.mean(step_B != 0)) if turns else 0.0
    if loses_B.any():
        without_B = compute_hgpo_advantage(returns_B, **rows, **how)
        metrics["hgpo/signal_of_penalty_alone"] = float(np.mean((step_B != 0) & (without_B == 0)))
    return step_B, metrics
