"""verl's rules on its asynchronous modes, for R^3 and the baselines alike, before anything is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, Finding, is_cpu, is_r3
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, is_async

if TYPE_CHECKING:
    from omegaconf import DictConfig

QUIET = ("WARN", "WARNING", "ERROR", "CRITICAL")


def check_mode(config: DictConfig) -> list[Finding]:
    mode = config.trainer.v1.trainer_mode
    rules = asynchronous(config) if is_async(mode) else []
    rules += separate(config) if mode.endswith(SEPARATE_ASYNC) else []
    advice = "correct the setting that the message names"
    return [Finding(FAIL, "mode", f"{key} must {rule}", advice) for key, holds, rule in rules if not holds]


def asynchronous(config: DictConfig) -> list[tuple[str, bool, str]]:
    """(key, holds, rule and value) of each rule."""
    sampler, is_separate = config.trainer.v1.sampler, config.trainer.v1.trainer_mode.endswith(SEPARATE_ASYNC)
    name = SEPARATE_ASYNC if is_separate else COLOCATE_ASYNC
    ahead = config.trainer.v1[name].num_warmup_batches
    strategy, oldest = sampler.max_off_policy_strategy, sampler.max_off_policy_threshold
    return [
        (
            "trainer.v1.sampler.max_off_policy_strategy",
            strategy in ("wait", "drop"),
            f"be wait or drop, got {strategy!r}",
        ),
        (
            "trainer.v1.sampler.max_off_policy_threshold",
            oldest is None or is_count(oldest),
            f"be a whole number of at least 1 or null, got {oldest!r}",
        ),
        (
            f"trainer.v1.{name}.num_warmup_batches",
            isinstance(ahead, int | float) and ahead >= 0,
            f"be a number >= 0, got {ahead!r}",
        ),
    ]


def separate(config: DictConfig) -> list[tuple[str, bool, str]]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    updates, mini_batch = config.trainer.v1.separate_async.parameter_sync_step, actor.ppo_mini_batch_size
    prompts = config.data.train_batch_size
    offloads = actor.fsdp_config.offload_policy or actor.fsdp_config.param_offload
    speaks = os.environ.get("VERL_LOGGING_LEVEL", "INFO").upper() not in QUIET
    return [
        (
            "trainer.v1.separate_async.parameter_sync_step",
            is_count(updates) and updates * mini_batch == prompts,
            f"times actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch} be data.train_batch_size={prompts}, got "
            f"{updates!r}: so many optimizer steps lie between two weight syncs",
        ),
        (
            "actor_rollout_ref.rollout.nnodes and n_gpus_per_node",
            is_count(rollout.nnodes) and is_count(rollout.n_gpus_per_node),
            f"be at least 1, got {rollout.nnodes!r} and {rollout.n_gpus_per_node!r}: generation needs its own GPUs",
        ),
        (
            "actor_rollout_ref.rollout.checkpoint_engine.backend",
            rollout.checkpoint_engine.backend != "naive",
            "not be naive, which hands weights over within a process: generation has its own; use nccl",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config.offload_policy and param_offload",
            not offloads or is_r3(config),  # R^3 says so itself
            "be False: verl keeps a step's first policy by a copy to the CPU, which is none of what is there already",
        ),
        (
            "actor_rollout_ref.hybrid_engine",
            config.actor_rollout_ref.get("hybrid_engine", True) or is_cpu(config) or not speaks,
            "be True unless VERL_LOGGING_LEVEL=WARNING is set: a line that verl 0.9.1 logs otherwise is a TypeError",
        ),
    ]


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
