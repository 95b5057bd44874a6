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
"""Settings of R^3 under `algorithm.r3`: their defaults, what they mean, and which values are refused.

`python -m recipe.r3.config.settings_table` writes r3.yaml and the table in README.md from this file. r3_rules.py has
the rules that span several keys. A key whose note says [U] is not published in the paper: its default is this recipe's
choice, and its docs give the reason.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import (
    Broken,
    build,
    faults,
    is_count,
    is_number,
    is_pattern,
    leaves,
    missing,
    refuse,
    require,
    setting,
)
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.config import gone
from verl.base_config import BaseConfig

KEY = "algorithm.r3"


def _require(ok: bool, key: str, rule: str, value: Any) -> None:
    require(ok, f"{KEY}.{key}", rule, value)


WHEN = NEXT_VISIT, NEXT_STEP, AT_ONCE = "next_visit", "next_step", "at_once"
ADAPTIVE = "adaptive"
RESTARTS = "restart"
ANY_PROMPT = "any_prompt"
ASK = REFLECTION, PLAIN, ADAPTIVE, RESTARTS

ATTEMPT_WORDS = (
    r"</?attempt>|\b(the|this|that|an?|my|your|their|earlier|previous|prior|first|last|given|above)( \w+)? attempt\b"
    r"|\b(earlier|previous|prior|original|initial|provided|above|student'?s|flawed|incorrect|mistaken|wrong|corrected) "
    r"(solution|answer|response|reasoning|work|calculation|approach|version|step)\b"
    r"|\b(went wrong|first mistake|the mistake|a mistake (in|by|was)|made an? (mistake|error))\b"
    r"|\bavoid(ing)? (that|this|the|those|such) mistakes?\b"
)
"""How answers to a reflection prompt speak of the attempt that it shows."""


@dataclass
class HistoryConfig(BaseConfig):
    path: str = "history.sqlite"
    """SQLite file of the sample buffer, one trainer per file. r3.yaml puts it beside the checkpoints."""
    max_per_outcome: int = 16
    """[U] Stored trajectories kept per query and outcome (correct, wrong); the oldest leave first. Statistics stay."""
    max_gib: float = 32.0
    """[U] Stored trajectories, GiB. Past that a seeded lottery decides, sparing the last one of a query and outcome."""

    def __post_init__(self):
        ok = is_number(self.max_gib) and self.max_gib > 0
        _require(ok, "history.max_gib", "be > 0", self.max_gib)
        _require(isinstance(self.path, str) and self.path != "", "history.path", "be a file path", self.path)
        _require(is_count(self.max_per_outcome, 1), "history.max_per_outcome", "be at least 1", self.max_per_outcome)


@dataclass
class ReplayConfig(BaseConfig):
    enable: bool = True
    """Replay (the paper's CCR): dead groups get stored trajectories of the opposite outcome."""
    k: int = 1
    """[U] Stored trajectories appended to a dead group (fewer when fewer are stored)."""
    alpha: float = 1.0
    """[U] Scale of the std in eq. (3) for groups that hold a replayed row; above 1 shrinks their advantages."""
    max_age: int | None = None
    """[U] Oldest trajectory that may be replayed, in training steps. None: any. Statistics do not age."""
    correction: str = "tapered"
    """[U] What corrects for the policy that wrote a replayed answer: nothing (`current`), or, of wrong answers, their
    advantage times min(1, current / stored probability) token by token (`tapered`). In both the ratio's denominator is
    the policy before the update, as for fresh rows. What became unlikely since is not pushed down further by `tapered`
    (TOPR, arXiv 2503.14286, does so answer by answer). It acts with replay.outcome=both or wrong alone."""
    outcome: str = "correct"
    """[U] Replay `correct` answers only, into all-wrong groups, `wrong` ones only, `both` as the paper does, or right
    ones to `any_prompt`. A wrong answer of long ago teaches an all-right group little, and pushes down what right ones
    share with it. Answers to any query, each under its own prompt, are there to compare with."""
    trains: str = "replayed"
    """[U] Which rows of a group with replayed rows take their advantage from eq. (3): `replayed`, `fresh` or `all`, as
    in the paper. With `replayed` the fresh ones keep what GRPO gives them; with `fresh` the others enter mean and std
    only. Where all fresh rows earn the same, eq. (3) gives each of them the same: zero gradient on average, and
    noise."""
    reflected_unless: str | None = ATTEMPT_WORDS
    """[U] An answer born under a reflection prompt is replayed under the plain prompt, too, unless this regular
    expression finds something in its text, without regard to case. The plain prompt holds no attempt that could be
    spoken of. None: whatever the text says."""
    same_step: bool = True
    """[U] An answer born under reflection may also be replayed in the step that finds it, where the history holds none
    for the query. Algorithm 1 stores it after replaying, so that it waits for the next epoch, or for ever."""

    def __post_init__(self):
        _require(is_count(self.k, 1), "replay.k", "be at least 1 (replay.enable=False turns replay off)", self.k)
        _require(is_number(self.alpha) and self.alpha > 0, "replay.alpha", "be > 0", self.alpha)
        ok = self.max_age is None or is_count(self.max_age, 1)
        _require(ok, "replay.max_age", "be at least 1 or null", self.max_age)
        ok = self.reflected_unless is None or is_pattern(self.reflected_unless)
        _require(ok, "replay.reflected_unless", "be a regular expression or null", self.reflected_unless)
        names = {
            "outcome": (ANY_PROMPT, "both", "correct", "wrong"),
            "trains": ("all", "fresh", "replayed"),
            "correction": ("current", "tapered"),
        }
        for name, known in names.items():
            _require((value := getattr(self, name)) in known, f"replay.{name}", f"be one of {known}", value)

    def speaks_of_attempt(self, text: str) -> bool:
        """Whether `reflected_unless` finds something in the text of an answer born under reflection."""
        return bool(self.reflected_unless and re.search(self.reflected_unless, text, re.IGNORECASE))


@dataclass
class ReflectionConfig(BaseConfig):
    enable: bool = True
    """Reflection (the paper's ISR): hard queries are asked again with a stored wrong attempt in the prompt."""
    when: str = "at_once"
    """[U] When an all-wrong group is asked again: at the `next_visit` of its query (the paper's), in the `next_step`
    or `at_once`. Hard queries that the history knows are asked with their batch in all three."""
    ask: str = "adaptive"
    """[U] How all-wrong groups are asked sooner: by `reflection`, `plain`, `adaptive` or `restart`. Answers to the
    plain prompt join the group, on policy. `adaptive` follows what each of the two has found for a token in this run.
    `restart` does as well, but where the history holds a right answer: answers then go on from a part of it, and a
    right one is replayed in its place."""
    threshold: float = 0.25
    """[U] tau: a query is hard when its share of correct attempts so far is below this, in (0, 1]."""
    min_attempts: int = 4
    """[U] Attempts needed before a query can be called hard."""
    rounds: int | None = 1
    """[U] Of how many training steps that asked the query, newest first, the attempts count. None: all, whose share
    calls a query hard for long after it has become easy."""
    max_fraction: float = 0.25
    """[U] Cap on reflection prompts asked per step, as a share of data.train_batch_size, in (0, 1]."""
    count_reflected_attempts: bool = False
    """[U] Count attempts made under reflection in the share that `threshold` tests."""
    template: str = (
        "{question}\n\nHere is an earlier attempt at this problem. It ends without the right answer.\n\n"
        "<attempt>\n{attempt}\n</attempt>\n\n"
        "First find out what went wrong in this attempt: name the first mistaken step and why it is mistaken. "
        "Then solve the problem again from the start, avoiding that mistake."
    )
    """[U] The reflection prompt p_r, of an attempt that the model ended itself. Needs {question} and {attempt}. Where
    it is longer than data.max_prompt_length the middle of the attempt is left out, never a part of the question."""
    template_cut_off: str = (
        "{question}\n\nHere is an earlier attempt at this problem. It hit the length limit and was cut off there, "
        "without the right answer.\n\n"
        "<attempt>\n{attempt}\n</attempt>\n\n"
        "First find out what went wrong in this attempt: a mistaken step, or one that leads nowhere. "
        "Then solve the problem again from the start, in fewer words."
    )
    """[U] The same of an attempt that was cut off at the response limit: it has no final answer that could be wrong."""

    def __post_init__(self):
        ok = is_number(self.threshold) and 0 < self.threshold <= 1
        _require(ok, "reflection.threshold", "be in (0, 1]", self.threshold)
        _require(is_count(self.min_attempts, 1), "reflection.min_attempts", "be at least 1", self.min_attempts)
        ok = is_number(self.max_fraction) and 0 < self.max_fraction <= 1
        _require(ok, "reflection.max_fraction", "be in (0, 1]", self.max_fraction)
        ok = self.rounds is None or is_count(self.rounds, 1)
        _require(ok, "reflection.rounds", "be at least 1 or null", self.rounds)
        _require(self.when in WHEN, "reflection.when", f"be one of {WHEN}", self.when)
        _require(self.ask in ASK, "reflection.ask", f"be one of {ASK}", self.ask)
        for name in ("template", "template_cut_off"):
            template = getattr(self, name)
            for part in ("{question}", "{attempt}"):
                ok = isinstance(template, str) and template.count(part) == 1
                _require(ok, f"reflection.{name}", f"hold {part} exactly once", template)

    def cap(self, train_batch_size: int) -> int:
        """Most reflection prompts of a step."""
        return max(1, int(self.max_fraction * train_batch_size))


@dataclass
class RankingConfig(BaseConfig):
    enable: bool = True
    """Ranking (the paper's SERR): graded rewards for truncated responses of an all-wrong group."""
    top_ratio: float = 0.2
    """[U] p: share of a response's tokens that forms its entropy peak, in (0, 1]."""
    max_reward: float = 0.5
    """[U] R_max: reward of the first rank, in (0, 1); a correct answer earns at least 1."""
    finished_reward: str = "mean"
    """[U] Reward of a finished wrong answer in a group with ranked rows: `zero`, or the `mean` of theirs. With `zero`
    being cut off pays more than answering wrongly, and truncation grows."""
    norm_by_std: bool = False
    """[U] Divide by the std of their group the rewards of a ranked group without a replayed correct answer, as GRPO
    does with outcomes. The division cancels max_reward: any order, however slight, then weighs like right and wrong."""

    def __post_init__(self):
        ok = is_number(self.top_ratio) and 0 < self.top_ratio <= 1
        _require(ok, "ranking.top_ratio", "be in (0, 1]", self.top_ratio)
        ok = is_number(self.max_reward) and 0 < self.max_reward < 1
        _require(ok, "ranking.max_reward", "be in (0, 1), below the 1 a correct answer earns", self.max_reward)
        names = ("zero", "mean")
        ok = self.finished_reward in names
        _require(ok, "ranking.finished_reward", f"be one of {names}", self.finished_reward)


@dataclass
class R3Config(BaseConfig):
    history: HistoryConfig = field(default_factory=HistoryConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    stall_timeout_s: float = 1800.0
    """End the run when no rollout finishes for this many seconds."""

    def __post_init__(self):
        ok = is_number(self.stall_timeout_s) and self.stall_timeout_s > 0
        _require(ok, "stall_timeout_s", "be > 0", self.stall_timeout_s)

    @property
    def is_tapered(self) -> bool:
        """Whether there can be rows whose advantage is tapered: wrong ones."""
        return self.replay.enable and self.replay.correction == "tapered" and self.replay.outcome in ("both", "wrong")


def describe(r3: R3Config) -> list[str]:
    """What a run does, a line per mechanism: people ask which probability a replayed token is divided by."""
    correction = "the current policy's" + (
        "; wrong ones weigh less once unlikely" if r3.is_tapered else ", as for fresh ones"
    )
    kinds = {"both": "answers", "correct": "right answers", "wrong": "wrong answers"}
    answers = kinds.get(r3.replay.outcome, "right answers to any query")
    replay = f"k={r3.replay.k} {answers}, their old log-probs: {correction}"
    reflection = f"below {r3.reflection.threshold:g} after {r3.reflection.min_attempts} attempts"
    if r3.reflection.when != NEXT_VISIT:
        reflection += f", and all-wrong groups {r3.reflection.when}, asked by {r3.reflection.ask}"
    parts = {"replay": (r3.replay, replay), "reflection": (r3.reflection, reflection)}
    parts["ranking"] = (r3.ranking, f"of truncated rows, at most {r3.ranking.max_reward:g}")
    return [f"{name} {text if part.enable else 'off'}" for name, (part, text) in parts.items()]


def reflection_prompts(config: DictConfig) -> int:
    """Most reflection prompts of a step."""
    r3 = load_r3_config(config)
    return r3.reflection.cap(config.data.train_batch_size) if r3.reflection.enable else 0


def faults_of(config: DictConfig) -> Iterator[Broken]:
    """What is wrong with each setting of `config.algorithm.r3`: gone, unknown, or out of range."""
    node = OmegaConf.select(config, KEY)
    if node is None:
        yield missing(KEY, "r3")
        return
    settings = OmegaConf.to_container(node, resolve=True)
    told = {key: value for key, value in leaves(settings, KEY) if gone.told(key)}
    for key, value in told.items():
        moved = gone.MOVED.get(key.removeprefix(gone.PREFIX))
        yield Broken(str(gone.told(key)), (setting(moved, value),) if moved else (), (key,))
    for message in faults(R3Config, settings, KEY):
        key = message.partition(" ")[0]
        if key not in told:
            yield Broken(message, out=(key,))


def load_r3_config(config: DictConfig) -> R3Config:
    """The typed settings of `config.algorithm.r3`.

    Raises:
        Refused: unknown keys, wrong types or values out of range, naming the full keys.
    """
    refuse(faults_of(config))
    return build(R3Config, OmegaConf.to_container(OmegaConf.select(config, KEY), resolve=True), KEY)
