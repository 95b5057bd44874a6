"""Configuration files of the asynchronous trainer modes."""

import pytest
from omegaconf import OmegaConf

from r3_ext.doctor.finding import OK
from r3_ext.doctor.settings import check_config
from r3_ext.settings.compose import base_overrides, compose_config, flat
from tests.ext.presets import DEFAULT, preset
from verl.trainer.ppo.v1 import get_trainer_cls

BOTH_MODES = {
    "data.gen_batch_size": 1,
    "trainer.v1.sampler.max_off_policy_strategy": "wait",
    "trainer.v1.sampler.max_off_policy_threshold": 4,
}
SEPARATE = BOTH_MODES | {
    "actor_rollout_ref.rollout.nnodes": 1,
    "trainer.v1.separate_async.parameter_sync_step": 2,
}


@pytest.mark.parametrize(
    "profile, mode, settings",
    [
        ("embedded", "colocate_async", BOTH_MODES),
        (DEFAULT, "colocate_async", BOTH_MODES),
        (
            DEFAULT,
            "separate_async",
            SEPARATE
            | {
                "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
                "actor_rollout_ref.rollout.n_gpus_per_node": 4,
                "trainer.n_gpus_per_node": 4,
            },
        ),
        (
            "embedded",
            "embedded_separate_async",
            SEPARATE
            | {
                "actor_rollout_ref.hybrid_engine": False,
                "actor_rollout_ref.rollout.checkpoint_engine.backend": "ray",
                "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "r3_ext.cpu.checkpoint_engine",
                "actor_rollout_ref.rollout.n_gpus_per_node": 1,
                "ray_kwargs.ray_init.num_gpus": 2,
            },
        ),
    ],
)
def test_a_mode_changes_these_settings_only_and_verls_trainer_takes_them(profile, mode, settings):
    name = mode.removeprefix("embedded_")
    overrides = [*base_overrides(profile, "grpo"), f"+mode={mode}", f"trainer.v1.trainer_mode={name}"]
    config = compose_config(overrides)
    without, given = (flat(OmegaConf.to_container(tree, resolve=False)) for tree in (preset(profile, "grpo"), config))
    changed = {key: value for key, value in given.items() if without.get(key, "absent") != value}
    assert changed == settings | {"trainer.v1.trainer_mode": name}
    assert [finding.level for finding in check_config(config)] == [OK]
    # The constructor checks how batch, mini-batch, sync step, replicas and transport go together.
    trainer = get_trainer_cls(name)(config)
    if profile == "embedded":
        replicas = config.actor_rollout_ref.rollout.n_gpus_per_node if name == "separate_async" else 0
        assert config.ray_kwargs.ray_init.num_gpus == config.trainer.n_gpus_per_node + replicas
    # As many optimizer steps for a batch as in the synchronous mode.
    assert config.data.train_batch_size == 2 * config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert trainer.parameter_sync_step == (2 if name == "separate_async" else 1)
