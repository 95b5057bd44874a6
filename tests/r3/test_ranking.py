"""The structural entropy ranking reward: by hand, its simplest case, under invariances, against a slow loop.

N rows of one group, T response tokens. E_peak is the mean of a row's top token entropies, E_global of all of them.
"""

import math

import numpy as np
import pytest
import torch

from recipe.r3.core_algos import (
    BLOCK_ROWS,
    compute_r3_advantage,
    group_rewards,
    structural_entropies,
    structural_entropy_ranking_reward,
)


def random_group(seed: int, rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropies (N, T) in nats, NaN on padding, and their mask; lengths differ, some rows tie exactly."""
    generator = torch.Generator().manual_seed(seed)
    rows = rows or int(torch.randint(2, 12, (), generator=generator))
    length_N = torch.randint(1, 60, (rows, 1), generator=generator)
    mask = torch.arange(int(length_N.max())) < length_N
    entropy = torch.rand(mask.shape, generator=generator, dtype=torch.float64) * 3
    if seed % 2 and rows > 2:
        entropy[1], mask[1] = entropy[0], mask[0]
    return entropy.masked_fill(~mask, torch.nan), mask.long()


def scattered_group(seed: int, rows: int, tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Most tokens nearly certain, as in a language model; any may be masked, and those hold NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    entropy = (torch.rand(rows, tokens, generator=generator, dtype=torch.float64) ** 6 * 4).to(dtype)
    mask = torch.rand(rows, tokens, generator=generator) < torch.rand(rows, 1, generator=generator)
    mask[:, 0] = True
    junk = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype).repeat(tokens)[:tokens]
    return torch.where(mask, entropy, junk), mask.long()


def rows_with(peak: list[float], mean: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten-token rows with the given E_peak (top ratio 0.1: one token) and E_global."""
    rest = [(10 * mean_i - peak_i) / 9 for peak_i, mean_i in zip(peak, mean, strict=True)]
    entropy = torch.tensor([[peak_i] + [rest_i] * 9 for peak_i, rest_i in zip(peak, rest, strict=True)])
    return entropy, torch.ones_like(entropy)


def slow_entropies(values: list[float], top_ratio: float) -> tuple[float, float]:
    top = sorted(values, reverse=True)[: max(1, math.floor(top_ratio * len(values) + 1e-9))]
    return sum(top) / len(top), sum(values) / len(values)


def slow_rewards(entropy, mask, top_ratio: float, max_reward: float) -> list[float]:
    """The paper's definition over pairs of rows; rows of equal S share the mean of the rewards of their ranks."""
    rows = [
        slow_entropies([value for value, kept in zip(*row, strict=True) if kept], top_ratio)
        for row in zip(entropy.tolist(), mask.tolist(), strict=True)
    ]
    score = [sum(peak > peak_j and mean < mean_j for peak_j, mean_j in rows) for peak, mean in rows]
    by_rank = sorted(score, reverse=True)
    reward_of_rank = [max_reward * (1 - rank / (len(rows) - 1)) for rank in range(len(rows))]
    shared = {}
    for value in set(score):
        ranks = [rank for rank, other in enumerate(by_rank) if other == value]
        shared[value] = sum(reward_of_rank[rank] for rank in ranks) / len(ranks)
    return [shared[value] for value in score]


# (a) numbers by hand


@pytest.mark.parametrize("top_ratio, peak", [(0.4, 0.85), (0.1, 0.9), (0.01, 0.9), (1.0, 0.5), (0.79, 2.2 / 3)])
def test_peak_is_the_mean_of_the_top_tokens_and_global_of_all(top_ratio, peak):
    # k = max(1, floor(p * 5)): 2, 1 (floor gives 0, one token remains), 1, 5, 3
    entropy = torch.tensor([[0.1, 0.9, 0.2, 0.8, 0.5]])
    peak_N, global_N = structural_entropies(entropy, torch.ones(1, 5), top_ratio)
    assert peak_N.item() == pytest.approx(peak) and global_N.item() == pytest.approx(0.5)


def test_top_count_follows_the_paper_floor_where_floating_point_falls_short():
    # 0.29 * 100 is 28.999999999999996, the paper's floor is 29: the 28 ones and a zero
    entropy = torch.cat([torch.ones(28), torch.zeros(72)]).unsqueeze(0)
    assert structural_entropies(entropy, torch.ones(1, 100), 0.29)[0].item() == pytest.approx(28 / 29)
    assert structural_entropies(entropy, torch.ones(1, 100), 0.28)[0].item() == 1.0


def test_each_row_has_a_top_count_of_its_own_length():
    entropy = torch.tensor([[4.0, 3, 2, 1], [4, 2, 9, 9]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    peak_N, global_N = structural_entropies(entropy, mask, 0.5)
    assert peak_N.tolist() == [3.5, 4.0] and global_N.tolist() == [2.5, 3.0]


def test_paper_fixture_of_four_rows_with_shared_ranks():
    # dominance 1>2 and 3>2, so S = [1, 0, 1, 0]: ranks 0 and 1 share (0.5 + 0.3333) / 2, ranks 2 and 3 (0.1667 + 0) / 2
    entropy, mask = rows_with(peak=[3.0, 2.0, 2.5, 1.0], mean=[1.0, 1.2, 0.9, 0.5])
    rewards = structural_entropy_ranking_reward(entropy, mask, top_ratio=0.1, max_reward=0.5)
    assert rewards.tolist() == pytest.approx([0.41667, 0.08333, 0.41667, 0.08333], abs=1e-5)


def test_a_chain_of_dominance_gets_evenly_spaced_rewards():
    # row 0 dominates 1 and 2, row 1 dominates 2: S = [2, 1, 0]
    entropy, mask = rows_with(peak=[3.0, 2.0, 1.5], mean=[0.5, 0.8, 1.0])
    rewards = structural_entropy_ranking_reward(entropy, mask, top_ratio=0.1, max_reward=0.6)
    assert rewards.tolist() == pytest.approx([0.6, 0.3, 0.0])


def test_higher_peak_without_lower_global_entropy_does_not_dominate():
    # exploration alone is not enough: E_peak and E_global fall together, nobody dominates, all share the middle
    entropy, mask = rows_with(peak=[3.0, 2.0, 1.0], mean=[1.0, 0.8, 0.6])
    rewards = structural_entropy_ranking_reward(entropy, mask, top_ratio=0.1, max_reward=0.5)
    assert rewards.tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("other", [[2.0, 0.5, 0.0], [1.0, 0.5, 0.5]])
def test_equality_in_one_of_the_two_entropies_is_no_dominance(other):
    entropy = torch.tensor([[2.0, 0.0, 0.0], other])  # equal E_peak, then equal E_global
    rewards = structural_entropy_ranking_reward(entropy, torch.ones(2, 3), top_ratio=0.1, max_reward=0.5)
    assert rewards.tolist() == [0.25, 0.25]


# (b) the simplest cases


def test_a_single_row_has_nothing_to_be_ranked_against_and_gets_zero():
    entropy, mask = random_group(0, rows=1)
    assert structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5).tolist() == [0.0]


def test_identical_rows_get_identical_rewards():
    rewards = structural_entropy_ranking_reward(torch.ones(4, 7), torch.ones(4, 7), 0.2, 0.5)
    assert rewards.tolist() == [0.25] * 4


def test_with_all_tokens_in_the_peak_both_entropies_are_equal_and_nothing_dominates():
    for seed in range(0, 20, 2):
        entropy, mask = random_group(seed)
        peak_N, global_N = structural_entropies(entropy, mask, 1.0)
        torch.testing.assert_close(peak_N, global_N)


# (c) invariances and bounds


def test_rewards_lie_between_zero_and_the_maximum_and_sum_to_half_of_it_per_row():
    for seed in range(40):
        entropy, mask = random_group(seed)
        rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.7)
        assert rewards.min() >= 0 and rewards.max() <= 0.7
        assert rewards.mean().item() == pytest.approx(0.35)  # the mean over ranks, however ties share them


def test_row_order_only_permutes_the_rewards():
    for seed in range(20):
        entropy, mask = random_group(seed)
        order = torch.randperm(len(entropy), generator=torch.Generator().manual_seed(seed))
        rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
        assert torch.equal(structural_entropy_ranking_reward(entropy[order], mask[order], 0.2, 0.5), rewards[order])


def test_padding_columns_and_their_values_do_not_matter():
    for seed in range(20):
        entropy, mask = random_group(seed)
        rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
        for padding in (0.0, 99.0, -1.0, float("inf"), float("nan")):
            wide = torch.nn.functional.pad(entropy.masked_fill(mask == 0, padding), (0, 9), value=padding)
            wide_mask = torch.nn.functional.pad(mask, (0, 9))
            assert torch.equal(structural_entropy_ranking_reward(wide, wide_mask, 0.2, 0.5), rewards)


def test_token_order_and_a_positive_scale_of_the_entropies_do_not_matter():
    for seed in range(20):
        entropy, mask = random_group(seed, rows=6)
        rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
        for changed in (entropy * 2, entropy / 4):
            assert torch.equal(structural_entropy_ranking_reward(changed, mask, 0.2, 0.5), rewards)
        assert torch.equal(structural_entropy_ranking_reward(entropy.flip(1), mask.flip(1), 0.2, 0.5), rewards)


def test_the_maximum_scales_the_rewards():
    entropy, mask = random_group(4)
    half, full = (structural_entropy_ranking_reward(entropy, mask, 0.2, maximum) for maximum in (0.4, 0.8))
    torch.testing.assert_close(2 * half, full)


def test_a_dominating_row_earns_strictly_more_so_the_order_is_strict():
    for seed in range(40):
        entropy, mask = random_group(seed)
        peak_N, global_N = structural_entropies(entropy, mask, 0.2)
        rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
        dominates = (peak_N[:, None] > peak_N) & (global_N[:, None] < global_N)
        assert not (dominates & dominates.T).any()  # asymmetric, hence irreflexive
        assert (rewards[:, None] > rewards)[dominates].all()


def test_half_precision_entropies_of_a_long_response_are_averaged_in_full_precision():
    entropy = torch.rand(4, 8192, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    peak_N, global_N = structural_entropies(entropy, torch.ones(4, 8192), 0.2)
    torch.testing.assert_close(global_N.double(), entropy.double().mean(dim=1), atol=1e-5, rtol=0)
    torch.testing.assert_close(peak_N.double(), entropy.double().topk(1638).values.mean(dim=1), atol=1e-5, rtol=0)


def test_masked_tokens_within_a_row_do_not_matter_whatever_they_hold():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        entropy, mask = scattered_group(0, rows=5, tokens=200, dtype=dtype)
        for row, kept in zip(entropy, mask.bool(), strict=True):
            peak_N, global_N = structural_entropies(row[kept].unsqueeze(0), torch.ones(1, kept.sum()), 0.2)
            padded_peak_N, padded_global_N = structural_entropies(row.unsqueeze(0), kept.unsqueeze(0), 0.2)
            torch.testing.assert_close(padded_peak_N, peak_N, rtol=1e-14, atol=0)
            torch.testing.assert_close(padded_global_N, global_N, rtol=1e-14, atol=0)


def test_entropies_that_rounding_left_below_zero_are_not_confused_with_padding():
    entropy = torch.tensor([[-2e-7, -1e-7, -4e-7, 0, 0], [-2e-7, -1e-7, -4e-7, -3e-7, -5e-7]])
    peak_N, global_N = structural_entropies(entropy, torch.tensor([[1, 1, 1, 0, 0], [1] * 5]), 0.7)
    assert peak_N.tolist() == pytest.approx([-1.5e-7, -2e-7]) and global_N.tolist() == pytest.approx([-7e-7 / 3, -3e-7])


@pytest.mark.parametrize("ragged", [False, True])
def test_rows_with_the_same_tokens_tie_wherever_they_stand_and_in_whatever_order(ragged):
    # more rows than are reduced at a time; each is one of three, some with their tokens in another order
    generator = torch.Generator().manual_seed(0)
    tokens, rows = 3000, 2 * BLOCK_ROWS + 1
    distinct = torch.rand(3, tokens, generator=generator) + 0.01
    kind_N = torch.arange(rows) % 3
    entropy = distinct[kind_N]
    length_N = torch.tensor([tokens, tokens // 2, tokens // 3])[kind_N] if ragged else torch.full((rows,), tokens)
    for row in range(0, rows, 2):
        length = int(length_N[row])
        entropy[row, :length] = entropy[row, torch.randperm(length, generator=generator)]
    mask = torch.arange(tokens) < length_N.unsqueeze(-1)
    rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
    for kind in range(3):
        assert len(set(rewards[kind_N == kind].tolist())) == 1


def test_identical_rows_tie_where_their_number_leaves_one_beyond_the_rows_that_are_reduced_at_a_time():
    # entropies in double: their sums are rounded, and torch may split the sum of a lone long row among threads
    mask = torch.ones(BLOCK_ROWS + 1, 40_000)
    for seed in range(4):
        row = torch.rand(1, 40_000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        peak_N, global_N = structural_entropies(row.expand_as(mask), mask, 0.2)
        assert len(set(peak_N.tolist())) == len(set(global_N.tolist())) == 1


# (d) a slow loop written from the paper


@pytest.mark.parametrize("top_ratio, max_reward", [(0.2, 0.5), (0.05, 0.9), (0.5, 0.1)])
def test_agrees_with_a_loop_over_pairs_of_rows(top_ratio, max_reward):
    for seed in range(60):
        entropy, mask = random_group(seed)
        rewards = structural_entropy_ranking_reward(entropy, mask, top_ratio, max_reward)
        assert rewards.tolist() == pytest.approx(slow_rewards(entropy, mask, top_ratio, max_reward), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_agrees_with_the_loop_on_more_rows_than_are_reduced_at_a_time(dtype):
    entropy, mask = scattered_group(1, rows=2 * BLOCK_ROWS + 1, tokens=150, dtype=dtype)
    rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
    assert rewards.tolist() == pytest.approx(slow_rewards(entropy, mask, 0.2, 0.5), abs=1e-12)


@pytest.mark.parametrize("lengths", [[40_000] * 4, [40_000, 1, 39_999, 4]])
def test_agrees_with_the_loop_on_very_long_rows(lengths):
    entropy, _ = scattered_group(2, rows=4, tokens=40_000, dtype=torch.float32)
    entropy = entropy.nan_to_num(0.5, posinf=0.25, neginf=0.125)
    mask = torch.arange(40_000) < torch.tensor(lengths).unsqueeze(-1)
    expected = [
        slow_entropies(row[:length], 0.2) for row, length in zip(entropy.double().tolist(), lengths, strict=True)
    ]
    peak_N, global_N = structural_entropies(entropy, mask, 0.2)
    assert peak_N.tolist() == pytest.approx([peak for peak, _ in expected], rel=1e-12)
    assert global_N.tolist() == pytest.approx([mean for _, mean in expected], rel=1e-12)
    rewards = structural_entropy_ranking_reward(entropy, mask, 0.2, 0.5)
    assert rewards.tolist() == pytest.approx(slow_rewards(entropy, mask, 0.2, 0.5))


# errors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_entropy_names_the_row(value):
    entropy = torch.ones(3, 4)
    entropy[1, 2] = value
    with pytest.raises(ValueError, match="non-finite token entropy in row 1"):
        structural_entropy_ranking_reward(entropy, torch.ones(3, 4), 0.2, 0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_non_finite_entropy_names_the_row_in_a_large_group_with_other_values_in_the_padding(dtype):
    entropy, mask = scattered_group(3, rows=3 * BLOCK_ROWS, tokens=20, dtype=dtype)
    structural_entropies(entropy, mask, 0.2)
    row = BLOCK_ROWS + 5
    entropy[row, :2], mask[row, :2] = torch.tensor([torch.inf, -torch.inf]), 1  # their sum is no infinity but NaN
    entropy[row + BLOCK_ROWS, 0] = torch.nan
    with pytest.raises(ValueError, match=f"non-finite token entropy in row {row}$"):
        structural_entropies(entropy, mask, 0.2)


def test_rows_of_no_width_have_no_token():
    with pytest.raises(ValueError, match="no unmasked token in row 0"):
        structural_entropies(torch.ones(2, 0), torch.ones(2, 0), 0.2)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_without_tokens_names_the_row(rows):
    mask = torch.ones(rows, 4)
    mask[-1] = 0
    with pytest.raises(ValueError, match=f"no unmasked token in row {rows - 1}"):
        structural_entropy_ranking_reward(torch.ones(rows, 4), mask, 0.2, 0.5)


def test_rewards_of_a_group_by_hand():
    assert group_rewards([0.5, 0.0], 2, "zero") == [0.5, 0.0, 0.0, 0.0]
    assert group_rewards([0.5, 0.0], 2, "mean") == [0.5, 0.0, 0.25, 0.25]
    assert group_rewards([0.5, 0.25, 0.0], 0, "mean") == group_rewards([0.5, 0.25, 0.0], 0, "zero") == [0.5, 0.25, 0.0]


@pytest.mark.parametrize("max_reward", [0.01, 0.3, 0.99])
@pytest.mark.parametrize("cut_off,finished", [(1, 3), (2, 2), (3, 1), (5, 11)])
def test_only_zero_pays_for_being_cut_off_and_no_max_reward_changes_that(max_reward, cut_off, finished):
    torch.manual_seed(cut_off)
    entropy = torch.rand(cut_off, 50)
    ranked = structural_entropy_ranking_reward(entropy, torch.ones(cut_off, 50), 0.2, max_reward).tolist()
    mean_advantage = {}
    for finished_reward in ("zero", "mean"):
        rewards = torch.tensor(group_rewards(ranked, finished, finished_reward))
        assert rewards.max() <= max_reward < 1, "below any correct answer"
        tokens = torch.zeros(len(rewards), 1) + rewards.unsqueeze(-1)
        index, replayed = np.zeros(len(rewards)), np.zeros(len(rewards))
        advantages, _ = compute_r3_advantage(tokens, torch.ones_like(tokens), index, replayed)
        mean_advantage[finished_reward] = advantages[:cut_off].mean().item()
    assert mean_advantage["mean"] == pytest.approx(0, abs=1e-5)
    if cut_off > 1:
        assert mean_advantage["zero"] > 0.2


def test_a_tie_of_all_is_no_signal_with_the_mean():
    rewards = group_rewards([0.15, 0.15, 0.15], 5, "mean")
    assert len(set(rewards)) == 1
