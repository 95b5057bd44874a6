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

import json
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from recipe.common.checks import Broken

PARTS = ("images", "videos", "audios")
"""verl's columns, unless data.image_key and the like name others."""


def rows_of_text(config: DictConfig) -> Iterator[Broken]:
    data = config.data
    keys = [data.get(f"{name[:-1]}_key") or name for name in PARTS]
    for key in ("train_files", "val_files"):
        files = data.get(key) or []
        for file in [files] if isinstance(files, str) else files:
            if found := first_with(Path(file).expanduser(), keys):
                row, column = found
                yield Broken(
                    f"data.{key}: {file} has {column} in row {row}, and the recipes train on text alone: leave such "
                    "rows and the column out"
                )


def first_with(file: Path, columns: list[str]) -> tuple[int, str] | None:
    """Row and column of the first picture, video or sound of a file; one that cannot be read is others' to tell."""
    try:
        if file.suffix == ".parquet":
            return _in_parquet(file, columns)
        return _in_lines(file, columns) if file.suffix in (".json", ".jsonl") else None
    except (OSError, ValueError):  # pyarrow's errors are of these two kinds
        return None


def _in_parquet(file: Path, columns: list[str]) -> tuple[int, str] | None:
    import pyarrow.parquet

    opened = pyarrow.parquet.ParquetFile(file)
    there = [name for name in columns if name in opened.schema_arrow.names]
    row = 0
    for batch in opened.iter_batches(batch_size=64, columns=there) if there else ():
        for values in batch.to_pylist():
            if name := next((name for name in there if values[name]), None):
                return row, name
            row += 1
    return None


def _in_lines(file: Path, columns: list[str]) -> tuple[int, str] | None:
    with file.open(encoding="utf-8") as lines:
        for row, line in enumerate(lines):
            values = json.loads(line) if any(f'"{name}"' in line for name in columns) else {}
            if name := next((name for name in columns if isinstance(values, dict) and values.get(name)), None):
                return row, name
    return None
