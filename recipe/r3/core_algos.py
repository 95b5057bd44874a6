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
"""The formulas of R^3 (arXiv 2601.19620): pure functions on tensors, no Ray, no config tree, no TransferQueue.

Shapes: B rows of the batch, N rows of one group, T response tokens, K tokens in the peak, J of them too many.
"""

import math
from statistics import fmean

import numpy as np
import torch

from recipe.common.rows import TrainedUid
from verl.trainer.ppo.core_algos import register_adv_est

GRPO_EPSILON = 1e-6
"""What verl's GRPO adds to the std."""
BLOCK_ROWS = 64
"""Rows whose entropies are reduced at a time: the copies that takes stay small enough for the processor's cache."""


def compute_r3_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    replayed: np.ndarray,
    alpha: float = 1.0,
    epsilon: float = GRPO_EPSILON,
    norm_by_std: bool = True,
    ranked: np.ndarray | None = None,
    trains: str = "all",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eq. (3): A_i = (R_i - mean R) / (alpha * std R + epsilon) over the mixed group of fresh and replayed rows.

    A group without a replayed row keeps verl's GRPO denominator (sample std + 1e-6), bit for bit. An all-equal group
    gets 0, and so does a group of one, which verl's GRPO gives its raw score: with nothing to compare it with, what is
    left of a group whose other rollouts failed would be pushed by its length bonus alone. A ranked group without
    a replayed row is centred and not divided: its std is that of the ranking, and dividing by it would cancel R_max.

    Rewards [0, 0, 0, 0] and a replayed [1], alpha 1, epsilon 0: -0.447214 four times, then 1.788854. With trains
    `fresh` the last is 0, with `replayed` the first four are what they are without it: 0.
    Ranking rewards [0.5, 0, 0.25, 0.25], ranked: 0.25, -0.25, 0, 0.

    Args:
        token_level_rewards: (B, T) rewards per token; a row's reward R_i is their sum.
        response_mask: (B, T) 1 on trained tokens.
        index: (B,) group of each row.
        replayed: (B,) boolean, True on rows appended by cross-context replay.
        alpha: scale of the std of groups that hold a replayed row, > 0; above 1 shrinks their advantages.
        epsilon: the paper's lambda, added to the denominator of groups that hold a replayed row.
        norm_by_std: False keeps the centred reward, undivided (Dr.GRPO); alpha then has no effect.
        ranked: (B,) boolean, True on rows of groups whose ranking rewards are not divided; None: nowhere.
        trains: which rows of a group that holds a replayed row are trained by eq. (3): `all`; the `fresh` ones, while
            the replayed ones get 0; or the `replayed` ones, while the fresh ones keep what they have without them.

    Returns:
        (advantages, returns), both (B, T) and the same tensor.
    """
    rewards_B = token_level_rewards.sum(dim=-1)
    replayed_B = np.asarray(replayed, dtype=bool)
    ranked_B = np.zeros_like(replayed_B) if ranked is None else np.asarray(ranked, dtype=bool)
    if not (len(index) == len(replayed_B) == len(ranked_B) == len(rewards_B)):
        raise ValueError(
            "index, replayed and ranked need one entry per row, "
            f"got {len(index)}, {len(replayed_B)} and {len(ranked_B)} for {len(rewards_B)} rows"
        )
    _, group_B = np.unique(np.asarray(index, dtype=str), return_inverse=True)
    advantages_B = torch.empty_like(rewards_B)
    with torch.no_grad():
        for group in range(group_B.max() + 1):
            rows_N = np.flatnonzero(group_B == group)
            is_replayed_N = replayed_B[rows_N]
            fresh_N, is_divided = rows_N[~is_replayed_N], norm_by_std and not ranked_B[rows_N].any()
            advantages_B[fresh_N] = _compare(rewards_B[fresh_N], 1.0, GRPO_EPSILON, is_divided)
            if is_replayed_N.any():
                mixed_N = _compare(rewards_B[rows_N], alpha, epsilon, norm_by_std)
                advantages_B[rows_N[is_replayed_N]] = mixed_N[is_replayed_N] if trains != "fresh" else 0.0
                if trains != "replayed":
                    advantages_B[fresh_N] = mixed_N[~is_replayed_N]
        advantages = advantages_B.unsqueeze(-1) * response_mask
    return advantages, advantages


def _compare(rewards_N: torch.Tensor, alpha: float, epsilon: float, is_divided: bool) -> torch.Tensor:
    """(N,) A_i of rows that are compared with each other; 0 for one alone."""
    if len(rewards_N) < 2:
        return torch.zeros_like(rewards_N)
    centred_N = rewards_N - rewards_N.mean()
    return centred_N / (alpha * rewards_N.std() + epsilon) if is_divided else centred_N


@register_adv_est("r3")
def r3_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's door to `compute_r3_advantage`: takes the uids apart and reads `algorithm.r3`."""
    uids = [TrainedUid.parse(str(uid)) for uid in index]
    ranked = np.array([uid.is_ranked for uid in uids])
    return compute_r3_advantage(
        token_level_rewards,
        response_mask,
        index=np.array([uid.group for uid in uids]),
        replayed=np.array([uid.is_replayed for uid in uids]),
        alpha=config.r3.replay.alpha,
        norm_by_std=config.norm_adv_by_std_in_grpo,
        ranked=None if config.r3.ranking.norm_by_std else ranked,
        trains=config.r3.replay.trains,
    )


