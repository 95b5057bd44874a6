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
"""Who leaves the sample buffer when its bounds are met: the oldest of a bucket, then whom a seeded lottery names."""

import sqlite3
from collections.abc import Iterable

from recipe.common.store.pins import evict, live_bytes
from recipe.r3.history.codec import Bucket
from recipe.r3.history.file import HISTORY


def keep_to_bounds(
    db: sqlite3.Connection, grown: Iterable[Bucket], step: int, max_per_outcome: int, max_bytes: int
) -> None:
    """Evict what is too much after training step `step` was stored into the buckets `grown`."""
    for bucket in grown:
        evict(db, HISTORY, beyond_the_cap(db, bucket, max_per_outcome), step)
    if (live := live_bytes(db, HISTORY)) > max_bytes:
        evict(db, HISTORY, lottery(db, live - int(0.9 * max_bytes)), step)


def beyond_the_cap(db: sqlite3.Connection, bucket: Bucket, max_per_outcome: int) -> list[tuple[int, int]]:
    """(id, step) of the samples of a bucket that are older than its newest `max_per_outcome`."""
    return db.execute(
        "SELECT id, step FROM samples WHERE query_id = ? AND variant = ? AND correct = ? "
        "AND evicted IS NULL ORDER BY step DESC, id DESC LIMIT -1 OFFSET ?",
        (*bucket, max_per_outcome),
    ).fetchall()


def lottery(db: sqlite3.Connection, excess: int) -> list[tuple[int, int]]:
    """(id, step) of at least `excess` bytes of samples: lowest digests first, newest of a bucket last."""
    losers = []
    for sample_id, step, size in db.execute(
        "SELECT id, step, bytes FROM (SELECT id, step, bytes, digest, row_number() OVER (PARTITION BY query_id, "
        "variant, correct ORDER BY step DESC, id DESC) = 1 AS newest FROM samples WHERE evicted IS NULL) "
        "ORDER BY newest, digest, id"
    ):
        if excess <= 0:
            break
        losers.append((sample_id, step))
        excess -= size
    return losers
