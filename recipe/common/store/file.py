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
"""The file of a store: its schema, opening and checking.

One SQLite file in WAL mode; anybody may read it with plain SQL while a run writes it. Nothing in it is executed or
unpickled, so a file from somebody else is data: its schema must equal ours to the letter. Damage to the tables shows
when a trainer opens the file, damage to a row by its checksum when it is drawn or exported.

Every schema has the tables

    (rows)      what is stored; its name and columns are the store's own, but for these, which `pins` uses:
                id, query_id, evicted, abandoned, bytes, checksum
    payloads    its tokens, and what else is large             (one row each, with the same id)
    pins        the steps whose state can be restored: those with a checkpoint
    meta        tokenizer, model and limits the rows were stored under
"""

import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from recipe.common.query_ids import MAX_ID_BYTES

PINS_AND_META = """
CREATE TABLE pins (step INTEGER PRIMARY KEY) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO pins VALUES (0);
"""
"""The end of every schema."""
_SETTINGS = ("page_size=16384", f"cache_size=-{16 << 10}", "trusted_schema=OFF")
"""A response of 4,096 tokens takes 1 page and a part."""


class StoreError(RuntimeError):
    """The store cannot be used. The message names the file, the reason and the way out."""


@dataclass(frozen=True)
class Kind:
    """A kind of store: what its file holds, and how its errors speak of it."""

    name: str
    """As in "history runs/history.sqlite: ..."."""
    key: str
    """Of the setting that names the file."""
    error: type[StoreError]
    version: int
    """Of the schema; in the file as SQLite's user_version."""
    schema: str
    rows: str
    """The table of what is stored, a plural."""
    born: str
    """Its column of the training step in which a row joined."""
    logs: tuple[str, ...]
    """Tables with a column `step`, never evicted, of which a restore takes back what is past its step."""
    from_older: str = ""
    """What else to do with a file of another version, beside starting anew."""

    @contextmanager
    def explained(self, path: str):
        """Turn what SQLite and the operating system raise on the file into an error of this kind."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self.error(f"{self.name} {path}: {error}; {self._way_out(str(error))}") from error

    def _way_out(self, reason: str) -> str:
        if "disk is full" in reason or "No space" in reason or "I/O error" in reason:
            return "nothing of this step was stored; free space and start the run again, it resumes from its checkpoint"
        if "readonly" in reason or "Read-only" in reason or "denied" in reason or "unable to open" in reason:
            return f"the folder must be writable; set {self.key} to one that is"
        if sqlite3.sqlite_version_info < (3, 37):
            return f"this Python has SQLite {sqlite3.sqlite_version}, the {self.name} needs 3.37"
        if "locked" in reason:
            return "another program holds the file; end it"
        return (
            f"the file is damaged or not a {self.name}; move it away and put a copy back, or start a new run with "
            f"another {self.key}"
        )

    def check_id(self, query_id: str, source: str) -> None:
        """Raise an error of this kind when the id of a query is too long to be stored."""
        if (size := len(query_id.encode())) > MAX_ID_BYTES:
            raise self.error(
                f"{source}: query id {query_id[:20]}... has {size:,} bytes, {MAX_ID_BYTES:,} at most; shorten the "
                "column query_id of the data"
            )

    def damaged(self, path: str, row_id: int, query_id: str) -> StoreError:
        """The error of a row whose checksum does not fit."""
        return self.error(
            f"{self.name} {path}: {self.rows.removesuffix('s')} {row_id} of query {query_id} is damaged; put a copy of "
            f"the file back, or delete it with SQL: DELETE FROM {self.rows} WHERE id = {row_id}"
        )

    def open_for_writing(self, path: str, exclusive: bool) -> sqlite3.Connection:
        """The file, created when absent, else with its schema and its tables checked.

        Args:
            exclusive: keep other readers out. SQLite needs that on network file systems, which have no shared memory.

        Raises:
            StoreError: not of this kind, of another schema version, damaged, not writable.
        """
        with self.explained(path):
            # The writer thread and the trainer take turns, so one connection serves both.
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
            try:
                if exclusive:
                    db.execute("PRAGMA locking_mode=EXCLUSIVE")
                for setting in _SETTINGS:
                    db.execute(f"PRAGMA {setting}")
                new = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
                if not new:
                    self.check_schema(db, path)
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute(f"PRAGMA journal_size_limit={64 << 20}")
                if new:
                    db.executescript(f"BEGIN; {self.schema} PRAGMA user_version={self.version}; COMMIT;")
                else:
                    self.check_tables(db)
            except BaseException:
                db.close()
                raise
        return db

    def open_for_reading(self, path: str) -> sqlite3.Connection:
        """The file of this run or of another person, read-only, with its schema checked.

        Without a log beside it nobody has it open to write. It is then read as it is, which leaves no file behind and
        works in a folder that is read-only.
        """
        still = "" if os.path.exists(f"{path}-wal") else "&immutable=1"
        with self.explained(path):
            db = sqlite3.connect(f"file:{quote(path)}?mode=ro{still}", uri=True, isolation_level=None)
            try:
                db.execute("PRAGMA trusted_schema=OFF")
                self.check_schema(db, path)
            except BaseException:
                db.close()
                raise
        return db

    def check_schema(self, db: sqlite3.Connection, path: str) -> None:
        """Raise an error of this kind unless tables and indexes are exactly those of this version."""
        version = db.execute("PRAGMA user_version").fetchone()[0]
        found = _objects(db)
        with sqlite3.connect(":memory:") as expected:
            expected.executescript(self.schema)
            same = found == _objects(expected)
        expected.close()
        if version == self.version and same:
            return
        way_out = f"move the file away or set {self.key} to another one"
        if not {self.rows, self.logs[0]} <= {name for _, name, _ in found}:
            what = f"is not a {self.name}"
        elif version != self.version:
            what = f"has schema version {version}, this recipe reads version {self.version}"
            way_out = f"start a new run with another {self.key}{self.from_older}"
        else:
            what = f"has other tables, indexes, views or triggers than a {self.name}"
        raise self.error(f"{self.name} {path}: {what}; {way_out}")

    def check_tables(self, db: sqlite3.Connection) -> None:
        """Raise sqlite3.DatabaseError when SQLite finds a table broken. The payloads, by far the most of the file, are
        left to the checksums of the rows."""
        for table in (self.rows, *self.logs, "pins", "meta"):
            [(problem,), *_] = db.execute(f"PRAGMA quick_check({table})")
            if problem != "ok":
                raise sqlite3.DatabaseError(f"table {table}: {problem.splitlines()[-1]}")


def _objects(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    return set(db.execute("SELECT type, name, sql FROM sqlite_master"))
