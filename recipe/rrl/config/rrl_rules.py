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
"""Rules that span several keys: the settings of RRL-style replay, and those of verl's that it counts on."""

import math
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, is_count, is_number, refuse
from recipe.common.config import engines, lengths, start_rules, verl_rules
from recipe.common.config.reward_rules import migrated, model_is_served, no_legacy
from recipe.common.config.verl_rules import ROLLOUT, SEVERAL_TURNS
from recipe.common.modes import SEPARATE_ASYNC
from recipe.common.row_files import files_of, most_rows, rows_of
from recipe.rrl.config.rrl_config import (
    AT_RANDOM,
    BY_VALUE,
    KEY,
    RRLConfig,
    faults_of,
    load_rrl_config,
)

OWN_MODULES = "recipe.rrl.rrl_trainer", "recipe.common.restart.agent_loop"
GAE, GRPO = "gae", "grpo"
FILTER_DOES = (
    "verl's filter (DAPO) takes the groups whose answers are all wrong out of a step, and hard problems, of which "
    "states are to be found, with them"
)
ONE_TURN = "a restart goes on from tokens, and what a tool or an environment did cannot be put back"
ROWS_OF_TURNS = f"data.train_files: rows have {SEVERAL_TURNS} as their agent_name: {ONE_TURN}"
SCORES = "which answers are right decides what is kept, and a reward model only gives scores"
OFF = f"{KEY}.restarts.share=0"
INFER = "critic.ppo_infer_max_token_len_per_gpu"
BY_ROWS = [f"{of}_micro_batch_size{end}" for of in ("ppo", "forward") for end in ("", "_per_gpu")]


def validate_rrl_config(config: DictConfig) -> RRLConfig:
    """`load_rrl_config` plus the combinations with verl's own keys that cannot work.

    Raises:
        Refused: every rule that is broken, with keys, values and ways out.
    """
    refuse(broken_rules(config))
    return load_rrl_config(config)


def all_rules(config: DictConfig) -> Iterator[Broken]:
    """Kinds of values, `broken_rules`, and what is found by asking verl. Once, before Ray starts."""
    yield from start_rules.of_recipe(config, broken_rules, lambda it: rows_serve(it, load_rrl_config(it)))


def broken_rules(config: DictConfig) -> Iterator[Broken]:
    """Each rule that the settings break."""
    if not engines.is_fsdp(config):  # the critic has that engine's settings, too
        yield from engines.fsdp_workers(config, "RRL-style replay")
        return
    if OmegaConf.select(config, KEY) is None:  # nor is all else that rrl.yaml sets
        yield from faults_of(config)
        return
    yield from no_legacy(config)
    config = migrated(config)
    yield from verl_rules.of_any_method(config)
    yield from verl_rules.of_trainer(config, "rrl", OWN_MODULES, FILTER_DOES)
    own = list(faults_of(config))
    yield from own
    yield from _estimator(config)
    yield from _critic(config) if config.critic.enable else ()
    if not own:
        yield from _replay(config, load_rrl_config(config))


def _estimator(config: DictConfig) -> Iterator[Broken]:
    """verl's GAE with a critic, or its GRPO without one."""
    name, critic = config.algorithm.adv_estimator, config.critic.get("enable")
    with_critic, without = f"algorithm.adv_estimator={GAE} critic.enable=True", "algorithm.adv_estimator={} {}"
    without = without.format(GRPO, "critic.enable=False")
    if name not in (GAE, GRPO):
        yield Broken(
            f"algorithm.adv_estimator: must be {GAE}, with a critic, or {GRPO}, without one, got {name!r}",
            (with_critic, without),
        )
    elif (name == GAE) != (critic is True):
        yield Broken(
            f"algorithm.adv_estimator: {name} with critic.enable={critic}: {GAE} takes a critic's values, and {GRPO} "
            "would train a critic for nothing",
            (with_critic, without),
        )
    if name == GRPO:
        yield from verl_rules.groups(config.actor_rollout_ref.rollout.n)
        yield from verl_rules.no_critic(config) if critic is not True else ()
    if config.algorithm.get("use_pf_ppo"):
        yield Broken(
            "algorithm.use_pf_ppo: True gives rows the advantages of others in verl's v1 trainer (verl issue 7956)",
            ("algorithm.use_pf_ppo=False",),
        )


