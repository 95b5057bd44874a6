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
"""Rules that span several settings of R^3: what cannot work is refused before Ray starts or a model loads."""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import raise_first
from recipe.common.config import verl_rules
from recipe.common.modes import MODES, trainer_name
from recipe.common.outcome import correct_from
from recipe.r3.config.r3_config import R3Config, ReflectionConfig, load_r3_config

OWN_MODULES = "recipe.r3.r3_trainer", "recipe.r3.reflection"
ONE_TURN = "R^3 stores and replays answers of one turn"


def validate_r3_config(config: DictConfig) -> R3Config:
    """`load_r3_config` plus the combinations with verl's own keys that cannot work.

    Raises:
        ValueError: the message names the keys, the values and the way out.
    """
    r3 = load_r3_config(config)
    raise_first(broken_rules(config, r3))
    return r3


def broken_rules(config: DictConfig, r3: R3Config) -> Iterator[str]:
    """A message for each rule that the settings break; other rules read what the first one asks for."""
    actor, rollout, model = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "model"))
    correction = config.algorithm.get("rollout_correction") or {}
    mode = config.trainer.v1.trainer_mode
    yield from verl_rules.fsdp_workers(actor.strategy, "R^3")
    yield from _estimator(config.algorithm.adv_estimator, mode)
    yield from _ranks_below_correct(config, r3)
    yield from _no_critic(config)
    yield from _no_bypass(correction, r3)
    yield from _no_filter(config.algorithm.get("filter_groups") or {})
    yield from verl_rules.own_sampler(config.trainer.v1.sampler)
    yield from verl_rules.trainer_mode(mode, [trainer_name("r3", mode) for mode in MODES])
    yield from verl_rules.first_policy_kept(mode, actor.fsdp_config)
    yield from verl_rules.modules_imported(config, OWN_MODULES)
    yield from _verdicts_alone(config)
    yield from verl_rules.groups(rollout.n)
    yield from _attempts_within_reach(r3.reflection, rollout.n)
    yield from _one_turn(rollout)
    yield from _room_to_reflect(config.data, rollout, r3.reflection)
    yield from verl_rules.rollout_log_probs(rollout, correction)
    yield from verl_rules.bypass_loss(actor.policy_loss.loss_mode, correction)
    yield from verl_rules.sequence_parallel(actor, model)
    yield from verl_rules.whole_mini_batches(actor.ppo_mini_batch_size, config.data.train_batch_size)
    yield from _groups_whole(actor, r3)
    yield from _taper_knows(rollout, r3)
    yield from verl_rules.seeded(config.data)
    yield from verl_rules.no_legacy(config)
    yield from verl_rules.reward_manager(config)


def _estimator(name: str, mode: str) -> Iterator[str]:
    if name != "r3":
        yield f"algorithm.adv_estimator: must be r3 with trainer.v1.trainer_mode={mode}, got {name!r}"


def _ranks_below_correct(config: DictConfig, r3: R3Config) -> Iterator[str]:
    least = correct_from(config)
    if r3.ranking.enable and r3.ranking.max_reward >= least:
        yield (
            f"algorithm.r3.ranking.max_reward: {r3.ranking.max_reward} is not below "
            f"reward.reward_kwargs.correct_from={least}: a ranked failure would earn as much as a correct answer; "
            "lower it, or turn the ranking off"
        )


def _no_critic(config: DictConfig) -> Iterator[str]:
    if config.critic.get("enable"):
        yield "critic.enable: R^3 is a group-relative method without a critic; set critic.enable=False"


def _no_bypass(correction: DictConfig | dict, r3: R3Config) -> Iterator[str]:
    if not correction.get("bypass_mode"):
        return
    if r3.ranking.enable:
        yield (
            "algorithm.r3.ranking.enable: the ranking reward reads token entropies from the log-prob pass that "
            "algorithm.rollout_correction.bypass_mode=True skips; turn one of the two off"
        )
    if r3.replay.enable:
        yield (
            "algorithm.r3.replay.enable: algorithm.rollout_correction.bypass_mode=True takes the stored log-probs of "
            "replayed rows for those of the current policy; turn one of the two off"
        )


def _no_filter(filter_groups: DictConfig | dict) -> Iterator[str]:
    if filter_groups.get("enable"):
        yield (
            "algorithm.filter_groups.enable: verl filters nothing with a custom sampler, which R^3 is, and replay "
            "repairs the dead groups that this (DAPO) throws away; set it to False, or train with --method dapo"
        )


def _verdicts_alone(config: DictConfig) -> Iterator[str]:
    if OmegaConf.select(config, "distillation.enabled"):
        yield "distillation.enabled: a replayed answer has no log-probs of a teacher; set it to False"
    if OmegaConf.select(config, "reward.reward_model.enable"):
        yield (
            "reward.reward_model.enable: R^3 needs to know which answers are correct, and a reward model only gives "
            "scores; set it to False"
        )


def _attempts_within_reach(reflection: ReflectionConfig, n: int) -> Iterator[str]:
    """n: answers to a prompt in a step."""
    if reflection.enable and reflection.rounds and reflection.min_attempts > reflection.rounds * n:
        yield (
            f"algorithm.r3.reflection.min_attempts: {reflection.min_attempts} attempts are never there in "
            f"algorithm.r3.reflection.rounds={reflection.rounds} steps of actor_rollout_ref.rollout.n={n} answers; "
            "lower it, or raise the rounds"
        )


def _one_turn(rollout: DictConfig) -> Iterator[str]:
    if OmegaConf.select(rollout, "multi_turn.enable"):
        yield f"actor_rollout_ref.rollout.multi_turn.enable: {ONE_TURN}; set it to False"
    if rollout.agent.default_agent_loop == "tool_agent":
        yield f"actor_rollout_ref.rollout.agent.default_agent_loop: {ONE_TURN}; set it to single_turn_agent"


def _room_to_reflect(data: DictConfig, rollout: DictConfig, reflection: ReflectionConfig) -> Iterator[str]:
    """A reflection prompt may be as long as data.max_prompt_length; verl would cut its question off."""
    if not reflection.enable:
        return
    prompt, response = data.max_prompt_length, data.max_response_length
    if rollout.prompt_length < prompt:
        yield (
            f"actor_rollout_ref.rollout.prompt_length: {rollout.prompt_length} is below data.max_prompt_length="
            f"{prompt}, which a reflection prompt may have; raise it, or lower the other"
        )
    longest = rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length
    if longest < prompt + response:
        yield (
            f"actor_rollout_ref.rollout.max_model_len: {longest} is below data.max_prompt_length={prompt}, which a "
            f"reflection prompt may have, plus data.max_response_length={response}; raise it, or lower one of them"
        )


def _groups_whole(actor: DictConfig, r3: R3Config) -> Iterator[str]:
    if actor.get("shuffle") and (r3.replay.enable or r3.ranking.enable):
        yield (
            "actor_rollout_ref.actor.shuffle: True would tear apart the groups that replay and ranking repair: each "
            "trains whole in one optimizer step, in an order made for that; set it to False"
        )


def _taper_knows(rollout: DictConfig, r3: R3Config) -> Iterator[str]:
    if r3.is_tapered and not rollout.calculate_log_probs:
        yield (
            "algorithm.r3.replay.correction: tapered needs stored log-probs: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or it to current"
        )
