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
"""The file of the sample buffer: schema, opening and checking, one trainer per file.

One SQLite file in WAL mode; anybody may read it with plain SQL while a run writes it. Nothing in it is executed or
unpickled, so a file from somebody else is data: its schema must equal ours to the letter. Damage to the tables shows
when a trainer opens the file, damage to a sample by its checksum when it is drawn or exported.

    samples     one stored response: what it is                   (payloads: its tokens and log-probs)
    statistics  attempts, successes, truncated per query, prompt variant and step       never evicted
    replays     which stored response a step replayed
    pins        the steps whose state can be restored: those with a checkpoint
    meta        tokenizer, model and limits the samples were stored under
"""

import fcntl
import os
import socket
import sqlite3
import weakref
from contextlib import contextmanager
from urllib.parse import quote

from recipe.common.query_ids import MAX_ID_BYTES

SCHEMA_VERSION = 6
_SCHEMA = """
CREATE TABLE samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- plain | reflection
    correct INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    score REAL NOT NULL,            -- reward of the reward manager, ranking rewards excluded
    length INTEGER NOT NULL,        -- response tokens
    entropy REAL,                   -- mean of -log_prob over the tokens; NULL if not recorded
    step INTEGER NOT NULL,          -- training step that it joined, 0 for imported ones
    version INTEGER NOT NULL,       -- training step whose weights were current when it was taken up, mostly step - 1
    versions INTEGER NOT NULL,      -- weights from then to its end: over 1 where rollouts go on over weight syncs
    evicted INTEGER,                -- training step that evicted it, NULL while it can be drawn
    abandoned INTEGER NOT NULL,     -- 1: written after a checkpoint that training went back to
    bytes INTEGER NOT NULL,         -- of its payload
    digest BLOB NOT NULL,           -- XXH3-128 of the ids, seeded; equal responses of a query are stored once
    checksum INTEGER NOT NULL       -- CRC-32 of query_id to versions and the payload, see codec.py
) STRICT;
CREATE INDEX samples_live ON samples (query_id, variant, correct, step, digest, bytes) WHERE evicted IS NULL;
CREATE INDEX samples_evicted ON samples (evicted, abandoned, step, bytes) WHERE evicted IS NOT NULL;
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY,         -- of the sample
    tokens BLOB NOT NULL,           -- int32, little endian, in zlib
    log_probs BLOB                  -- float16, little endian, in zlib, of the policy that generated it; NULL if unknown
) STRICT;
CREATE TABLE statistics (
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,
    step INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    successes INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    PRIMARY KEY (query_id, variant, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE replays (
    sample_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- of the group it was replayed into
    sample_step INTEGER NOT NULL,   -- its version + 1: step - sample_step is its age
    times INTEGER NOT NULL,         -- groups of the step it was replayed into
    PRIMARY KEY (sample_id, step, variant)
) STRICT, WITHOUT ROWID;
CREATE TABLE pins (step INTEGER PRIMARY KEY) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO pins VALUES (0);
"""
_SETTINGS = ("page_size=16384", f"cache_size=-{16 << 10}", "trusted_schema=OFF")
"""A response of 4,096 tokens takes 1 page and a part."""
NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p"),
    *("virtiofs", "pvfs2", "orangefs", "fuse"),
}


class HistoryError(RuntimeError):
    """The history cannot be used. The message names the file, the reason and the way out."""


def check_id(query_id: str, source: str) -> None:
    """Raise HistoryError when the id of a query is too long to be stored."""
    if (size := len(query_id.encode())) > MAX_ID_BYTES:
        raise HistoryError(
            f"{source}: query id {query_id[:20]}... has {size:,} bytes, {MAX_ID_BYTES:,} at most; shorten the column "
            "query_id of the data"
        )


