"""Configuration files of methods that train on sessions in a text world."""

import re

import pytest
from omegaconf import OmegaConf

from r3_ext.recipes import check_kind
from r3_ext.settings import sizing
from r3_ext.settings.compose import flat
from tests.ext.presets import DEFAULT, PROFILES, preset

GPUS = [name for name in PROFILES if name.startswith("gpu_")]
PUBLISHED = {
    "algorithm.hgpo.depth": 2,
    "algorithm.hgpo.alpha": 1.0,
    "algorithm.hgpo.gamma": 0.95,
    "algorithm.hgpo.norm": "mean_std_norm",
    "algorithm.hgpo.std": "population",
    "algorithm.hgpo.episode_weight": 0.0,
    "actor_rollout_ref.rollout.custom.session.memory": 2,
    "actor_rollout_ref.rollout.custom.session.reward_scale": 10.0,
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": 50,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0.4,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.01,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 16,
    "data.max_prompt_length": 4096,
    "data.max_response_length": 512,
    "trainer.total_training_steps": 160,
    "trainer.test_freq": 5,
    "trainer.save_freq": 40,
}
"""What HGPO's published runs on ALFWorld have, or the framework below them."""


@pytest.mark.parametrize("profile", GPUS)
def test_hgpo_on_gpus_has_the_published_settings_and_fits(monkeypatch, profile):
    config = preset(profile, "hgpo")
    found = flat(OmegaConf.to_container(config))
    assert {key: found[key] for key in PUBLISHED} == PUBLISHED
    assert found["actor_rollout_ref.model.path"] == f"Qwen/Qwen2.5-{'7B' if '_7b' in profile else '1.5B'}-Instruct"
    monkeypatch.setattr(sizing, "compose_config", lambda overrides: config)
    plan, _ = sizing.profile_plan(profile)
    assert plan.fits and plan.rows == 128 and plan.optimizer_steps == 1


@pytest.mark.parametrize("profile", ["embedded", DEFAULT])
def test_methods_on_sessions_share_everything_but_the_method(profile):
    hgpo, grpo = (flat(OmegaConf.to_container(preset(profile, name, "textworld"))) for name in ("hgpo", "grpo"))
    assert {key for key in hgpo if hgpo[key] != grpo.get(key) and not key.startswith("algorithm.hgpo.")} == {
        "trainer.v1.trainer_mode",
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES",
    }
    assert not [key for key in grpo if key not in hgpo or key.startswith("algorithm.r3")]


@pytest.mark.parametrize("method", ["hgpo", "hgpo_release", "gigpo"])
def test_the_tiny_player_answers_without_tags_and_an_instruct_model_with_them(method):
    tags = [preset(name, method).actor_rollout_ref.rollout.custom.session.tag for name in ("embedded", DEFAULT)]
    assert tags == [None, "action"]


@pytest.mark.parametrize(
    ("method", "world", "told"),
    [
        ("r3", "textworld", "--world textworld: r3 trains on answers of one turn; leave --world out"),
        ("dapo", "textworld", "--world textworld: dapo trains on answers of one turn; leave --world out"),
        ("hgpo", "seed=3", "--world seed=3: hgpo trains on sessions of several turns; take --world textworld"),
    ],
)
def test_a_method_that_is_of_no_use_in_a_world_is_refused(method, world, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        check_kind(method, world)
