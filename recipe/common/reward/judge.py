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
"""Who judges an answer: a reward function of the user's, verl's reward of the row's data set, or the grader.

`judge_of` says it of a row, `Judges` asks. Everything that judges goes through here: training, validation, the checks
before a start, probes and evaluations.

1. `reward.custom_reward_function` judges every row.
2. Where verl has a reward for the row's `data_source`, that judges (`default_compute_score`), as in `main_ppo`.
3. The grader judges the others, and rows whose `reward_model.style` is `boxed`: those that R^3 wrote in verl's format.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from recipe.common.outcome import correct_from
from recipe.common.reward.function import RewardFunction, Verdict
from recipe.common.reward.math.pool import grade
from recipe.common.reward.truths import accepted_answers, is_own_manager
from recipe.common.reward.verls import verls_reward

FUNCTION, VERL, GRADER, MANAGER = "function", "verl", "grader", "manager"
"""What `judge_of` answers. `manager`: a reward manager that is not the recipe's, which alone knows how it judges."""
TIMEOUT_S = 5.0
"""Seconds for one answer, unless `reward.reward_kwargs.grader_timeout_s` says so."""
VERLS = "pkg://verl.utils.reward_score", "default_compute_score"
BOXED_STYLE = "boxed"
"""`reward_model.style` of a row that the grader judges whatever its data source: its prompt asks for a box."""
RUN_PROGRAMS = ("codecontests", "apps", "codeforces", "taco")
"""Data sources of which verl's reward runs the program that is the answer."""
PROGRAMS_S = 120.0
"""Seconds that this may take: 6 for all tests together, then 11 for each of the first ten."""


def judge_of(row: Mapping, config: DictConfig) -> str:
    """Who judges the answers to a row: `function`, `verl`, `grader`, or `manager`.

    Args:
        row: in verl's format; `data_source` and `reward_model.style` are read.
        config: of a run; `reward` is read.
    """
    manager, has_function = config.reward.reward_manager, own_function(config) is not None
    is_ours = is_own_manager(config)
    if has_function and (is_ours or manager.source == "register"):  # verl's managers ask it too
        return FUNCTION
    if not is_ours:
        return MANAGER
    return VERL if is_verls(row) else GRADER


def own_function(config: DictConfig) -> str | None:
    """`path:name` of `reward.custom_reward_function`, None where none is named."""
    named = config.reward.get("custom_reward_function") or {}
    return f"{named['path']}:{named['name']}" if named.get("path") else None


def is_verls(row: Mapping) -> bool:
    """Whether verl's reward judges the row, unless the config names a function or another manager."""
    return not is_boxed(row) and verls_reward(str(row.get("data_source"))) is not None


def is_boxed(row: Mapping) -> bool:
    """Whether the row itself asks for the grader, as those do that R^3 wrote: their `data_source` is a file's name,
    which may be one that verl knows (`math`, `aime24`)."""
    reward = row.get("reward_model")
    return isinstance(reward, Mapping) and reward.get("style") == BOXED_STYLE


def verls_faults(data_source: str, timeout_s: float) -> Iterator[str]:
    """Why verl's reward of a data source cannot judge here as it does under `main_ppo`, in sentences.

    Args:
        timeout_s: `reward.reward_kwargs.grader_timeout_s`.
    """
    if missing := verls_reward(data_source):
        yield (
            f"data_source={data_source}: verl's reward of it cannot be loaded ({missing}): install that package, or "
            "name a function that judges these rows with reward.custom_reward_function.path"
        )
    if data_source in RUN_PROGRAMS and timeout_s < PROGRAMS_S:
        yield (
            f"data_source={data_source}: verl's reward of it runs the answers, which may take {PROGRAMS_S:g} s each, "
            f"and reward.reward_kwargs.grader_timeout_s is {timeout_s:g}: set it to {PROGRAMS_S:g}, and "
            "reward.reward_kwargs.grader_workers to the number of programs that may run at once"
        )


def source_faults(rows: Iterable[Mapping], config: DictConfig) -> Iterator[str]:
    """`verls_faults` of the data sources of rows that verl's reward judges."""
    timeout_s = OmegaConf.select(config, "reward.reward_kwargs.grader_timeout_s", default=TIMEOUT_S)
    found = {str(row.get("data_source")) for row in rows if judge_of(row, config) == VERL}
    for data_source in sorted(found):
        yield from verls_faults(data_source, timeout_s)


class Judges:
    """Asks whoever judges a row, in processes that are killed at a deadline.

    Args:
        config: of a run.
        timeout_s: seconds for one answer.
        workers: number of processes for each kind of judge that is asked.
    """

    def __init__(self, config: DictConfig, timeout_s: float, workers: int):
        self._config, self._limits = config, (timeout_s, workers)
        self._lock, self._functions = threading.Lock(), {}
        self.correct_from = correct_from(config)
        if own_function(config):
            self._function(FUNCTION)  # its processes start with this one

    def __call__(self, row: Mapping, response: str) -> Verdict:
        """The verdict on a response to a row in verl's format. Works in any thread.

        Raises:
            ValueError: the grader is to read a ground truth that is no answer; a manager that is not the recipe's
                judges.
        """
        judge = judge_of(row, self._config)
        if judge == MANAGER:
            raise ValueError(f"reward.reward_manager.name={self._config.reward.reward_manager.name} judges, not we")
        if judge == GRADER:
            verdict = grade(response, references(row), *self._limits)
            late = "came to no verdict in time" if verdict is None else None
            return Verdict(float(verdict is True), verdict is True, error=late)
        return self._function(judge)(*question(row, response))

    def is_correct(self, verdict: Verdict) -> bool:
        return verdict.is_correct(self.correct_from)

    def close(self) -> None:
        for function in self._functions.values():
            function.close()

    def _function(self, judge: str) -> RewardFunction:
        with self._lock:
            if judge not in self._functions:
                named = self._config.reward.get("custom_reward_function") or {}
                asked = VERLS if judge == VERL else (named["path"], named["name"])
                kwargs = {} if judge == VERL else function_kwargs(named)
                self._functions[judge] = RewardFunction(*asked, kwargs, *self._limits)
            return self._functions[judge]


def function_kwargs(named: Mapping) -> dict:
    """`reward_kwargs` of reward.custom_reward_function as plain values. Raises ValueError where it is no group."""
    kwargs = named.get("reward_kwargs", {})
    kwargs = OmegaConf.to_container(kwargs, resolve=True) if OmegaConf.is_config(kwargs) else kwargs
    if not isinstance(kwargs, dict):
        raise ValueError(f"reward.custom_reward_function.reward_kwargs must be a group of settings, got {kwargs!r}")
    return kwargs


def question(row: Mapping, response: str) -> tuple:
    """What verl's interface asks a reward function of a row's response, as plain values; as `naive` does, `extra_info`
    tells `num_turns` and `rollout_reward_scores`."""
    truth, turns = (row.get("reward_model") or {}).get("ground_truth"), row.get("__num_turns__")
    # NumPy's integers are no JSON, and who asks a judge sends some.
    added = {"num_turns": None if turns is None else int(turns), "rollout_reward_scores": row.get("reward_scores", {})}
    return str(row.get("data_source")), response, truth, {**(row.get("extra_info") or {}), **added}


def references(row: Mapping) -> list[str]:
    """The accepted answers of a row. Raises ValueError where there are none."""
    reward_model = row.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    try:
        return accepted_answers(truth)
    except ValueError as error:
        raise ValueError(f"reward_model.ground_truth {error}: check the reward_model column of the dataset") from None
