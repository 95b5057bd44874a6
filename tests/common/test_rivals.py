"""The formulas of others that rescue groups without signal by advantages: by hand, in any order, by slow loops."""

import statistics

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rivals import rl_zvp
from recipe.common.rivals.ngrpo import ngrpo_advantage
from recipe.common.rivals.rl_zvp import ALPHA, put_advantages, rl_zvp_advantage, zero_variance_advantage
from recipe.common.rows import RowTag
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage


def batch_of(rewards, tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rewards (B, T) with each reward on the last token, and a mask of ones."""
    token_rewards = torch.zeros(len(rewards), tokens)
    token_rewards[:, -1] = torch.tensor(rewards, dtype=torch.float32)
    return token_rewards, torch.ones(len(rewards), tokens, dtype=torch.int64)


def ngrpo(rewards, index) -> list[float]:
    return ngrpo_advantage(*batch_of(rewards), np.array(list(index)))[0][:, 0].tolist()


def test_ngrpo_by_hand_as_the_papers_table_has_it():
    found = ngrpo([1] + [0] * 7, "a" * 8)
    assert found == pytest.approx([1.7638, *[-0.5040] * 7], abs=1e-4)
    grpo, _ = compute_grpo_outcome_advantage(*batch_of([1] + [0] * 7), np.array(list("a" * 8)))
    assert grpo[:, 0].tolist() == pytest.approx([2.4749, *[-0.3536] * 7], abs=1e-4)


def test_ngrpo_pushes_all_wrong_groups_down_and_leaves_all_right_ones():
    assert ngrpo([0] * 8 + [1] * 8, "a" * 8 + "b" * 8) == pytest.approx([-1 / 3] * 8 + [0] * 8, abs=1e-4)


def test_ngrpos_virtual_answer_is_as_good_as_the_best_of_its_group():
    with_bonus = ngrpo([0] * 8 + [2.0, 1.5] + [1.7] * 3, "a" * 8 + "bb" + "ccc")
    assert with_bonus[:8] == pytest.approx([-1 / 3] * 8, abs=1e-4), "whatever the best is"
    assert with_bonus[8:10] == pytest.approx([(2 - 11 / 6) / 0.288675, (1.5 - 11 / 6) / 0.288675], abs=1e-4)
    assert with_bonus[10:] == [0, 0, 0], "right answers alike, beside a group with shorter ones"


@pytest.mark.parametrize("seed", range(10))
def test_ngrpo_in_any_order_and_by_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    rewards = (rng.integers(0, 2, 24) * (1 + rng.random(24))).astype(np.float32).tolist()
    names = rng.integers(0, 4, 24).tolist()
    expected = []
    for reward, name in zip(rewards, names, strict=True):
        group = [r for r, other in zip(rewards, names, strict=True) if other == name]
        group.append(max(1.0, *group))
        expected.append((reward - statistics.fmean(group)) / (statistics.stdev(group) + 1e-6))
    assert ngrpo(rewards, names) == pytest.approx(expected, abs=1e-4)
    order = rng.permutation(24)
    mixed = ngrpo([rewards[i] for i in order], [names[i] for i in order])
    assert mixed == pytest.approx([expected[i] for i in order], abs=1e-4)


def test_tokens_that_do_not_train_have_no_advantage():
    rewards, mask = batch_of([0.0, 0.0])
    mask[1, 1:] = 0
    found, _ = ngrpo_advantage(rewards, mask, np.array(["a", "a"]))
    assert (found[1] != 0).tolist() == [True, False, False]


def test_the_entropy_of_a_token_says_how_much_it_is_praised_or_blamed():
    entropy, mask = torch.tensor([1.0, 0.0, 3.0, 9.0]), torch.tensor([1, 1, 1, 0])
    assert zero_variance_advantage(entropy, mask, True).tolist() == pytest.approx([0.1, 0.0, 0.3, 0.0])
    assert zero_variance_advantage(entropy, mask, False).tolist() == pytest.approx([-0.2, -0.3, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(5))
def test_rl_zvp_by_a_slow_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    entropy, length = torch.rand(20, generator=generator) * 3, 3 * (seed + 2)
    mask = (torch.arange(20) < length).long()
    highest = max(entropy[:length].tolist())
    wrong = [-ALPHA * (highest - one) for one in entropy[:length].tolist()]
    assert zero_variance_advantage(entropy, mask, False)[:length].tolist() == pytest.approx(wrong, abs=1e-6)
    right = [ALPHA * one for one in entropy[:length].tolist()]
    assert zero_variance_advantage(entropy, mask, True)[:length].tolist() == pytest.approx(right, abs=1e-6)


def test_where_rewards_differ_rl_zvp_is_verls_grpo_bit_for_bit():
    rewards, mask = batch_of([1, 0, 2, 1])
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": True})
    index = np.array(list("aabb"))
    ours, _ = rl_zvp_advantage(rewards, mask, index, config)
    assert ours.equal(compute_grpo_outcome_advantage(rewards, mask, index)[0])


def test_rl_zvp_writes_the_dead_groups_and_no_other(transfer_queue):
    """Groups: mixed; all wrong; all right, with unequal bonus; one that nobody judged; and verl's padding."""
    scores = {"mixed": [1.0, 0.0], "wrong": [0.0, 0.0], "right": [1.9, 1.2], "failed": [0.0, 0.0]}
    keys = [f"{uid}_{session}_0" for uid in scores for session in range(2)]
    judged = [(uid, score, float(score >= 1)) for uid, group in scores.items() for score in group]
    tags = [
        RowTag(uid, correct=grade == 1, score=score, grade=grade, reward_error=uid == "failed").to_tag()
        for uid, score, grade in judged
    ]
    described = KVBatchMeta(partition_id=queue.TRAIN, keys=keys, tags=tags, extra_info={})
    padded = [*keys, "pad0_0_0"]
    rows = [
        {
            "entropy": torch.tensor([1.0, 3.0]),
            "response_mask": torch.ones(2, dtype=torch.int64) * (key != "pad0_0_0"),
            "advantages": torch.full((2,), 0.7 if key.startswith(("mixed", "right")) else 0.0),
        }
        for key in padded
    ]
    tags = [*tags, {"is_padding": True}]
    queue.write(queue.TRAIN, padded, rows, tags)
    batch = KVBatchMeta(partition_id=queue.TRAIN, keys=padded, tags=tags, extra_info={})
    metrics = put_advantages(batch, described)
    found = [[round(one, 5) for one in row["advantages"].tolist()] for row in queue.read(batch, ["advantages"])]
    assert found == [[0.7, 0.7]] * 2 + [[-0.2, 0.0]] * 2 + [[0.1, 0.3]] * 2 + [[0.0, 0.0]] * 3
    assert metrics == {"rl_zvp/rows": 4 / 8}


def test_the_mixin_touches_no_other_estimator():
    class Trainer:
        config = OmegaConf.create({"algorithm": {"adv_estimator": "grpo"}})

        def _compute_advantage(self, batch, metrics):
            return batch

    class Ours(rl_zvp.RLZVPMixin, Trainer):
        pass

    metrics: dict = {}
    assert Ours()._compute_advantage("as it was", metrics) == "as it was" and not metrics
