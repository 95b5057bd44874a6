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
"""The settings of HGPO under `algorithm.hgpo`, and those of its sessions, under `actor_rollout_ref.rollout.custom`.

`python -m recipe.hgpo.config.settings_table` writes hgpo.yaml and the table in README.md from this file. A key whose
note says [U] is this recipe's choice; its docs give the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken, build, faults, is_count, is_number, missing, refuse, require
from recipe.hgpo.config.names import BAD_FORMAT, INADMISSIBLE, MEAN_STD_NORM, NORMS, PAPER, WEIGHTS
from recipe.hgpo.environments.base import STATE_KEYS
from verl.base_config import BaseConfig

KEY = "algorithm.hgpo"
SESSION = "actor_rollout_ref.rollout.custom.session"
STDS = {"population": 0, "sample": 1}
PENALISE = {"none": (), BAD_FORMAT: (BAD_FORMAT,), INADMISSIBLE: (INADMISSIBLE,), "both": (BAD_FORMAT, INADMISSIBLE)}


def _require(ok: bool, key: str, rule: str, value: Any) -> None:
    require(ok, f"{KEY}.{key}", rule, value)


@dataclass
class HGPOConfig(BaseConfig):
    depth: int = 2
    """K: most earlier states that turns of a group share. 0 compares turns by their current state alone."""
    alpha: float = 1.0
    """How much more the groups with a longer common history weigh, at least 0. 0: all alike."""
    weights: str = "paper"
    """[U] `paper`: (k + 1)^alpha. `release`, as the published code: (k + 2)^alpha, and a level counts only where the
    turn is off its group's mean."""
    norm: str = "mean_std_norm"
    """`mean_std_norm` divides by the std of the group, `mean_norm` does not (the paper's WebShop). Whether the
    advantage over sessions is divided is verl's algorithm.norm_adv_by_std_in_grpo."""
    std: str = "population"
    """Std of a group: `population`, or `sample` as GiGPO has it."""
    gamma: float = 0.95
    """Discount of a later turn's reward, in (0, 1]."""
    step_weight: float = 1.0
    """Weight of the advantage from nested groups. 0 leaves verl's GRPO over sessions, with episode_weight=1."""
    episode_weight: float = 0.0
    """Weight of verl's GRPO advantage over sessions. HGPO has 0, GiGPO 1."""
    penalise: str = "none"
    """[U] Answers that lose `penalty`: `none`, those of a bad `format`, `inadmissible` commands, or `both`. Divided by
    the std, the penalty alone makes advantages of full size in groups that all failed, and success falls."""
    penalty: float = 0.1
    """What such an answer's own return loses, after discounting."""
    rows_per_step: int | None = None
    """[U] Turns of an optimizer step, spread evenly, as the published code has it (256). None: as many optimizer steps
    as verl's settings say, however many turns there are."""
    episodes: str = "episodes.jsonl"
    """File of a few sessions as a person can read them, appended in step 1 and every trainer.test_freq steps."""

    def __post_init__(self):
        _require(is_count(self.depth, 0), "depth", "be at least 0", self.depth)
        _require(is_number(self.alpha) and self.alpha >= 0, "alpha", "be at least 0", self.alpha)
        for name, allowed in (("weights", WEIGHTS), ("norm", NORMS), ("std", (*STDS,)), ("penalise", (*PENALISE,))):
            value = getattr(self, name)
            _require(value in allowed, name, f"be one of {', '.join(allowed)}", value)
        _require(is_number(self.gamma) and 0 < self.gamma <= 1, "gamma", "be in (0, 1]", self.gamma)
        for name in ("step_weight", "episode_weight", "penalty"):
            value = getattr(self, name)
            _require(is_number(value) and value >= 0, name, "be at least 0", value)
        ok = self.rows_per_step is None or is_count(self.rows_per_step, 1)
        _require(ok, "rows_per_step", "be at least 1 or null", self.rows_per_step)
        _require(isinstance(self.episodes, str) and self.episodes != "", "episodes", "be a file path", self.episodes)


@dataclass
class SessionConfig(BaseConfig):
    memory: int = 2
    """Earlier turns that a prompt shows."""
    state_key: str = "feedback"
    """[U] What the nested groups compare: the text of the environment (`feedback`), that and the commands that it
    allows (`feedback_and_commands`), or its true state (`state`), which few environments tell."""
    reward_scale: float = 10.0
    """What the environment's rewards are multiplied by: the paper gives 10 for success."""
    tag: str | None = None
    """[U] The command is what stands between <tag> and </tag> in an answer, once. None: the whole answer is."""
    deadline_s: float = 30.0
    """[U] Longest time of one call of an environment. Past that its session is given up."""
    process_gib: float | None = 2.0
    """[U] Memory that a session's process may ask for beyond what its adapter has loaded. None sets no limit: worlds in
    Java reserve much more than they use."""

    def __post_init__(self):
        def must(ok: bool, key: str, rule: str) -> None:
            require(ok, f"{SESSION}.{key}", rule, getattr(self, key))

        must(is_count(self.memory, 0), "memory", "be at least 0")
        must(self.state_key in STATE_KEYS, "state_key", f"be one of {', '.join(STATE_KEYS)}")
        must(is_number(self.reward_scale) and self.reward_scale > 0, "reward_scale", "be > 0")
        must(self.tag is None or (isinstance(self.tag, str) and self.tag.isidentifier()), "tag", "be a name or null")
        must(is_number(self.deadline_s) and self.deadline_s > 0, "deadline_s", "be > 0")
        ok = self.process_gib is None or (is_number(self.process_gib) and self.process_gib > 0)
        must(ok, "process_gib", "be > 0 or null")


def describe(hgpo: HGPOConfig) -> list[str]:
    """What a run does, a line each."""
    parts = []
    if hgpo.step_weight:
        how = "divided by their std" if hgpo.norm == MEAN_STD_NORM else "not divided"
        parts.append(
            f"nested groups up to {hgpo.depth} earlier states, {how}, weights (k+{_offset(hgpo)})^{hgpo.alpha:g}"
        )
    if hgpo.episode_weight:
        parts.append(f"{hgpo.episode_weight:g} times GRPO over sessions")
    if hgpo.penalise != "none":
        parts.append(f"{hgpo.penalty:g} less for answers: {hgpo.penalise}")
    return parts


def _offset(hgpo: HGPOConfig) -> int:
    return 1 if hgpo.weights == PAPER else 2


def faults_of(config: DictConfig) -> Iterator[Broken]:
    """What is wrong with each setting of HGPO and of its sessions by itself: unknown, or out of range."""
    for key, cls in ((KEY, HGPOConfig), (SESSION, SessionConfig)):
        node = OmegaConf.select(config, key)
        if node is None:
            yield missing(key, "hgpo")
            continue
        for message in faults(cls, OmegaConf.to_container(node, resolve=True), key):
            yield Broken(message, out=(message.partition(" ")[0],))


def load_hgpo_config(config: DictConfig) -> HGPOConfig:
    """
    Raises:
        Refused: unknown keys, wrong types or values out of range, naming the full keys.
    """
    return _load(HGPOConfig, config, KEY)


def load_session_config(config: DictConfig) -> SessionConfig:
    """
    Raises:
        Refused: as `load_hgpo_config`.
    """
    return _load(SessionConfig, config, SESSION)


def _load(cls, config: DictConfig, key: str):
    refuse(one for one in faults_of(config) if one.told.startswith(key))
    return build(cls, OmegaConf.to_container(OmegaConf.select(config, key), resolve=True), key)
