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
"""verl's trainer modes, by the names under which the recipes register their trainers (`trainer.v1.trainer_mode`)."""

SYNC, COLOCATE_ASYNC, SEPARATE_ASYNC = "sync", "colocate_async", "separate_async"
MODES = (SYNC, COLOCATE_ASYNC, SEPARATE_ASYNC)


def trainer_name(family: str, mode: str) -> str:
    """r3 and colocate_async: r3_colocate_async. Family `baseline`: verl's own trainers, measured."""
    return family if mode == SYNC else f"{family}_{mode}"


def is_async(trainer_mode: str) -> bool:
    """Of one of these names, or of verl's own."""
    return trainer_mode.endswith("_async")
