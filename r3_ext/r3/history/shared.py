"""Files and samples: what the subcommands of `r3 history` share."""

import os
import sqlite3
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import track

from r3_ext.host import stores
from recipe.r3.history.codec import COLUMNS, Sample, decode
from recipe.r3.history.file import HISTORY

SAMPLES = f"SELECT id, abandoned, {COLUMNS}, checksum, tokens, log_probs FROM samples LEFT JOIN payloads USING (id)"


def existing(path: str) -> str:
    return stores.existing(path, HISTORY, "a history file", "history.sqlite")


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


def disk_size(path: str) -> int:
    return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))


def track_samples(samples: Iterable, what: str, total: int) -> Iterable:
    """The same items, with a progress bar and the time left on a terminal."""
    console = Console(stderr=True)
    return track(samples, what, total, console=console, transient=True, disable=not console.is_terminal)
