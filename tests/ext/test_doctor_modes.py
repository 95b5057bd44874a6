"""What an asynchronous mode cannot work with is told before anything is loaded."""

import pytest

from r3_ext.settings.compose import compose_config
from recipe.common.config.mode_rules import modes

SEPARATE = ["+profile=gpu_8x80gb", "+method=r3", "+mode=separate_async", "trainer.v1.trainer_mode=r3_separate_async"]
SAMPLER, OFFLOAD = "trainer.v1.sampler", "actor_rollout_ref.actor.fsdp_config"


@pytest.fixture(autouse=True)
def verbose(monkeypatch):
    monkeypatch.delenv("VERL_LOGGING_LEVEL", raising=False)


@pytest.mark.parametrize(
    "trainer", ["r3_separate_async", "baseline_separate_async", "separate_async", "r3_colocate_async"]
)
def test_the_presets_are_fine(trainer):
    assert list(modes(compose_config([*SEPARATE, f"trainer.v1.trainer_mode={trainer}"]))) == []


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.v1.separate_async.parameter_sync_step=null", "got None: so many optimizer steps"),
        (
            "trainer.v1.separate_async.parameter_sync_step=4",
            "ppo_mini_batch_size=64 must be data.train_batch_size=128, got 4",
        ),
        ("actor_rollout_ref.rollout.nnodes=0", "rollout.nnodes must be at least 1, got 0"),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend=naive", "not be naive"),
        (f"{OFFLOAD}.offload_policy=True", f"{OFFLOAD}: offload_policy=True, param_offload=False with"),
        (f"{OFFLOAD}.param_offload=True", f"{OFFLOAD}: offload_policy=False, param_offload=True with"),
        ("actor_rollout_ref.hybrid_engine=False", "unless VERL_LOGGING_LEVEL=WARNING is set"),
        (f"{SAMPLER}.max_off_policy_strategy=weit", "must be wait or drop, got 'weit'"),
        (f"{SAMPLER}.max_off_policy_threshold=0", "at least 1 or null, got 0"),
        ("trainer.v1.separate_async.num_warmup_batches=-1", "num_warmup_batches must be a number >= 0, got -1"),
        ("trainer.v1.separate_async.num_warmup_batches=null", "num_warmup_batches must be a number >= 0, got None"),
    ],
)
def test_what_cannot_work_is_told_with_key_rule_and_value(override, told):
    (broken,) = modes(compose_config([*SEPARATE, "trainer.v1.trainer_mode=baseline_separate_async", override]))
    assert told in broken.told


def test_the_quiet_logger_of_verl_has_no_such_line(monkeypatch):
    config = compose_config([*SEPARATE, "actor_rollout_ref.hybrid_engine=False"])
    monkeypatch.setenv("VERL_LOGGING_LEVEL", "warning")
    assert list(modes(config)) == []


def test_the_synchronous_mode_has_none_of_these_rules():
    settings = [f"{SAMPLER}.max_off_policy_strategy=weit", "trainer.v1.separate_async.parameter_sync_step=null"]
    assert list(modes(compose_config(["+profile=gpu_8x80gb", "+method=r3", *settings]))) == []
