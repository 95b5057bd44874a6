"""All mechanisms off is verl's GRPO, bit for bit, through the real trainer on one recording of the rollouts."""

import pytest

from recipe.r3.modes import COLOCATE_ASYNC, SEPARATE_ASYNC

from .conftest import STEPS, Run, assert_equal_weights, skip_overrides

pytestmark = pytest.mark.integration

OFF = [f"algorithm.r3.{mechanism}.enable=False" for mechanism in ("replay", "reflection", "ranking")]
SAME = (
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/entropy",
    "critic/advantages/max",
    "critic/score/mean",
)


def test_everything_off_gives_the_losses_and_weights_of_stock_grpo(train, recording):
    save = [f"trainer.save_freq={STEPS}", *skip_overrides(recording)]
    # Verl's trainer as it comes: without the measurements that `r3 run --method grpo` adds, and every process of it a
    # new interpreter, while those of the other run are forks of one that serves the whole suite.
    grpo = train("grpo", "grpo", *save, "trainer.v1.trainer_mode=sync", forks=False)
    off = train("r3", "off", *save, *OFF)

    assert_equal_training(grpo, off)


@pytest.mark.parametrize("mode", [COLOCATE_ASYNC, SEPARATE_ASYNC])
def test_everything_off_gives_those_of_stock_grpo_in_the_asynchronous_modes(train, tmp_path, mode):
    """Bit for bit, as far as the trainer goes: verl fetches nothing ahead while it records, so that a batch is what was
    submitted for it, and the second run has the first one's."""
    settings = ["--mode", mode, f"trainer.save_freq={STEPS}", *skip_overrides(tmp_path / "recording")]
    grpo = train("grpo", f"grpo_{mode}", *settings, f"trainer.v1.trainer_mode={mode}")
    off = train("r3", f"off_{mode}", *settings, *OFF)
    assert_equal_training(grpo, off)
    assert {row["groups/total"] for row in off.rows} == {16}


def assert_equal_training(grpo: Run, off: Run) -> None:
    assert len(grpo.rows) == len(off.rows) == STEPS
    for stock, ours in zip(grpo.rows, off.rows, strict=True):
        assert {key: ours[key] for key in SAME} == {key: stock[key] for key in SAME}
    # The comparison means something only if training moved the weights.
    assert any(row["actor/grad_norm"] > 0 for row in grpo.rows)
    assert_equal_weights(grpo, off, STEPS)
