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

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.hgpo.config.hgpo_config import PENALISE, STDS, HGPOConfig
from recipe.hgpo.core_algos import TOLERANCE, compute_hgpo_advantage, context_groups, discounted_returns
from recipe.hgpo.turns import Turn, level_metrics


def put_advantages(batch: KVBatchMeta, hgpo: HGPOConfig) -> dict[str, float]:
    """Replace the advantages of a batch, which are verl's GRPO over sessions; returns what is told of turns and groups.

    A row gets episode_weight times verl's advantage plus step_weight times that of its nested groups, on each token
    that trains. verl's empty padding rows are in no group. Tasks whose sessions do not differ get nothing of verl's.
    """
    kept, turns = turns_of(batch)
    table = queue.read_table(batch, ["advantages", "response_mask"])
    step_B, metrics = step_advantages(turns, hgpo)
    by_row, weight = np.zeros(len(batch.keys)), np.full(len(batch.keys), hgpo.episode_weight)
    by_row[kept] = hgpo.step_weight * step_B
    alike = alike_tasks(turns)
    weight[[at for at, turn in zip(kept, turns, strict=True) if turn.uid in alike]] = 0.0
    masks, verls = (queue.column(table[name]) for name in ("response_mask", "advantages"))
    values = [
        one * verl + torch.as_tensor(step, dtype=verl.dtype) * mask
        for one, verl, step, mask in zip(weight.tolist(), verls, by_row, masks, strict=True)
    ]
    metrics["hgpo/turns_with_signal"] = float(np.mean([bool(values[at].any()) for at in kept])) if kept else 0.0
    for field in ("advantages", "returns"):
        queue.write_column(str(batch.partition_id), batch.keys, field, values)
    return metrics


def turns_of(batch: KVBatchMeta) -> tuple[list[int], list[Turn]]:
    """The rows of a batch that are no padding: their positions, and the turns that they are."""
    kept = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    extras = queue.column(queue.read_table(batch, ["extra_fields"])["extra_fields"])
    return kept, [Turn.of(batch.keys[at], extras[at]) for at in kept]


def alike_tasks(turns: Iterable[Turn]) -> set[str]:
    """Tasks of one session, or whose sessions earned the same: they say nothing.

    verl's GRPO gives a lone session its whole reward as its advantage, and it is alone where the others of its group
    failed with their environment; and equal rewards that are no round numbers the noise of their mean, divided by
    its own size.
    """
    returns = {uid: [*sessions.values()] for uid, sessions in earned(turns).items()}
    return {uid for uid, of in returns.items() if max(of) - min(of) <= TOLERANCE * max(map(abs, of))}


def earned(turns: Iterable[Turn]) -> dict[str, dict[int, float]]:
    """What each session of each task earned, in the order in which they come."""
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for turn in turns:
        found[turn.uid][turn.session] += turn.reward
    return found


def penalties(turns: Sequence[Turn], hgpo: HGPOConfig) -> np.ndarray:
    """(B,) what the returns of turns lose for their answers."""
    return hgpo.penalty * np.array([turn.answer in PENALISE[hgpo.penalise] for turn in turns], dtype=bool)


def step_advantages(turns: list[Turn], hgpo: HGPOConfig) -> tuple[np.ndarray, dict[str, float]]:
    """(B,) advantages of turns in any order from nested groups, before step_weight, and the metrics of the groups."""
    trajectory, index = [turn.trajectory for turn in turns], [turn.index for turn in turns]
    rewards = [turn.reward for turn in turns]
    returns_B = discounted_returns(rewards, trajectory, index, hgpo.gamma)
    loses_B = penalties(turns, hgpo)
    rows = {
        "state_keys": [turn.state for turn in turns],
        "uid": [turn.uid for turn in turns],
        "trajectory": trajectory,
        "turn": index,
        "depth": hgpo.depth,
    }
    how = {"alpha": hgpo.alpha, "norm": hgpo.norm, "mode": hgpo.weights, "ddof": STDS[hgpo.std]}
    step_B = compute_hgpo_advantage(returns_B - loses_B, **rows, **how)
    metrics = level_metrics(context_groups(**rows), trajectory)
    if PENALISE[hgpo.penalise]:
        without_B = compute_hgpo_advantage(returns_B, **rows, **how) if loses_B.any() else step_B
        metrics["hgpo/signal_of_penalty_alone"] = float(np.mean((step_B != 0) & (without_B == 0)))
    return step_B, metrics
