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
"""The settings of RRL-style replay, under `algorithm.rrl`.

`python -m recipe.rrl.config.settings_table` writes rrl.yaml and the table in README.md from this file. The paper's own
rules are not known beyond its idea: a key whose note says [U] is this recipe's choice; its docs give the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, build, faults, is_count, is_number, missing, refuse, require
from verl.base_config import BaseConfig

KEY = "algorithm.rrl"
FAILED, RIGHT, BOTH = ORIGINS = ("failed", "right", "both")
BY_VALUE, AT_RANDOM, AT_START, STEERED, FIXED = "value", "random", "start", "steered", "fixed"
FAILED_CUTS = (BY_VALUE, AT_RANDOM, AT_START)
RIGHT_CUTS = (STEERED, FIXED, AT_RANDOM)
GAIN, RAW = SCORES = ("gain", "raw")


def _checked(group: Any, key: str, rules: dict[str, tuple[bool, str]]) -> None:
    for name, (ok, rule) in rules.items():
        require(ok, f"{key}.{name}", rule, getattr(group, name))


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _one_of(value: Any, known: tuple[str, ...]) -> tuple[bool, str]:
    return value in known, f"be one of {', '.join(known)}"


@dataclass
class StatesConfig(BaseConfig):
    path: str = "states.sqlite"
    """File of the states, which one run uses at a time."""
    origin: str = "failed"
    """[U] Answers that states are cut from: `failed` ones, `right` ones of problems that are hard all the same, or
    `both`. The paper's abstract describes failed ones; later work finds that prefixes help where they are right."""
    reference: str | None = None
    """[U] Column of the data with a worked solution: of hard problems it gives states as right answers do. None: it
    does not. It reaches problems that were never solved, and puts solutions into training, which PPO has not."""
    hard: float = 0.25
    """[U] Most success of a problem's fresh answers in a step, for states to be cut from them."""
    failed_cut: str = "value"
    """[U] Where a failed answer is cut: at the end of a step with the highest `value`, of one at `random`, or at its
    `start`, so that its problem is asked once more. The latter two are the controls without which a gain says nothing
    of the critic, and nothing of states."""
    right_cut: str = "steered"
    """[U] Where a right answer is cut: `steered` towards restarts of which one half succeed, at a `fixed` share
    `right_share`, or at `random`."""
    right_share: float = 0.5
    """Share of a right answer that a fixed cut keeps, and a steered one at first."""
    score: str = "gain"
    """[U] What states are chosen and admitted by: `gain`, V(s_c) - V(s_0), or `raw`, V(s_c), led by easy problems."""
    floor: float = 0.05
    """[U] Least score of a state that is cut by value."""
    admit: float = 0.2
    """[U] Share of a step's states cut by value that are admitted, the highest scores. A share bounds them while the
    critic's scale drifts."""
    earliest: float = 0.05
    """[U] Least share of its answer that a state keeps, unless it is cut at its start."""
    latest: float = 0.8
    """[U] Most of its answer that a state keeps. Behind the last fifth there is no room for another end."""
    room: float = 0.5
    """[U] Share of data.max_response_length that a restart has left at least. What was cut off for its length is cut
    off again without."""
    max_per_query: int = 4
    """[U] States of a problem, of each origin."""
    max_states: int = 20000
    """[U] States in all. None leaves for its age: old ones are what the method is about."""
    easy: float = 0.75
    """[U] A state leaves when this share of its restarts succeeds, of `easy_after` at least."""
    easy_after: int = 4
    """[U] Restarts before a state can be easy."""
    hopeless_after: int = 16
    """[U] A state leaves after so many restarts without a success."""

    def __post_init__(self):
        rules = {
            "path": (_is_name(self.path), "be a file path"),
            "origin": _one_of(self.origin, ORIGINS),
            "reference": (self.reference is None or _is_name(self.reference), "be the name of a column or null"),
            "failed_cut": _one_of(self.failed_cut, FAILED_CUTS),
            "right_cut": _one_of(self.right_cut, RIGHT_CUTS),
            "score": _one_of(self.score, SCORES),
            "floor": (is_number(self.floor), "be a number"),
        }
        rules |= {
            name: (_is_share(getattr(self, name)), "be in [0, 1]")
            for name in ("hard", "right_share", "admit", "earliest", "latest", "easy")
        }
        rules["room"] = _is_share(self.room) and self.room < 1, "be in [0, 1)"
        rules |= {
            name: (is_count(getattr(self, name), 1), "be at least 1")
            for name in ("max_per_query", "max_states", "easy_after", "hopeless_after")
        }
        _checked(self, f"{KEY}.states", rules)

    @property
    def takes_failed(self) -> bool:
        return self.origin in (FAILED, BOTH)

    @property
    def takes_right(self) -> bool:
        return self.origin in (RIGHT, BOTH)


