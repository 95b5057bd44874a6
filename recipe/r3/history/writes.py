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
"""What a training step adds to the sample buffer: counts of attempts, samples, and the log of replays."""

import sqlite3
from collections.abc import Iterable

from recipe.r3.history.codec import COLUMNS, Bucket, Row, Sample, identified, packed
from recipe.r3.history.file import HISTORY

Count = tuple[str, str, int, int, int, int]
"""query_id, variant, step, attempts, successes, truncated."""


def counted(samples: Iterable[Sample], unfinished: Iterable[tuple[str, str]], step: int) -> list[Count]:
    """The attempts of a step by query and variant, in order; those that left nothing to store are failed ones."""
    counts: dict[tuple[str, str], list[int]] = {}
    for sample in samples:
        count = counts.setdefault((str(sample.query_id), str(sample.variant)), [0, 0, 0])
        count[0] += 1
        count[1] += int(sample.correct)
        count[2] += int(sample.truncated)
    for key in unfinished:
        counts.setdefault(key, [0, 0, 0])[0] += 1
    return [(*key, step, *count) for key, count in sorted(counts.items())]


def count(db: sqlite3.Connection, counts: Iterable[Count], path: str) -> None:
    """Add to the statistics; raises HistoryError when the id of a query is too long."""
    for values in counts:
        HISTORY.check_id(values[0], path)
        db.execute(
            "INSERT INTO statistics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "attempts = attempts + excluded.attempts, successes = successes + excluded.successes, "
            "truncated = truncated + excluded.truncated",
            values,
        )


def insert(db: sqlite3.Connection, rows: Iterable[Row]) -> dict[Bucket, int]:
    """Store the rows whose response their bucket does not hold; returns how many each of the buckets holds now."""
    known: dict[Bucket, set[bytes]] = {}
    digests = "SELECT digest FROM samples WHERE query_id = ? AND variant = ? AND correct = ? AND evicted IS NULL"
    for row in rows:
        if row.bucket not in known:
            known[row.bucket] = {digest for (digest,) in db.execute(digests, row.bucket)}
        if row.digest not in known[row.bucket]:
            known[row.bucket].add(row.digest)
            _insert(db, row)
    return {bucket: len(held) for bucket, held in known.items()}


def _insert(db: sqlite3.Connection, row: Row) -> None:
    stored = packed(row)
    cursor = db.execute(
        f"INSERT INTO samples ({COLUMNS}, abandoned, bytes, digest, checksum) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
        (*stored.columns, stored.bytes, stored.digest, stored.checksum),
    )
    db.execute("INSERT INTO payloads VALUES (?, ?, ?)", (cursor.lastrowid, stored.tokens, stored.log_probs))


def log_replays(db: sqlite3.Connection, replays: Iterable[tuple[Sample, str]], step: int, seed: int) -> None:
    """Note which samples step `step` replayed into groups of which prompt variant."""
    for sample, variant in replays:
        if (sample_id := _id_of(db, sample, seed)) is not None:
            db.execute(
                "INSERT INTO replays VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1",
                (sample_id, step, sample.query_id, variant, step - sample.age(step)),
            )


def _id_of(db: sqlite3.Connection, sample: Sample, seed: int) -> int | None:
    """The row of a sample that was drawn, or of one that was replayed in its own step and stored after that; None
    where the bounds left no room for it."""
    if sample.id is not None:
        return sample.id
    row = identified(sample, sample.step, seed)
    same = "SELECT max(id) FROM samples WHERE query_id = ? AND variant = ? AND correct = ? AND digest = ?"
    return db.execute(same, (*row.bucket, row.digest)).fetchone()[0]
