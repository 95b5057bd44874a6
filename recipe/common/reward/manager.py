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
"""Reward of a response: R = s (1 + r_len) for a correct answer, s for another; r_len = max(0, 1 - l / L_max), l =
response tokens.

The score s is that of who judges the row (judge.py). The grader says 1 or 0: a correct answer after 8192 tokens earns
1.75 with L_max = 32768. Validation is rewarded in the same way: read `acc` there.
"""

import asyncio
import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from recipe.common.checks import is_count, is_number, require
from recipe.common.outcome import CORRECT_FROM, is_cut_off
from recipe.common.reward import thinking
from recipe.common.reward.function import Verdict
from recipe.common.reward.judge import FUNCTION, GRADER, TIMEOUT_S, VERL, Judges, judge_of, own_function
from recipe.common.reward.math.pool import START_TIMEOUT_S, grade
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

BOXLESS = 64
"""So many first answers of a data source without a box are told: the grader reads nothing else."""

TOLD = 20
"""Most different failures of a reward function that one worker writes to the log; all are counted."""

WHO = {FUNCTION: "the reward function", VERL: "verl's reward of data_source={}"}
"""Whose failures are told one by one."""


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

    grader_timeout_s: float = TIMEOUT_S
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
    """The score of who judges a row, for a correct answer times one plus the length bonus."""

    tokenizer: Any
    """verl says AutoTokenizer, which only makes tokenizers."""

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.reward_config = RewardConfig.from_reward_kwargs(config.reward.get("reward_kwargs"))
        self.max_response_length = config.data.max_response_length
        workers = self.reward_config.grader_workers
        self.thinking_end = thinking.dropped_end(tokenizer)
        self.judges = Judges(config, self.reward_config.grader_timeout_s, workers)
        self.correct_from = self.reward_config.correct_from
        self._told: set[str] = set()
        self._boxless: Counter[str] = Counter()
        if own_function(config) is None:
            check_grader(workers)

    async def run_single(self, data: DataProto) -> dict:
        item = data[-1]  # of several outputs of one trajectory, the last one is the answer
        tokens = _response_tokens(item)
        judge, verdict = await asyncio.to_thread(self._judge, item, tokens)
        correct = verdict.is_correct(self.correct_from)
        with_bonus = correct and self.reward_config.length_bonus
        bonus = length_bonus(len(tokens), self.reward_config.length_bonus_max_tokens) if with_bonus else 0.0
        return {
            "reward_score": verdict.score * (1.0 + bonus),
            "reward_extra_info": {
                "acc": float(correct),
                "length_bonus": bonus,
                "truncated": float(is_cut_off(tokens, self.max_response_length, self.tokenizer.eos_token_id)),
                "response_length": len(tokens),
                "reward_error": float(verdict.error is not None),
                **({} if judge == GRADER else {"score": verdict.score}),
                # verl's validation takes votes where there is one.
                **({} if verdict.pred is None else {"pred": verdict.pred}),
            },
        }

    def _judge(self, item, tokens: torch.Tensor) -> tuple[str, Verdict]:
        """Who judged, and the verdict."""
        row = item.non_tensor_batch
        judge = judge_of(row, self.config)
        # The others read what they read under main_ppo.
        end = self.thinking_end if judge == GRADER else None
        response = thinking.decode(self.tokenizer, tokens.tolist(), end)
        verdict = self.judges(row, response)
        if verdict.error is not None and judge in WHO:
            who = WHO[judge].format(row.get("data_source"))
            self._tell(f"{who} {verdict.error}: the answer counts as wrong")
        if judge == GRADER:
            self._look_for_box(str(row.get("data_source")), response)
        return judge, verdict

    def _look_for_box(self, source: str, response: str) -> None:
        """Tells of a data source that asks for another form of answer: all its rewards would be 0, and nobody knew."""
        seen = self._boxless[source]
        if 0 <= seen < BOXLESS:
            self._boxless[source] = -1 if r"\boxed" in response else seen + 1
        if self._boxless[source] == BOXLESS > seen:
            self._tell(
                f"data_source={source}: none of the first {BOXLESS} answers has a \\boxed{{}}, and the grader, which "
                "judges them as verl has no reward for that, reads nothing else: ask for the box in the prompts, or "
                "name a function that reads these answers with reward.custom_reward_function.path"
            )

    def _tell(self, failure: str) -> None:
        if len(self._told) < TOLD and failure not in self._told:
            self._told.add(failure)
            logger.warning(failure)


def _response_tokens(item) -> torch.Tensor:
    responses = item.batch["responses"]
    # verl's agent loop gives the length. Elsewhere prompts are padded on the left and responses on the right, so the
    # last columns of the mask are the response's; in the agent loop, with several outputs, they would not be.
    length = item.non_tensor_batch.get("response_len")
    if length is None:
        length = item.batch["attention_mask"][-len(responses) :].sum()
    return responses[: int(length)]
