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
"""RL-ZVP (arXiv 2509.21880): groups of equal rewards train by their outcome, each token by its entropy.

`algorithm.adv_estimator=rl_zvp`. verl hands an estimator no entropies: `RLZVPMixin` writes these advantages afterwards.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's.

from collections import defaultdict

import torch

from recipe.common import queue
from recipe.common.outcome import correct_from
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import uid_of
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

NAME = "rl_zvp"
ALPHA = 0.1
"""Size of these advantages, per nat."""


@register_adv_est(NAME)
def rl_zvp_advantage(token_level_rewards, response_mask, index, config, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's GRPO, which groups of other rewards have here, too."""
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


def put_advantages(batch: KVBatchMeta, correct: float) -> dict[str, float]:
    """Replace the advantages, 0 until now, of groups of equal rewards; returns the share of rows that got some.

    Args:
        correct: reward from which an answer is right.
    """
    kept = [at for at, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    rows = queue.read(batch, ["rm_scores", "entropy", "response_mask", "advantages"])
    rewards = [float(row["rm_scores"].sum()) for row in rows]
    groups = defaultdict(list)
    for at in kept:
        groups[uid_of(batch.keys[at])].append(at)
    values = [row["advantages"] for row in rows]
    equal = [positions for positions in groups.values() if len({rewards[at] for at in positions}) == 1]
    for at in (at for positions in equal for at in positions):
        row = rows[at]
        of_row = zero_variance_advantage(row["entropy"].float(), row["response_mask"], rewards[at] >= correct)
        values[at] = of_row.to(row["advantages"].dtype)
    for field in ("advantages", "returns"):
        queue.write_column(str(batch.partition_id), batch.keys, field, values)
    return {"rl_zvp/rows": sum(map(len, equal)) / max(1, len(kept))}


class RLZVPMixin:
    """On a trainer of verl's, where `algorithm.adv_estimator` is rl_zvp."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        if self.config.algorithm.adv_estimator == NAME:
            metrics.update(put_advantages(batch, correct_from(self.config)))
        return batch
