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
"""Rules on the reward: verl's old sections, the reward manager with its arguments, the user's own function.

`reward_manager` reads settings alone. `can_be_asked` loads what is the user's, in a process that can be ended.
"""

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, leaves, setting
from recipe.common.reward.truths import OWN_MANAGER, is_own_manager

LEGACY = ("custom_reward_function", "reward_model", "sandbox_fusion")
"""verl's older sections, null unless somebody sets them."""
OWN_NAME = "R3RewardManager"
MANAGER, FUNCTION = "reward.reward_manager", "reward.custom_reward_function"
OWN = f"{MANAGER}.source=importlib {MANAGER}.name={OWN_NAME} {setting(f'{MANAGER}.module.path', OWN_MANAGER)}"
LOAD_S = 60
"""Seconds for the file of a reward function."""


def set_legacy(config: DictConfig) -> dict[str, object]:
    """What somebody set in verl's older sections, by full key."""
    found = (pair for section in LEGACY for pair in leaves(config.get(section), section))
    return {key: value for key, value in found if value is not None and key not in LEGACY}


def migrated(config: DictConfig) -> DictConfig:
    """The config as verl's own migration would have it, the old sections emptied; the same one where nothing is old.

    verl 0.9.1 calls that migration in its asynchronous experiment alone.
    """
    if not set_legacy(config):
        return config
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    new = migrate_legacy_reward_impl(deepcopy(config))
    manager = new.reward.reward_manager
    if is_own_manager(new) and manager.name != OWN_NAME:
        known = manager.name in registered()
        # A name that nobody has registered was one of an older verl: what is asked then is the recipe's own.
        manager.source, manager.name = ("register", manager.name) if known else ("importlib", OWN_NAME)
    for key, value in leaves(OmegaConf.to_container(config.reward, resolve=True), "reward"):
        # verl hands a section over with the nulls of what nobody set: reward functions would have no name.
        if value is not None and OmegaConf.select(new, key) is None:
            OmegaConf.update(new, key, value, force_add=True)
    return new


def no_legacy(config: DictConfig) -> Iterator[Broken]:
    old = set_legacy(config)
    if not old:
        return
    new = migrated(config)
    refused = [key for one in reward_manager(new) for key in one.out]
    refused += [f"{FUNCTION}.{key}" for key in unknown_keys(new.reward.get("custom_reward_function") or {})]
    before, after = _plain(config.reward), _plain(new.reward)
    changed = [
        (key, value)
        for key, value in after.items()
        if (key not in before or before[key] != value) and not f"{key}.".startswith(tuple(f"{one}." for one in refused))
    ]
    ways = " ".join(setting(key if key in before else f"++{key}", value) for key, value in changed)
    told = ", ".join(f"{key}={value!r}" for key, value in old.items())
    have = "has no effect, none" if len(old) == 1 else "have no effect, none"
    yield Broken(f"{told} {have} of verl's v1 trainers reads these sections", (ways,) if ways else (), tuple(old))


def model_is_served(config: DictConfig) -> Iterator[Broken]:
    """verl names no engine for a reward model, and finds out in its workers."""
    model = config.reward.get("reward_model")
    if model and model.enable and OmegaConf.is_missing(model.rollout, "name"):
        key, rollout = "reward.reward_model.rollout.name", config.actor_rollout_ref.rollout
        name = "vllm" if OmegaConf.is_missing(rollout, "name") else rollout.name
        yield Broken(f"{key} must name what runs the reward model", (f"{key}={name}",))


def _plain(reward: DictConfig) -> dict[str, object]:
    return dict(leaves(OmegaConf.to_container(reward, resolve=True), "reward"))


def registered() -> list[str]:
    """Names of verl's reward managers."""
    from verl.experimental.reward_loop.reward_manager import registry

    return sorted(registry.REWARD_MANAGER)


def reward_manager(config: DictConfig) -> Iterator[Broken]:
    """What the reward manager of recipe/common takes over from verl, and what verl can look up."""
    manager = config.reward.reward_manager
    is_own = is_own_manager(config)
    sandbox = OmegaConf.select(config, "reward.sandbox_fusion.url")
    if manager.source not in ("register", "importlib"):
        near = f"{MANAGER}.source=register" if manager.name in registered() else OWN
        yield Broken(f"{MANAGER}.source: must be register or importlib, got {manager.source!r}", (near,))
    if is_own and manager.name != OWN_NAME:
        own = f"{MANAGER}.name={OWN_NAME}"
        if manager.name in registered():
            fits = not any(_arguments(config.reward.get("reward_kwargs")))
            yield Broken(
                f"{MANAGER}.name: {manager.name} is a manager of verl's, and {MANAGER}.source=importlib looks for it "
                f"among the recipes' own; verl's has no deadline and no length bonus, {OWN_NAME} has both",
                (f"{MANAGER}.source=register", *([own] if fits else [])),
            )
        else:
            yield Broken(f"{MANAGER}.name: {manager.name} is not in {OWN_MANAGER}", (own,))
    if is_own and sandbox:
        naive = f"{MANAGER}.source=register {MANAGER}.name=naive"
        yield Broken(
            f"reward.sandbox_fusion.url: {sandbox} would not be asked: under {OWN_NAME} verl's rewards run programs "
            "here, and a function of yours is not told of it; under verl's own manager they ask it",
            (naive, "reward.sandbox_fusion.url=null"),
        )
    if is_own and manager.name not in registered():
        yield from _arguments(config.reward.get("reward_kwargs"))


