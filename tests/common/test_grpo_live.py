"""The baseline whose loss is not thinned by groups without signal: by hand, and where it is verl's GRPO."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from recipe.common.trainer.grpo_live import grpo_live_advantage
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage


def make_batch(rewards: list[float], tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rewards (B, T) with each reward on the last token, and a mask of ones."""
    token_rewards = torch.zeros(len(rewards), tokens)
    token_rewards[:, -1] = torch.tensor(rewards)
    return token_rewards, torch.ones(len(rewards), tokens, dtype=torch.int64)


def live(rewards, index, **settings) -> list[float]:
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": True, **settings})
    return grpo_live_advantage(*make_batch(rewards), np.array(index), config=config)[0][:, 0].tolist()


def test_groups_without_signal_are_not_counted_in_the_loss():
    # Of four groups one has a signal: a loss that divides by a quarter of the tokens is four times as large.
    assert live([1, 0, 0, 0, 1, 1, 0, 0], list("aabbccdd")) == pytest.approx([2.828427, -2.828427] + [0] * 6, abs=1e-4)
    # verl's mean over 24 tokens of the scaled advantages is GRPO's mean over the 6 tokens of the group with a signal.
    assert sum(map(abs, live([1, 0, 0, 0, 1, 1, 0, 0], list("aabbccdd")))) / 8 == pytest.approx(0.707107, abs=1e-4)


def test_a_row_of_a_live_group_counts_though_its_own_advantage_is_zero():
    # Rewards 1, 0.5, 0: the middle row gets 0 and its tokens count; half of the tokens are live.
    assert live([1, 0.5, 0, 0, 0, 0], list("aaabbb")) == pytest.approx([2.0, 0.0, -2.0, 0, 0, 0], abs=1e-4)


@pytest.mark.parametrize("rewards, index", [([1, 0, 2, 1], "aabb"), ([1, 1, 0, 0], "aabb")])
def test_where_all_groups_or_none_have_a_signal_it_is_verls_grpo_bit_for_bit(rewards, index):
    token_rewards, mask = make_batch(rewards)
    expected, _ = compute_grpo_outcome_advantage(token_rewards, mask, np.array(list(index)))
    assert live(rewards, list(index)) == expected[:, 0].tolist()
