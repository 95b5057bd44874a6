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
"""The first rows of each data file, looked at before Ray starts: a form of answer that is not graded is seen there."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from omegaconf import DictConfig

from recipe.common.reward.answerable import Asked, is_said, said
from recipe.common.reward.judge import FUNCTION, MANAGER, judge_of
from recipe.common.reward.row_graders import asker
from recipe.common.row_files import files_of, rows_of

ROWS = 64
READ = "reward_model", "data_source", "extra_info"


def check_first_rows(config: DictConfig) -> None:
    """Raises ValueError for a file of which none of the first ROWS rows can be answered right.

    Files that cannot be read are left to verl, and rows without a prompt or a ground truth to who reads them.
    """
    if judge_of({}, config) in (FUNCTION, MANAGER):
        return  # who alone knows what the ground truths are
    for key in ("train_files", "val_files"):
        for path in files_of(config.data, key):
            asked = Asked()
            for number, row in enumerate(first_rows(path, config.data.prompt_key)):
                prompt = row.get(config.data.prompt_key)
                if is_said(prompt):
                    asker().ask(asked, number, row, said(prompt))
            if asked.rows and set(asked.hopeless()) == set(asked.rows):
                raise ValueError(
                    f"data.{key}: {path}, {asked.sentences()[0]}: none of the first {sum(asked.rows.values())} rows "
                    "can be answered right; ask for the form that is graded, mend the ground truths, or name a "
                    "function that reads them with reward.custom_reward_function.path"
                )


def first_rows(file: Path, prompt_key: str) -> Iterator[dict]:
    """At most ROWS rows of a parquet or JSON file; none of what is neither or cannot be read."""
    try:
        yield from islice(rows_of(file, {prompt_key, *READ}), ROWS)
    except (OSError, ValueError):
        return
