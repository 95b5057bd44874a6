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

A rule takes the sections that it reads and yields a `Broken` for each thing that cannot work: key, value, way out.
A recipe puts together those that it needs (recipe/r3/config/r3_rules.py); `of_any_method` are
everybody's, `of_trainer` those of every recipe.
"""

import os
from collections.abc import Collection, Iterator

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, is_count, leaves, setting
from recipe.common.config import engines, lengths, mode_rules
from recipe.common.config.lengths import ACTOR, ROLLOUT
from recipe.common.config.reward_rules import reward_manager
from recipe.common.modes import MODES, SYNC, trainer_name

ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables of every Ray process."""
MODULES = f"{ENVIRONMENT}.VERL_USE_EXTERNAL_MODULES"
"""Where verl is told what to import in every Ray process: trainers and agent loops are found by name there."""
MODEL = "actor_rollout_ref.model"
CORRECTION = "algorithm.rollout_correction"
FETCHED = "data.gen_batch_size"
CALCULATE = f"{ROLLOUT}.calculate_log_probs"
SINGLE_TURN, SEVERAL_TURNS = "single_turn_agent", "tool_agent"
"""The agent loops of verl's, by the turns of an answer."""
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"


def of_any_method(config: DictConfig) -> Iterator[Broken]:
    """What holds whatever trains; nothing of the user's is loaded."""
    yield from first_trainer_kept(config.trainer)
    yield from whole_fetches(config, (SYNC, trainer_name("baseline", SYNC)))
    yield from exported_modules_kept(config)
    yield from lengths.answers_end_by_themselves(config)
    yield from lengths.rows_fit(config)
    yield from mode_rules.modes(config)
    yield from reward_manager(config)
    yield from entropies_there(config.algorithm)


def of_trainer(
    config: DictConfig, name: str, modules: Collection[str], filter_does: str, by_rows: str = ""
) -> Iterator[Broken]:
    """What every trainer of the recipes needs.

    Args:
        name: of the recipe, as `trainer_name` takes it.
        modules: where its trainers and agent loops are registered.
        filter_does: what DAPO's filter would do to the method.
        by_rows: the recipe's setting for optimizer steps of so many rows, if it has one.
    """
    actor, rollout, model = (config.actor_rollout_ref[part] for part in ("actor", "rollout", "model"))
    correction = config.algorithm.get("rollout_correction") or {}
    yield from no_filter(config, filter_does)
    yield from whole_fetches(config, (trainer_name(name, SYNC),))
    yield from trainer_mode(config.trainer.v1.trainer_mode, [trainer_name(name, mode) for mode in MODES])
    yield from modules_imported(config, modules)
    yield from rollout_log_probs(rollout, correction)
    yield from bypass_loss(actor.policy_loss.loss_mode, correction)
    yield from sequence_parallel(actor, model)
    yield from whole_mini_batches(actor.ppo_mini_batch_size, config.data.train_batch_size, by_rows)
    yield from seeded(config.data)


def entropies_there(algorithm: DictConfig) -> Iterator[Broken]:
    bypass = (algorithm.get("rollout_correction") or {}).get("bypass_mode")
    if algorithm.adv_estimator == "rl_zvp" and bypass:
        yield Broken(
            "algorithm.adv_estimator: rl_zvp reads token entropies from the log-prob pass that "
            f"{CORRECTION}.bypass_mode=True skips",
            (f"{CORRECTION}.bypass_mode=False",),
        )


def first_trainer_kept(trainer: DictConfig) -> Iterator[Broken]:
    if not trainer.get("use_v1", True):
        yield Broken(
            f"trainer.use_v1: {trainer.use_v1} asks for verl's older trainer, which knows none of these recipes' names",
            ("trainer.use_v1=True",),
        )


def seeded(data: DictConfig) -> Iterator[Broken]:
    seed = data.get("seed")
    if not is_count(seed, 0):
        yield Broken(
            f"data.seed must be a whole number >= 0, got {seed!r}: every random choice of a run follows from it",
            ("data.seed=0",),
        )


def trainer_mode(mode: str, known: Collection[str]) -> Iterator[Broken]:
    """known: names of the recipe's trainers, that of the synchronous one first."""
    if mode not in known:
        first, *others = known
        near = next((name for name in others if name.endswith(f"_{mode}")), first)
        yield Broken(
            f"trainer.v1.trainer_mode: must be {', '.join([first, *others[:-1]])} or {others[-1]}, got {mode!r}",
            (f"trainer.v1.trainer_mode={near}",),
        )


