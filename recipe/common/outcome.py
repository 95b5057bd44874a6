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
"""What a reward manager said of a row, in the terms of the recipe: correct, truncated, graded how.

The recipe's own manager reports all of it. verl's `naive` and `dapo` report what the reward function returned: a dict
as it is, in which `acc` beside `score` is a verdict, and a number under `acc` alone. An answer is correct there when
the verdict says so, else when what the function returned, before any penalty of the manager's, is at least
`reward.reward_kwargs.correct_from`; truncation is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import is_number, require
from recipe.common.rows import PLAIN, RowTag

if TYPE_CHECKING:
    import torch

NO_SCORE = "the reward function failed as the log says above, or the grader was late, on every one"
CORRECT_FROM = 1.0
"""Score from which an answer is correct, unless a config says so."""


def correct_from(config: DictConfig) -> float:
    """`reward.reward_kwargs.correct_from`, which every method reads, with any reward manager.

    Raises:
        ValueError: it is no number.
    """
    key = "reward.reward_kwargs.correct_from"
    value = OmegaConf.select(config, key, default=CORRECT_FROM)
    require(is_number(value), key, "be a number", value)
    return float(value)


@dataclass(frozen=True)
class Reading:
    """How rows are read.

    Args:
        correct_from: `reward.reward_kwargs.correct_from`.
        max_response_length: responses of so many tokens are truncated, unless they end with
        eos_token_id: the model's.
    """

    correct_from: float = CORRECT_FROM
    max_response_length: int | None = None
    eos_token_id: int | None = None

    @classmethod
    def of(cls, config: DictConfig, tokenizer) -> Reading:
        return cls(correct_from(config), config.data.max_response_length, tokenizer.eos_token_id)

    def tag(self, row: dict, group: str) -> RowTag:
        """What the later stages need to know of a fresh row, from its `extra_fields`, `rm_scores` and `responses`.

        Args:
            group: its query id.

        Raises:
            ValueError: the score is no finite number; `acc` is no verdict; the reward manager reports neither
                truncation nor is there what it could be measured by.
        """
        info, score = row["extra_fields"].get("reward_extra_info", {}), float(row["rm_scores"].sum())
        if not math.isfinite(score):
            raise ValueError(
                f"a response to query {group} has the score {score}: nothing can be learned from it. Mend the reward "
                "function, or use it with R^3's own reward manager, which counts such answers as wrong"
            )
        correct, grade = self.judge(info, score, group)
        return RowTag(
            group=group,
            variant=row["extra_fields"].get("prompt_variant", PLAIN),
            correct=correct,
            truncated=bool(info["truncated"]) if "truncated" in info else self._is_truncated(row, info),
            score=score,
            grade=grade,
            reward_error=bool(info.get("reward_error")),
            prefix_len=row["extra_fields"].get("prefix_len"),
        )

    def judge(self, info: dict, score: float, group: str) -> tuple[bool, float]:
        """Whether the answer is correct, and its score before bonus and penalty.

        Args:
            info: what the reward manager reported of it.
            score: what it earns.
        """
        # verl's managers put a number that a function returned under `acc` themselves: alone it is no verdict.
        acc, is_verdict = info.get("acc"), "score" in info or "length_bonus" in info
        if acc is not None and not (isinstance(acc, Number | np.bool_) and (acc in (0, 1) or not is_verdict)):
            raise ValueError(
                f"a response to query {group} has acc={acc!r}, which is neither true nor false: mend the reward "
                "function, or let it return the score alone, which is compared with reward.reward_kwargs.correct_from"
            )
        grade = float(info.get("score", score if acc is None else acc))
        return bool(acc) if is_verdict and acc is not None else grade >= self.correct_from, grade

    def _is_truncated(self, row: dict, info: dict) -> bool:
        if self.max_response_length is None or "responses" not in row:
            raise ValueError(
                f"reward_extra_info lacks 'truncated', found {sorted(info)}: use "
                "recipe.common.reward.manager.R3RewardManager or a reward manager that reports it"
            )
        return is_cut_off(row["responses"], self.max_response_length, self.eos_token_id)


def is_cut_off(tokens: Sequence[int] | torch.Tensor, limit: int, eos_token_id: int | None) -> bool:
    """Whether an answer ended at the limit. vLLM keeps the end token in the answer, and verl reports "completed" for a
    stop and for the limit alike: the last token is the only thing that tells them apart."""
    return len(tokens) >= limit and int(tokens[-1]) != eos_token_id


def dead_outcome(tags: Iterable[RowTag]) -> bool | None:
    """The outcome that all fresh rows of a group share (True: all correct), or None for a group that is not dead.

    The score before the length bonus decides, which is 1 or 0 unless a reward function grades. Rows with correct =
    [1, 1, 1] and scores [1.9, 1.8, 1.7] by their lengths are dead: True. Wrong ones with grades [0.2, 0.5, 0.2] are
    not. An answer without a score is wrong, and has no part in this comparison of grades.
    """
    fresh = [tag for tag in tags if tag.is_fresh]
    outcomes = {tag.correct for tag in fresh}
    levels = {tag.level for tag in fresh if not tag.reward_error}
    return outcomes.pop() if len(outcomes) == 1 and len(levels) <= 1 else None


def lower_failed(tags: Sequence[RowTag]) -> list[RowTag]:
    """The tags of a group in which answers that the reward function failed on have its lowest score, at most 0.

    Where wrong answers score below 0, making the function fail would pay otherwise: of scores [-1, -1, -1] and one
    failed, 0, eq. (3) would make advantages -0.5 three times and 1.5. All four score -1, and the group is dead.
    """
    judged = [tag for tag in tags if not tag.reward_error]
    score, grade = (min([0.0, *values]) for values in ([t.score for t in judged], [t.level for t in judged]))
    return [replace(tag, score=score, grade=grade) if tag.reward_error else tag for tag in tags]


def outcome_reward(old: torch.Tensor, reward: float) -> torch.Tensor:
    """Zeros like `old` (L,) with the reward on the last token, where verl puts an outcome reward."""
    new = old.new_zeros(old.shape)
    new[-1:] = reward  # also of a response without tokens
    return new


def check_judged(tags: Iterable[RowTag], step: int) -> None:
    """Raises RuntimeError where no answer of a step got a score."""
    if all(tag.reward_error for tag in tags):
        raise RuntimeError(
            f"step {step}: no answer got a score; {NO_SCORE} "
            "(reward.custom_reward_function, reward.reward_kwargs.grader_timeout_s)"
        )
