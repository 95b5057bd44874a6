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

BATCH_ROWS = 64


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
