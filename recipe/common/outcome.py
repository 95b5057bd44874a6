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
`algorithm.r3.correct_from`; truncation is measured here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Number

import numpy as np
from omegaconf import DictConfig, OmegaConf

from recipe.r3.history.store import PLAIN

NO_SCORE = "the reward function failed as the log says above, or the grader was late, on every one"


@dataclass(frozen=True)
class Reading:
    """How rows are read.

    Args:
        correct_from: `algorithm.r3.correct_from`.
        max_response_length: responses of so many tokens are truncated, unless they end with
        eos_token_id: the model's.
    """

    correct_from: float = 1.0
    max_response_length: int | None = None
    eos_token_id: int | None = None

    @classmethod
    def of(cls, config: DictConfig, tokenizer) -> "Reading":
        # verl's own trainers measure with this too, on configs that hold nothing of R^3.
        correct_from = OmegaConf.select(config, "algorithm.r3.correct_from", default=cls.correct_from)
        return cls(correct_from, config.data.max_response_length, tokenizer.eos_token_id)

    def tag(self, row: dict, group: str) -> dict:
        """What the later stages need to know of a fresh row, from its `extra_fields`, `rm_scores` and `responses`.

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
        failed = {"reward_error": True} if info.get("reward_error") else {}
        return failed | {
            "group": group,
            "variant": row["extra_fields"].get("prompt_variant", PLAIN),
            "correct": correct,
            "truncated": bool(info["truncated"]) if "truncated" in info else self._is_truncated(row, info),
            "score": score,
            "grade": grade,
        }

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
                "function, or let it return the score alone, which is compared with algorithm.r3.correct_from"
            )
        grade = float(info.get("score", score if acc is None else acc))
        return bool(acc) if is_verdict and acc is not None else grade >= self.correct_from, grade

    def _is_truncated(self, row: dict, info: dict) -> bool:
        if self.max_response_length is None or "responses" not in row:
            raise ValueError(
                f"reward_extra_info lacks 'truncated', found {sorted(info)}: use "
                "recipe.common.reward.manager.R3RewardManager or a reward manager that reports it"
            )
        responses = row["responses"]
        return len(responses) >= self.max_response_length and int(responses[-1]) != self.eos_token_id


def check_judged(tags: Iterable[dict], step: int) -> None:
    """Raises RuntimeError where no answer of a step got a score."""
    if all(tag.get("reward_error") for tag in tags):
        raise RuntimeError(
            f"step {step}: no answer got a score; {NO_SCORE} "
            "(reward.custom_reward_function, reward.reward_kwargs.grader_timeout_s)"
        )
