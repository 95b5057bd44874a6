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
"""What a run learns of its rows only when verl has read them: checks before any worker starts."""

from recipe.common.config.verl_rules import SEVERAL_TURNS
from recipe.rrl.config.rrl_config import KEY, StatesConfig
from recipe.rrl.config.rrl_rules import OFF, ROWS_OF_TURNS


def check_data(rows, states: StatesConfig) -> None:
    """Raises ValueError, with the full key, for what states cannot be taken of.

    Args:
        rows: the training set, a `datasets.Dataset`.
    """
    columns, reference = rows.column_names, states.reference
    if reference and reference not in columns:
        raise ValueError(
            f"{KEY}.states.reference must be a column of data.train_files, which has {', '.join(columns)}, got "
            f"{reference!r}; set {KEY}.states.reference=null for none"
        )
    if "agent_name" in columns and SEVERAL_TURNS in rows.unique("agent_name"):
        raise ValueError(f"{ROWS_OF_TURNS}; leave these rows out, or set {OFF}")
