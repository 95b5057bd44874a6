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
"""The advantage of the RRL-style recipe: verl's GAE on rows that begin with a prefix, with a lambda for each model.

Shapes: B rows, T response positions. Index t stands for the state before token t, so `values[:, c]` is that of cut c.
"""

import torch

from verl.trainer.ppo.core_algos import compute_gae_advantage_return


def gae(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    gamma: float,
    lam_policy: float,
    lam_value: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages by `lam_policy` and returns by `lam_value`, both exactly 0 where the mask is 0.

        delta_t = r_t + gamma V(s_(t+1)) - V(s_t)      A_t = delta_t + gamma lam A_(t+1)      G_t = A_t + V(s_t)

    over the tokens with mask 1: the others are left out, in front, behind and in between, and count as no step of
    gamma and lam. So a row whose prefix is masked has the values of the row that has the prefix in its prompt.
    Advantages are whitened over all tokens with mask 1, as verl does; returns are not. A row without such a token,
    which verl pads a batch with, gets zeros.

    A reward on a masked token reaches nothing: leave a restart out that wrote no token.

    Two lambdas: with the 0.95 that a policy may want, the outcome reaches a token 200 before the end with the weight
    0.95^200 = 3.5e-5. The critic would not learn the value of early states, by which restarts are chosen.

    rewards [0, 0, 1], values [0.2, 0.5, 0.4], mask [0, 1, 1], gamma 1, both lambdas 0.95: before whitening
    A = [0, 0.47, 0.6], so G = [0, 0.97, 1.0].

    Args:
        rewards_BT, values_BT: (B, T) float.
        mask_BT: (B, T) 0 or 1: 1 on what the step generated.

    Returns:
        (B, T) advantages, (B, T) returns.

    Raises:
        ValueError: fewer than two tokens of all have mask 1, so that there is no variance to whiten by.
    """
    advantages_BT, returns_BT = compute_gae_advantage_return(rewards_BT, values_BT, mask_BT, gamma, lam_policy)
    if lam_value != lam_policy:
        _, returns_BT = compute_gae_advantage_return(rewards_BT, values_BT, mask_BT, gamma, lam_value)
    generated_BT = mask_BT.bool()
    return torch.where(generated_BT, advantages_BT, 0.0), torch.where(generated_BT, returns_BT, 0.0)
