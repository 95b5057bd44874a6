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
"""Who is asked whether a row can be answered right, where neither a function of the user's nor another manager judges.

That is who judges in training (judge.py). Not asked are rewards that run a program, whose reference is no answer but
tests, and those that cannot be loaded here, which is told elsewhere.
"""

from collections.abc import Mapping
from functools import cache

from omegaconf import OmegaConf

from recipe.common.reward.answerable import MATHEMATICS, Asker, Grader
from recipe.common.reward.judge import RUN_PROGRAMS, TIMEOUT_S, Judges, is_verls
from recipe.common.reward.truths import OWN_MANAGER
from recipe.common.reward.verls import verls_reward

WORKERS = 2
NO_MATHEMATICS = "searchR1_"
"""How names of data sources begin whose answers are words."""


@cache
def asker() -> Asker:
    """The one of this process, which remembers what it was told."""
    return Asker(grader_of)


def grader_of(row: Mapping) -> Grader | None:
    if not is_verls(row):
        return MATHEMATICS
    source = row["data_source"]
    return None if source in RUN_PROGRAMS or verls_reward(source) else _verls(source)


@cache
def _verls(source: str) -> Grader:
    return Grader(source, _accepts, reads_mathematics=not source.startswith(NO_MATHEMATICS))


def _accepts(row: Mapping, response: str) -> bool:
    return _judges().is_correct(_judges()(row, response))


@cache
def _judges() -> Judges:
    manager = {"source": "importlib", "module": {"path": OWN_MANAGER}}
    return Judges(OmegaConf.create({"reward": {"reward_manager": manager}}), TIMEOUT_S, WORKERS)