def modules_imported(config: DictConfig, modules: Collection[str]) -> Iterator[Broken]:
    """modules: those that hold what verl looks up by name."""
    named = str(OmegaConf.select(config, MODULES) or "")
    given = [name for name in named.split(",") if name]
    if missing := [name for name in modules if name not in given]:
        yield Broken(
            f"{MODULES}: {named!r} lacks {' or '.join(missing)}, which hold the trainer and the agent loop",
            (setting(MODULES, ",".join([*given, *missing, *hidden(named)])),),
        )


def exported_modules_kept(config: DictConfig) -> Iterator[Broken]:
    """The setting takes the place of the variable in every Ray process, so it has to name what the variable does."""
    named = str(OmegaConf.select(config, MODULES) or "")
    if named and (lost := hidden(named)):
        yield Broken(
            f"{MODULES}: {named!r} would hide {', '.join(lost)}, which the environment's variable of that name has",
            (setting(MODULES, ",".join([named, *lost])),),
        )


def hidden(named: str) -> list[str]:
    """Modules that the environment's variable names, and not the setting."""
    exported = os.environ.get(MODULES.rpartition(".")[2], "").split(",")
    return [name for name in exported if name and name not in named.split(",")]


def own_sampler(sampler: DictConfig) -> Iterator[Broken]:
    """Of a recipe with a sampler of its own."""
    if sampler.get("sync_refill_failed_groups"):
        key = "trainer.v1.sampler.sync_refill_failed_groups"
        yield Broken(
            f"{key}: True has no effect: verl replaces failed groups in its own sampler alone", (f"{key}=False",)
        )


def no_filter(config: DictConfig, why: str) -> Iterator[Broken]:
    """why: what DAPO's filter does to the method."""
    if filters_groups(config):
        key = "algorithm.filter_groups.enable"
        # With the filter verl fetches one by one, whatever is set.
        fetched = "" if fetches_are_whole(config.data) else f" {FETCHED}=1"
        yield Broken(f"{key}: {why}", (f"{key}=False{fetched}",))


def filters_groups(config: DictConfig) -> bool:
    return bool((config.algorithm.get("filter_groups") or {}).get("enable"))


def fetches_are_whole(data: DictConfig) -> bool:
    size = data.get("gen_batch_size") or data.train_batch_size
    return data.train_batch_size % size == 0


def whole_fetches(config: DictConfig, synchronous: Collection[str]) -> Iterator[Broken]:
    """verl's synchronous trainer takes a step's prompts as whole batches of its dataloader, unless it refills groups.

    synchronous: names of the trainers that are.
    """
    data, trainer = config.data, config.trainer.v1
    refills = filters_groups(config) or trainer.sampler.get("sync_refill_failed_groups")
    if trainer.trainer_mode in synchronous and not refills and not fetches_are_whole(data):
        yield Broken(
            f"{FETCHED}: {data.gen_batch_size} prompts are fetched at a time, of which no whole number makes "
            f"data.train_batch_size={data.train_batch_size}",
            (f"{FETCHED}=1",),
        )


def groups(n: int) -> Iterator[Broken]:
    """Of a method that compares the answers to one prompt; n: `rollout.n`."""
    if n <= 1:
        yield Broken(f"{ROLLOUT}.n: {n} leaves nothing to compare an answer with", (f"{ROLLOUT}.n=8",))


def no_critic(config: DictConfig) -> Iterator[Broken]:
    """Of a method that compares the answers to one prompt."""
    if config.critic.get("enable"):
        yield Broken(
            "critic.enable: True, and what compares the answers to one prompt has no critic", ("critic.enable=False",)
        )
    if config.trainer.get("critic_warmup"):
        yield Broken(
            f"trainer.critic_warmup: verl would train no policy in the first {config.trainer.critic_warmup} steps, and "
            "there is no critic to train instead",
            ("trainer.critic_warmup=0",),
        )


def critic_settings(config: DictConfig) -> Iterator[Broken]:
    """Of a method without a critic: what somebody set for one."""
    defaults = engines.verl_defaults()
    # In the trainer all is resolved: a default that follows another setting tells nothing there.
    ours = {key for key, value in defaults.items() if str(value).startswith("${")} | {"critic.enable"}
    changed = [key for key in engines.set_here(config) if key.startswith("critic.") and key not in ours]
    if changed:
        yield Broken(f"{', '.join(changed)}: without effect, there is no critic", out=tuple(changed))


