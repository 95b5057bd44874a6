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
"""Rules on verl's own keys that hold for more than one recipe: verl accepts the settings, and trains something else.

A rule takes the sections that it reads and yields a message for each thing that cannot work: key, value, way out.
A recipe puts together those that it needs (recipe/r3/config/r3_rules.py).
"""

from collections.abc import Collection, Iterator

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import is_count, leaves, raise_first
from recipe.common.modes import SEPARATE_ASYNC
from recipe.common.reward.truths import OWN_MANAGER

ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables of every Ray process."""
MODULES = f"{ENVIRONMENT}.VERL_USE_EXTERNAL_MODULES"
"""Where verl is told what to import in every Ray process: trainers and agent loops are found by name there."""
LEGACY = {
    "custom_reward_function": "reward.{key}",
    "reward_model": "reward.reward_manager, .num_workers, .reward_kwargs or .reward_model",
    "sandbox_fusion": "reward.{key}",
}
"""verl's older sections, null unless somebody sets them, and what is read in place of a `key` of theirs."""


def seeded(data: DictConfig) -> Iterator[str]:
    seed = data.get("seed")
    if not is_count(seed, 0):
        yield f"data.seed must be a whole number >= 0, got {seed!r}: every random choice of a run follows from it"


def trainer_mode(mode: str, known: Collection[str]) -> Iterator[str]:
    """known: names of the recipe's trainers."""
    if mode not in known:
        *others, last = known
        yield f"trainer.v1.trainer_mode: must be {', '.join(others)} or {last}, got {mode!r}"


def modules_imported(config: DictConfig, modules: Collection[str]) -> Iterator[str]:
    """modules: those that hold what verl looks up by name."""
    named = str(OmegaConf.select(config, MODULES) or "")
    if not {*modules} <= set(named.split(",")):
        yield (
            f"{MODULES}: {named!r} lacks {' or '.join(modules)}, which hold the trainer and the agent loop: add them "
            "to yours, with a comma and no space"
        )


def own_sampler(sampler: DictConfig) -> Iterator[str]:
    """Of a recipe with a sampler of its own."""
    if sampler.get("sync_refill_failed_groups"):
        yield (
            "trainer.v1.sampler.sync_refill_failed_groups: True has no effect: verl replaces failed groups in its own "
            "sampler alone; set it to False"
        )


def fsdp_workers(strategy: str, who: str) -> Iterator[str]:
    """Of a recipe whose workers are verl's FSDP workers."""
    if strategy not in ("fsdp", "fsdp2"):
        yield f"actor_rollout_ref.actor.strategy: {who} trains with fsdp or fsdp2, got {strategy!r}"


def first_policy_kept(mode: str, fsdp: DictConfig) -> Iterator[str]:
    if mode.endswith(SEPARATE_ASYNC) and (fsdp.offload_policy or fsdp.param_offload):
        yield (
            f"actor_rollout_ref.actor.fsdp_config: offload_policy={fsdp.offload_policy}, "
            f"param_offload={fsdp.param_offload} with {mode}: verl keeps a step's first policy by a copy to the CPU, "
            "which is none of what is there already; set both to False"
        )


def groups(n: int) -> Iterator[str]:
    """Of a method that compares the answers to one prompt; n: `rollout.n`."""
    if n <= 1:
        yield (
            f"actor_rollout_ref.rollout.n: {n} leaves nothing to compare an answer with; use at least 2, better 8 or 16"
        )


def rollout_log_probs(rollout: DictConfig, correction: DictConfig | dict) -> Iterator[str]:
    """correction: `algorithm.rollout_correction`."""
    weights, rejection = correction.get("rollout_is"), correction.get("rollout_rs")
    if (weights or rejection) and not rollout.calculate_log_probs:
        yield (
            f"algorithm.rollout_correction.rollout_is: {weights}, or rollout_rs={rejection}, needs the log-probs of "
            "the rollout, without which verl corrects nothing and says nothing: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or both to null"
        )


def bypass_loss(loss_mode: str, correction: DictConfig | dict) -> Iterator[str]:
    if loss_mode == "bypass_mode" and not correction.get("bypass_mode"):
        yield (
            "actor_rollout_ref.actor.policy_loss.loss_mode: bypass_mode takes old log-probs for the rollout's, which "
            "they are only with algorithm.rollout_correction.bypass_mode=True; here they are the trainer's. Use vanilla"
        )


def sequence_parallel(actor: DictConfig, model: DictConfig) -> Iterator[str]:
    parallel = max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size)
    # verl's own default, of models that name no other.
    attention = model.override_config.get("attn_implementation", "flash_attention_2")
    if parallel != 1 and not attention.startswith("flash_attention"):
        yield (
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size: {parallel} with attn_implementation={attention}: "
            "verl gathers the parts of a row for flash attention alone; here each rank would attend to its own part, "
            "and all log-probs would be wrong. Set "
            "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2, or 1 here"
        )


def whole_mini_batches(mini_batch: int, train_batch: int) -> Iterator[str]:
    if mini_batch <= 0 or train_batch % mini_batch:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size: {mini_batch} must divide data.train_batch_size="
            f"{train_batch}, so that the number of optimizer steps is fixed"
        )


def no_legacy(config: DictConfig) -> Iterator[str]:
    for section, way in LEGACY.items():
        for key, value in leaves(config.get(section), section):
            if value is not None:
                yield (
                    f"{key}: {value!r} has no effect, none of verl's v1 trainers reads it: set {way.format(key=key)}"
                )


def reward_manager(config: DictConfig) -> Iterator[str]:
    """What the reward manager of recipe/common takes over from verl."""
    manager = config.reward.reward_manager
    is_own = manager.source == "importlib" and manager.module.path == OWN_MANAGER
    sandbox = OmegaConf.select(config, "reward.sandbox_fusion.url")
    if manager.source not in ("register", "importlib"):
        yield f"reward.reward_manager.source: must be register or importlib, got {manager.source!r}"
    if is_own and manager.name != "R3RewardManager":
        yield (
            f"reward.reward_manager.name: {manager.name} is not in {OWN_MANAGER}: add "
            "reward.reward_manager.source=register for one of verl's"
        )
    if is_own and sandbox:
        yield (
            f"reward.sandbox_fusion.url: {sandbox} would not be asked: R3RewardManager grades by math-verify, or by a "
            "function of yours. Set reward.reward_manager.source=register reward.reward_manager.name=naive for verl's "
            "own rewards"
        )


def check_reward_manager(config: DictConfig) -> None:
    """Raises ValueError with the first broken rule of `reward_manager`, of a run of any method."""
    raise_first(reward_manager(config))