@dataclass
class RestartsConfig(BaseConfig):
    share: float = 0.25
    """[U] Share of a step's prompts that begin at a state, as far as there are any. 0: PPO, and no state is kept."""
    after: int = 150
    """[U] Steps after which restarts begin."""
    temperature: float | None = 0.1
    """[U] States are drawn by exp(gain / temperature) / sqrt(1 + tries), the gain being that of the newest critic that
    was asked. None: by tries alone."""
    shortlist: int = 4
    """[U] States that the critic values anew after each of its updates, per restart of a step, drawn as these
    are. 0: none."""

    def __post_init__(self):
        above = self.temperature is None or (is_number(self.temperature) and self.temperature > 0)
        rules = {
            "share": (is_number(self.share) and 0 <= self.share < 1, "be in [0, 1)"),
            "after": (is_count(self.after, 0), "be at least 0"),
            "temperature": (above, "be above 0 or null"),
            "shortlist": (is_count(self.shortlist, 0), "be at least 0"),
        }
        _checked(self, f"{KEY}.restarts", rules)


@dataclass
class RRLConfig(BaseConfig):
    lam_value: float | None = None
    """Lambda of the returns that the critic is trained towards. None: algorithm.lam, which is then that of both."""
    collect_after: int = 50
    """[U] Steps after which states are collected. Before, values are those of a new head. To train the critic alone
    first is verl's trainer.critic_warmup."""
    states: StatesConfig = field(default_factory=StatesConfig)
    restarts: RestartsConfig = field(default_factory=RestartsConfig)

    def __post_init__(self):
        rules = {
            "lam_value": (self.lam_value is None or _is_share(self.lam_value), "be in [0, 1] or null"),
            "collect_after": (is_count(self.collect_after, 0), "be at least 0"),
        }
        _checked(self, KEY, rules)

    @property
    def is_on(self) -> bool:
        """Whether states are kept and restarted from."""
        return self.restarts.share > 0


def describe(rrl: RRLConfig) -> list[str]:
    """What a run does, a line each."""
    parts = ["PPO"]
    if rrl.lam_value is not None:
        parts.append(f"the critic's lambda {rrl.lam_value:g}")
    if rrl.is_on:
        cut = {BY_VALUE: "by value", AT_RANDOM: "at random", AT_START: "at their start"}[rrl.states.failed_cut]
        cuts = [f"failed answers, cut {cut}"] if rrl.states.takes_failed else []
        cuts += [f"right answers, cut {rrl.states.right_cut}"] if rrl.states.takes_right else []
        cuts += [f"the solutions in {rrl.states.reference}"] if rrl.states.reference else []
        parts.append(f"states of {' and of '.join(cuts)}, after step {rrl.collect_after}")
        parts.append(f"restarts for {rrl.restarts.share:.0%} of the prompts, after step {rrl.restarts.after}")
    return parts


def faults_of(config: DictConfig) -> Iterator[Broken]:
    """What is wrong with each setting by itself: unknown, or out of range."""
    node = OmegaConf.select(config, KEY)
    if node is None:
        yield missing(KEY, "rrl")
        return
    for message in faults(RRLConfig, OmegaConf.to_container(node, resolve=True), KEY):
        yield Broken(message, out=(message.partition(" ")[0],))


def load_rrl_config(config: DictConfig) -> RRLConfig:
    """
    Raises:
        Refused: unknown keys, wrong types or values out of range, naming the full keys.
    """
    refuse(faults_of(config))
    return build(RRLConfig, OmegaConf.to_container(OmegaConf.select(config, KEY), resolve=True), KEY)
