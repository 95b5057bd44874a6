"""`r3 history import`: samples and statistics of another file into a new or an old one."""

import argparse
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r3_ext.host.units import GIB
from r3_ext.r3.history.parquet import IMPORTED, checked, id_bound, is_parquet, open_parquet
from r3_ext.r3.history.shared import existing, meta_of, read_samples, require_same_tokenizer, snapshot, track_samples
from recipe.r3.history.file import HistoryError, explained
from recipe.r3.history.store import PLAIN, REFLECTION, History


def import_samples(args: argparse.Namespace) -> None:
    path, source = target(args.path), args.source if is_parquet(args.source) else existing(args.source)
    if os.path.exists(path) and os.path.samefile(path, source):
        raise HistoryError(f"{source} is the history to import into")
    with opened(source) as (meta, total, samples, statistics):
        with new_or_old(path, *bounds(args), args.seed) as history:
            require_same_tokenizer(history.meta(), meta, source)
            if statistics is not None:
                require_new_statistics(history.meta(), meta, source)
            before, most_ids = history.size(), id_bound(history.meta(), meta)
            samples = (checked(sample, source, place, most_ids) for sample, place in samples)
            history.absorb(track_samples(samples, "importing", total), statistics or (), meta)
            taken = history.size() - before
    told = "and no statistics, a parquet holds none" if statistics is None else "and the statistics"
    print(f"imported {taken:,} of {total:,} samples {told}")
    print(f"train on with algorithm.r3.history.path={os.path.abspath(path)}")
    if taken < total:
        print("the other samples were there already, or go beyond --max-per-outcome or --max-gib")
    if "tokenizer" not in meta:
        print(f"{source} does not say which tokenizer its tokens are of, so that was not checked")


def imports(meta: dict[str, str]) -> set[tuple[str, int]]:
    """(fingerprint, last step) of the statistics that were imported."""
    matches = filter(None, map(IMPORTED.fullmatch, meta))
    return {(match[1], int(match[2])) for match in matches}


def fingerprint(db: sqlite3.Connection, last: int) -> str:
    """Of the statistics up to step `last`: a run that was imported then still has it when it has gone on since."""
    digest = hashlib.sha256()
    for row in db.execute("SELECT * FROM statistics WHERE step <= ? ORDER BY query_id, variant, step", (last,)):
        digest.update(repr(row).encode())
    return digest.hexdigest()[:16]


def require_new_statistics(ours: dict[str, str], theirs: dict[str, str], source: str) -> None:
    """Raise HistoryError when attempts of the source are in this history already: they would count twice."""
    with snapshot(source) as db:
        again = [known for known, last in imports(ours) if fingerprint(db, last) == known]
    if again or imports(ours) & imports(theirs):
        raise HistoryError(
            f"{source}: its attempts, or some of them, are in this history already and would count twice; import into "
            "a new file, or take the samples alone with `r3 history export` and import the parquet"
        )


def target(path: str) -> str:
    """The history to import into, which may not exist yet."""
    if os.path.isdir(path):
        return str(Path(path) / "history.sqlite")
    if not os.path.exists(path) and not path.endswith(".sqlite"):
        raise HistoryError(f"{path} does not exist; name the new file, ending in .sqlite, or a folder that exists")
    return path


def bounds(args: argparse.Namespace) -> tuple[int, int]:
    """`max_per_outcome` and `max_bytes`; what was not given is as in a run with default settings."""
    per_outcome, gib = args.max_per_outcome, args.max_gib
    if per_outcome is None or gib is None:
        from recipe.r3.r3_config import HistoryConfig  # imports verl, which is slow

        per_outcome, gib = per_outcome or HistoryConfig.max_per_outcome, gib or HistoryConfig.max_gib
    return per_outcome, int(gib * GIB)


@contextmanager
def new_or_old(path: str, max_per_outcome: int, max_bytes: int, seed: int):
    """The history, open for writing; one that did not exist before is deleted when the block fails."""
    existed = os.path.exists(path)
    history = History(path, max_per_outcome, max_bytes, seed)
    try:
        yield history
    except BaseException:
        history.close()
        for end in () if existed else ("", "-wal", "-shm"):
            Path(path + end).unlink(missing_ok=True)
        raise
    history.close()


@contextmanager
def opened(path: str):
    """(meta, number of samples, samples and where they are, statistics) of a history, or of a parquet, whose statistics
    are None."""
    if is_parquet(path):
        yield open_parquet(path)
        return
    where = "evicted IS NULL AND length > 0"
    with snapshot(path) as db:
        total = db.execute(f"SELECT count(*) FROM samples WHERE {where}").fetchone()[0]
        rows = read_samples(db, path, where, ())
        samples = ((sample, f"sample {sample.id}") for sample, *_ in rows)
        yield {**meta_of(db), **provenance(db, path)}, total, samples, read_statistics(db, path)


def provenance(db: sqlite3.Connection, path: str) -> dict[str, str]:
    """What `meta` keeps of an import of this history's statistics; nothing when it has none."""
    [(last,)] = db.execute("SELECT max(step) FROM statistics")
    return {} if last is None else {f"imported {fingerprint(db, last)} of steps to {last}": path}


def read_statistics(db: sqlite3.Connection, path: str) -> Iterator[tuple[str, str, int, int, int]]:
    """(query_id, variant, attempts, successes, truncated), summed over the steps."""
    with explained(path):
        for row in db.execute(
            "SELECT query_id, variant, sum(attempts), sum(successes), sum(truncated) FROM statistics "
            "GROUP BY query_id, variant"
        ):
            _, variant, *counts = row
            if variant not in (PLAIN, REFLECTION) or not all(0 <= count <= counts[0] for count in counts):
                raise HistoryError(f"history {path}: impossible statistics: {row}")
            yield row