def _arguments(kwargs: Any) -> Iterator[Broken]:
    """Of the recipe's own manager; another's are its own."""
    from recipe.common.reward.manager import RewardConfig  # imports verl

    given: Any = OmegaConf.to_container(kwargs, resolve=True) if OmegaConf.is_config(kwargs) else kwargs
    try:
        RewardConfig.from_reward_kwargs(given)  # pyright: ignore[reportArgumentType]
        return
    except ValueError as error:
        if not isinstance(given, dict):
            yield Broken(str(error), ("reward.reward_kwargs=null",))
            return
    for name, value in ((str(name), value) for name, value in given.items()):
        key = f"reward.reward_kwargs.{name}"
        try:
            RewardConfig.from_reward_kwargs({name: value})
        except ValueError as error:
            is_known = hasattr(RewardConfig, name)
            yield Broken(str(error), *(((setting(key, getattr(RewardConfig, name)),),) if is_known else ((), (key,))))


def can_be_asked(config: DictConfig, registers_elsewhere: bool) -> Iterator[Broken]:
    """Whether verl finds the manager by its name, and the user's function loads and takes what it is given.

    registers_elsewhere: whether modules that only the workers import may bring names which nobody knows here.
    """
    manager = config.reward.reward_manager
    # verl loads the file of a reward function before it looks a manager up.
    may_be_theirs = registers_elsewhere or config.reward.custom_reward_function.path
    if manager.source == "register" and not may_be_theirs and manager.name not in registered():
        yield Broken(
            f"{MANAGER}.name: nobody has registered {manager.name}; verl has {', '.join(registered())}",
            (OWN, f"{MANAGER}.name=naive"),
        )
    try:
        check_function(config)
    except ValueError as error:
        yield Broken(str(error), *_mended_function(config, str(error)))


def _mended_function(config: DictConfig, told: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ways out, and settings to leave out, where the function's file need not change."""
    named = config.reward.custom_reward_function
    if unknown := unknown_keys(named):
        return (), tuple(f"{FUNCTION}.{key}" for key in unknown)
    if not named.get("name"):
        return (f"{FUNCTION}.name=compute_score",), ()
    return ((f"{MANAGER}.source=register {MANAGER}.name=naive",) if "is a coroutine" in told else ()), ()


def unknown_keys(named: DictConfig | dict) -> list[str]:
    return [str(key) for key in named if key not in ("path", "name", "reward_kwargs")]


def check_function(config: DictConfig) -> None:
    """Load the user's reward function, in a process that can be ended. Raises ValueError with the full key."""
    from recipe.common.reward.function import KEY, LOADED, packed
    from recipe.common.reward.judge import function_kwargs
    from recipe.common.reward.manager import R3RewardManager

    named = config.reward.get("custom_reward_function") or OmegaConf.create({})
    manager = config.reward.reward_manager
    if unknown := unknown_keys(named):
        raise ValueError(f"{KEY}.{unknown[0]} is unknown, expected one of: path, name, reward_kwargs")
    if not named.get("path"):
        return
    if not named.get("name"):
        raise ValueError(f"{KEY}.name must be the function's name, got {named.get('name')!r}")
    command = [sys.executable, "-m", "recipe.common.reward.function", named.path, named.name]
    kwargs, is_ours = packed(function_kwargs(named)), manager.name == R3RewardManager.__name__
    if is_ours or manager.source == "register":  # another's may ask a function as it likes
        command += ["--kwargs", kwargs]
    if not is_ours:
        command += ["--may-be-coroutine"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{KEY}.path={named.path} did not load within {LOAD_S} s") from None
    if done.returncode or LOADED not in done.stdout.splitlines():
        told = (done.stderr.strip().splitlines() or [""])[-1]
        ended = f"{KEY}.path={named.path} ended its process while it was loaded: {told or 'it said nothing'}"
        raise ValueError(told if told.startswith(KEY) else ended)
