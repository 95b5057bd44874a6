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

import math
from collections.abc import Collection, Iterator
from copy import deepcopy

from omegaconf import DictConfig, OmegaConf, open_dict

from recipe.common.checks import Broken, refuse
from recipe.common.config import engines, mode_rules, start_rules, verl_rules
from recipe.common.config.reward_rules import migrated, no_legacy
from recipe.common.modes import SYNC, is_async, trainer_name
from recipe.common.outcome import correct_from
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.config.r3_config import (
    ADAPTIVE,
    ANY_PROMPT,
    AT_ONCE,
    KEY,
    NEXT_STEP,
    NEXT_VISIT,
    RESTARTS,
    R3Config,
    ReflectionConfig,
    faults_of,
    load_r3_config,
)

OWN_MODULES = "recipe.r3.r3_trainer", "recipe.r3.reflection"
FILTER_DOES = (
    "verl filters nothing with a custom sampler, which R^3 is, and replay repairs the dead groups that this (DAPO) "
    "throws away"
)
ONE_TURN = "R^3 stores and replays answers of one turn"
ROLLOUT, CORRECTION = verl_rules.ROLLOUT, verl_rules.CORRECTION


def validate_r3_config(config: DictConfig) -> R3Config:
    """`load_r3_config` plus the combinations with verl's own keys that cannot work.

    Raises:
        Refused: every rule that is broken, with keys, values and ways out.
    """
    refuse(broken_rules(config))
    return load_r3_config(config)


def all_rules(config: DictConfig) -> Iterator[Broken]:
    """Kinds of values, on which all other rules count; `broken_rules`; and what is found by asking verl and loading
    what the user names. Once, before Ray starts."""
    yield from start_rules.of_recipe(config, broken_rules)


def broken_rules(config: DictConfig) -> Iterator[Broken]:
    """Each rule that the settings break. Those about another engine and about verl's old sections come first: the
    others read the config as it is once these are followed."""
    if OmegaConf.select(config, KEY) is None:  # nor is all else that r3.yaml sets
        yield from faults_of(config)
        return
    yield from engines.fsdp_workers(config, "R^3")
    config = engines.as_fsdp(config)
    yield from no_legacy(config)
    config = migrated(config)
    yield from _estimator(config.algorithm.adv_estimator)
    yield from verl_rules.of_any_method(config)
    yield from _on_verls_settings(config)
    own = list(faults_of(config))
    yield from own
    config = _without(config, [key for one in own for key in one.out])
    yield from _on_own_settings(config, load_r3_config(config))


def _without(config: DictConfig, keys: Collection[str]) -> DictConfig:
    """The config without these settings of ours, which have their defaults then."""
    new = deepcopy(config)
    with open_dict(new):
        for key in keys:
            parent, _, name = key.rpartition(".")
            OmegaConf.select(new, parent).pop(name, None)
    return new


def _on_verls_settings(config: DictConfig) -> Iterator[Broken]:
    rollout = config.actor_rollout_ref.rollout
    yield from verl_rules.no_critic(config)
    yield from verl_rules.critic_settings(config)
    yield from verl_rules.own_sampler(config.trainer.v1.sampler)
    yield from verl_rules.of_trainer(config, "r3", OWN_MODULES, FILTER_DOES)
    yield from _verdicts_alone(config)
    yield from verl_rules.groups(rollout.n)
    yield from verl_rules.one_turn(rollout, ONE_TURN)


def _on_own_settings(config: DictConfig, r3: R3Config) -> Iterator[Broken]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    correction = config.algorithm.get("rollout_correction") or {}
    yield from _ranks_below_correct(config, r3)
    yield from _no_bypass(correction, actor.policy_loss.loss_mode, r3)
    yield from _rows_stay(correction, r3)
    yield from _attempts_within_reach(r3.reflection, rollout.n)
    yield from _asked_sooner(r3.reflection)
    yield from _restarted(r3, rollout)
    yield from _held_in_sync(r3.reflection, config.trainer.v1.trainer_mode)
    yield from _asked_in_time(r3.reflection, config.trainer.v1)
    yield from _not_recorded(r3.reflection, config)
    yield from _groups_whole(actor, r3)
    yield from _taper_knows(rollout, r3)
    yield from _any_prompt_alone(r3)


