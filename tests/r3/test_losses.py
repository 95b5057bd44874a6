"""What a replayed row trains under verl's losses: its gradient by hand, through verl's own functions.

One all-wrong group of four rows with three tokens each, a replayed correct row of two tokens, and an empty padding row:
14 tokens in 5 rows. Eq. (3) gives the fresh rows -0.447214 and the replayed one A = 1.788854. R rows, T tokens.
"""

import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from recipe.common.trainer.workers import trained_rows
from recipe.r3.core_algos import compute_r3_advantage
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import (
    POLICY_LOSS_REGISTRY,
    FixedKLController,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

FRESH, REPLAYED, PADDING = range(4), 4, 5
LENGTHS = [3, 3, 3, 3, 2, 0]
MASK = torch.tensor([[float(token < length) for token in range(3)] for length in LENGTHS])
TOKENS, ROWS = 14, 5
A = 1.788854


def advantages() -> torch.Tensor:
    """(R, T) of the group, as the trainer computes them."""
    rewards = torch.zeros(6, 3)
    rewards[REPLAYED, 1] = 1.0
    names, replayed = np.array(["group"] * 5 + ["pad"]), np.arange(6) == REPLAYED
    return compute_r3_advantage(rewards, MASK, names, replayed, epsilon=1e-12)[0]


def actor(mode: str, **settings) -> FSDPActorConfig:
    """verl's settings of an actor, with the figures by which its workers divide."""
    rows = [torch.ones(length) if length else torch.zeros(1) for length in LENGTHS]
    masks = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    policy_loss = PolicyLossConfig(loss_mode=mode, dro_beta=0.1)
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=4, use_dynamic_bsz=True, policy_loss=policy_loss, **settings)
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(MASK.sum()),
        global_batch_size=trained_rows(TensorDict({"loss_mask": masks}, batch_size=len(rows))),
        loss_scale_factor=config.loss_scale_factor,
    )
    return config


def gradient(
    mode: str, log_ratios=(0.0, 0.0), log_prob: torch.Tensor | None = None, weights=None, row=REPLAYED, **settings
):
    """(R, T) gradient of verl's loss by the log-probs, of which two of a row have moved by `log_ratios`.

    All tokens have probability 0.5 where `log_prob` is not given.
    """
    log_prob = torch.full((6, 3), math.log(0.5)) if log_prob is None else log_prob.clone()
    old = log_prob.clone()
    old[row, :2] -= torch.tensor(log_ratios)
    log_prob.requires_grad_()
    config = actor(mode, **settings)
    loss, _ = get_policy_loss_fn(mode)(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=advantages(),
        response_mask=MASK,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    return log_prob.grad


def of_replayed(*args, **settings) -> list[float]:
    return gradient(*args, **settings)[REPLAYED, :2].tolist()


MODES = sorted(set(POLICY_LOSS_REGISTRY) - {"bypass_mode"})
BY_ROWS = {"gspo": {"loss_agg_mode": "seq-mean-token-mean"}}
"""The aggregation that a mode is meant for. SAPO takes it whatever is set."""
SHARE = {"gspo": 1 / (2 * ROWS), "sapo": 1 / (2 * ROWS), "geo_mean": 1 / (2 * (ROWS + 1))}
"""Of the loss, what one replayed token is, where it is not 1 / TOKENS. geo_mean counts the padding row."""


@pytest.mark.parametrize("mode", MODES)
def test_in_the_first_optimizer_step_a_replayed_token_is_pushed_by_its_advantage_alone(mode):
    """Old log-probs are the trainer's own: the ratio is 1, and the losses differ in what they divide by."""
    share = SHARE.get(mode, 1 / TOKENS)
    assert of_replayed(mode, **BY_ROWS.get(mode, {})) == pytest.approx([-A * share] * 2, rel=1e-5)


GATE = 4 / (1 + math.exp(-0.4)) / (1 + math.exp(0.4))
"""Slope of SAPO's gate at a ratio of 1.4."""
LATER = {
    # Ratios 1.4 and 1 of the tokens, clipped at 1.2.
    "vanilla": (0.0, A),
    "clip_cov": (0.0, A),
    "cispo": (1.2 * A, A),
    # The row's ratio, sqrt(1.4), is inside the bounds and weighs both tokens.
    "gspo": (math.sqrt(1.4) * A, math.sqrt(1.4) * A),
    # Logs are clipped, at 0.2; the row's ratio is their mean's.
    "geo_mean": (0.0, math.exp(0.1) * A),
    "sapo": (1.4 * GATE * A, A),
    # The probability moved from 0.357 to 0.5: within 0.2.
    "dppo_tv": (1.4 * A, A),
    "dppo_kl": (1.4 * A, A),
    "gpg": (A, A),
    "dro": (A - 0.1 * math.log(1.4), A),
}


def test_every_mode_of_verl_is_told_of():
    assert {*LATER, "kl_cov"} == set(MODES)


@pytest.mark.parametrize("mode", sorted(LATER))
def test_in_later_optimizer_steps_each_mode_treats_its_ratio_in_its_own_way(mode):
    share = SHARE.get(mode, 1 / TOKENS)
    expected = [-value * share for value in LATER[mode]]
    found = of_replayed(mode, (math.log(1.4), 0.0), **BY_ROWS.get(mode, {}))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)


