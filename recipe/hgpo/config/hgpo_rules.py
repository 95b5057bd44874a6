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
"""Rules that span several keys: HGPO's settings, and those of verl's that it counts on."""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, is_count, missing, refuse
from recipe.common.config import engines, start_rules, verl_rules
from recipe.common.config.reward_rules import FUNCTION, migrated, no_legacy
from recipe.common.config.verl_rules import AGENT_LOOP, ROLLOUT
from recipe.common.row_files import files_of, first_row
from recipe.hgpo.config.hgpo_config import KEY, PENALISE, HGPOConfig, faults_of, load_hgpo_config
from recipe.hgpo.config.names import AGENT_NAME

OWN_MODULES = "recipe.hgpo.hgpo_trainer", "recipe.hgpo.agent_loop"
FILTER_DOES = (
    "verl's filter ends the run where all sessions of a task failed with their environment, and throws away tasks "
    "whose sessions were all won, of which the shorter ones teach"
)
GIGPO = f"algorithm.adv_estimator=grpo {KEY}.depth=0 {KEY}.std=sample {KEY}.episode_weight=1"
"""What `+method=gigpo` sets (config/method)."""
VERLS = verl_rules.SINGLE_TURN, verl_rules.SEVERAL_TURNS
"""Agent loops."""
TOOLS = f"{ROLLOUT}.multi_turn.tool_config_path"
MAX_TURNS = f"{ROLLOUT}.multi_turn.max_assistant_turns"


def validate_hgpo_config(config: DictConfig) -> HGPOConfig:
    """`load_hgpo_config` plus the combinations with verl's own keys that cannot work.

    Raises:
        Refused: every rule that is broken, with keys, values and ways out.
    """
    refuse(broken_rules(config))
    return load_hgpo_config(config)


def all_rules(config: DictConfig) -> Iterator[Broken]:
    """Kinds of values, `broken_rules`, and what is found by asking verl. Once, before Ray starts."""
    yield from start_rules.of_recipe(config, broken_rules, rows_are_tasks)


def broken_rules(config: DictConfig) -> Iterator[Broken]:
    """Each rule that the settings break."""
    if OmegaConf.select(config, KEY) is None:  # nor is all else that hgpo.yaml sets
        yield missing(KEY, "hgpo")
        return
    yield from engines.fsdp_workers(config, "HGPO")
    config = engines.as_fsdp(config)
    yield from no_legacy(config)
    config = migrated(config)
    yield from _estimator(config.algorithm)
    yield from verl_rules.of_any_method(config)
    yield from verl_rules.no_critic(config)
    yield from verl_rules.critic_settings(config)
    yield from verl_rules.of_trainer(config, "hgpo", OWN_MODULES, FILTER_DOES, f"{KEY}.rows_per_step")
    yield from verl_rules.groups(config.actor_rollout_ref.rollout.n)
    yield from turns_end(config)
    yield from _something_learned(config)
    yield from _penalty_counts(config)
    yield from _read_elsewhere(config)
    yield from faults_of(config)


def rows_are_tasks(config: DictConfig) -> Iterator[Broken]:
    """The first row of each file; one that cannot be read is others' to tell."""
    if OmegaConf.select(config, "data.custom_cls.path"):  # whose rows may be others
        return
    for key in ("train_files", "val_files"):
        for file in files_of(config.data, key):
            try:
                row = first_row(file, ("agent_name", "task"))
            except (OSError, ValueError):
                continue
            if row is None:
                continue
            loop, task = row.get("agent_name") or OmegaConf.select(config, AGENT_LOOP), row.get("task")
            if loop in VERLS:
                yield Broken(
                    f"data.{key}: {file} names {loop} in agent_name, whose answers are no turns of a session: leave "
                    f"that column out, or name {AGENT_NAME} in it"
                )
            elif loop == AGENT_NAME and not (isinstance(task, Mapping) and task.get("world")):
                yield Broken(
                    f"data.{key}: {file} must hold a task with its `world` in the column task "
                    f"(recipe/hgpo/README.md), got {task!r:.100} in row 0"
                )


