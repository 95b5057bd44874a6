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
"""RL-ZVP (arXiv 2509.21880): dead groups train by their outcome, each token by its entropy.

`algorithm.adv_estimator=rl_zvp`. verl hands an estimator no entropies: `RLZVPMixin` writes these advantages afterwards.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's.

import torch

from recipe.common import queue
from recipe.common.outcome import dead_outcome
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import groups_of, tags_of
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

NAME = "rl_zvp"
ALPHA = 0.1
"""Size of these advantages, per nat: a choice of ours, as the paper's was not at hand."""


@register_adv_est(NAME)
def rl_zvp_advantage(token_level_rewards, response_mask, index, config, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's GRPO, which the groups that are not dead have here, too."""
    return compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo
    )


def zero_variance_advantage(entropy: torch.Tensor, mask: torch.Tensor, is_right: bool) -> torch.Tensor:
    """Eq. (5): A_t = alpha H_t where all answers are right, A_t = -alpha (max_k H_k - H_t) where all are wrong.

    What was certain is blamed most in a wrong answer; where the model chose between much, least. With entropies
    [1, 0, 3]: [0.1, 0, 0.3] if right, [-0.2, -0.3, 0] if wrong.

    Args:
        entropy: (T,) of the policy, in nats. mask: (T,) the tokens that train.
    """
    kept = entropy * mask
    size = kept if is_right else kept - kept.max()
    return ALPHA * size * mask


def put_advantages(batch: KVBatchMeta, described: KVBatchMeta) -> dict[str, float]:
    """Replace the advantages of dead groups; returns the share of rows that got some.

    By correctness, as the paper's reward is: right answers that differ in their length bonus alone are a dead group.
    A group that nobody could judge is left alone.

    Args:
        described: the rows of the batch that are no padding, with tags of their outcome.
    """
    tags, outcome = tags_of(described), {}
    for positions in groups_of(described.keys, tags).values():
        group = [tags[at] for at in positions]
        is_right = dead_outcome(group)
        if is_right is not None and not all(tag.reward_error for tag in group):
            outcome |= dict.fromkeys((described.keys[at] for at in positions), is_right)
    rows = queue.read(batch, ["entropy", "response_mask", "advantages"])
    values = [row["advantages"] for row in rows]
    for at, (key, row) in enumerate(zip(batch.keys, rows, strict=True)):
        if key in outcome:
            of_row = zero_variance_advantage(row["entropy"].float(), row["response_mask"], outcome[key])
            values[at] = of_row.to(row["advantages"].dtype)
    for field in ("advantages", "returns"):
        queue.write_column(str(batch.partition_id), batch.keys, field, values)
    return {"rl_zvp/rows": len(outcome) / max(1, len(described.keys))}


class RLZVPMixin:
    """On a measured trainer, where `algorithm.adv_estimator` is rl_zvp."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        if self.config.algorithm.adv_estimator == NAME:
            metrics.update(put_advantages(batch, self._described(batch)))
        return batch
