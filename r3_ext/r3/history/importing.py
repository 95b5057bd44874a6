"""`r3 history import`: samples and statistics of other files into a new one."""

import argparse
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r3_ext.host.stores import meta_of, require_same_tokenizer, snapshot
from r3_ext.host.units import GIB
from r3_ext.r3.history.parquet import is_parquet, open_parquet
from r3_ext.r3.history.shared import existing, read_samples, track_samples
from recipe.r3.history.codec import Sample
from recipe.r3.history.file import HISTORY, HistoryError
from recipe.r3.history.store import History


def import_samples(args: argparse.Namespace) -> None:
    path = target(args.path)
    sources = [source if is_parquet(source) else existing(source) for source in args.sources]
    if len({os.path.realpath(source) for source in sources}) < len(sources):
        raise HistoryError("a source is named twice; its attempts would count twice")
    for source in sources:
        with opened(source):  # refused before a new file is made
            pass
    with new_history(path, *bounds(args), args.seed) as history:
        for source in sources:
            import_one(history, source)
    print(f"train on with algorithm.r3.history.path={os.path.abspath(path)}")


def import_one(history: History, source: str) -> None:
    with opened(source) as (meta, total, samples, statistics):
        require_same_tokenizer(history.meta(), meta, source, HISTORY)
        before = history.size()
        try:
            history.absorb(track_samples(samples, "importing", total), statistics or (), meta)
        except ValueError as error:
            raise HistoryError(f"{source}: {error}") from error
        taken = history.size() - before
    told = "and no statistics, a parquet holds none" if statistics is None else "and the statistics"
    print(f"{source}: imported {taken:,} of {total:,} samples {told}")
    if taken < total:
        print("the other samples were there already, or go beyond --max-per-outcome or --max-gib")
    if "tokenizer" not in meta:
        print(f"{source} does not say which tokenizer its tokens are of, so that was not checked")


def target(path: str) -> str:
    """The history to make."""
    file = str(Path(path) / "history.sqlite") if os.path.isdir(path) else path
    if os.path.exists(file):
        raise HistoryError(f"{file} exists; name a new file")
    if file == path and not path.endswith(".sqlite"):
        raise HistoryError(f"{path} does not exist; name the new file, ending in .sqlite, or a folder that exists")
    return file


def bounds(args: argparse.Namespace) -> tuple[int, int]:
    """`max_per_outcome` and `max_bytes`; what was not given is as in a run with default settings."""
    per_outcome, gib = args.max_per_outcome, args.max_gib
    if per_outcome is None or gib is None:
        from recipe.r3.config.r3_config import HistoryConfig  # imports verl, which is slow

        per_outcome, gib = per_outcome or HistoryConfig.max_per_outcome, gib or HistoryConfig.max_gib
    return per_outcome, int(gib * GIB)


@contextmanager
def new_history(path: str, max_per_outcome: int, max_bytes: int, seed: int):
    """Open for writing; deleted when the block fails."""
    history = History(path, max_per_outcome, max_bytes, seed)
    try:
        yield history
    except BaseException:
        history.close()
        Path(path).unlink()
        raise
    history.close()


@contextmanager
def opened(path: str):
    """(meta, number of samples, samples, statistics) of a history, or of a parquet, whose statistics are None."""
    if is_parquet(path):
        yield open_parquet(path)
        return
    where = "evicted IS NULL AND length > 0"
    with snapshot(path, HISTORY) as db:
        total = db.execute(f"SELECT count(*) FROM samples WHERE {where}").fetchone()[0]
        samples: Iterator[Sample] = (sample for sample, *_ in read_samples(db, path, where, ()))
        yield meta_of(db), total, samples, read_statistics(db)


def read_statistics(db: sqlite3.Connection) -> sqlite3.Cursor:
    """(query_id, variant, attempts, successes, truncated), summed over the steps."""
    return db.execute(
        "SELECT query_id, variant, sum(attempts), sum(successes), sum(truncated) FROM statistics "
        "GROUP BY query_id, variant"
    )