def structural_entropies(
    entropy: torch.Tensor, response_mask: torch.Tensor, top_ratio: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """E_peak and E_global of each row: the mean entropy of its top tokens and of all its tokens.

    k_i = max(1, floor(top_ratio * L_i)) over the L_i unmasked tokens. Entropies [0.1, 0.9, 0.2, 0.8, 0.5] with
    top_ratio 0.4: k = 2, E_peak = 0.85, E_global = 0.5.

    Args:
        entropy: (N, T) token entropies in nats; padding may hold anything.
        response_mask: (N, T) 1 on the tokens that count.
        top_ratio: share of tokens in the peak, in (0, 1].

    Raises:
        ValueError: a row has no unmasked token, or a non-finite entropy on one; the message names the row.
    """
    # Blocks of nearly one size, none of a single row: torch may add up a lone row in another order than its equals.
    sections = math.ceil(len(entropy) / BLOCK_ROWS)
    blocks = zip(entropy.tensor_split(sections), response_mask.tensor_split(sections), strict=True)
    columns = zip(*[_entropy_sums(*block, top_ratio) for block in blocks], strict=True)
    peak_sum_N, top_N, sum_N, length_N = (torch.cat(column) for column in columns)
    # One non-finite token makes the sum of its row non-finite, and nothing else does.
    bad_N = ~torch.isfinite(sum_N)
    if bad_N.any():
        raise ValueError(f"non-finite token entropy in row {int(bad_N.nonzero()[0])}")
    if (length_N == 0).any():
        raise ValueError(f"no unmasked token in row {int((length_N == 0).nonzero()[0])}: nothing to rank")
    return peak_sum_N / top_N, sum_N / length_N


def _entropy_sums(entropy: torch.Tensor, response_mask: torch.Tensor, top_ratio: float) -> tuple[torch.Tensor, ...]:
    """Sum and number of the top tokens of each row, sum and number of all its tokens: each (N,), the sums in double.

    Tokens are compared in their own precision, which orders them as double would, and added up in double: sums in
    single or half precision would round close rows into ties, and the same tokens in another order apart.
    """
    mask = response_mask.bool()
    length_N = mask.sum(dim=-1)
    # 0.29 * 100 is 28.999... in floating point; the paper's floor means 29. A row without tokens has no top token.
    top_N = (top_ratio * length_N.double() + 1e-9).floor().long().clamp(min=1).minimum(length_N)
    sum_N = entropy.where(mask, 0.0).sum(dim=-1, dtype=torch.float64)
    # The top tokens need no order, and sorting them would double the time of topk. A row with fewer of them than the
    # longest row gets too many; only these, the smallest of the peak, are put in order and dropped.
    width, surplus = int(top_N.max()), int(top_N.max() - top_N.min())
    peak_NK = entropy.where(mask, -torch.inf).topk(width, dim=-1, sorted=False).values
    lowest_NJ = peak_NK.topk(surplus, dim=-1, largest=False)
    dropped_NJ = torch.arange(surplus, device=entropy.device) < width - top_N.unsqueeze(-1)
    peak_NK.scatter_(-1, lowest_NJ.indices, lowest_NJ.values.masked_fill(dropped_NJ, 0.0))
    return peak_NK.sum(dim=-1, dtype=torch.float64), top_N, sum_N, length_N


def group_rewards(ranked: list[float], finished: int, finished_reward: str) -> list[float]:
    """Rewards of an all-wrong group: those of its ranked rows, then those of its `finished` wrong answers.

    `zero` leaves a finished wrong answer at 0, below every ranked row but the last: being cut off then pays more than
    answering wrongly. `mean` gives it the mean of the ranked rows, so that the ranking says something about cut-off
    rows among each other only.

    Ranked [0.5, 0.0] and two finished answers: [0.5, 0, 0, 0], or [0.5, 0, 0.25, 0.25].
    """
    level = fmean(ranked) if finished_reward == "mean" else 0.0
    return [*ranked, *[level] * finished]


def structural_entropy_ranking_reward(
    entropy: torch.Tensor, response_mask: torch.Tensor, top_ratio: float, max_reward: float
) -> torch.Tensor:
    """SERR: graded rewards for the unverifiable rows of one group, from the order of their entropy structure.

    i dominates j iff E_peak_i > E_peak_j and E_global_i < E_global_j; S_i counts the rows i dominates. In descending
    order of S, rank k = 0..N-1 earns max_reward * (1 - k / (N - 1)); tied rows share the mean of their ranks'
    rewards, so equal evidence earns equal reward. N = 1 earns 0: there is nothing to rank.

    E_peak [3, 2, 2.5, 1], E_global [1.0, 1.2, 0.9, 0.5], max_reward 0.5: S = [1, 0, 1, 0] and rewards
    [0.41667, 0.08333, 0.41667, 0.08333].

    Args:
        entropy, response_mask: (N, T), see `structural_entropies`, which also names the errors.
        top_ratio: share of tokens in the peak, in (0, 1].
        max_reward: reward of the first rank; must stay below the reward of a correct answer.

    Returns:
        (N,) rewards in [0, max_reward].
    """
    peak_N, global_N = structural_entropies(entropy, response_mask, top_ratio)
    rows = len(peak_N)
    if rows == 1:
        return torch.zeros_like(peak_N)
    dominates_NN = (peak_N[:, None] > peak_N[None, :]) & (global_N[:, None] < global_N[None, :])
    score_N = dominates_NN.sum(dim=1)
    above_N = (score_N[None, :] > score_N[:, None]).sum(dim=1)
    tied_N = (score_N[None, :] == score_N[:, None]).sum(dim=1)
    # The reward is linear in the rank, so the mean reward of tied ranks is the reward of their mean rank.
    rank_N = above_N + (tied_N - 1) / 2
    return max_reward * (1 - rank_N.double() / (rows - 1))
