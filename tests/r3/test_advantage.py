"""Eq. (3), the advantage of a mixed group: by hand, against verl's GRPO, under invariances, against a slow loop.

B rows of the batch, T response tokens.
"""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from recipe.common.rows import RANK_MARK, REPLAY_MARK
from recipe.r3.core_algos import compute_r3_advantage, r3_advantage
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_adv_estimator_fn
from verl.trainer.ppo.ray_trainer import compute_advantage


def make_batch(rewards: list[float], tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rewards (B, T) with each reward on the last token, and a mask of ones."""
    token_rewards = torch.zeros(len(rewards), tokens)
    token_rewards[:, -1] = torch.tensor(rewards)
    return token_rewards, torch.ones(len(rewards), tokens, dtype=torch.int64)


def advantage(rewards, index, replayed, **settings) -> list[float]:
    """The advantage of each row, read off its first token."""
    return compute_r3_advantage(*make_batch(rewards), np.array(index), np.array(replayed), **settings)[0][:, 0].tolist()


def random_batch(seed: int, replayed_share: float = 0.0):
    """Token rewards, mask, group names and replay flags of a random batch with groups of 2 to 9 in random order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 10, size=rng.integers(1, 12))
    index = rng.permutation(np.repeat([f"uid-{group}" for group in range(len(sizes))], sizes))
    rows, tokens = len(index), int(rng.integers(1, 20))
    mask = torch.from_numpy((np.arange(tokens) < rng.integers(1, tokens + 1, size=(rows, 1))).astype("int64"))
    values = rng.normal(size=(rows, tokens)) if seed % 2 else rng.integers(0, 2, size=(rows, tokens))
    rewards = torch.from_numpy(values.astype("float32")) * mask
    return rewards, mask, index, rng.random(rows) < replayed_share


def slow_advantage(rewards, mask, index, replayed, ranked, alpha: float, epsilon: float) -> list[list[float]]:
    """Eq. (3) row by row in Python floats, sample std; ranked groups without a replayed row are not divided."""
    totals = [sum(row) for row in rewards.tolist()]
    groups = defaultdict(list)
    for row, name in enumerate(index):
        groups[name].append(row)
    result = []
    for row, name in enumerate(index):
        values = [totals[other] for other in groups[name]]
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        mixed = any(replayed[other] for other in groups[name])
        denominator = alpha * std + epsilon if mixed else std + 1e-6
        if not mixed and any(ranked[other] for other in groups[name]):
            denominator = 1.0
        result.append([(totals[row] - mean) / denominator * kept for kept in mask[row].tolist()])
    return result


# (a) numbers by hand


def test_paper_fixture_four_wrong_and_one_replayed_correct():
    # mean 1/5; sample variance (4 * 0.04 + 0.64) / 4 = 0.2; std 0.447214; -0.2 / std and 0.8 / std
    values = advantage([0, 0, 0, 0, 1], ["q"] * 5, [False] * 4 + [True], alpha=1.0, epsilon=0.0)
    assert values == pytest.approx([-0.447214] * 4 + [1.788854], abs=1e-6)


def test_alpha_two_halves_the_advantages_of_a_mixed_group():
    arguments = [0, 0, 0, 0, 1], ["q"] * 5, [False] * 4 + [True]
    once, twice = (advantage(*arguments, alpha=alpha, epsilon=0.0) for alpha in (1.0, 2.0))
    assert twice == pytest.approx([value / 2 for value in once])


def test_epsilon_is_added_to_the_denominator_of_a_mixed_group():
    # 0.447214 * 1 + 0.552786 = 1, so the advantage is the centred reward
    values = advantage([0, 0, 0, 0, 1], ["q"] * 5, [False] * 4 + [True], epsilon=1 - math.sqrt(0.2))
    assert values == pytest.approx([-0.2] * 4 + [0.8], abs=1e-6)


