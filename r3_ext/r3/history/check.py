"""`r3 history check`: is the file as it was written?"""

import argparse
import sqlite3

from r3_ext.host.units import human
from r3_ext.r3.history.shared import existing, read_samples, snapshot, track_samples


def check(args: argparse.Namespace) -> None:
    """Compare indexes, sums and the checksum of every sample with its payload, the evicted ones, too."""
    path = existing(args.path)
    with snapshot(path) as db:
        number, size = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM samples").fetchone()
        for _ in track_samples(read_samples(db, path, "true", ()), "checking", number):
            pass
        check_pages(db)
    print(f"{path}: whole; {number:,} samples, {human(size)} of payload, each fits its checksum")


def check_pages(db: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError when a page is used twice, or free and in use."""
    [(problem,), *_] = db.execute("PRAGMA integrity_check(1)")
    if problem != "ok":
        raise sqlite3.DatabaseError(" ".join(problem.split()))