@contextmanager
def explained(path: str):
    """Turn what SQLite and the operating system raise on the file into a HistoryError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(f"history {path}: {error}; {_way_out(str(error))}") from error


def _way_out(reason: str) -> str:
    if "disk is full" in reason or "No space" in reason or "I/O error" in reason:
        return "nothing of this step was stored; free space and start the run again, it resumes from its checkpoint"
    if "readonly" in reason or "Read-only" in reason or "denied" in reason or "unable to open" in reason:
        return "the folder must be writable; set algorithm.r3.history.path to one that is"
    if sqlite3.sqlite_version_info < (3, 37):
        return f"this Python has SQLite {sqlite3.sqlite_version}, the history needs 3.37"
    if "locked" in reason:
        return "another program holds the file; end it"
    return (
        "the file is damaged or not a history; move it away and put a copy back, or start a new run with another "
        "algorithm.r3.history.path"
    )


def network_file_system(path: str, mounts: str | None = None) -> str | None:
    """The type of the network file system that holds `path`, or None. `mounts`: the text of /proc/self/mounts."""
    if mounts is None:
        if not os.path.exists("/proc/self/mounts"):
            return None
        with open("/proc/self/mounts") as file:
            mounts = file.read()
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, this_kind, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = f"{os.path.realpath(path)}/".startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, this_kind
    name = "fuse" if kind.startswith("fuse.") else kind
    return kind if name in NETWORK_FILE_SYSTEMS else None


class Lock:
    """Holds `{path}.lock` for this process; the kernel lets go of it when the process dies, however it dies."""

    def __init__(self, path: str):
        self._file = open(f"{path}.lock", "a+")
        # A forked child shares the lock, and would hold it after this process died.
        file = weakref.ref(self._file)
        os.register_at_fork(after_in_child=lambda: file() and file().close())
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip()
            self._file.close()
            raise HistoryError(
                f"history {path}: in use by {owner or 'another process'}; one trainer per file: wait for it to end, or "
                "set algorithm.r3.history.path to a file of this run"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def open_for_writing(path: str, exclusive: bool) -> sqlite3.Connection:
    """The file, created when absent, else with its schema and its tables checked.

    Args:
        exclusive: keep other readers out. SQLite needs that on network file systems, which have no shared memory.

    Raises:
        HistoryError: not a history, one of another schema version, damaged, not writable.
    """
    with explained(path):
        # The writer thread and the trainer take turns, so one connection serves both.
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        try:
            if exclusive:
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
            for setting in _SETTINGS:
                db.execute(f"PRAGMA {setting}")
            new = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            if not new:
                check_schema(db, path)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(f"PRAGMA journal_size_limit={64 << 20}")
            if new:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
            else:
                check_tables(db)
        except BaseException:
            db.close()
            raise
    return db


def open_for_reading(path: str) -> sqlite3.Connection:
    """The file of this run or of another person, read-only, with its schema checked.

    Without a log beside it nobody has it open to write. It is then read as it is, which leaves no file behind and
    works in a folder that is read-only.
    """
    still = "" if os.path.exists(f"{path}-wal") else "&immutable=1"
    with explained(path):
        db = sqlite3.connect(f"file:{quote(path)}?mode=ro{still}", uri=True, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            check_schema(db, path)
        except BaseException:
            db.close()
            raise
    return db


def check_schema(db: sqlite3.Connection, path: str) -> None:
    """Raise HistoryError unless tables and indexes are exactly those of this version."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    found = _objects(db)
    with sqlite3.connect(":memory:") as expected:
        expected.executescript(_SCHEMA)
        same = found == _objects(expected)
    expected.close()
    if version == SCHEMA_VERSION and same:
        return
    way_out = "move the file away or set algorithm.r3.history.path to another one"
    if not {"samples", "statistics"} <= {name for _, name, _ in found}:
        what = "is not a history"
    elif version != SCHEMA_VERSION:
        what = f"has schema version {version}, this recipe reads version {SCHEMA_VERSION}"
        way_out = (
            "start a new run with another algorithm.r3.history.path; to take the samples along, `r3 history export` "
            "them with the version of this repository that wrote them (schema 5: commit cde174c), then `r3 history "
            "import` the parquet"
        )
    else:
        what = "has other tables, indexes, views or triggers than a history"
    raise HistoryError(f"history {path}: {what}; {way_out}")


def _objects(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    return set(db.execute("SELECT type, name, sql FROM sqlite_master"))


def check_tables(db: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError when SQLite finds a table broken. The payloads, by far the most of the file, are left
    to the checksums of the samples."""
    for table in ("samples", "statistics", "replays", "pins", "meta"):
        [(problem,), *_] = db.execute(f"PRAGMA quick_check({table})")
        if problem != "ok":
            raise sqlite3.DatabaseError(f"table {table}: {problem.splitlines()[-1]}")