def _critic(config: DictConfig) -> Iterator[Broken]:
    critic, actor = config.critic, config.actor_rollout_ref.actor
    if critic.strategy not in engines.FSDP:
        yield Broken(f"critic.strategy: must be fsdp or fsdp2, got {critic.strategy!r}", ("critic.strategy=fsdp2",))
        return
    if no_numbers := list(_numbers(critic, actor)):
        yield from no_numbers
        return
    yield from _packed_by_tokens(config)
    yield from _read_elsewhere(critic)
    yield from _whole_model(critic.model)
    if not (is_number(lam := config.algorithm.lam) and 0 <= lam <= 1):
        yield Broken(f"algorithm.lam must be in [0, 1], got {lam!r}", ("algorithm.lam=1",))
    yield from verl_rules.sequence_parallel(critic, critic.model, "critic", "fsdp")
    yield from lengths.row_fits(config, INFER, lengths.ulysses(critic, "fsdp"))
    # Of an update: an update of fewer prompts than the critic's mini-batch is filled with padding, of which the actor
    # makes optimizer steps.
    is_separate = config.trainer.v1.trainer_mode.endswith(SEPARATE_ASYNC)
    whole = f"{verl_rules.ACTOR}.ppo_mini_batch_size" if is_separate else "data.train_batch_size"
    prompts = actor.ppo_mini_batch_size if is_separate else config.data.train_batch_size
    mini_batch = critic.ppo_mini_batch_size
    if prompts % mini_batch:
        yield Broken(
            f"critic.ppo_mini_batch_size: {mini_batch} must divide {whole}={prompts}",
            (f"critic.ppo_mini_batch_size={verl_rules.fitting(mini_batch, prompts)}",),
        )


def _numbers(critic: DictConfig, actor: DictConfig) -> Iterator[Broken]:
    """Of settings that follow the actor's."""
    followed = {
        "ppo_mini_batch_size": actor.ppo_mini_batch_size,
        "ppo_epochs": actor.ppo_epochs,
        "ppo_infer_max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu,
    }
    for name, actors in followed.items():
        if not is_count(critic[name], 1):
            key = f"critic.{name}"
            yield Broken(f"{key} must be a whole number of at least 1, got {critic[name]!r}", (f"{key}={actors}",))
    if not (is_number(rate := critic.optim.lr) and rate > 0):
        yield Broken(f"critic.optim.lr must be a number > 0, got {rate!r}", ("critic.optim.lr=1e-5",))


def _whole_model(model: DictConfig) -> Iterator[Broken]:
    """verl gives a value model to peft as one that writes."""
    for name, none in (("lora_rank", 0), ("lora_adapter_path", "null")):
        if value := model.get(name):
            yield Broken(
                f"critic.model.{name}: {value}, and verl's LoRA does not take a value model; the actor's is its own",
                (f"critic.model.{name}={none}",),
            )


def _packed_by_tokens(config: DictConfig) -> Iterator[Broken]:
    critic = config.critic
    default = engines.verl_defaults()["critic.ppo_max_token_len_per_gpu"]
    if critic.ppo_max_token_len_per_gpu != default:
        yield Broken(
            f"critic.ppo_max_token_len_per_gpu: {critic.ppo_max_token_len_per_gpu} does nothing in verl's v1 trainer, "
            f"which takes {INFER} for the update as well",
            (f"{INFER}={critic.ppo_max_token_len_per_gpu}",),
            ("critic.ppo_max_token_len_per_gpu",),
        )
    forward = "forward_max_token_len_per_gpu"
    if critic.get(forward) not in (None, critic.ppo_max_token_len_per_gpu):
        yield Broken(
            f"critic.{forward}: {critic[forward]} does nothing in verl's v1 trainer, which takes {INFER}",
            out=(f"critic.{forward}",),
        )
    by_rows = [key for key in BY_ROWS if critic.get(key) is not None]
    if by_rows or not critic.use_dynamic_bsz:
        key = by_rows[0] if by_rows else "use_dynamic_bsz"
        yield Broken(
            f"critic.{key}: {critic[key]} does nothing in verl's v1 trainer, which packs the critic's rows by tokens, "
            f"up to {INFER}",
            (" ".join(["critic.use_dynamic_bsz=True", *(f"critic.{key}=null" for key in by_rows)]),),
        )


