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
"""NGRPO (arXiv 2509.18851): all-wrong groups are pushed down, as if one more answer had been right.

`algorithm.adv_estimator=ngrpo`. The paper's clip range, narrow below and wide above, is in method/ngrpo.yaml.
"""

from collections import defaultdict

import numpy as np
import torch

from verl.trainer.ppo.core_algos import register_adv_est

BEST = 1.0
"""Reward of a right answer. Where a group has a higher one, with the length bonus, that is the virtual one's."""


@register_adv_est("ngrpo")
def ngrpo_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, epsilon: float = 1e-6, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """A_i = (r_i - mean) / (std + epsilon), mean and std (of a sample) of the group's rewards and one virtual r_max.

    Of 8 answers one right: 1.764 and -0.504, where GRPO has 2.475 and -0.354. All wrong: each -1/3, whatever r_max is.
    All right and alike: 0, as in the paper. The best of the whole batch would push such a group down wherever another
    has a shorter right answer.

    Args:
        token_level_rewards, response_mask: (B, T). index: (B,) group of each row.

    Returns:
        (B, T) advantages, twice: verl wants returns, too.
    """
    reward_B = token_level_rewards.sum(dim=-1)
    groups = defaultdict(list)
    for row, name in enumerate(index):
        groups[name].append(row)
    advantage_B = torch.zeros_like(reward_B)
    for rows in groups.values():
        group = reward_B[rows]
        with_virtual = torch.cat([group, group.max().clamp(min=BEST)[None]])
        advantage_B[rows] = (group - with_virtual.mean()) / (with_virtual.std() + epsilon)
    advantages = advantage_B[:, None] * response_mask
    return advantages, advantages