def _estimator(algorithm: DictConfig) -> Iterator[Broken]:
    if algorithm.adv_estimator != "grpo":
        yield Broken(
            f"algorithm.adv_estimator: must be grpo, got {algorithm.adv_estimator!r}: verl compares whole sessions for "
            "grpo alone, and algorithm.hgpo adds to that",
            (GIGPO,) if algorithm.adv_estimator == "gigpo" else ("algorithm.adv_estimator=grpo",),
        )
    if algorithm.use_kl_in_reward:
        yield Broken(
            "algorithm.use_kl_in_reward: True would put a penalty among the rewards of the environment",
            ("algorithm.use_kl_in_reward=False actor_rollout_ref.actor.use_kl_loss=True",),
        )


def _something_learned(config: DictConfig) -> Iterator[Broken]:
    names = f"{KEY}.step_weight", f"{KEY}.episode_weight"
    if all(OmegaConf.select(config, name) == 0 for name in names):
        yield Broken(
            f"{names[0]} must be above 0 where {names[1]} is 0, got 0: nothing would be learned",
            (f"{names[0]}=1", f"{names[1]}=1"),
        )


def _penalty_counts(config: DictConfig) -> Iterator[Broken]:
    names = f"{KEY}.penalise", f"{KEY}.step_weight"
    penalise, weight = (OmegaConf.select(config, name) for name in names)
    if weight == 0 and penalise in PENALISE and PENALISE[penalise]:
        yield Broken(
            f"{names[0]} must be none where {names[1]} is 0, got {penalise!r}: the penalty is on turns, and only "
            "sessions are compared",
            (f"{names[0]}=none", f"{names[1]}=1"),
        )
    if penalise in PENALISE and PENALISE[penalise] and OmegaConf.select(config, f"{KEY}.penalty") == 0:
        yield Broken(
            f"{KEY}.penalty must be above 0 where {names[0]} is {penalise}, got 0: no answer would lose anything",
            (f"{names[0]}=none", f"{KEY}.penalty=0.1"),
        )


def _read_elsewhere(config: DictConfig) -> Iterator[Broken]:
    """Settings of verl's in whose place HGPO has others."""
    if (gamma := config.algorithm.gamma) != 1:
        yield Broken(
            f"algorithm.gamma must be 1, got {gamma!r}: verl's GRPO does not discount, and {KEY}.gamma discounts later "
            "turns",
            (f"algorithm.gamma=1 {KEY}.gamma={gamma}", "algorithm.gamma=1"),
        )
    if path := OmegaConf.select(config, f"{FUNCTION}.path"):
        yield Broken(
            f"{FUNCTION}.path must be null, got {path!r}: a session earns what its environment gives, and no reward "
            "function is asked",
            (f"{FUNCTION}.path=null",),
        )
    yield from verl_rules.no_reward_model(config, "a session earns what its environment gives, and no model is asked")
    if (loop := OmegaConf.select(config, AGENT_LOOP)) in VERLS:
        yield Broken(
            f"{AGENT_LOOP}: {loop} is verl's, whose answers are no turns of a session", (f"{AGENT_LOOP}={AGENT_NAME}",)
        )
    if path := OmegaConf.select(config, TOOLS):
        yield Broken(f"{TOOLS}: {path} is read by no session: a row's `task` names its environment", (f"{TOOLS}=null",))


def turns_end(config: DictConfig) -> Iterator[Broken]:
    """Of any method that trains on sessions."""
    turns = OmegaConf.select(config, MAX_TURNS)
    if not is_count(turns, 1):
        yield Broken(f"{MAX_TURNS} must be at least 1, got {turns!r}: a session would not end", (f"{MAX_TURNS}=50",))
