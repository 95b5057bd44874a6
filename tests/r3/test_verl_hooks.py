"""The table of verl's methods that are extended is complete and right, and a verl without one of them is refused."""

import pytest
from extended import extended

from recipe.common.reward.manager import R3RewardManager
from recipe.common.trainer.workers import (
    CountingActorRolloutRefWorker,
    CountingDetachActorWorker,
    CountingTrainingWorker,
)
from recipe.common.verl_hooks import TRAINER_HOOKS, check_hooks, hook_faults
from recipe.r3.r3_trainer import R3ColocateAsync, R3Mixin, R3SeparateAsync, R3Trainer
from recipe.r3.reflection import ReflectionAgentLoop
from recipe.r3.replay.buffer import R3ReplayBuffer
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

HOOKS = {**TRAINER_HOOKS, **R3Mixin.HOOKS}
CLASSES = [
    *(R3Trainer, R3ColocateAsync, R3SeparateAsync),
    *(R3ReplayBuffer, R3ReplayBufferAsync, ReflectionAgentLoop, R3RewardManager),
    *(CountingTrainingWorker, CountingActorRolloutRefWorker, CountingDetachActorWorker),
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_method_that_is_extended_is_in_the_table(cls):
    assert extended(cls) <= {name for methods in HOOKS.values() for name in methods}


def test_the_pinned_verl_has_every_method_as_the_table_says():
    assert hook_faults(HOOKS) == []
    check_hooks(HOOKS)


def test_a_verl_without_a_method_or_with_another_signature_is_refused_with_every_one(monkeypatch):
    monkeypatch.delattr(PPOTrainer, "_compute_advantage")
    monkeypatch.setattr(PPOTrainer, "_update_actor", lambda self, batch, metrics, step: batch)
    with pytest.raises(RuntimeError, match="verl 0.9.1 is not the version that this recipe extends") as raised:
        check_hooks({**HOOKS, "verl.trainer.ppo.v2.Trainer": {"step": ()}})
    told = str(raised.value)
    assert "PPOTrainer._compute_advantage is gone" in told and "verl.trainer.ppo.v2.Trainer is gone" in told
    assert "PPOTrainer._update_actor takes (batch, metrics, step), not (batch, metrics)" in told
