"""PPO and RRL-style replay on the shipped profiles: the critic follows the actor, and fits beside it."""

import pytest
from omegaconf import OmegaConf

from r3_ext.settings import sizing
from r3_ext.settings.compose import flat
from tests.ext.presets import DEFAULT, preset


@pytest.mark.parametrize("profile", sizing.gpu_profiles())
def test_a_critic_beside_the_actor_fits(monkeypatch, profile):
    config = preset(profile, "rrl")
    monkeypatch.setattr(sizing, "compose_config", lambda overrides: config)
    plan, architecture = sizing.profile_plan(profile, "rrl")
    assert plan.fits
    both = architecture.parameters + architecture.critic_parameters
    assert plan.checkpoint == pytest.approx(12 * both / sizing.GIB)
    config.critic.enable = False
    alone, _ = sizing.profile_plan(profile, "rrl")
    assert alone.rollout <= plan.rollout and alone.main_memory <= plan.main_memory


@pytest.mark.parametrize("profile", ["embedded", DEFAULT])
def test_the_critic_is_the_actors_model_as_the_actor_trains_it(profile):
    config = preset(profile, "ppo")
    critic, actor, model = config.critic, config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    assert critic.model.path == model.path and critic.strategy == actor.strategy
    assert critic.model.override_config == model.override_config
    assert critic.model.use_remove_padding == model.use_remove_padding
    assert critic.ppo_infer_max_token_len_per_gpu == actor.ppo_max_token_len_per_gpu
    assert critic.fsdp.mixed_precision == actor.fsdp_config.get("mixed_precision")
    assert config.trainer.max_critic_ckpt_to_keep == config.trainer.max_actor_ckpt_to_keep


@pytest.mark.parametrize("profile", ["embedded", DEFAULT])
def test_ppo_is_rrl_without_restarts(profile):
    ppo, rrl = (flat(OmegaConf.to_container(preset(profile, name), resolve=False)) for name in ("ppo", "rrl"))
    assert {key for key in ppo.keys() | rrl.keys() if ppo.get(key) != rrl.get(key)} == {"algorithm.rrl.restarts.share"}
