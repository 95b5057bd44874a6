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
unpickled, so a file from somebody else is data: its schema must equal ours to the letter, and what it says of itself is
checked. Every column is in an index, a sum or a checksum too, so that damage shows: when the file is opened, by a
trainer or to be read, or, for what a sample's checksum covers, when it is drawn or printed.

    samples     one stored response: what it is                   (payloads: its tokens and log-probs)
    statistics  attempts, successes, truncated per query, prompt variant and step       never evicted
    steps       what a training step wrote, in sum
    replays     which stored response a step replayed
    pins        the steps whose state can be restored: those with a checkpoint
    meta        tokenizer, model and limits the samples were stored under; what was imported
"""

import fcntl
import os
import socket
import sqlite3
import weakref
from contextlib import closing, contextmanager, suppress
from urllib.parse import quote

from recipe.common.query_ids import MAX_ID_BYTES
from recipe.r3.history.pages import check_pages

SCHEMA_VERSION = 5
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
    checksum INTEGER NOT NULL       -- XXH3-64 of query_id to versions, and of the payload, see history_codec.py
) STRICT;
CREATE INDEX samples_live ON samples (query_id, variant, correct, step, length, entropy, digest, bytes, abandoned,
    version, evicted) WHERE evicted IS NULL;
CREATE INDEX samples_evicted ON samples (evicted, abandoned, step, bytes, query_id, variant, correct, length, entropy,
    digest) WHERE evicted IS NOT NULL;
CREATE INDEX samples_by_step ON samples (step);
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY,         -- of the sample
    tokens BLOB NOT NULL,           -- the low 16 bits of all ids, then the higher 0, 8 or 16; little endian
    log_probs BLOB                  -- float16, of the policy that generated it; NULL if not recorded
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
CREATE INDEX statistics_by_step ON statistics (step, attempts, successes, truncated);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    attempts INTEGER NOT NULL,
    successes INTEGER NOT NULL,
    truncated INTEGER NOT NULL
) STRICT;
CREATE TABLE replays (
    sample_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- of the group it was replayed into
    sample_step INTEGER NOT NULL,   -- its version + 1: step - sample_step is its age
    times INTEGER NOT NULL,         -- groups of the step it was replayed into
    PRIMARY KEY (sample_id, step, variant)
) STRICT, WITHOUT ROWID;
CREATE INDEX replays_by_step ON replays (step, query_id, sample_step, times);
CREATE TABLE pins (step INTEGER PRIMARY KEY) STRICT;
CREATE INDEX pins_again ON pins (step);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX meta_again ON meta (value);
INSERT INTO pins VALUES (0);
"""
_SETTINGS = ("page_size=16384", f"cache_size=-{16 << 10}", "secure_delete=OFF")
"""A response of 4,096 tokens takes 1 page and a part; deleting does not write zeros over what it deletes."""
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
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last: SQLite's message quotes damaged text
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
        "the file is damaged or not a history; move it away and put a copy back, or start again without the samples "
        "with algorithm.r3.history.restore=none and another algorithm.r3.history.path"
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
    """The file, created when absent, else with its schema and its indexes checked.

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
            db.execute("PRAGMA trusted_schema=OFF")
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
                check_content(db, path)
                check_pages(db, path)
        except BaseException:
            db.close()
            raise
    return db


def open_for_reading(path: str) -> sqlite3.Connection:
    """The file of this run or of another person, read-only, with its schema checked; see `reading`."""
    with explained(path):
        uri = f"file:{quote(path)}?mode=ro{'&immutable=1' if _is_still(path) else ''}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            check_schema(db, path)
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def reading(path: str):
    """A read-only connection that leaves no file behind.

    SQLite makes `-wal` and `-shm` beside a file in WAL mode when it is read, unless told that nobody writes it. That is
    so when neither holds anything; should a trainer begin meanwhile, the file it writes into shows it. With a trainer
    there, or after one that was killed, its two files are needed, and are there already. Only a copied log lacks the
    `-shm`, which SQLite then makes; it is removed again.

    Raises:
        HistoryError: as `open_for_reading`; or a run began to write the file while it was read as still.
    """
    still, alone, before = _is_still(path), not os.path.exists(f"{path}-shm"), _stamp(path)
    if not still and alone and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
        raise HistoryError(
            f"history {path}: its log {path}-wal can only be read in a folder that is writable; copy both"
        )
    try:
        with closing(open_for_reading(path)) as db:
            yield db
    finally:
        if still and _stamp(path) != before:
            raise HistoryError(f"history {path}: a run began to write it while it was read; run the command again")
        if not still and alone:
            _remove_index(path)


def _is_still(path: str) -> bool:
    """Whether all of the history is in the file itself, and nobody has it open to write."""
    logged = os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal")
    return not logged and not os.path.exists(f"{path}-shm")


def _stamp(path: str) -> tuple[int, int, int] | None:
    if not os.path.exists(path):
        return None
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _remove_index(path: str) -> None:
    """Remove the `-shm` that reading made, unless a trainer has begun to use it: each holds the lock all the time."""
    if not os.path.exists(f"{path}.lock"):
        _unlink(f"{path}-shm")
        return
    with suppress(OSError), open(f"{path}.lock") as lock:  # held, or not ours to hold
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _unlink(f"{path}-shm")


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def check_schema(db: sqlite3.Connection, path: str) -> None:
    """Raise HistoryError unless tables and indexes are exactly those of this version."""
    [(vacuums,)] = db.execute("PRAGMA auto_vacuum")
    if vacuums:  # a damaged byte of the header, for which SQLite would write over pages that are in use
        raise sqlite3.DatabaseError("it says of itself that it has pages of pointers")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    found = _objects(db)
    with sqlite3.connect(":memory:") as expected:
        expected.executescript(_SCHEMA)
        same = found == _objects(expected)
    expected.close()
    if version == SCHEMA_VERSION and same:
        return
    if not {"samples", "statistics"} <= {name for _, name, _ in found}:
        what = "is not a history"
    elif version != SCHEMA_VERSION:
        what = f"has schema version {version}, this recipe reads version {SCHEMA_VERSION}"
    else:
        what = "has other tables, indexes, views or triggers than a history"
    raise HistoryError(f"history {path}: {what}; move the file away or set algorithm.r3.history.path to another one")


def _objects(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    return set(db.execute("SELECT type, name, sql FROM sqlite_master"))


def check_content(db: sqlite3.Connection, path: str) -> None:
    """Raise sqlite3.DatabaseError when indexes and tables disagree, statistics and the sums of their steps, or a query
    id is absurd.

    The columns of samples that are in no index, and payloads, are not read here: each sample has a checksum, which is
    compared when it is drawn, and by `check_samples`.
    """
    for table in ("samples", "statistics", "steps", "replays", "pins", "meta"):
        problems = [row[0] for row in db.execute(f"PRAGMA integrity_check({table})")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError(f"table {table}: {problems[0]}")
    for table in ("samples", "statistics", "replays"):
        [(longest,)] = db.execute(f"SELECT max(length(CAST(query_id AS BLOB))) FROM {table}")
        if (longest or 0) > MAX_ID_BYTES:
            raise sqlite3.DatabaseError(f"table {table}: a query id of {longest:,} bytes, {MAX_ID_BYTES:,} at most")
    sums = "SELECT step, sum(attempts), sum(successes), sum(truncated) FROM statistics GROUP BY step"
    wrong = set(db.execute(sums)) ^ set(db.execute("SELECT step, attempts, successes, truncated FROM steps"))
    if wrong:
        raise sqlite3.DatabaseError(f"the statistics of step {min(step for step, *_ in wrong)} do not add up")
    next_id = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'samples'"
    [(fits,)] = db.execute(f"SELECT ({next_id}) BETWEEN coalesce(max(id), 0) AND 1 << 62 FROM samples")
    if not fits:
        raise sqlite3.DatabaseError("the next sample's number is taken")
