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

The recipe's own manager reports all of it. verl's `naive` and `dapo` report what the reward function returned: there an
answer is correct when `acc` says so, or else its score is at least `algorithm.r3.correct_from`, and truncation is
measured here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from .history import PLAIN


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
            ValueError: the score is no finite number; the reward manager reports neither truncation nor is there what
                it could be measured by.
        """
        info, score = row["extra_fields"].get("reward_extra_info", {}), float(row["rm_scores"].sum())
        if not math.isfinite(score):
            raise ValueError(
                f"a response to query {group} has the score {score}: nothing can be learned from it. Mend the reward "
                "function, or use it with recipe.r3.reward_manager.R3RewardManager, which counts such answers as wrong"
            )
        failed = {"reward_error": True} if info.get("reward_error") else {}
        return failed | {
            "group": group,
            "variant": row["extra_fields"].get("prompt_variant", PLAIN),
            "correct": self._is_correct(info, score),
            "truncated": bool(info["truncated"]) if "truncated" in info else self._is_truncated(row, info),
            "score": score,
            "grade": float(info.get("score", info.get("acc", score))),
        }

    def _is_correct(self, info: dict, score: float) -> bool:
        """verl's managers put a score that comes without a verdict under `acc` themselves."""
        acc = info.get("acc", score)
        if isinstance(acc, bool) or "length_bonus" in info:
            return bool(acc)
        return acc >= self.correct_from

    def _is_truncated(self, row: dict, info: dict) -> bool:
        if self.max_response_length is None or "responses" not in row:
            raise ValueError(
                f"reward_extra_info lacks 'truncated', found {sorted(info)}: use "
                "recipe.r3.reward_manager.R3RewardManager or a reward manager that reports it"
            )
        responses = row["responses"]
        return len(responses) >= self.max_response_length and int(responses[-1]) != self.eos_token_id


def check_judged(tags: Iterable[dict], step: int) -> None:
    """Raises RuntimeError where the reward function failed on every answer of a step."""
    if all(tag.get("reward_error") for tag in tags):
        raise RuntimeError(
            f"step {step}: the reward function gave no score for any answer; it fails as the log says above "
            "(reward.custom_reward_function, reward.reward_kwargs.grader_timeout_s)"
        )