def log_probs(fresh: float, replayed: float, first: float | None = None) -> torch.Tensor:
    """(R, T) of probabilities, that of the first fresh token set apart. The mean of A over tokens is -0.128."""
    log_prob = torch.full((6, 3), math.log(fresh))
    log_prob[REPLAYED] = math.log(replayed)
    log_prob[0, 0] = math.log(first or fresh)
    return log_prob


def test_clip_cov_drops_an_unlikely_token_of_a_wrong_answer_among_likely_ones():
    """Its product is 0.319 * 3.585 = 1.14, inside the bounds of 1 and 5; those of the replayed tokens are 0.53."""
    found = gradient("clip_cov", log_prob=log_probs(0.95, 0.95, first=0.02))
    assert found[0].tolist() == pytest.approx([0.0, *[0.447214 / TOKENS] * 2], rel=1e-5)
    assert found[REPLAYED, :2].tolist() == pytest.approx([-A / TOKENS] * 2, rel=1e-5)


@pytest.mark.parametrize("fresh, dropped", [(0.5, 0), (0.4, 1)])
def test_clip_cov_drops_a_likely_token_of_a_replayed_answer_only_where_others_are_unlikely(fresh, dropped):
    """Products of 1.917 with 0.504 and 0.695, 0.97 and 1.33; of the tokens inside the bounds one is drawn."""
    found = of_replayed("clip_cov", log_prob=log_probs(fresh, 0.9))
    assert sorted(found) == pytest.approx([-A / TOKENS] * (2 - dropped) + [0.0] * dropped, rel=1e-5)


def test_kl_cov_holds_back_the_token_with_the_largest_product_whatever_its_size():
    """|log ratio| times ppo_kl_coef=0.1 joins its loss: its gradient is 0.1 once it has moved."""
    moved = math.log(1.4), 0.0
    found = gradient("kl_cov", moved, log_probs(0.95, 0.95, first=0.02), row=0)  # 1.14, as above
    assert found[0].tolist() == pytest.approx([(1.4 * 0.447214 + 0.1) / TOKENS, *[0.447214 / TOKENS] * 2], rel=1e-5)
    found = gradient("kl_cov", moved, log_probs(0.95, 0.95, first=1e-9), row=0)  # 6.1, beyond what clip_cov takes
    assert found[0, 0].item() == pytest.approx((1.4 * 0.447214 + 0.1) / TOKENS, rel=1e-5)
    likeliest = log_probs(0.95, 0.95)
    likeliest[REPLAYED, 0] = math.log(0.96)  # 0.02, below it
    found = of_replayed("kl_cov", moved, likeliest)
    assert found == pytest.approx([(-1.4 * A + 0.1) / TOKENS, -A / TOKENS], rel=1e-5)


@pytest.mark.parametrize(
    "mode, divisor",
    [
        ("token-mean", TOKENS),
        ("token-sum", 1),
        ("seq-mean-token-sum", ROWS),
        ("seq-mean-token-mean", ROWS * 2),
        ("seq-mean-token-sum-norm", ROWS * 64),
    ],
)
def test_what_a_replayed_token_is_divided_by(mode, divisor):
    """Rows are the fresh and the replayed ones; the padding row is none."""
    found = of_replayed("vanilla", loss_agg_mode=mode, loss_scale_factor=64)
    assert found == pytest.approx([-A / divisor] * 2, rel=1e-5)


