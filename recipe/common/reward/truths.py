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
"""What `reward_model.ground_truth` may hold: one answer, or a list of answers of which any will do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

OWN_MANAGER = "pkg://recipe.common.reward.manager"
"""The reward manager that reads ground truths by these rules, unless it is given a function."""


def is_own_manager(config: DictConfig) -> bool:
    """Whether rewards come from the recipes' manager, by whatever name in it."""
    manager = config.reward.reward_manager
    return manager.source == "importlib" and manager.module.path == OWN_MANAGER


def accepted_answers(truth) -> list[str]:
    """The answers that count as right, as text: `"5"`, `5` and `["5", "5.0"]` give one, one and two.

    Raises:
        ValueError: anything else, such as a missing answer, a NaN or a mapping.
    """
    plain = truth.tolist() if hasattr(truth, "tolist") else truth  # numpy's arrays and numbers
    truths = list(plain) if isinstance(plain, list | tuple) else [plain]
    if not truths or not all(_is_answer(value) for value in truths):
        raise ValueError(f"must be an answer or a non-empty list of accepted answers, got {truth!r}")
    return [str(value) for value in truths]


def _is_answer(value) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value)
    return isinstance(value, str) and bool(value.strip())