def _estimator(name: str) -> Iterator[Broken]:
    if name != "r3":
        yield Broken(f"algorithm.adv_estimator: must be r3, got {name!r}", ("algorithm.adv_estimator=r3",))


def _ranks_below_correct(config: DictConfig, r3: R3Config) -> Iterator[Broken]:
    try:
        least = correct_from(config)
    except ValueError as error:
        yield Broken(str(error), ("reward.reward_kwargs.correct_from=1.0",))
        return
    if r3.ranking.enable and r3.ranking.max_reward >= least:
        lower = (f"{KEY}.ranking.max_reward={least / 2:g}",) if least > 0 else ()
        yield Broken(
            f"{KEY}.ranking.max_reward: {r3.ranking.max_reward} is not below "
            f"reward.reward_kwargs.correct_from={least}: a ranked failure would earn as much as a correct answer",
            (*lower, f"{KEY}.ranking.enable=False"),
        )


def _no_bypass(correction: DictConfig | dict, loss_mode: str, r3: R3Config) -> Iterator[Broken]:
    if not correction.get("bypass_mode"):
        return
    loss = f" {verl_rules.ACTOR}.policy_loss.loss_mode=vanilla" if loss_mode == "bypass_mode" else ""
    no_bypass = f"{CORRECTION}.bypass_mode=False{loss}"
    if r3.ranking.enable:
        yield Broken(
            f"{KEY}.ranking.enable: the ranking reward reads token entropies from the log-prob pass that "
            f"{CORRECTION}.bypass_mode=True skips",
            (no_bypass, f"{KEY}.ranking.enable=False"),
        )
    if r3.replay.enable:
        yield Broken(
            f"{KEY}.replay.enable: {CORRECTION}.bypass_mode=True takes the stored log-probs of replayed rows for those "
            "of the current policy",
            (no_bypass, f"{KEY}.replay.enable=False"),
        )


def _rows_stay(correction: DictConfig | dict, r3: R3Config) -> Iterator[Broken]:
    rejection = correction.get("rollout_rs")
    if rejection and "seq_" in str(rejection) and (r3.replay.enable or r3.ranking.enable):
        yield Broken(
            f"{CORRECTION}.rollout_rs: {rejection} rejects whole answers after replay and ranking have decided by "
            "them: a group whose right answers are rejected would be taught by its wrong ones alone, and rescued by "
            "nothing",
            (f"{CORRECTION}.rollout_rs=null", f"{KEY}.replay.enable=False {KEY}.ranking.enable=False"),
        )


def _verdicts_alone(config: DictConfig) -> Iterator[Broken]:
    if OmegaConf.select(config, "distillation.enabled"):
        yield Broken(
            "distillation.enabled: a replayed answer has no log-probs of a teacher", ("distillation.enabled=False",)
        )
    yield from verl_rules.no_reward_model(
        config, "R^3 needs to know which answers are correct, and a reward model only gives scores"
    )


def _attempts_within_reach(reflection: ReflectionConfig, n: int) -> Iterator[Broken]:
    """n: answers to a prompt in a step."""
    if reflection.enable and reflection.rounds and n > 1 and reflection.min_attempts > reflection.rounds * n:
        yield Broken(
            f"{KEY}.reflection.min_attempts: {reflection.min_attempts} attempts are never there in "
            f"{KEY}.reflection.rounds={reflection.rounds} steps of {ROLLOUT}.n={n} answers",
            (
                f"{KEY}.reflection.min_attempts={reflection.rounds * n}",
                f"{KEY}.reflection.rounds={math.ceil(reflection.min_attempts / n)}",
            ),
        )


def _asked_sooner(reflection: ReflectionConfig) -> Iterator[Broken]:
    if reflection.enable and reflection.ask == PLAIN and reflection.when == NEXT_VISIT:
        key = f"{KEY}.reflection"
        yield Broken(
            f"{key}.ask: {PLAIN} has no effect with {key}.when={NEXT_VISIT}: the next visit asks the plain "
            "prompt by itself",
            (f"{key}.when={AT_ONCE}", f"{key}.ask={REFLECTION}"),
        )


