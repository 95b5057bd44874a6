"""Files and samples: what the subcommands of `r3 history` share."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from recipe.r3.history.codec import COLUMNS, Sample, decode
from recipe.r3.history.file import HistoryError, explained, open_for_reading

SAMPLES = f"SELECT id, abandoned, {COLUMNS}, checksum, tokens, log_probs FROM samples LEFT JOIN payloads USING (id)"


def existing(path: str) -> str:
    file = Path(path) / "history.sqlite" if os.path.isdir(path) else Path(path)
    if not file.is_file():
        raise HistoryError(f"{file} does not exist; name a history file or a run folder that holds history.sqlite")
    return str(file)


@contextmanager
def snapshot(path: str):
    """A read-only connection in one transaction: what is read through it agrees, while a run writes on."""
    with closing(open_for_reading(path)) as db:
        db.execute("BEGIN")
        try:
            yield db
        except sqlite3.Error as error:
            with explained(path):
                raise error


def meta_of(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT key, value FROM meta ORDER BY key"))


def stored(db: sqlite3.Connection) -> dict[str, tuple[int, int, int]]:
    """(samples, bytes, tokens) that can be drawn, that checkpoints need, and that are abandoned."""
    states = {"drawn": "evicted IS NULL", "kept": "evicted IS NOT NULL AND NOT abandoned"}
    states["abandoned"] = "evicted IS NOT NULL AND abandoned"
    sums = "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(length), 0) FROM samples WHERE"
    return {name: db.execute(f"{sums} {where}").fetchone() for name, where in states.items()}


def read_samples(
    db: sqlite3.Connection, path: str, where: str, values: Iterable
) -> Iterator[tuple[Sample, float | None, bool]]:
    """(sample, entropy, abandoned) in the order in which they were stored; raises HistoryError on a damaged one."""
    for sample_id, abandoned, *row in db.execute(f"{SAMPLES} WHERE {where} ORDER BY id", values):
        yield decode(tuple(row), sample_id, path), row[6], bool(abandoned)


def require_same_tokenizer(meta: dict[str, str], other: dict[str, str], source: object) -> None:
    ours, theirs = meta.get("tokenizer"), other.get("tokenizer")
    if ours and theirs and ours != theirs:
        raise HistoryError(f"{source}: is of another tokenizer ({theirs}) than the history's tokens ({ours})")


def disk_size(path: str) -> int:
    return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))


def track_samples(samples: Iterable, what: str, total: int) -> Iterable:
    """The same items, with a progress bar and the time left on a terminal."""
    console = Console(stderr=True)
    return track(samples, what, total, console=console, transient=True, disable=not console.is_terminal)
