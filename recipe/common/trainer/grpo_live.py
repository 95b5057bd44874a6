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
"""GRPO whose loss is not thinned by groups without signal: a baseline (`algorithm.adv_estimator=grpo_live`)."""

import numpy as np
import torch

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est


@register_adv_est("grpo_live")
def grpo_live_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's GRPO as if the tokens of groups without signal were not counted: a baseline, without R^3.

    A loss is the sum over tokens, divided by their number; groups whose rewards are all equal add to the number only.
    So advantages are multiplied by all tokens of the batch over those of the other groups. verl divides each optimizer
    step by its own tokens: these count as many as there are, times the share in the whole batch.

    Rewards [1, 0] and [0, 0] of two groups, a token each: GRPO's 0.7071 and -0.7071 become 1.4142 and -1.4142.

    Args:
        token_level_rewards, response_mask: (B, T). index: (B,) group of each row.
    """
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo
    )
    _, group_B = np.unique(np.asarray(index, dtype=str), return_inverse=True)
    live = set(group_B[(advantages != 0).any(dim=-1).numpy(force=True)])
    is_live_B = torch.tensor([group in live for group in group_B], device=response_mask.device)
    if live:
        advantages = advantages * (response_mask.sum() / response_mask[is_live_B].sum())
    return advantages, advantages
