"""The recipe's and verl's rules on the configuration."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, Finding, is_r3

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_config(config: DictConfig) -> list[Finding]:
    """The recipe's and verl's own validation."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from recipe.r3.r3_config import validate_r3_config

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if is_r3(config):
                validate_r3_config(config)
            validate_config(config, need_reference_policy(config), need_critic(config))
    except (ValueError, TypeError, AssertionError, HydraException, OmegaConfBaseException) as error:
        return [Finding(FAIL, "config", str(error).strip(), "correct the setting that the message names")]
    found = f"trainer_mode={config.trainer.v1.trainer_mode}, {config.data.train_batch_size} prompts"
    return [Finding(OK, "config", f"{found} x {config.actor_rollout_ref.rollout.n} per step"), *check_lengths(config)]


def check_lengths(config: DictConfig) -> list[Finding]:
    """Lengths that verl only compares when the first row of full length arrives."""
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    longest = data.max_prompt_length + data.max_response_length
    limits = {"actor_rollout_ref.rollout.max_model_len": rollout.max_model_len}
    if actor.use_dynamic_bsz:
        limits["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    return [
        Finding(FAIL, "config", f"prompt plus response are {longest} tokens, {key}={limit}", f"raise it to {longest}")
        for key, limit in limits.items()
        if limit is not None and limit < longest
    ]
