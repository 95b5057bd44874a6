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
"""Reward of a response: R = 1[answer correct] * (1 + r_len), r_len = max(0, 1 - l / L_max), l = response tokens.

A correct answer after 8192 tokens earns 1.75 with L_max = 32768; a wrong one earns 0, whatever its length. Validation
is rewarded in the same way: read `acc` there. What counts as an answer is in `answer_text.py`, what equals what in
`grader.py`.

With a reward function of the user's own (custom_reward.py) its score s takes the place of 1[answer correct]: a correct
answer earns s (1 + r_len), another s.
"""

import asyncio
import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import OmegaConf

from recipe.common.checks import is_count, is_number, require
from recipe.common.outcome import CORRECT_FROM
from recipe.common.reward.function import RewardFunction
from recipe.common.reward.math.pool import START_TIMEOUT_S, grade
from recipe.common.reward.truths import accepted_answers
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

TOLD = 20
"""Most different failures of a reward function that one worker writes to the log; all are counted."""


def is_correct(response: str, ground_truth: str, timeout_s: float = 5.0) -> bool:
    """Whether the last closed box of the response holds the ground truth. Works in any thread, never raises for what
    the response says, and takes little more than `timeout_s` once a worker is free."""
    return grade(response, [ground_truth], timeout_s) is True


def check_grader(num_workers: int) -> None:
    """Raises RuntimeError if the grader cannot tell right from wrong: no run is better than all-zero rewards."""
    # The rules settle the first two, math-verify has to settle the others.
    cases = {r"\frac{1}{2}": True, r"\frac{1}{3}": False, r"\sin\frac{\pi}{6}": True, r"\sin\frac{\pi}{3}": False}
    for answer, expected in cases.items():
        verdict = grade(f"\\boxed{{{answer}}}", ["0.5"], START_TIMEOUT_S, num_workers)
        if verdict is not expected:
            raise RuntimeError(
                f"the answer grader says {verdict} for {answer} against 0.5, expected {expected}: "
                "reinstall math-verify==0.9.0 and its dependencies"
            )


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """reward.reward_kwargs. The defaults are the paper's reward."""

    length_bonus: bool = True
    """Whether a correct answer earns r_len on top of 1."""

    length_bonus_max_tokens: int = 32768
    """L_max, in tokens: the length from which on there is no bonus. May exceed data.max_response_length."""

    correct_from: float = CORRECT_FROM
    """Score from which an answer is correct, where the reward function does not say so itself (`acc`)."""

    grader_timeout_s: float = 5.0
    """Seconds after which an answer is wrong because the grader, or a reward function, has not decided."""

    grader_workers: int = 2
    """Processes of each reward worker that grade, or run a reward function; there are reward.num_workers of those."""

    def __post_init__(self):
        _require(is_number(self.correct_from), "correct_from", "be a number", self.correct_from)
        _require(isinstance(self.length_bonus, bool), "length_bonus", "be true or false", self.length_bonus)
        tokens, timeout_s, workers = self.length_bonus_max_tokens, self.grader_timeout_s, self.grader_workers
        _require(is_count(tokens, 1), "length_bonus_max_tokens", "be > 0", tokens)
        _require(is_number(timeout_s) and timeout_s > 0, "grader_timeout_s", "be > 0", timeout_s)
        _require(is_count(workers, 1), "grader_workers", "be >= 1", workers)

    @classmethod
    def from_reward_kwargs(cls, reward_kwargs: Mapping | None) -> "RewardConfig":
        """Raises ValueError for an unknown key or a value out of range, with its full name."""
        if not isinstance(reward_kwargs, Mapping | None):
            raise ValueError(f"reward.reward_kwargs must be a group of settings, got {reward_kwargs!r}")
        given = dict(reward_kwargs or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"reward.reward_kwargs.{key} is unknown, expected one of: {', '.join(known)}")
        return cls(**given)


def _require(ok: bool, key: str, rule: str, value) -> None:
    require(ok, f"reward.reward_kwargs.{key}", rule, value)


def length_bonus(num_tokens: int, max_tokens: int) -> float:
    """r_len = max(0, 1 - l / L_max). 8192 of 32768: 0.75; 40000 of 32768: 0."""
    return max(0.0, 1.0 - num_tokens / max_tokens)


class R3RewardManager(RewardManagerBase):
    """Correctness by math-verify, or the score of a reward function, times one plus the length bonus."""

    tokenizer: Any
    """verl says AutoTokenizer, which only makes tokenizers."""

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.reward_config = RewardConfig.from_reward_kwargs(config.reward.get("reward_kwargs"))
        self.max_response_length = config.data.max_response_length
        limits = self.reward_config.grader_timeout_s, self.reward_config.grader_workers
        self.function = make_function(config, *limits)
        if self.function is None:
            check_grader(self.reward_config.grader_workers)
        else:
            self._told: set[str] = set()
            self.correct_from = self.reward_config.correct_from

    async def run_single(self, data: DataProto) -> dict:
        item = data[-1]  # of several outputs of one trajectory, the last one is the answer
        tokens = _response_tokens(item)
        score, correct, failed = await asyncio.to_thread(self._judge, item, tokens)
        with_bonus = correct and self.reward_config.length_bonus
        bonus = length_bonus(len(tokens), self.reward_config.length_bonus_max_tokens) if with_bonus else 0.0
        return {
            "reward_score": score * (1.0 + bonus),
            "reward_extra_info": {
                "acc": float(correct),
                "length_bonus": bonus,
                "truncated": float(self._is_truncated(tokens)),
                "response_length": len(tokens),
                "reward_error": float(failed),
                **({} if self.function is None else {"score": score}),
            },
        }

    def _judge(self, item, tokens: torch.Tensor) -> tuple[float, bool, bool]:
        """Score without the bonus, whether the answer is correct, and whether there was no verdict."""
        response = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if self.function is not None:
            verdict = self.function(*question(item.non_tensor_batch, response))
            if verdict.error is not None and len(self._told) < TOLD and verdict.error not in self._told:
                self._told.add(verdict.error)
                logger.warning(f"the reward function {verdict.error}: the answer counts as wrong")
            return verdict.score, verdict.is_correct(self.correct_from), verdict.error is not None
        limits = self.reward_config.grader_timeout_s, self.reward_config.grader_workers
        verdict = grade(response, references(item.non_tensor_batch), *limits)
        return float(verdict is True), verdict is True, verdict is None

    def _is_truncated(self, tokens: torch.Tensor) -> bool:
        # vLLM keeps the end token in the response, and verl reports "completed" for a stop and for the length limit
        # alike: the last token is the only thing that tells them apart.
        if len(tokens) < self.max_response_length:
            return False
        return int(tokens[-1]) != self.tokenizer.eos_token_id


def _response_tokens(item) -> torch.Tensor:
    responses = item.batch["responses"]
    # verl's agent loop gives the length. Elsewhere prompts are padded on the left and responses on the right, so the
    # last columns of the mask are the response's; in the agent loop, with several outputs, they would not be.
    length = item.non_tensor_batch.get("response_len")
    if length is None:
        length = item.batch["attention_mask"][-len(responses) :].sum()
    return responses[: int(length)]


def make_function(config, timeout_s: float, workers: int) -> RewardFunction | None:
    """The user's reward function, None where the config names none."""
    named = config.reward.get("custom_reward_function") or {}
    if not named.get("path"):
        return None
    return RewardFunction(named["path"], named["name"], function_kwargs(named), timeout_s, workers)


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