def importance_weights(rollout: float, stored: float, **settings) -> torch.Tensor:
    """(R, T) of tokens with probability 0.5 in the trainer; `rollout` in fresh rows, `stored` in the replayed one."""
    old, other = torch.full((6, 3), math.log(0.5)), torch.full((6, 3), math.log(rollout))
    other[REPLAYED] = math.log(stored)
    tensors = {"old_log_probs": old, "rollout_log_probs": other, "response_mask": MASK}
    batch = DataProto(batch=TensorDict(tensors, batch_size=6))
    settings = OmegaConf.create({"rollout_is": "token", **settings})
    batch, _ = compute_rollout_correction_and_add_to_batch(batch, settings)
    return batch.batch["rollout_is_weights"]


@pytest.mark.parametrize("behavior, weight", [(None, 1.0), (0.2, 2.0), (1.0, 0.5)])
def test_truncated_importance_sampling_weighs_a_replayed_token(behavior, weight):
    """`current` puts the trainer's log-probs in place of the stored ones: 1. With `behavior`, whose probability is
    given, 0.5 / 0.2 is truncated to 2, and 0.5 / 1 stays."""
    found = gradient("vanilla", weights=importance_weights(0.5, behavior or 0.5, rollout_is_threshold=2.0))
    assert found[REPLAYED, :2].tolist() == pytest.approx([-weight * A / TOKENS] * 2, rel=1e-5)
    assert found[0].tolist() == pytest.approx([0.447214 / TOKENS] * 3, rel=1e-5)


@pytest.mark.parametrize("stored, weight", [(0.5, 1.0), (0.05, 0.0), (1.0, 0.5)])
def test_bounds_on_two_sides_weigh_a_replayed_token_outside_of_them_0(stored, weight):
    """Ratios 1, 10 and 0.5, bounds 0.5 and 5: its reward stays in the mean of the group all the same."""
    found = importance_weights(0.5, stored, rollout_is_threshold="0.5_5.0")
    assert found[REPLAYED, :2].tolist() == pytest.approx([weight] * 2) and found[0].tolist() == pytest.approx([1.0] * 3)


def test_batch_normalize_divides_a_replayed_tokens_weight_of_1_too():
    """Fresh tokens weigh 0.5 / 0.4: the mean over 14 tokens is (12 * 1.25 + 2) / 14."""
    found = importance_weights(0.4, 0.5, rollout_is_threshold=2.0, rollout_is_batch_normalize=True)
    assert found[REPLAYED, :2].tolist() == pytest.approx([14 / 17] * 2)
    assert found[0].tolist() == pytest.approx([1.25 * 14 / 17] * 3)


def test_the_kl_loss_pulls_a_replayed_token_to_the_reference_as_any_other():
    """low_var_kl is exp(d) - d - 1 with d = ref - log_prob, its slope 1 - exp(d): 0.5 where the reference's probability
    is half the policy's."""
    log_prob = torch.tensor([0.5]).log().requires_grad_()
    kl_penalty(log_prob, torch.tensor([0.25]).log(), "low_var_kl").sum().backward()
    assert log_prob.grad.item() == pytest.approx(0.5)


def test_kl_in_the_reward_gives_a_dead_group_advantages_of_full_size():
    """Two right answers whose KL differs by 0.02 nats: the std that they are divided by is that of the penalty."""
    old = torch.tensor([[0.01], [0.03]])
    tensors = {"old_log_probs": old, "ref_log_prob": torch.zeros(2, 1), "response_mask": torch.ones(2, 1)}
    tensors["token_level_scores"] = torch.ones(2, 1)
    batch, _ = apply_kl_penalty(DataProto(batch=TensorDict(tensors, batch_size=2)), FixedKLController(1.0))
    rewards = batch.batch["token_level_rewards"]
    found, _ = compute_r3_advantage(rewards, torch.ones(2, 1), np.array(["g", "g"]), np.array([False, False]))
    assert found[:, 0].tolist() == pytest.approx([0.7071, -0.7071], abs=1e-3)
