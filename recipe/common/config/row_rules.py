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
"""Rows with pictures, videos or sounds: two of them with the same words would be one problem to a history."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from recipe.common.checks import Broken
from recipe.common.row_files import files_of, rows_of

PARTS = ("images", "videos", "audios")
"""verl's columns, unless data.image_key and the like name others."""


def rows_of_text(config: DictConfig) -> Iterator[Broken]:
    data = config.data
    keys = [data.get(f"{name[:-1]}_key") or name for name in PARTS]
    for key in ("train_files", "val_files"):
        for file in files_of(data, key):
            if told := told_medium(file, keys):
                yield Broken(f"data.{key}: {file} {told}")


def told_medium(file: Path, columns: Sequence[str] = PARTS) -> str | None:
    """What is told of the first picture, video or sound of a file; one that cannot be read is others' to tell."""
    try:
        rows = enumerate(rows_of(file, columns))
        found = ((number, name) for number, row in rows for name in columns if row.get(name))
        row, column = next(found, (None, None))
    except (OSError, ValueError):
        return None
    if column is None:
        return None
    return f"has {column} in row {row}, and the recipes train on text alone: leave such rows and the column out"
