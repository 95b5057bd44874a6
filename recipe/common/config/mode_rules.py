# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""verl's rules on its asynchronous modes, for the recipes and the baselines alike, before anything is loaded."""

import os
from collections.abc import Iterator

from omegaconf import DictConfig

from recipe.common.checks import Broken, is_count
from recipe.common.config.lengths import ACTOR, ROLLOUT
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, is_async

SAMPLER = "trainer.v1.sampler"
QUIET = ("WARN", "WARNING", "ERROR", "CRITICAL")


def modes(config: DictConfig) -> Iterator[Broken]:
    mode = config.trainer.v1.trainer_mode
    if is_async(mode):
        yield from _asynchronous(config)
    if mode.endswith(SEPARATE_ASYNC):
        yield from _separate(config)


def _asynchronous(config: DictConfig) -> Iterator[Broken]:
    sampler, is_separate = config.trainer.v1.sampler, config.trainer.v1.trainer_mode.endswith(SEPARATE_ASYNC)
    name = SEPARATE_ASYNC if is_separate else COLOCATE_ASYNC
    ahead = config.trainer.v1[name].num_warmup_batches
    strategy, oldest = sampler.max_off_policy_strategy, sampler.max_off_policy_threshold
    if strategy not in ("wait", "drop"):
        key = f"{SAMPLER}.max_off_policy_strategy"
        yield Broken(f"{key} must be wait or drop, got {strategy!r}", (f"{key}=wait", f"{key}=drop"))
    if oldest is not None and not is_count(oldest, 1):
        key = f"{SAMPLER}.max_off_policy_threshold"
        yield Broken(f"{key} must be a whole number of at least 1 or null, got {oldest!r}", (f"{key}=null", f"{key}=8"))
    if not (isinstance(ahead, int | float) and ahead >= 0):
        key = f"trainer.v1.{name}.num_warmup_batches"
        yield Broken(f"{key} must be a number >= 0, got {ahead!r}", (f"{key}=1",))


def _separate(config: DictConfig) -> Iterator[Broken]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    yield from _steps_between_syncs(config)
    for name in ("nnodes", "n_gpus_per_node"):
        if not is_count(rollout[name], 1):
            key = f"{ROLLOUT}.{name}"
            yield Broken(
                f"{key} must be at least 1, got {rollout[name]!r}: generation needs its own GPUs", (f"{key}=1",)
            )
    if rollout.checkpoint_engine.backend == "naive":
        key = f"{ROLLOUT}.checkpoint_engine.backend"
        yield Broken(
            f"{key} must not be naive, which hands weights over within a process: generation has its own",
            (f"{key}=nccl",),
        )
    yield from first_policy_kept(config.trainer.v1.trainer_mode, actor.get("fsdp_config") or {})
    speaks = os.environ.get("VERL_LOGGING_LEVEL", "INFO").upper() not in QUIET
    if not config.actor_rollout_ref.get("hybrid_engine", True) and config.trainer.device != "cpu" and speaks:
        yield Broken(
            "actor_rollout_ref.hybrid_engine must be True unless VERL_LOGGING_LEVEL=WARNING is set in the environment: "
            "a line that verl 0.9.1 logs otherwise is a TypeError",
            ("actor_rollout_ref.hybrid_engine=True",),
        )


def _steps_between_syncs(config: DictConfig) -> Iterator[Broken]:
    updates, mini_batch = config.trainer.v1.separate_async.parameter_sync_step, config.actor_rollout_ref.actor
    mini_batch, prompts = mini_batch.ppo_mini_batch_size, config.data.train_batch_size
    if is_count(updates, 1) and updates * mini_batch == prompts:
        return
    key = "trainer.v1.separate_async.parameter_sync_step"
    whole = is_count(mini_batch, 1) and prompts % mini_batch == 0
    yield Broken(
        f"{key} times {ACTOR}.ppo_mini_batch_size={mini_batch} must be data.train_batch_size={prompts}, got "
        f"{updates!r}: so many optimizer steps lie between two weight syncs",
        (f"{key}={prompts // mini_batch}",) if whole else (f"{key}=1 {ACTOR}.ppo_mini_batch_size={prompts}",),
    )


def first_policy_kept(mode: str, fsdp: DictConfig | dict) -> Iterator[Broken]:
    """fsdp: `fsdp_config` of the actor."""
    offload, parameters = fsdp.get("offload_policy"), fsdp.get("param_offload")
    if mode.endswith(SEPARATE_ASYNC) and (offload or parameters):
        key = f"{ACTOR}.fsdp_config"
        yield Broken(
            f"{key}: offload_policy={offload}, param_offload={parameters} with {mode}: verl keeps a step's first "
            "policy by a copy to the CPU, which is none of what is there already",
            (f"{key}.offload_policy=False {key}.param_offload=False",),
        )
