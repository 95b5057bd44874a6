"""The advantage of rows with a prefix: by hand, against verl's GAE, under invariances, against a slow loop."""

import itertools

import pytest
import torch

from recipe.rrl.core_algos import gae
from verl.trainer.ppo.core_algos import compute_gae_advantage_return

LAMBDAS = (0.0, 0.5, 0.95, 1.0)


def random_rows(seed: int, rows: int = 6, length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rewards, values, mask): a prefix, an answer with its reward on the last token, padding; each of any length."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(rows, length, generator=generator)
    rewards, mask = torch.zeros(rows, length), torch.zeros(rows, length)
    for row in range(rows):
        cut = int(torch.randint(0, length - 2, (1,), generator=generator))
        end = int(torch.randint(cut + 1, length + 1, (1,), generator=generator))
        mask[row, cut:end] = 1.0
        rewards[row, end - 1] = float(torch.randint(0, 2, (1,), generator=generator))
    return rewards, values, mask


def slow_gae(rewards, values, mask, gamma, lam):
    """Row by row, the tokens that count alone, each advantage by its sum over all later errors."""
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for row in range(len(values)):
        places = [t for t in range(values.shape[1]) if mask[row, t]]
        after = [*(float(values[row, t]) for t in places[1:]), 0.0]
        errors = [
            float(rewards[row, t]) + gamma * v - float(values[row, t]) for t, v in zip(places, after, strict=True)
        ]
        for at, t in enumerate(places):
            advantages[row, t] = sum((gamma * lam) ** later * error for later, error in enumerate(errors[at:]))
            returns[row, t] = advantages[row, t] + values[row, t]
    return advantages, returns


def whitened(advantages, mask):
    chosen = advantages[mask.bool()].double()
    return torch.where(mask.bool(), (advantages - chosen.mean()) / (chosen.var() + 1e-8).sqrt(), 0.0).float()


# (a) numbers by hand


def test_the_state_at_the_cut_counts_and_the_one_before_it_does_not():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.5, 0.4]])
    advantages, returns = gae(rewards, values, torch.tensor([[0.0, 1.0, 1.0]]), 1.0, 0.95, 0.95)
    torch.testing.assert_close(returns, torch.tensor([[0.0, 0.97, 1.0]]))
    # 0.47 and 0.6 lie half a standard deviation of a pair, 2 ** -0.5, about their mean
    torch.testing.assert_close(advantages, torch.tensor([[0.0, -(2**-0.5), 2**-0.5]]), atol=1e-5, rtol=0)


def test_lambda_1_brings_the_outcome_to_every_state_whatever_the_policys_lambda_is():
    rewards, values, mask = torch.zeros(1, 200), torch.full((1, 200), 0.5), torch.ones(1, 200)
    rewards[0, -1] = 1.0
    advantages, returns = gae(rewards, values, mask, 1.0, 0.95, 1.0)
    assert (returns == 1.0).all()
    _, forgotten = gae(rewards, values, mask, 1.0, 0.95, 0.95)
    assert abs(forgotten[0, 0] - 0.5) < 5e-5
    assert advantages[0, -1] > advantages[0, -100] > advantages[0, 0]


# (b) reduction to verl's GAE


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_equal_lambdas_give_verls_numbers_bit_for_bit_where_the_mask_is_1(gamma, lam):
    for seed in range(20):
        rewards, values, mask = random_rows(seed)
        for ours, verls in zip(
            gae(rewards, values, mask, gamma, lam, lam),
            compute_gae_advantage_return(rewards, values, mask, gamma, lam),
            strict=True,
        ):
            assert torch.equal(ours[mask.bool()], verls[mask.bool()])


def test_each_of_two_lambdas_gives_what_verl_gives_with_it():
    rewards, values, mask = random_rows(3)
    advantages, returns = gae(rewards, values, mask, 0.99, 0.95, 1.0)
    assert torch.equal(advantages, gae(rewards, values, mask, 0.99, 0.95, 0.95)[0])
    assert torch.equal(returns, gae(rewards, values, mask, 0.99, 1.0, 1.0)[1])


# (c) invariances


def test_both_are_exactly_0_where_nothing_was_generated():
    rewards, values, mask = random_rows(0)
    for found in gae(rewards, values, mask, 1.0, 0.95, 1.0):
        assert (found[mask == 0] == 0).all() and (found[mask == 1] != 0).any()


@pytest.mark.parametrize("foreign", [99.0, -3.0, 0.0])
def test_what_the_critic_says_of_prefix_and_padding_changes_nothing(foreign):
    rewards, values, mask = random_rows(1)
    other = torch.where(mask.bool(), values, foreign)
    for before, after in zip(
        gae(rewards, values, mask, 1.0, 0.95, 1.0), gae(rewards, other, mask, 1.0, 0.95, 1.0), strict=True
    ):
        assert torch.equal(before, after)


def test_a_row_with_a_masked_prefix_has_the_numbers_of_its_suffix_alone():
    rewards, values, mask = random_rows(2)
    suffixes = [torch.zeros_like(values) for _ in range(3)]
    for row in range(len(values)):
        size = int(mask[row].sum())
        for whole, suffix in zip((rewards, values, mask), suffixes, strict=True):
            suffix[row, :size] = whole[row, mask[row].bool()]
    for whole, alone in zip(gae(rewards, values, mask, 0.9, 0.95, 1.0), gae(*suffixes, 0.9, 0.95, 1.0), strict=True):
        assert torch.equal(whole[mask.bool()], alone[suffixes[2].bool()])


def test_a_row_of_padding_gets_zeros_and_changes_no_other():
    rewards, values, mask = random_rows(4)
    padded = [torch.cat([whole, extra]) for whole, extra in zip((rewards, values, mask), random_rows(5), strict=True)]
    padded[2][len(mask) :] = 0
    for alone, beside in zip(gae(rewards, values, mask, 1.0, 0.95, 1.0), gae(*padded, 1.0, 0.95, 1.0), strict=True):
        assert torch.equal(alone, beside[: len(mask)]) and (beside[len(mask) :] == 0).all()


# (d) a slow loop from the definition


@pytest.mark.parametrize("lam_policy, lam_value", list(itertools.product(LAMBDAS, LAMBDAS)))
def test_a_slow_loop_finds_the_same(lam_policy, lam_value):
    for seed in range(5):
        rewards, values, mask = random_rows(seed)
        advantages, returns = gae(rewards, values, mask, 0.97, lam_policy, lam_value)
        expected = whitened(slow_gae(rewards, values, mask, 0.97, lam_policy)[0], mask)
        torch.testing.assert_close(advantages, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(returns, slow_gae(rewards, values, mask, 0.97, lam_value)[1], atol=1e-5, rtol=1e-5)
