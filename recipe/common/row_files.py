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
"""Files of rows as verl's dataset reads them, looked at before a start without its libraries."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from omegaconf import DictConfig

BATCH_ROWS = 64


def files_of(data: DictConfig, key: str) -> list[Path]:
    """key: train_files or val_files; verl takes one or a list."""
    files = data.get(key) or []
    return [Path(file).expanduser() for file in ([files] if isinstance(files, str) else files)]


def most_rows(data: DictConfig) -> int:
    """Rows that a run may train on, of which verl may leave out some; 0 where not all files are parquet.

    Raises:
        OSError, ValueError: a file cannot be read; pyarrow's errors are of these two kinds.
    """
    import pyarrow.parquet

    files = files_of(data, "train_files")
    if any(file.suffix != ".parquet" for file in files):
        return 0
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
    return min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows


def rows_of(file: Path, columns: Collection[str]) -> Iterator[dict]:
    """Rows with the wanted columns of a parquet file, a JSON array or JSON lines, one by one; none of anything else.

    Of JSON also other columns; of a line without any of them an empty row.

    Raises:
        OSError, ValueError: it cannot be read; pyarrow's errors are of these two kinds.
    """
    if file.suffix == ".parquet":
        yield from _of_parquet(file, columns)
    elif file.suffix in (".json", ".jsonl"):
        yield from _of_json(file, columns)


def first_row(file: Path, columns: Collection[str]) -> dict | None:
    """The wanted columns of the first row; {} where it has none of them, None where there is no row.

    Raises:
        OSError, ValueError: as `rows_of`.
    """
    import pyarrow.parquet

    found = next(rows_of(file, columns), None)
    if found is None and file.suffix == ".parquet" and pyarrow.parquet.read_metadata(file).num_rows:
        return {}
    return found


def _of_parquet(file: Path, columns: Collection[str]) -> Iterator[dict]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as opened:
        there = [name for name in opened.schema_arrow.names if name in columns]
        for batch in opened.iter_batches(BATCH_ROWS, columns=there) if there else ():
            yield from batch.to_pylist()


def _of_json(file: Path, columns: Collection[str]) -> Iterator[dict]:
    with file.open(encoding="utf-8") as lines:
        is_array = next((line for line in lines if line.strip()), "").lstrip().startswith("[")
        lines.seek(0)
        if is_array:
            yield from (row for row in json.load(lines) if isinstance(row, dict))
            return
        for line in filter(str.strip, lines):
            row = json.loads(line) if any(f'"{name}"' in line for name in columns) else {}
            yield row if isinstance(row, dict) else {}