def test_two_groups_do_not_mix_and_alpha_touches_only_the_one_with_a_replayed_row():
    # a holds 1, 0 and no replayed row: std 0.707107. b holds 0 and a replayed 1.75: std 1.237437, doubled by alpha.
    values = advantage([1, 0, 0, 1.75], list("abab"), [False, False, False, True], alpha=2.0, epsilon=1e-9)
    assert values == pytest.approx([0.707107, -0.353553, -0.707107, 0.353553], abs=1e-5)


def test_unnormalised_advantage_is_the_centred_reward_whatever_alpha():
    values = advantage([0, 0, 0, 1], ["q"] * 4, [False] * 3 + [True], alpha=7.0, norm_by_std=False)
    assert values == [-0.25, -0.25, -0.25, 0.75]


def test_a_ranked_group_is_centred_and_not_divided():
    assert advantage([0.5, 0, 0.25, 0.25], ["q"] * 4, [False] * 4, ranked=[True] * 4) == [0.25, -0.25, 0, 0]


def test_a_ranked_group_with_a_replayed_correct_answer_is_eq_3():
    # mean 0.4, sample std 0.894427
    values = advantage([0, 0, 0, 0, 2], ["q"] * 5, [False] * 4 + [True], ranked=[True] * 4 + [False], epsilon=1e-9)
    assert values == pytest.approx([-0.447214] * 4 + [1.788854], abs=1e-5)


def test_reward_is_the_sum_over_tokens_and_masked_tokens_get_zero():
    rewards = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    advantages, returns = compute_r3_advantage(
        rewards, mask, np.array(["q", "q"]), np.array([False, True]), epsilon=1e-9, norm_by_std=False
    )
    assert advantages.tolist() == [[0.5, 0.5, 0.0], [-0.5, 0.0, 0.0]]
    assert returns is advantages


@pytest.mark.parametrize(
    "trains, expected",
    [("fresh", [-0.447214] * 4 + [0.0]), ("replayed", [0.0] * 4 + [1.788854]), ("all", [-0.447214] * 4 + [1.788854])],
)
def test_rows_that_are_not_trained_still_count_in_mean_and_std(trains, expected):
    values = advantage([0, 0, 0, 0, 1], ["q"] * 5, [False] * 4 + [True], trains=trains, epsilon=0.0)
    assert values == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("trains", ["fresh", "replayed"])
def test_what_is_trained_concerns_groups_with_a_replayed_row_only(trains):
    values = advantage([1, 0, 0, 1], list("aabb"), [False, False, False, True], trains=trains, epsilon=0.0)
    assert values[:2] == pytest.approx([0.707107, -0.707107], abs=1e-5)
    assert [value == 0 for value in values[2:]] == [trains == "replayed", trains == "fresh"]


# (b) reduction to a known method


@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_replayed_rows_it_is_verl_grpo_bit_for_bit(norm_by_std, dtype):
    for seed in range(60):
        rewards, mask, index, replayed = random_batch(seed)
        rewards = rewards.to(dtype)
        ours, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha=3.0, epsilon=0.5, norm_by_std=norm_by_std)
        grpo, _ = compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=norm_by_std)
        assert torch.equal(ours, grpo) and ours.dtype == grpo.dtype


def test_groups_without_a_replayed_row_stay_verl_grpo_beside_groups_with_one():
    for seed in range(60):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.1)
        ours, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha=3.0, epsilon=0.5)
        grpo, _ = compute_grpo_outcome_advantage(rewards, mask, index)
        plain = ~np.isin(index, index[replayed])
        assert torch.equal(ours[plain], grpo[plain])


def test_neutral_alpha_and_epsilon_make_a_mixed_group_verl_grpo_too():
    for seed in range(60):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.5)
        ours, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha=1.0, epsilon=1e-6)
        assert torch.equal(ours, compute_grpo_outcome_advantage(rewards, mask, index)[0])


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_one_opposing_row_revives_a_dead_group_to_which_grpo_gives_exactly_zero(reward):
    rewards, mask = make_batch([reward] * 4 + [1 - reward])
    index = np.array(["q"] * 5)
    dead, _ = compute_grpo_outcome_advantage(rewards[:4], mask[:4], index[:4])
    assert dead.count_nonzero() == 0
    advantages, _ = compute_r3_advantage(rewards, mask, index, np.arange(5) == 4)
    sign = 1 if reward else -1
    assert (sign * advantages[:4] > 0).all() and (sign * advantages[4] < 0).all()


