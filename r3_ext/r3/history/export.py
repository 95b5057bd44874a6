"""`r3 history export`: samples as parquet."""

import argparse
from pathlib import Path

from r3_ext.host.files import replacing
from r3_ext.host.stores import load_tokenizer, meta_of, snapshot
from r3_ext.host.units import human
from r3_ext.r3.history.parquet import write_parquet
from r3_ext.r3.history.shared import existing, read_samples, track_samples
from recipe.r3.history.file import HISTORY, HistoryError


def export(args: argparse.Namespace) -> None:
    path, out = existing(args.path), Path(args.out)
    if out.suffix != ".parquet":
        raise HistoryError(f"{out}: the name of the output must end in .parquet")
    where, values = filters(args)
    with replacing(out) as partial, snapshot(path, HISTORY) as db:
        tokenizer = load_tokenizer(args.tokenizer, meta_of(db), HISTORY) if args.tokenizer else None
        total = db.execute(f"SELECT count(*) FROM samples WHERE {where}", values).fetchone()[0]
        rows = track_samples(read_samples(db, path, where, values), "exporting", total)
        write_parquet(partial, rows, meta_of(db), tokenizer)
    print(f"{out}: {total:,} samples, {human(out.stat().st_size)}")


def filters(args: argparse.Namespace) -> tuple[str, list]:
    """The SQL condition on the samples to export, and its values; empty responses are left out."""
    conditions, values = ["length > 0", "(evicted IS NULL OR abandoned)" if args.abandoned else "evicted IS NULL"], []
    if args.outcome != "any":
        conditions.append("correct = ?")
        values.append(int(args.outcome == "correct"))
    if args.variant != "any":
        conditions.append("variant = ?")
        values.append(args.variant)
    return " AND ".join(conditions), values
