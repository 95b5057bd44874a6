"""Advantage and ranking on the device, at a step's size: equal to verl's GRPO, and to what the CPU computes.

B rows, T response tokens.
"""

import numpy as np
import pytest
import torch

from recipe.r3.core_algos import compute_r3_advantage, structural_entropy_ranking_reward
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

GROUP, RANKED_GROUP = 8, 16


def rewards_and_mask(shapes, device, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Rewards 0, or 1 to 2 as with the length bonus, on the last token of rows of any length; mask; group names."""
    generator = torch.Generator().manual_seed(seed)
    length_B = torch.randint(1, shapes.tokens + 1, (shapes.rows,), generator=generator)
    mask = (torch.arange(shapes.tokens) < length_B[:, None]).long()
    reward_B = torch.randint(0, 2, (shapes.rows,), generator=generator) * (
        1 + torch.rand(shapes.rows, generator=generator)
    )
    rewards = torch.zeros(shapes.rows, shapes.tokens)
    rewards[torch.arange(shapes.rows), length_B - 1] = reward_B
    index = np.array([f"uid-{row // GROUP}" for row in range(shapes.rows)], dtype=object)
    return rewards.to(device), mask.to(device), index


def entropies(shapes, device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T): most tokens nearly certain, as in a language model; every second row of full length."""
    generator = torch.Generator().manual_seed(0)
    entropy = (torch.rand(shapes.rows, shapes.tokens, generator=generator) ** 6 * 4).to(dtype)
    length_B = torch.randint(1, shapes.tokens + 1, (shapes.rows,), generator=generator)
    length_B[::2] = shapes.tokens
    mask = (torch.arange(shapes.tokens) < length_B[:, None]).long()
    return entropy.to(device), mask.to(device)


def test_everything_off_is_verls_grpo(shapes, device, record):
    rewards, mask, index = rewards_and_mask(shapes, device)
    ours, _ = compute_r3_advantage(rewards, mask, index, np.zeros(shapes.rows, dtype=bool))
    theirs, _ = compute_grpo_outcome_advantage(rewards, mask, index)
    assert ours.device == rewards.device and ours.dtype == theirs.dtype
    figures = {"differing": int((ours != theirs).sum()), "largest_difference": (ours - theirs).abs().max().item()}
    record.check("advantage, everything off, against verl's GRPO", figures, {"differing": 0})
    assert theirs.abs().max() > 0.5


def test_the_advantage_is_that_of_the_cpu_in_double(shapes, device, record):
    rewards, mask, index = rewards_and_mask(shapes, device)
    replayed = np.arange(shapes.rows) % (4 * GROUP) == GROUP - 1
    ours, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha=2.0)
    theirs, _ = compute_r3_advantage(rewards.double().cpu(), mask.cpu(), index, replayed, alpha=2.0)
    figures = {"largest_difference": (ours.double().cpu() - theirs).abs().max().item()}
    record.check("advantage with replayed rows, against the CPU", figures, {"largest_difference": 1e-5})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_ranking_is_that_of_the_cpu(shapes, device, record, dtype):
    entropy, mask = entropies(shapes, device, dtype)
    worst, distinct = 0.0, set()
    for start in range(0, shapes.rows, RANKED_GROUP):
        rows = slice(start, start + RANKED_GROUP)
        ours = structural_entropy_ranking_reward(entropy[rows], mask[rows], 0.2, 0.5)
        theirs = structural_entropy_ranking_reward(entropy[rows].cpu(), mask[rows].cpu(), 0.2, 0.5)
        assert ours.device == entropy.device
        worst = max(worst, (ours.cpu() - theirs).abs().max().item())
        distinct |= set(theirs.tolist())
    assert len(distinct) > 2, "nothing was ranked"
    # CUDA multiplies by the inverse of a number that the CPU divides by. Another rank is 0.5 / 15 away.
    record.check(f"ranking in {dtype}, against the CPU", {"largest_difference": worst}, {"largest_difference": 1e-15})
