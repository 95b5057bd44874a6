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
"""States of a store that can be brought back: the steps that are pinned, who is evicted, and the way back to one.

A row of step b that was evicted in step e is needed by the pins from b to e - 1, and by no other.
"""

import sqlite3
from collections.abc import Callable

from recipe.common.store.file import Kind


def live_bytes(db: sqlite3.Connection, kind: Kind) -> int:
    """Payload bytes of the rows that can be drawn."""
    return db.execute(f"SELECT coalesce(sum(bytes), 0) FROM {kind.rows} WHERE evicted IS NULL").fetchone()[0]


def spare_bytes(db: sqlite3.Connection, kind: Kind) -> int:
    """Payload bytes of the rows that are kept for checkpoints, or abandoned."""
    return db.execute(f"SELECT coalesce(sum(bytes), 0) FROM {kind.rows} WHERE evicted IS NOT NULL").fetchone()[0]


def evict(db: sqlite3.Connection, kind: Kind, rows: list[tuple[int, int]], step: int) -> None:
    """Take the rows (id, step that they joined in) out of the store; only those that a pinned step had stay in the
    file."""
    [(newest_pin,)] = db.execute("SELECT coalesce(max(step), -1) FROM pins")
    for row_id, born in rows:
        if born <= newest_pin < step:
            db.execute(f"UPDATE {kind.rows} SET evicted = ? WHERE id = ?", (step, row_id))
        else:
            delete(db, kind, "id = ?", (row_id,))


def delete(db: sqlite3.Connection, kind: Kind, where: str, values: tuple = ()) -> None:
    """Delete the rows of which the condition holds, with their payloads."""
    db.execute(f"DELETE FROM payloads WHERE id IN (SELECT id FROM {kind.rows} WHERE {where})", values)
    db.execute(f"DELETE FROM {kind.rows} WHERE {where}", values)


def pinned(db: sqlite3.Connection) -> list[int]:
    """Steps that can be restored, in order."""
    return [step for (step,) in db.execute("SELECT step FROM pins ORDER BY step")]


def unpin(db: sqlite3.Connection, kind: Kind, step: int) -> None:
    """Give up a pinned step, and the evicted rows that only it needs."""
    [(before, after)] = db.execute(
        "SELECT (SELECT coalesce(max(step), -1) FROM pins WHERE step < :p), "
        "(SELECT coalesce(min(step), 1 << 62) FROM pins WHERE step > :p)",
        {"p": step},
    )
    only_here = f"evicted > ? AND evicted <= ? AND NOT abandoned AND {kind.born} > ? AND {kind.born} <= ?"
    delete(db, kind, only_here, (step, after, before, step))
    db.execute("DELETE FROM pins WHERE step = ?", (step,))


def reclaim(db: sqlite3.Connection, kind: Kind, spare: Callable[[sqlite3.Connection, Kind], int], most: int) -> None:
    """Bring what cannot be drawn down to `most`: abandoned rows go, then the oldest pins but the newest.

    Args:
        spare: how much that is, as `spare_bytes`.
    """
    if spare(db, kind) > most:
        delete(db, kind, "evicted IS NOT NULL AND abandoned")
    for step in pinned(db)[:-1]:
        if spare(db, kind) <= most:
            break
        unpin(db, kind, step)


def last_step(db: sqlite3.Connection, kind: Kind) -> int:
    """The last step of which anything was logged, 0 before the first."""
    return max(db.execute(f"SELECT coalesce(max(step), 0) FROM {table}").fetchone()[0] for table in kind.logs)


def check_restorable(db: sqlite3.Connection, kind: Kind, step: int, path: str) -> None:
    """Raise an error of the kind unless the state after `step` is the present one or pinned."""
    last = last_step(db, kind)
    if step != last and step not in pinned(db):
        state = f"ends at step {last}" if step > last else f"can go back to steps {pinned(db)}"
        raise kind.error(
            f"{kind.name} {path}: the checkpoint is of step {step}, but the {kind.name} {state}; put the right file "
            f"back, or start a new run, with another {kind.key} and without the checkpoint"
        )


def compare(db: sqlite3.Connection, kind: Kind, identity: dict[str, str], path: str) -> list[str]:
    """What changed against the tokenizer, model and limits that the rows were stored under.

    Raises:
        StoreError: another tokenizer.
    """
    told = []
    for key, stored in db.execute("SELECT key, value FROM meta ORDER BY key"):
        current = identity.get(key, stored)
        if current == stored:
            continue
        if key == "tokenizer":
            raise kind.error(
                f"{kind.name} {path}: its tokens are of another tokenizer ({stored}) than the model's ({current}); "
                f"start a new run with another {kind.key}"
            )
        told.append(f"{key} changed from {stored} to {current}")
    return told


def go_back(db: sqlite3.Connection, kind: Kind, step: int) -> None:
    """Make the state after `step`, which must be restorable, the present one, and pin it."""
    for table in (*kind.logs, "pins"):
        db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
    past = f"{kind.born} > ? AND NOT abandoned"
    db.execute(f"UPDATE {kind.rows} SET evicted = ?, abandoned = 1 WHERE {past}", (step, step))
    db.execute(f"UPDATE {kind.rows} SET evicted = NULL WHERE evicted > ? AND NOT abandoned", (step,))
    db.execute("INSERT OR IGNORE INTO pins VALUES (?)", (step,))
