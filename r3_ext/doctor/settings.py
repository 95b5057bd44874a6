"""The recipe's and verl's rules on the configuration."""

from __future__ import annotations

import contextlib
import io
import math
from functools import lru_cache
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, Finding, is_r3

if TYPE_CHECKING:
    from omegaconf import DictConfig


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("trainer.total_epochs", "trainer.n_gpus_per_node", "trainer.nnodes", "reward.num_workers"),
    *(f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_max_token_len_per_gpu"),
    *(f"{ROLLOUT}.n", f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.agent.num_workers"),
    *(f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.val_kwargs.n"),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
)
COUNTS_OR_NULL = (
    *("trainer.total_training_steps", "trainer.max_actor_ckpt_to_keep", "data.gen_batch_size", "data.val_batch_size"),
    f"{ROLLOUT}.max_model_len",
)
INTEGERS = ("trainer.save_freq", "trainer.test_freq", "data.train_max_samples", "data.val_max_samples")
POSITIVE = (f"{ACTOR}.optim.lr", f"{ROLLOUT}.temperature", f"{ACTOR}.clip_ratio")
SHARES = (f"{ROLLOUT}.top_p", f"{ROLLOUT}.gpu_memory_utilization")


@lru_cache(maxsize=1)
def known_values() -> dict[str, object]:
    """What verl's and the recipe's own files hold: their types are the types of the settings."""
    from r3_ext.config import compose_config, resolved  # imports hydra, without which the doctor says so

    return resolved(compose_config([]))


def wrong_values(config: DictConfig) -> list[str]:
    """Settings whose value is of another kind than the known one, or a count that verl would trip over later.

    Each as "<full key> must <rule>, got <value>".
    """
    from r3_ext.config import resolved

    given, known = resolved(config), known_values()
    problems = []
    for key, value in given.items():
        default, is_bool = known.get(key), isinstance(value, bool)
        is_number = isinstance(value, int | float) and not is_bool
        rule = None
        if key in COUNTS or (key in COUNTS_OR_NULL and value is not None):
            ok = is_number and isinstance(value, int) and value >= 1
            rule = None if ok else "be a whole number of at least 1" + (" or null" if key in COUNTS_OR_NULL else "")
        elif key in INTEGERS:
            rule = None if is_number and isinstance(value, int) else "be a whole number (-1: never, or all)"
        elif key in POSITIVE:
            rule = None if is_number and math.isfinite(value) and value > 0 else "be a number > 0"
        elif key in SHARES:
            rule = None if is_number and 0 < value <= 1 else "be in (0, 1]"
        elif isinstance(default, bool):
            rule = "be true or false" if isinstance(value, str | list | dict) else None
        elif isinstance(default, int | float):
            rule = None if value is None or is_number else "be a number"
        if rule:
            problems.append(f"{key} must {rule}, got {value!r}")
    return problems


def check_values(config: DictConfig) -> list[Finding]:
    """The first check, and the last where it fails: all others count on it."""
    try:
        problems = wrong_values(config)
    except ValueError as error:
        problems = [str(error)]
    return [Finding(FAIL, "config", problem, "correct the setting that the message names") for problem in problems]


def check_reward(config: DictConfig) -> None:
    """Build what every reward worker builds of its settings. Raises ValueError with the full key."""
    from omegaconf import OmegaConf

    from recipe.r3.reward_manager import R3RewardManager, RewardConfig

    if config.reward.reward_manager.name == R3RewardManager.__name__:
        kwargs = config.reward.get("reward_kwargs")
        RewardConfig.from_reward_kwargs(OmegaConf.to_container(kwargs) if OmegaConf.is_config(kwargs) else kwargs)


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
            check_reward(config)
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
