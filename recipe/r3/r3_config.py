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
"""Settings of R^3 under `algorithm.r3`, checked once, before Ray starts or a model loads.

A key whose note says [U] is not published in the paper: its default is this recipe's choice, and the README's table
"Paper, r3_paper, r3" gives the reason.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.common.modes import R3_TRAINERS, SEPARATE_ASYNC, is_async
from recipe.common.reward.truths import OWN_MANAGER
from recipe.r3.history.store import SELECTIONS
from verl.base_config import BaseConfig

OWN_MODULES = "recipe.r3.r3_trainer", "recipe.r3.reflection"
MODULES = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
"""Where verl is told what to import in every Ray process: the trainer and the agent loop are found by name there."""
LEGACY = {
    "custom_reward_function": "reward.{key}",
    "reward_model": "reward.reward_manager, .num_workers, .reward_kwargs or .reward_model",
    "sandbox_fusion": "reward.{key}",
}
"""verl's older sections, null unless somebody sets them, and what is read in place of a `key` of theirs."""


def require(ok: bool, key: str, rule: str, value: Any) -> None:
    """Raise ValueError("<full key> must <rule>, got <value>") unless `ok`."""
    if not ok:
        raise ValueError(f"algorithm.r3.{key} must {rule}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (TypeError, re.error):
        return False
    return True


ATTEMPT_WORDS = (
    r"</?attempt>|\b(the|this|that|an?|my|your|their|earlier|previous|prior|first|last|given|above) attempt\b"
    r"|\b(earlier|previous|prior|provided|above|student'?s|flawed|incorrect|mistaken|wrong) "
    r"(solution|answer|response|reasoning|work|calculation)\b"
    r"|\b(went wrong|mistaken step|first mistake|the mistake|avoid(ing)? (that|this|the) mistake)\b"
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
    restore: str = "all"
    """What a start from a checkpoint brings back: `all` (the exact state), `statistics` (pass rates, no samples) or
    `none`. Acts at every start: set it back to `all` once training goes on, or the next resume empties it again."""

    def __post_init__(self):
        ok = _is_number(self.max_gib) and self.max_gib > 0
        require(ok, "history.max_gib", "be > 0", self.max_gib)
        names = ("all", "statistics", "none")
        require(self.restore in names, "history.restore", f"be one of {names}", self.restore)
        require(isinstance(self.path, str) and self.path != "", "history.path", "be a file path", self.path)
        require(_is_count(self.max_per_outcome, 1), "history.max_per_outcome", "be at least 1", self.max_per_outcome)


@dataclass
class ReplayConfig(BaseConfig):
    enable: bool = True
    """Cross-Context Replay: dead groups get stored trajectories of the opposite outcome."""
    k: int = 1
    """[U] Stored trajectories appended to a dead group (fewer when fewer are stored)."""
    alpha: float = 1.0
    """[U] Scale of the std in eq. (3) for groups that hold a replayed row; above 1 shrinks their advantages."""
    epsilon: float = 1e-6
    """[U] The paper's lambda in eq. (3), for the same groups. verl's GRPO, and so any other group, uses 1e-6."""
    selection: str = "uniform"
    """[U] Which stored trajectories: `uniform` (seeded, without replacement), `newest`, `shortest`, `nearest_length`
    (to the group's mean) or `lowest_entropy` (mean of -log_prob when it was generated)."""
    max_age: int | None = None
    """[U] Oldest trajectory that may be replayed, in training steps. None: any. Statistics do not age."""
    max_replays: int | None = None
    """[U] How often one trajectory may be replayed. None: any number of times."""
    correction: str = "tapered"
    """[U] Denominator of a replayed token's ratio. `current`: the policy before the update, as for fresh rows: 1 in the
    first optimizer step of a training step.
    `tapered`: the same, and the advantage of a wrong answer's token is multiplied by min(1, current / stored
    probability): what became unlikely since is not pushed down further (TOPR, arXiv 2503.14286, token by token).
    `behavior`: the stored log-probs, as truncated weights of algorithm.rollout_correction.rollout_is."""
    reflection_groups: bool = True
    """[U] Also rescue dead groups of reflection prompts (Algorithm 1 treats every prompt of the batch alike)."""
    other_queries: bool = False
    """For a control experiment: replay trajectories of random other queries, under this query's prompt."""
    outcome: str = "correct"
    """[U] Replay `correct` answers only, into all-wrong groups, `wrong` ones only, or `both` as the paper does. A wrong
    answer of long ago teaches an all-right group little, and pushes down what right ones share with it."""
    trains: str = "replayed"
    """[U] Which rows of a group with replayed rows take their advantage from eq. (3). `replayed`: these alone, and the
    fresh ones keep what GRPO gives them; `all`, as in the paper; `fresh`: replayed ones enter mean and std only. Where
    all fresh rows earn the same, eq. (3) gives each of them the same: zero gradient on average, and noise."""
    reflected_to_plain: bool = True
    """[U] Allow an answer born under a reflection prompt to be replayed, and trained, under the plain prompt."""
    reflected_unless: str | None = ATTEMPT_WORDS
    """[U] ... unless this regular expression, without regard to case, finds something in its text: the plain prompt
    holds no attempt that could be spoken of. None: whatever the text says."""
    same_step: bool = True
    """[U] An answer born under reflection may also be replayed in the step that finds it, where the history holds none
    for the query. Algorithm 1 stores it after replaying, so that it waits for the next epoch, or for ever."""

    def __post_init__(self):
        require(_is_count(self.k, 1), "replay.k", "be at least 1 (replay.enable=False turns replay off)", self.k)
        require(_is_number(self.alpha) and self.alpha > 0, "replay.alpha", "be > 0", self.alpha)
        require(_is_number(self.epsilon) and self.epsilon > 0, "replay.epsilon", "be > 0", self.epsilon)
        require(self.selection in SELECTIONS, "replay.selection", f"be one of {SELECTIONS}", self.selection)
        for name in ("max_age", "max_replays"):
            value = getattr(self, name)
            require(value is None or _is_count(value, 1), f"replay.{name}", "be at least 1 or null", value)
        ok = self.reflected_unless is None or _is_pattern(self.reflected_unless)
        require(ok, "replay.reflected_unless", "be a regular expression or null", self.reflected_unless)
        for name, known in {"outcome": ("both", "correct", "wrong"), "trains": ("all", "fresh", "replayed")}.items():
            require((value := getattr(self, name)) in known, f"replay.{name}", f"be one of {known}", value)
        names = ("current", "tapered", "behavior")
        require(self.correction in names, "replay.correction", f"be one of {names}", self.correction)

    def speaks_of_attempt(self, text: str) -> bool:
        """Whether `reflected_unless` finds something in the text of an answer born under reflection."""
        return bool(self.reflected_unless and re.search(self.reflected_unless, text, re.IGNORECASE))


@dataclass
class ReflectionConfig(BaseConfig):
    enable: bool = True
    """In-Context Self-Reflection: hard queries are asked again with a stored wrong attempt in the prompt."""
    threshold: float = 0.25
    """[U] tau: a query is hard when its share of correct attempts so far is below this, in (0, 1]."""
    min_attempts: int = 4
    """[U] Attempts needed before a query can be called hard."""
    rounds: int | None = 1
    """[U] Of how many training steps that asked the query, newest first, the attempts count. None: all, whose share
    calls a query hard for long after it has become easy."""
    max_fraction: float = 0.25
    """[U] Cap on reflection prompts asked per step, as a share of data.train_batch_size, in (0, 1]."""
    max_prompt_tokens: int | None = None
    """[U] Token budget of a reflection prompt. None: data.max_prompt_length, which is also the upper bound."""
    cut: str = "middle"
    """[U] How a long attempt is shortened to fit: keep both ends (`middle` goes) or keep the end only (`head` goes)."""
    count_reflected_attempts: bool = False
    """[U] Count attempts made under reflection in the share that `threshold` tests."""
    give_up_after: int | None = None
    """[U] Stop reflecting on a query after this many reflected answers without one success of its plain prompt since
    the first of them. None: never."""
    template: str = (
        "{question}\n\nHere is an earlier attempt at this problem. It ends without the right answer.\n\n"
        "<attempt>\n{attempt}\n</attempt>\n\n"
        "First find out what went wrong in this attempt: name the first mistaken step and why it is mistaken. "
        "Then solve the problem again from the start, avoiding that mistake."
    )
    """[U] The reflection prompt p_r, of an attempt that the model ended itself. Needs {question} and {attempt}; the
    question is never shortened."""
    template_cut_off: str = (
        "{question}\n\nHere is an earlier attempt at this problem. It hit the length limit and was cut off there, "
        "without the right answer.\n\n"
        "<attempt>\n{attempt}\n</attempt>\n\n"
        "First find out what went wrong in this attempt: a mistaken step, or one that leads nowhere. "
        "Then solve the problem again from the start, in fewer words."
    )
    """[U] The same of an attempt that was cut off at the response limit: it has no final answer that could be wrong."""

    def __post_init__(self):
        ok = _is_number(self.threshold) and 0 < self.threshold <= 1
        require(ok, "reflection.threshold", "be in (0, 1]", self.threshold)
        require(_is_count(self.min_attempts, 1), "reflection.min_attempts", "be at least 1", self.min_attempts)
        ok = _is_number(self.max_fraction) and 0 < self.max_fraction <= 1
        require(ok, "reflection.max_fraction", "be in (0, 1]", self.max_fraction)
        ok = self.max_prompt_tokens is None or _is_count(self.max_prompt_tokens, 1)
        require(ok, "reflection.max_prompt_tokens", "be at least 1 or null", self.max_prompt_tokens)
        for name in ("rounds", "give_up_after"):
            value = getattr(self, name)
            require(value is None or _is_count(value, 1), f"reflection.{name}", "be at least 1 or null", value)
        require(self.cut in ("middle", "head"), "reflection.cut", "be one of ('middle', 'head')", self.cut)
        for name in ("template", "template_cut_off"):
            template = getattr(self, name)
            for part in ("{question}", "{attempt}"):
                ok = isinstance(template, str) and template.count(part) == 1
                require(ok, f"reflection.{name}", f"hold {part} exactly once", template)

    def cap(self, train_batch_size: int) -> int:
        """Most reflection prompts of a step."""
        return max(1, int(self.max_fraction * train_batch_size))

    def budget(self, max_prompt_length: int) -> int:
        """Most tokens of a reflection prompt, given `data.max_prompt_length`."""
        return self.max_prompt_tokens or max_prompt_length


@dataclass
class RankingConfig(BaseConfig):
    enable: bool = True
    """Structural Entropy Ranking Reward: graded rewards for truncated responses of an all-wrong group."""
    top_ratio: float = 0.2
    """[U] p: share of a response's tokens that forms its entropy peak, in (0, 1]."""
    max_reward: float = 0.5
    """[U] R_max: reward of the first rank, in (0, 1); a correct answer earns at least 1."""
    scope: str = "truncated"
    """[U] Which rows of an all-wrong group are ranked: `truncated` (Algorithm 1) or `failed` (the abstract: all)."""
    finished_reward: str = "mean"
    """[U] Reward of a finished wrong answer in a group with ranked rows: `zero`, or the `mean` of theirs. With `zero`
    being cut off pays more than answering wrongly, and truncation grows."""
    norm_by_std: bool = False
    """[U] Divide by the std of their group the rewards of a ranked group without a replayed correct answer, as GRPO
    does with outcomes. The division cancels max_reward: any order, however slight, then weighs like right and wrong."""

    def __post_init__(self):
        ok = _is_number(self.top_ratio) and 0 < self.top_ratio <= 1
        require(ok, "ranking.top_ratio", "be in (0, 1]", self.top_ratio)
        ok = _is_number(self.max_reward) and 0 < self.max_reward < 1
        require(ok, "ranking.max_reward", "be in (0, 1), below the 1 a correct answer earns", self.max_reward)
        names = ("truncated", "failed")
        require(self.scope in names, "ranking.scope", f"be one of {names}", self.scope)
        names = ("zero", "mean")
        ok = self.finished_reward in names
        require(ok, "ranking.finished_reward", f"be one of {names}", self.finished_reward)


@dataclass
class R3Config(BaseConfig):
    history: HistoryConfig = field(default_factory=HistoryConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    seed: int = 0
    """Seed of every random choice the recipe makes (samples to replay, attempts to reflect on)."""
    correct_from: float = 1.0
    """Score from which an answer is correct, where the reward says nothing of that itself (`acc`)."""
    warn_after_steps: int = 20
    """Warn after this many steps in a row that had dead groups and rescued none, and when truncation or length rose
    between two spans of this many steps while accuracy did not. 0: never."""
    stall_timeout_s: float = 1800.0
    """End the run when no rollout finishes for this many seconds."""
    rollout_deadline_s: float | None = None
    """Abort the rollouts that a step still waits for after this many seconds, once one is finished. Their groups train
    with the finished members, and with replay on, stored trajectories of the query take the place of the others.
    None: wait."""
    weight_sync_timeout_s: float = 100.0
    """End the run when the rollout servers have not taken new weights after this many seconds. verl waits for ever."""
    rows_folder: str | None = None
    """Folder where each rank writes which rows every optimizer step of it received, with their advantages:
    step_<n>/rank_<r>.jsonl (step_<n>_<part> of the separate mode), a line per optimizer step. None: nowhere."""

    def __post_init__(self):
        require(_is_count(self.seed, 0), "seed", "be a whole number >= 0", self.seed)
        require(_is_number(self.correct_from), "correct_from", "be a number", self.correct_from)
        ok = _is_count(self.warn_after_steps, 0)
        require(ok, "warn_after_steps", "be a whole number >= 0", self.warn_after_steps)
        ok = _is_number(self.stall_timeout_s) and self.stall_timeout_s > 0
        require(ok, "stall_timeout_s", "be > 0", self.stall_timeout_s)
        ok = self.rollout_deadline_s is None or (_is_number(self.rollout_deadline_s) and self.rollout_deadline_s > 0)
        require(ok, "rollout_deadline_s", "be > 0 or null", self.rollout_deadline_s)
        ok = _is_number(self.weight_sync_timeout_s) and self.weight_sync_timeout_s > 0
        require(ok, "weight_sync_timeout_s", "be > 0", self.weight_sync_timeout_s)
        ok = self.rows_folder is None or (isinstance(self.rows_folder, str) and self.rows_folder != "")
        require(ok, "rows_folder", "be a folder or null", self.rows_folder)

    @property
    def is_tapered(self) -> bool:
        """Whether there can be rows whose advantage is tapered: wrong ones, which also replace aborted rollouts."""
        draws_wrong = self.replay.outcome != "correct" or self.rollout_deadline_s is not None
        return self.replay.enable and self.replay.correction == "tapered" and draws_wrong


def describe(r3: R3Config) -> list[str]:
    """What a run does, a line per mechanism: people ask which probability a replayed token is divided by."""
    correction = {
        "current": "the current policy's, as for fresh ones",
        "tapered": "the current policy's; wrong ones weigh less once unlikely",
        "behavior": "those of the policy that wrote it, as truncated weights",
    }[r3.replay.correction if r3.is_tapered or r3.replay.correction != "tapered" else "current"]
    answers = {"both": "answers", "correct": "right answers", "wrong": "wrong answers"}[r3.replay.outcome]
    replay = f"k={r3.replay.k} {r3.replay.selection} {answers}, their old log-probs: {correction}"
    reflection = f"below {r3.reflection.threshold:g} after {r3.reflection.min_attempts} attempts"
    parts = {"replay": (r3.replay, replay), "reflection": (r3.reflection, reflection)}
    parts["ranking"] = (r3.ranking, f"of {r3.ranking.scope} rows, at most {r3.ranking.max_reward:g}")
    return [f"{name} {text if part.enable else 'off'}" for name, (part, text) in parts.items()]


def _build(cls: type, node: Any, key: str) -> Any:
    """`cls` from a plain dict, refusing unknown keys and wrong types with the full key."""
    if not isinstance(node, dict):
        raise ValueError(f"{key} must be a group of settings, got {node!r}")
    known = {f.name: f for f in fields(cls)}
    values = {}
    for name, value in node.items():
        if name not in known:
            options = ", ".join(n for n in known if n != "_target_")
            raise ValueError(f"{key}.{name} is not a setting; known settings: {options}")
        default = known[name].default
        if is_dataclass(known[name].type):
            value = _build(known[name].type, value, f"{key}.{name}")
        elif default is not MISSING and isinstance(default, bool) and not isinstance(value, bool):
            raise ValueError(f"{key}.{name} must be true or false, got {value!r}")
        values[name] = value
    return cls(**values)


def load_r3_config(config: DictConfig) -> R3Config:
    """The typed settings of `config.algorithm.r3`.

    Raises:
        ValueError: unknown key, wrong type or value out of range, naming the full key.
    """
    node = OmegaConf.select(config, "algorithm.r3")
    if node is None:
        raise ValueError("algorithm.r3 is missing: add recipe/r3/config/r3.yaml")
    return _build(R3Config, OmegaConf.to_container(node, resolve=True), "algorithm.r3")


def validate_r3_config(config: DictConfig) -> R3Config:
    """`load_r3_config` plus the combinations with verl's own keys that cannot work.

    Raises:
        ValueError: the message names the keys, the values and the way out.
    """
    r3 = load_r3_config(config)
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy not in ("fsdp", "fsdp2"):  # Others have other keys than those that are read below.
        raise ValueError(f"actor_rollout_ref.actor.strategy: R^3 trains with fsdp or fsdp2, got {strategy!r}")
    _require_all(_combinations(config, r3))
    check_reward_manager(config)
    return r3


def check_reward_manager(config: DictConfig) -> None:
    """What the recipe's reward manager takes over from verl, of a run with or without R^3.

    Raises:
        ValueError: the message names the key, the value and the way out.
    """
    manager = config.reward.reward_manager
    is_own = manager.source == "importlib" and manager.module.path == OWN_MANAGER
    sandbox = OmegaConf.select(config, "reward.sandbox_fusion.url")
    _require_all(
        [
            (
                "reward.reward_manager.source",
                manager.source in ("register", "importlib"),
                f"must be register or importlib, got {manager.source!r}",
            ),
            (
                "reward.reward_manager.name",
                not is_own or manager.name == "R3RewardManager",
                f"{manager.name} is not in {OWN_MANAGER}: add reward.reward_manager.source=register for one of verl's",
            ),
            (
                "reward.sandbox_fusion.url",
                not (is_own and sandbox),
                f"{sandbox} would not be asked: R3RewardManager grades by math-verify, or by a function of yours. Set "
                "reward.reward_manager.source=register reward.reward_manager.name=naive for verl's own rewards",
            ),
        ]
    )


def _require_all(rules: list[tuple[str, bool, str]]) -> None:
    for key, ok, message in rules:
        if not ok:
            raise ValueError(f"{key}: {message}")


def _combinations(config: DictConfig, r3: R3Config) -> list[tuple[str, bool, str]]:
    """(key, holds, message) of every rule that spans several keys."""
    algorithm, rollout, data = config.algorithm, config.actor_rollout_ref.rollout, config.data
    correction = algorithm.get("rollout_correction") or {}
    filter_groups = algorithm.get("filter_groups") or {}
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    mini_batch = actor.ppo_mini_batch_size
    budget = r3.reflection.budget(data.max_prompt_length)
    max_model_len = rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length
    reflection, mode = r3.reflection.enable, config.trainer.v1.trainer_mode
    behavior = r3.replay.enable and r3.replay.correction == "behavior"
    fsdp = actor.fsdp_config
    modules = str(OmegaConf.select(config, MODULES) or "")
    parallel = max(actor.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size)
    # verl's own default, of models that name no other.
    attention = model.override_config.get("attn_implementation", "flash_attention_2")
    return [
        (
            "algorithm.adv_estimator",
            algorithm.adv_estimator == "r3",
            f"must be r3 with trainer.v1.trainer_mode={mode}, got {algorithm.adv_estimator!r}",
        ),
        (
            "algorithm.r3.ranking.max_reward",
            not r3.ranking.enable or r3.ranking.max_reward < r3.correct_from,
            f"{r3.ranking.max_reward} is not below algorithm.r3.correct_from={r3.correct_from}: a ranked failure would "
            "earn as much as a correct answer; lower it, or turn the ranking off",
        ),
        (
            "critic.enable",
            not config.critic.get("enable"),
            "R^3 is a group-relative method without a critic; set critic.enable=False",
        ),
        (
            "algorithm.r3.ranking.enable",
            not (r3.ranking.enable and correction.get("bypass_mode")),
            "the ranking reward reads token entropies from the log-prob pass that "
            "algorithm.rollout_correction.bypass_mode=True skips; turn one of the two off",
        ),
        (
            "algorithm.r3.replay.enable",
            not (r3.replay.enable and correction.get("bypass_mode")),
            "algorithm.rollout_correction.bypass_mode=True takes the stored log-probs of replayed rows for those of "
            "the current policy; turn one of the two off",
        ),
        (
            "algorithm.filter_groups.enable",
            not filter_groups.get("enable"),
            "verl filters nothing with a custom sampler, which R^3 is, and replay repairs the dead groups that this "
            "(DAPO) throws away; set it to False, or train with --method dapo",
        ),
        (
            "trainer.v1.sampler.sync_refill_failed_groups",
            not OmegaConf.select(config, "trainer.v1.sampler.sync_refill_failed_groups"),
            "True has no effect: verl replaces failed groups in its own sampler alone; set it to False",
        ),
        (
            "trainer.v1.trainer_mode",
            mode in R3_TRAINERS,
            f"must be {', '.join(list(R3_TRAINERS)[:-1])} or {list(R3_TRAINERS)[-1]}, got {mode!r}",
        ),
        (
            "algorithm.r3.rollout_deadline_s",
            r3.rollout_deadline_s is None or not is_async(mode),
            f"{r3.rollout_deadline_s} s with trainer.v1.trainer_mode={mode}: no batch waits for a straggler there; set "
            "it to null",
        ),
        (
            "actor_rollout_ref.actor.fsdp_config",
            not (mode.endswith(SEPARATE_ASYNC) and (fsdp.offload_policy or fsdp.param_offload)),
            f"offload_policy={fsdp.offload_policy}, param_offload={fsdp.param_offload} with {mode}: verl keeps a "
            "step's first policy by a copy to the CPU, which is none of what is there already; set both to False",
        ),
        (
            MODULES,
            {*OWN_MODULES} <= set(modules.split(",")),
            f"{modules!r} lacks {' or '.join(OWN_MODULES)}, which hold the trainer and the agent loop: add them to "
            "yours, with a comma and no space",
        ),
        (
            "distillation.enabled",
            not OmegaConf.select(config, "distillation.enabled"),
            "a replayed answer has no log-probs of a teacher; set it to False",
        ),
        (
            "reward.reward_model.enable",
            not OmegaConf.select(config, "reward.reward_model.enable"),
            "R^3 needs to know which answers are correct, and a reward model only gives scores; set it to False",
        ),
        (
            "actor_rollout_ref.rollout.n",
            rollout.n > 1,
            f"{rollout.n} leaves nothing to compare an answer with; use at least 2, better 8 or 16",
        ),
        (
            "algorithm.r3.reflection.min_attempts",
            not reflection
            or not r3.reflection.rounds
            or r3.reflection.min_attempts <= r3.reflection.rounds * rollout.n,
            f"{r3.reflection.min_attempts} attempts are never there in algorithm.r3.reflection.rounds="
            f"{r3.reflection.rounds} steps of actor_rollout_ref.rollout.n={rollout.n} answers; lower it, or raise "
            "the rounds",
        ),
        (
            "actor_rollout_ref.rollout.multi_turn.enable",
            not OmegaConf.select(config, "actor_rollout_ref.rollout.multi_turn.enable"),
            "R^3 stores and replays answers of one turn; set it to False",
        ),
        (
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            rollout.agent.default_agent_loop != "tool_agent",
            "R^3 stores and replays answers of one turn; set it to single_turn_agent",
        ),
        (
            "algorithm.r3.replay.correction",
            not behavior or bool(correction.get("rollout_is")),
            "behavior needs importance weights: set algorithm.rollout_correction.rollout_is=token (or sequence)",
        ),
        (
            "algorithm.r3.replay.correction",
            not behavior or bool(rollout.calculate_log_probs),
            "behavior needs stored log-probs: set actor_rollout_ref.rollout.calculate_log_probs=True",
        ),
        (
            "algorithm.rollout_correction.rollout_rs",
            not behavior or not correction.get("rollout_rs"),
            f"{correction.get('rollout_rs')} with algorithm.r3.replay.correction=behavior rejects replayed rows whose "
            "rewards stay in the mean of their group: its fresh rows are then all pushed the same way. Set it to null, "
            "or the correction to current",
        ),
        (
            "algorithm.rollout_correction.rollout_is_threshold",
            not behavior or "_" not in str(correction.get("rollout_is_threshold")),
            f"{correction.get('rollout_is_threshold')} with algorithm.r3.replay.correction=behavior weighs replayed "
            "tokens outside of the bounds 0, with the same effect as rollout_rs: set the upper bound alone, which caps "
            "the weights, or the correction to current",
        ),
        (
            "algorithm.r3.replay.selection",
            not (r3.replay.enable and r3.replay.selection == "lowest_entropy") or bool(rollout.calculate_log_probs),
            "lowest_entropy needs stored log-probs: set actor_rollout_ref.rollout.calculate_log_probs=True",
        ),
        (
            "algorithm.r3.reflection.max_prompt_tokens",
            not reflection or budget <= data.max_prompt_length,
            f"{budget} exceeds data.max_prompt_length={data.max_prompt_length}, beyond which verl cuts prompts",
        ),
        (
            "algorithm.r3.reflection.max_prompt_tokens",
            not reflection or budget <= rollout.prompt_length,
            f"{budget} exceeds actor_rollout_ref.rollout.prompt_length={rollout.prompt_length}, the longest prompt "
            "that the rollout takes; raise it or lower the budget",
        ),
        (
            "algorithm.r3.reflection.max_prompt_tokens",
            not reflection or budget + data.max_response_length <= max_model_len,
            f"{budget} prompt tokens plus data.max_response_length={data.max_response_length} exceed "
            f"actor_rollout_ref.rollout.max_model_len={max_model_len}; raise it or lower the budget",
        ),
        (
            "algorithm.rollout_correction.rollout_is",
            bool(rollout.calculate_log_probs) or not (correction.get("rollout_is") or correction.get("rollout_rs")),
            f"{correction.get('rollout_is')}, or rollout_rs={correction.get('rollout_rs')}, needs the log-probs of the "
            "rollout, without which verl corrects nothing and says nothing: set "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or both to null",
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            actor.policy_loss.loss_mode != "bypass_mode" or bool(correction.get("bypass_mode")),
            "bypass_mode takes old log-probs for the rollout's, which they are only with "
            "algorithm.rollout_correction.bypass_mode=True; here they are the trainer's. Use vanilla",
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            parallel == 1 or attention.startswith("flash_attention"),
            f"{parallel} with attn_implementation={attention}: verl gathers the parts of a row for flash attention "
            "alone; here each rank would attend to its own part, and all log-probs would be wrong. Set "
            "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2, or 1 here",
        ),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            mini_batch > 0 and data.train_batch_size % mini_batch == 0,
            f"{mini_batch} must divide data.train_batch_size={data.train_batch_size}, "
            "so that the number of optimizer steps is fixed",
        ),
        (
            "actor_rollout_ref.actor.shuffle",
            not (actor.get("shuffle") and (r3.replay.enable or r3.ranking.enable)),
            "True would tear apart the groups that replay and ranking repair: each trains whole in one optimizer step, "
            "in an order made for that; set it to False",
        ),
        (
            "algorithm.r3.replay.correction",
            not r3.is_tapered or bool(rollout.calculate_log_probs),
            "tapered needs stored log-probs: set actor_rollout_ref.rollout.calculate_log_probs=True, or it to current",
        ),
        *[
            (key, False, f"{value!r} has no effect, none of verl's v1 trainers reads it: set {way.format(key=key)}")
            for section, way in LEGACY.items()
            for key, value in _leaves(config.get(section), section)
            if value is not None
        ],
    ]


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Full key and value of every setting below `key`."""
    if not isinstance(node, Mapping):
        yield key, node
        return
    for name, value in node.items():
        yield from _leaves(value, f"{key}.{name}")