def one_turn(rollout: DictConfig, why: str, *others: str) -> Iterator[Broken]:
    """
    Args:
        why: what the method does with answers, so that they must be of one turn.
        others: ways out besides answers of one turn.
    """
    loop = rollout.agent.default_agent_loop
    if OmegaConf.select(rollout, "multi_turn.enable"):
        turns = f"{ROLLOUT}.multi_turn.enable"
        # The flag alone does nothing in verl's v1 trainer: the agent loop has the turns.
        way = f"{turns}=False" + (f" {AGENT_LOOP}={SINGLE_TURN}" if loop != SINGLE_TURN else "")
        yield Broken(f"{turns}: {why}", (way, *others))
    elif loop == SEVERAL_TURNS:
        yield Broken(f"{AGENT_LOOP}: {why}, got {SEVERAL_TURNS}", (f"{AGENT_LOOP}={SINGLE_TURN}", *others))


def no_reward_model(config: DictConfig, why: str, *others: str) -> Iterator[Broken]:
    """
    Args:
        why: what the method needs in place of scores.
        others: ways out besides none.
    """
    if OmegaConf.select(config, "reward.reward_model.enable"):
        key = "reward.reward_model.enable"
        yield Broken(f"{key}: {why}", (f"{key}=False", *others))


def rollout_log_probs(rollout: DictConfig, correction: DictConfig | dict) -> Iterator[Broken]:
    """correction: `algorithm.rollout_correction`."""
    weights, rejection = correction.get("rollout_is"), correction.get("rollout_rs")
    if (weights or rejection) and not rollout.calculate_log_probs:
        yield Broken(
            f"{CORRECTION}.rollout_is: {weights}, or rollout_rs={rejection}, needs the log-probs of the rollout, "
            "without which verl corrects nothing and says nothing",
            (f"{CALCULATE}=True", f"{CORRECTION}.rollout_is=null {CORRECTION}.rollout_rs=null"),
        )


def bypass_loss(loss_mode: str, correction: DictConfig | dict) -> Iterator[Broken]:
    if loss_mode == "bypass_mode" and not correction.get("bypass_mode"):
        key = f"{ACTOR}.policy_loss.loss_mode"
        yield Broken(
            f"{key}: bypass_mode takes old log-probs for the rollout's, which they are only with "
            f"{CORRECTION}.bypass_mode=True; here they are the trainer's",
            (f"{key}=vanilla",),
        )


def sequence_parallel(
    part: DictConfig, model: DictConfig, of: str = ACTOR, engine: str = "fsdp_config"
) -> Iterator[Broken]:
    """
    Args:
        part, model: settings of the actor or of the critic, and of its model; `of` is the key of the former.
    """
    parallel, override = lengths.ulysses(part, engine), dict(model.get("override_config") or {})
    # verl's own default, of models that name no other.
    attention = override.get("attn_implementation") or "flash_attention_2"
    if parallel != 1 and not attention.startswith("flash_attention"):
        outer, inner = (f"{name}.ulysses_sequence_parallel_size" for name in (of, f"{of}.{engine}"))
        key = outer if of == ACTOR else inner
        # The critic's follows the actor's as a whole: one key set there is all that there is.
        at, kept = (MODEL, {}) if of == ACTOR else (f"{of}.model", override)
        new = leaves({**kept, "attn_implementation": "flash_attention_2"}, f"++{at}.override_config")
        way = " ".join(setting(key, value) for key, value in new)
        yield Broken(
            f"{key}: {parallel} with attn_implementation={attention}: verl gathers the parts of a row for flash "
            "attention alone; here each rank would attend to its own part, and all that it computes would be wrong",
            (way, f"{outer}=1 {inner}=1"),
        )


def whole_mini_batches(mini_batch: int, train_batch: int, by_rows: str = "") -> Iterator[Broken]:
    """by_rows: see `of_trainer`."""
    if mini_batch <= 0 or train_batch % mini_batch:
        way = f"{ACTOR}.ppo_mini_batch_size={fitting(mini_batch, train_batch)}"
        yield Broken(
            f"{ACTOR}.ppo_mini_batch_size: {mini_batch} must divide data.train_batch_size={train_batch}, so that the "
            "number of optimizer steps is fixed",
            (way, *([f"{way} {by_rows}={mini_batch}"] if by_rows else [])),
        )


def fitting(part: int, whole: int) -> int:
    """The largest divisor of `whole` that is no larger than `part`."""
    return next(size for size in range(part if 0 < part < whole else whole, 0, -1) if whole % size == 0)