def _restarted(r3: R3Config, rollout: DictConfig) -> Iterator[Broken]:
    reflection, key = r3.reflection, f"{KEY}.reflection"
    if not (reflection.enable and reflection.ask == RESTARTS):
        return
    if r3.replay.max_age is not None:
        yield Broken(
            f"{key}.ask: {RESTARTS} goes on from stored answers of any age, and {KEY}.replay.max_age is "
            f"{r3.replay.max_age}",
            (f"{KEY}.replay.max_age=null", f"{key}.ask={ADAPTIVE}"),
        )
    if reflection.when != AT_ONCE:
        yield Broken(
            f"{key}.ask: {RESTARTS} needs {key}.when={AT_ONCE}, got {reflection.when}: a group whose query has a "
            "stored right answer is rescued by it before it could be asked later",
            (f"{key}.when={AT_ONCE}", f"{key}.ask={ADAPTIVE}"),
        )
    if not rollout.calculate_log_probs:
        yield Broken(
            f"{key}.ask: {RESTARTS} goes on from answers whose log-probs are stored",
            (f"{verl_rules.CALCULATE}=True", f"{key}.ask={ADAPTIVE}"),
        )
    replay = r3.replay
    if not (replay.enable and replay.same_step and replay.outcome != "wrong"):
        way = f"{KEY}.replay.enable=True {KEY}.replay.same_step=True {KEY}.replay.outcome=correct"
        yield Broken(
            f"{key}.ask: {RESTARTS} pays for right answers that replay hands to the group in the same step, and does "
            f"not with {KEY}.replay.enable={replay.enable}, same_step={replay.same_step} and outcome={replay.outcome}",
            (way, f"{key}.ask={ADAPTIVE}"),
        )


def _held_in_sync(reflection: ReflectionConfig, mode: str) -> Iterator[Broken]:
    if reflection.enable and reflection.when == NEXT_STEP and mode != trainer_name("r3", SYNC):
        key = f"{KEY}.reflection.when"
        yield Broken(
            f"{key}: {NEXT_STEP} is for the synchronous mode, not for {mode}: no batch waits for a group there, so "
            "that asking at once costs no time",
            (f"{key}={AT_ONCE}",),
        )


def _asked_in_time(reflection: ReflectionConfig, v1: DictConfig) -> Iterator[Broken]:
    if not (reflection.enable and reflection.when == AT_ONCE and is_async(v1.trainer_mode)):
        return
    key, oldest = f"{KEY}.reflection.when", f"{mode_rules.SAMPLER}.max_off_policy_threshold"
    if v1.sampler.max_off_policy_threshold == 1:
        yield Broken(
            f"{key}: {AT_ONCE} asks nobody with {oldest}=1: any group would be too old in the next step, so that none "
            "waits for what is asked",
            (f"{oldest}=2", f"{key}={NEXT_VISIT}"),
        )


def _not_recorded(reflection: ReflectionConfig, config: DictConfig) -> Iterator[Broken]:
    key = "skip.rollout_tq.enable"
    if reflection.enable and reflection.when == AT_ONCE and OmegaConf.select(config, key):
        yield Broken(
            f"{key}: verl records a step and replays as many groups of it as were submitted with the batch; "
            f"{KEY}.reflection.when={AT_ONCE} submits more on the way",
            (f"{key}=False", f"{KEY}.reflection.when={NEXT_VISIT}"),
        )


def _groups_whole(actor: DictConfig, r3: R3Config) -> Iterator[Broken]:
    if actor.get("shuffle") and (r3.replay.enable or r3.ranking.enable):
        key = f"{verl_rules.ACTOR}.shuffle"
        yield Broken(
            f"{key}: True would tear apart the groups that replay and ranking repair: each trains whole in one "
            "optimizer step, in an order made for that",
            (f"{key}=False",),
        )


def _taper_knows(rollout: DictConfig, r3: R3Config) -> Iterator[Broken]:
    if r3.is_tapered and not rollout.calculate_log_probs:
        yield Broken(
            f"{KEY}.replay.correction: tapered needs stored log-probs",
            (f"{verl_rules.CALCULATE}=True", f"{KEY}.replay.correction=current"),
        )


def _any_prompt_alone(r3: R3Config) -> Iterator[Broken]:
    if r3.replay.enable and r3.replay.outcome == ANY_PROMPT and r3.reflection.enable:
        yield Broken(
            f"{KEY}.replay.outcome: {ANY_PROMPT} finds an answer for every dead group, so that none is left to be "
            "asked again",
            (f"{KEY}.reflection.enable=False", f"{KEY}.replay.outcome=correct"),
        )
