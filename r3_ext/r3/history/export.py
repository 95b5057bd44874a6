"""`r3 history export`: samples as parquet."""

import argparse
import os
from pathlib import Path

from r3_ext.host.files import replacing
from r3_ext.host.units import human
from r3_ext.r3.history.parquet import write_parquet
from r3_ext.r3.history.shared import existing, meta_of, read_samples, require_same_tokenizer, snapshot, track_samples
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import tokenizer_fingerprint


def export(args: argparse.Namespace) -> None:
    path, out = existing(args.path), Path(args.out)
    if out.suffix != ".parquet":
        raise HistoryError(f"{out}: the name of the output must end in .parquet")
    where, values = filters(args)
    with replacing(out) as partial, snapshot(path) as db:
        tokenizer = load_tokenizer(args.tokenizer, meta_of(db)) if args.tokenizer else None
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


def load_tokenizer(folder: str, meta: dict[str, str]):
    """The tokenizer of a local folder, without running its code; it must be the one of the history."""
    from transformers import AutoTokenizer

    if not os.path.isdir(folder):
        raise HistoryError(f"{folder} is not the folder of a tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # of a malformed vocabulary the tokenizers library raises Exception itself
        raise HistoryError(f"{folder}: no usable tokenizer: {error}") from error
    require_same_tokenizer(meta, {"tokenizer": tokenizer_fingerprint(tokenizer)}, folder)
    return tokenizer
