"""All mechanisms off is verl's GRPO, bit for bit, through the real trainer on one recording of the rollouts."""

import pytest
import torch

from .conftest import STEPS, skip_overrides

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


def weights(folder):
    [file] = (folder / "checkpoints" / f"global_step_{STEPS}" / "actor").glob("model_world_size_1_rank_0.pt")
    return torch.load(file, weights_only=False)


def test_everything_off_gives_the_losses_and_weights_of_stock_grpo(train, recording):
    save = [f"trainer.save_freq={STEPS}", *skip_overrides(recording)]
    grpo, off = train("grpo", "grpo", *save), train("r3", "off", *save, *OFF)

    assert len(grpo.rows) == len(off.rows) == STEPS
    for stock, ours in zip(grpo.rows, off.rows, strict=True):
        assert {key: ours[key] for key in SAME} == {key: stock[key] for key in SAME}
    # The comparison means something only if training moved the weights.
    assert any(row["actor/grad_norm"] > 0 for row in grpo.rows)
    expected, actual = weights(grpo.folder), weights(off.folder)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(_local(value), _local(actual[name])), name


def _local(value):
    return value.to_local() if hasattr(value, "to_local") else value
