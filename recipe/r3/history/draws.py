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
"""What training asks of the sample buffer: success rates, and stored samples of a query."""

import sqlite3
from typing import NamedTuple

from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.codec import COLUMNS, Sample, decode


class Transfer(NamedTuple):
    """Answers to the plain prompt of a query, up to the step of the first reflection on it and since."""

    attempts_before: int
    successes_before: int
    attempts_after: int
    successes_after: int


def attempts(db: sqlite3.Connection, query_id: str, variants: tuple[str, ...], rounds: int | None) -> tuple[int, int]:
    """(attempts, successes) of a query in the newest `rounds` steps that asked it; None: in all."""
    marks = ", ".join("?" * len(variants))
    return db.execute(
        "SELECT coalesce(sum(a), 0), coalesce(sum(s), 0) FROM (SELECT sum(attempts) AS a, sum(successes) AS s "
        f"FROM statistics WHERE query_id = ? AND variant IN ({marks}) GROUP BY step ORDER BY step DESC LIMIT ?)",
        (query_id, *variants, -1 if rounds is None else rounds),
    ).fetchone()


def transfer(db: sqlite3.Connection, query_id: str) -> Transfer | None:
    """None of a query that was never reflected on."""
    sql = "SELECT min(step) FROM statistics WHERE query_id = ? AND variant = ?"
    [(first,)] = db.execute(sql, (query_id, REFLECTION))
    if first is None:
        return None
    sums = "SELECT coalesce(sum(attempts), 0), coalesce(sum(successes), 0) FROM statistics "
    sums += "WHERE query_id = ? AND variant = ? AND step"
    before, after = (db.execute(f"{sums} {order} ?", (query_id, PLAIN, first)).fetchone() for order in ("<=", ">"))
    return Transfer(*before, *after)


def candidates(
    db: sqlite3.Connection,
    query_id: str | None,
    correct: bool | None,
    variants: tuple[str, ...],
    max_length: int | None,
    min_version: int,
) -> list[int]:
    """Ids of the samples that can be drawn, oldest first; see `History.draw`."""
    outcomes = (0, 1) if correct is None else (int(correct),)
    marks = [", ".join("?" * len(values)) for values in (variants, outcomes)]
    of_query, ids = ("", ()) if query_id is None else ("query_id = ? AND ", (query_id,))
    rows = db.execute(
        f"SELECT id FROM samples WHERE {of_query}variant IN ({marks[0]}) AND correct IN ({marks[1]}) "
        "AND evicted IS NULL AND length <= ? AND version >= ? ORDER BY id",
        (*ids, *variants, *outcomes, max_length if max_length is not None else 1 << 62, min_version),
    )
    return [sample_id for (sample_id,) in rows]


def load(db: sqlite3.Connection, sample_id: int, path: str) -> Sample:
    """Raises HistoryError when the sample is damaged."""
    row = db.execute(
        f"SELECT {COLUMNS}, checksum, tokens, log_probs FROM samples LEFT JOIN payloads USING (id) WHERE id = ?",
        (sample_id,),
    ).fetchone()
    return decode(row, sample_id, path)
