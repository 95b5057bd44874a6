"""Settings of verl that meet R^3's rows, in one run; `tests/benchmarks/settings.py` has them one by one."""

import math
from collections import Counter

import pytest

from .conftest import STEPS, received_rows, rows_override

pytestmark = pytest.mark.integration
ACTOR, ROLLOUT, REFERENCE = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def run(train, rows_folder):
    """Sequence ratios without division by the std, a reference policy for loss and reward, weights of the rollout's
    log-probs, two passes over fixed micro-batches."""
    return train(
        *("r3", "settings"),
        *(f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
        *("algorithm.norm_adv_by_std_in_grpo=False", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.ppo_epochs=2"),
        *(f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"),
        *(f"{part}.log_prob_micro_batch_size_per_gpu=4" for part in (ROLLOUT, REFERENCE)),
        *("algorithm.rollout_correction.rollout_is=token", "algorithm.use_kl_in_reward=True"),
        "data.max_response_length=48",  # about the mean length, so that answers are cut off, and ranked
        *("algorithm.r3.reflection.threshold=1.0", "algorithm.r3.reflection.min_attempts=1"),
        *(rows_override(rows_folder), "algorithm.r3.replay.outcome=both"),
    )


def test_replayed_reflected_and_ranked_rows_train_under_all_of_them(run):
    assert len(run.rows) == STEPS
    for fired in ("replay/rows", "reflection/rows", "groups/ranked"):
        assert sum(row[fired] for row in run.rows) > 0, fired
    for row in run.rows:
        assert 0 < row["actor/grad_norm"] < math.inf and math.isfinite(row["actor/loss"])
        # 0 only before the first update; two passes of two optimizer steps each come after it.
        assert row["actor/kl_loss"] > 0
        assert row["training/rollout_probs_diff_max"] < 1e-3


def test_reported_rewards_hold_the_penalty_and_no_ranking(run):
    """A ranked row earns 0.25 on average and counts 0 here, the penalty is a thousandth of its KL: 2.3 were seen."""
    ranked = [row for row in run.rows if row["groups/ranked"]]
    assert ranked
    for row in ranked:
        assert row["critic/rewards/mean"] == pytest.approx(row["critic/score/mean"], abs=8e-3)
        assert row["critic/rewards/mean"] != row["critic/score/mean"] or row["step"] == 1


def test_each_pass_trains_every_row_once_and_every_rescued_group_whole(run, rows_folder):
    for row in run.rows:
        assert row["groups/split"] == 0
        [steps] = received_rows(rows_folder, row["step"])
        assert len(steps) == 4, "two optimizer steps in each of two passes"
        first, second = (
            Counter((one["uid"], one["session"]) for rows in half for one in rows) for half in (steps[:2], steps[2:])
        )
        assert first == second and set(first.values()) == {1}
        assert all(len(rows) % 4 == 0 for rows in steps)
        padding = sum(uid.startswith("pad") for uid, _ in first)
        assert len(first) - padding == row["trained/rows"]
