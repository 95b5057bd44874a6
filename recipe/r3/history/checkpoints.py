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
"""States of the sample buffer that can be brought back: the steps that are pinned, and the way back to one.

A sample of step b that was evicted in step e is needed by the pins from b to e - 1, and by no other.
"""

import sqlite3

from recipe.r3.history.eviction import delete, spare_bytes
from recipe.r3.history.file import HistoryError


def pinned(db: sqlite3.Connection) -> list[int]:
    """Steps that can be restored, in order."""
    return [step for (step,) in db.execute("SELECT step FROM pins ORDER BY step")]


def unpin(db: sqlite3.Connection, step: int) -> None:
    """Give up a pinned step, and the evicted samples that only it needs."""
    [(before, after)] = db.execute(
        "SELECT (SELECT coalesce(max(step), -1) FROM pins WHERE step < :p), "
        "(SELECT coalesce(min(step), 1 << 62) FROM pins WHERE step > :p)",
        {"p": step},
    )
    only_here = "evicted > ? AND evicted <= ? AND NOT abandoned AND step > ? AND step <= ?"
    delete(db, only_here, (step, after, before, step))
    db.execute("DELETE FROM pins WHERE step = ?", (step,))


def reclaim(db: sqlite3.Connection, max_bytes: int) -> None:
    """Bring what cannot be drawn under `max_bytes`: abandoned samples go, then the oldest pins but the newest."""
    if spare_bytes(db) > max_bytes:
        delete(db, "evicted IS NOT NULL AND abandoned")
    for step in pinned(db)[:-1]:
        if spare_bytes(db) <= max_bytes:
            break
        unpin(db, step)


def check_restorable(db: sqlite3.Connection, step: int, path: str) -> None:
    """Raise HistoryError unless the state after `step` is the present one or pinned."""
    [(last,)] = db.execute("SELECT coalesce(max(step), 0) FROM statistics")
    if step != last and step not in pinned(db):
        state = f"ends at step {last}" if step > last else f"can go back to steps {pinned(db)}"
        raise HistoryError(
            f"history {path}: the checkpoint is of step {step}, but the history {state}; put the right file back, or "
            "start a new run, with another algorithm.r3.history.path and without the checkpoint"
        )


def compare(db: sqlite3.Connection, identity: dict[str, str], path: str) -> list[str]:
    """What changed against the tokenizer, model and limits that the samples were stored under.

    Raises:
        HistoryError: another tokenizer.
    """
    told = []
    for key, stored in db.execute("SELECT key, value FROM meta ORDER BY key"):
        current = identity.get(key, stored)
        if current == stored:
            continue
        if key == "tokenizer":
            raise HistoryError(
                f"history {path}: its tokens are of another tokenizer ({stored}) than the model's ({current}); start "
                "a new run with another algorithm.r3.history.path"
            )
        told.append(f"{key} changed from {stored} to {current}")
    return told


def go_back(db: sqlite3.Connection, step: int) -> None:
    """Make the state after `step`, which must be restorable, the present one, and pin it."""
    for table in ("statistics", "replays", "pins"):
        db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
    db.execute("UPDATE samples SET evicted = step, abandoned = 1 WHERE step > ? AND NOT abandoned", (step,))
    db.execute("UPDATE samples SET evicted = NULL WHERE evicted > ? AND NOT abandoned", (step,))
    db.execute("INSERT OR IGNORE INTO pins VALUES (?)", (step,))