def _read_elsewhere(critic: DictConfig) -> Iterator[Broken]:
    """Keys of the critic's that verl's v1 trainer does not look at."""
    for name, place in (
        ("ulysses_sequence_parallel_size", "critic.fsdp.ulysses_sequence_parallel_size"),
        ("grad_clip", "critic.optim.clip_grad"),
    ):
        key, value = f"critic.{name}", critic[name]
        if value != engines.verl_defaults()[key]:
            yield Broken(
                f"{key}: {value} does nothing in verl's v1 trainer, which reads {place}", (f"{place}={value}",), (key,)
            )


def _replay(config: DictConfig, rrl: RRLConfig) -> Iterator[Broken]:
    if config.algorithm.adv_estimator == GRPO and rrl.lam_value is not None:
        yield Broken(f"{KEY}.lam_value: {rrl.lam_value} without a critic has no effect", (f"{KEY}.lam_value=null",))
    if not rrl.is_on:
        yield from model_is_served(config)
        return
    size = config.data.get("gen_batch_size")
    if size != 1:
        yield Broken(
            f"data.gen_batch_size: {size} would fetch whole batches, and the prompts that restarts stand in for would "
            "be skipped",
            ("data.gen_batch_size=1",),
        )
    yield from verl_rules.one_turn(config.actor_rollout_ref.rollout, ONE_TURN, OFF)
    yield from verl_rules.no_reward_model(config, SCORES, OFF)
    states, restarts = rrl.states, rrl.restarts
    if states.earliest >= states.latest:
        yield Broken(
            f"{KEY}.states.earliest must be below {KEY}.states.latest={states.latest:g}, got {states.earliest:g}",
            (f"{KEY}.states.earliest=0.05 {KEY}.states.latest=0.8",),
        )
    if restarts.after < rrl.collect_after:
        yield Broken(
            f"{KEY}.restarts.after must be at least {KEY}.collect_after={rrl.collect_after}, got {restarts.after}: "
            "there would be no state to restart from",
            (f"{KEY}.restarts.after={rrl.collect_after}",),
        )
    total = config.trainer.get("total_training_steps")
    if isinstance(total, int):
        yield from too_late(rrl, total)
    yield from _none_right(rrl, config.actor_rollout_ref.rollout.n)
    if not config.critic.enable:
        yield from _without_values(rrl)


def rows_serve(config: DictConfig, rrl: RRLConfig) -> Iterator[Broken]:
    """What the trainer would find when verl has read the rows; a file that cannot be read is others' to tell."""
    data, column = config.data, "agent_name"
    if not rrl.is_on or OmegaConf.select(data, "custom_cls.path"):  # a class whose rows may be others
        return
    try:
        steps = most_rows(data) // data.train_batch_size * config.trainer.total_epochs
        names = (row.get(column) for file in files_of(data, "train_files") for row in rows_of(file, (column,)))
        turns = SEVERAL_TURNS in names
    except (OSError, ValueError):
        return
    if steps and not config.trainer.val_only:
        yield from too_late(rrl, steps)
    if turns:
        yield Broken(ROWS_OF_TURNS, (OFF,))


def too_late(rrl: RRLConfig, total: int) -> Iterator[Broken]:
    """total: steps of the run, by its settings or by its epochs, which only the trainer counts."""
    after = rrl.restarts.after
    if rrl.is_on and after >= total:
        yield Broken(
            f"{KEY}.restarts.after: {after} leaves no step to restart in, of the {total} that the run has "
            "(trainer.total_training_steps, trainer.total_epochs)",
            (f"{KEY}.restarts.after={total // 5} {KEY}.collect_after={total // 10}", OFF),
        )


def _none_right(rrl: RRLConfig, n: int) -> Iterator[Broken]:
    states = rrl.states
    if states.takes_right and states.hard * n < 1:
        yield Broken(
            f"{KEY}.states.hard: {states.hard:g} of {ROLLOUT}.n={n} answers is less than one, so that no right "
            f"answer is of a hard problem, and {KEY}.states.origin={states.origin} asks for these",
            (f"{KEY}.states.hard={math.ceil(100 / n) / 100:g}", f"{KEY}.states.origin=failed"),
        )


def _without_values(rrl: RRLConfig) -> Iterator[Broken]:
    cut, temperature = rrl.states.failed_cut, rrl.restarts.temperature
    needs = {
        f"{KEY}.states.failed_cut": (rrl.states.takes_failed and cut == BY_VALUE, cut, AT_RANDOM),
        f"{KEY}.restarts.temperature": (temperature is not None, temperature, "null"),
    }
    for key, (broken, value, way) in needs.items():
        if broken:
            yield Broken(f"{key}: {value} needs a critic, and critic.enable is False", (f"{key}={way}",))