def test_without_ranked_rows_the_flag_changes_nothing():
    for seed in range(20):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.2)
        ours, _ = compute_r3_advantage(rewards, mask, index, replayed, ranked=np.zeros(len(index)))
        assert torch.equal(ours, compute_r3_advantage(rewards, mask, index, replayed)[0])


# (c) invariances


@pytest.mark.parametrize("is_ranked", [True, False])
def test_the_size_of_ranking_rewards_counts_only_where_they_are_not_divided(is_ranked):
    half, whole = ([r * scale for r in (0.5, 0.25, 0.0)] for scale in (0.5, 1.0))
    flags = {"index": ["q"] * 3, "replayed": [False] * 3, "ranked": [is_ranked] * 3}
    ratio = 2 if is_ranked else 1
    expected = [ratio * value for value in advantage(half, **flags)]
    assert advantage(whole, **flags) == pytest.approx(expected, abs=1e-4)


def test_advantages_of_every_mixed_group_sum_to_zero_over_its_rows():
    for seed in range(20):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.5)
        rewards = rewards.double()
        advantages, _ = compute_r3_advantage(rewards, torch.ones_like(mask), index, replayed, alpha=2.0)
        for name in set(index):
            if (index == name).sum() > 1:
                assert advantages[index == name, 0].sum().abs() < 1e-9


def test_row_order_does_not_matter():
    for seed in range(20):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.3)
        order = np.random.default_rng(seed).permutation(len(index))
        advantages, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha=2.0)
        permuted, _ = compute_r3_advantage(rewards[order], mask[order], index[order], replayed[order], alpha=2.0)
        torch.testing.assert_close(permuted, advantages[order], atol=1e-5, rtol=1e-5)


def test_padding_columns_do_not_matter():
    for seed in range(20):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.3)
        advantages, _ = compute_r3_advantage(rewards, mask, index, replayed)
        wide, _ = compute_r3_advantage(
            torch.nn.functional.pad(rewards, (0, 5)), torch.nn.functional.pad(mask, (0, 5)), index, replayed
        )
        torch.testing.assert_close(wide[:, :-5], advantages, atol=1e-6, rtol=1e-6)
        assert wide[:, -5:].count_nonzero() == 0


def test_group_names_do_not_matter():
    rewards, mask, index, replayed = random_batch(3, replayed_share=0.3)
    _, numbers = np.unique(index, return_inverse=True)
    names = np.array([f"{chr(122 - number)}/{number}" for number in numbers], dtype=object)
    advantages, _ = compute_r3_advantage(rewards, mask, index, replayed)
    for other in (names, numbers):
        assert torch.equal(compute_r3_advantage(rewards, mask, other, replayed)[0], advantages)


def test_the_order_in_which_rewards_arrive_in_the_tokens_does_not_matter():
    arguments = torch.ones(3, 2), np.array(["q"] * 3), np.array([False, False, True])
    early, _ = compute_r3_advantage(torch.tensor([[1.0, 0], [0, 0], [2, 0]]), *arguments)
    late, _ = compute_r3_advantage(torch.tensor([[0, 1.0], [0, 0], [0, 2]]), *arguments)
    assert torch.equal(early, late)


def test_inputs_are_left_as_they_were():
    rewards, mask, index, replayed = random_batch(5, replayed_share=0.5)
    copies = rewards.clone(), mask.clone(), index.copy(), replayed.copy()
    compute_r3_advantage(rewards, mask, index, replayed)
    assert torch.equal(rewards, copies[0]) and torch.equal(mask, copies[1])
    assert (index == copies[2]).all() and (replayed == copies[3]).all()


# (d) a slow loop written from eq. (3)


@pytest.mark.parametrize("alpha, epsilon", [(1.0, 1e-6), (2.5, 1e-3), (0.5, 0.3)])
def test_agrees_with_a_loop_over_rows(alpha, epsilon):
    for seed in range(30):
        rewards, mask, index, replayed = random_batch(seed, replayed_share=0.3)
        rewards, ranked = rewards.double(), np.random.default_rng(seed).random(len(index)) < 0.1
        advantages, _ = compute_r3_advantage(rewards, mask, index, replayed, alpha, epsilon, ranked=ranked)
        expected = slow_advantage(rewards, mask, index, replayed, ranked, alpha, epsilon)
        torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


# the estimator as verl calls it


def data_proto(rewards: list[float], uids: list[str]) -> DataProto:
    token_rewards, mask = make_batch(rewards)
    tensors = {"token_level_rewards": token_rewards, "response_mask": mask}
    return DataProto.from_dict(tensors, non_tensors={"uid": np.array(uids, dtype=object)})


def algorithm(norm_by_std: bool = True, ranking_norm: bool = False, **replay):
    r3 = {
        "replay": {"alpha": 1.0, "epsilon": 1e-6, "trains": "all", **replay},
        "ranking": {"norm_by_std": ranking_norm},
    }
    return OmegaConf.create({"norm_adv_by_std_in_grpo": norm_by_std, "r3": r3})


def test_the_estimator_is_registered_as_r3():
    assert get_adv_estimator_fn("r3") is r3_advantage


def test_verl_compute_advantage_reads_the_replay_mark_of_the_uid():
    uids = ["u"] * 4 + ["u" + REPLAY_MARK] + ["v", "v"]
    data = data_proto([0, 0, 0, 0, 1, 1, 0], uids)
    data = compute_advantage(data, adv_estimator="r3", config=algorithm(alpha=2.0))
    half = math.sqrt(0.5)
    expected = [-0.223607] * 4 + [0.894427, half, -half]
    assert data.batch["advantages"][:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(data.batch["advantages"], data.batch["returns"])


def test_verl_compute_advantage_reads_the_rank_mark_of_the_uid():
    uids = ["u" + RANK_MARK] * 3 + ["u", "v" + RANK_MARK, "v" + RANK_MARK, "v" + REPLAY_MARK]
    data = compute_advantage(data_proto([0.5, 0, 0.25, 0.25, 0, 0, 1], uids), adv_estimator="r3", config=algorithm())
    expected = [0.25, -0.25, 0, 0, -0.577350, -0.577350, 1.154701]
    assert data.batch["advantages"][:, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_ranked_groups_are_divided_like_any_other_where_the_setting_says_so():
    uids, rewards = ["u" + RANK_MARK] * 4, [0.5, 0, 0.25, 0.25]
    ours = compute_advantage(data_proto(rewards, uids), adv_estimator="r3", config=algorithm(ranking_norm=True))
    grpo = compute_advantage(data_proto(rewards, ["u"] * 4), adv_estimator="grpo")
    assert torch.equal(ours.batch["advantages"], grpo.batch["advantages"])


@pytest.mark.parametrize("replayed", [False, True])
def test_the_only_survivor_of_a_group_learns_nothing_from_its_raw_score(replayed):
    assert advantage([1.75, 0, 1], ["alone", "q", "q"], [replayed, False, False])[0] == 0


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_verl_compute_advantage_with_r3_equals_grpo_when_no_uid_carries_the_mark(norm_by_std):
    rewards, uids = [0.3, 1.7, 0.0, 1.1, 1.9], ["u", "v", "u", "v", "u"]
    ours = compute_advantage(data_proto(rewards, uids), adv_estimator="r3", config=algorithm(norm_by_std))
    grpo = compute_advantage(data_proto(rewards, uids), adv_estimator="grpo", norm_adv_by_std_in_grpo=norm_by_std)
    assert torch.equal(ours.batch["advantages"], grpo.batch["advantages"])


def test_unequal_lengths_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="got 2, 3 and 3 for 3 rows"):
        compute_r3_advantage(*make_batch([0, 1, 0]), np.array(["a", "a"]), np.array([False] * 3))
