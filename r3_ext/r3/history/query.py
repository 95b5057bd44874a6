"""`r3 history query`: ready queries, or a SELECT of one's own, as a table or CSV."""

import argparse
import csv
import difflib
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from r3_ext.r3.history.shared import UNBOUNDED, check_samples, existing, print_table, read_samples, snapshot
from recipe.r3.history.file import HistoryError

QUERIES = {
    "never-solved": """\
-- problems never solved under any prompt, most attempted first
SELECT query_id, sum(attempts) AS attempts,
       sum(iif(variant = 'reflection', attempts, 0)) AS reflected,
       sum(truncated) AS truncated, min(step) AS first_step, max(step) AS last_step
FROM statistics
GROUP BY query_id
HAVING sum(successes) = 0
ORDER BY sum(attempts) DESC, query_id""",
    "pass-rate": """\
-- how the pass rate of each plain prompt moved, risen most first
-- first half of the problem's steps against the last half; the middle one of an odd number is in neither
WITH placed AS (
    SELECT query_id, attempts, successes,
           row_number() OVER (PARTITION BY query_id ORDER BY step) AS place,
           count(*) OVER (PARTITION BY query_id) AS steps
    FROM statistics WHERE variant = 'plain'
), halves AS (
    SELECT query_id, steps, sum(attempts) AS attempts,
           1.0 * sum(successes) FILTER (WHERE place <= steps / 2)
               / sum(attempts) FILTER (WHERE place <= steps / 2) AS first_half,
           1.0 * sum(successes) FILTER (WHERE place > steps - steps / 2)
               / sum(attempts) FILTER (WHERE place > steps - steps / 2) AS last_half
    FROM placed WHERE steps > 1 GROUP BY query_id
)
SELECT query_id, steps, attempts, first_half, last_half, last_half - first_half AS change
FROM halves
ORDER BY change DESC, query_id""",
    "replays": """\
-- what was replayed, newest step first
-- prompt: of the group it was replayed into; times: groups of the step; gone: no longer in the file
SELECT replays.step, replays.query_id, replays.variant AS prompt,
       CASE samples.correct WHEN 1 THEN 'correct' WHEN 0 THEN 'wrong' ELSE 'gone' END AS outcome,
       replays.step - replays.sample_step AS age, replays.times
FROM replays LEFT JOIN samples ON samples.id = replays.sample_id
ORDER BY replays.step DESC, replays.query_id, age""",
}


def query(args: argparse.Namespace) -> None:
    named = not any(char.isspace() for char in args.query)
    if named and args.query not in QUERIES:
        near = difflib.get_close_matches(args.query, QUERIES, 1) or QUERIES
        raise HistoryError(f"no query is named {args.query!r}; did you mean {' or '.join(near)}?")
    sql = QUERIES[args.query] if named else args.query
    if args.sql:
        print(sql)
        return
    limit = args.limit or (UNBOUNDED if args.csv else 50)
    with selected(existing(args.path), sql, args.seconds) as (columns, rows):
        if args.csv:
            print_csv(columns, islice(rows, limit))
        else:
            print_table("", columns, list(islice(rows, limit)))
        if next(rows, None) is not None:
            print(f"the first {limit} rows; --limit N shows more", file=sys.stderr)


@contextmanager
def selected(path: str, sql: str, seconds: float):
    """(columns, rows) of one SELECT, which can only read, and only this file, whose content is checked before.

    Raises:
        HistoryError: damaged, not a SELECT, or no row came for so many seconds.
    """
    clock = Clock(seconds)
    with snapshot(path) as db:
        if "samples" in sql.lower():
            check_samples(db, path)
        if "payloads" in sql.lower():
            for _ in read_samples(db, path, "true", ()):
                pass
        db.set_authorizer(permitted)
        db.set_progress_handler(clock.is_over, 1 << 20)  # lets Ctrl-C in, too
        try:
            clock.begin()
            cursor = db.execute(sql)
            yield [column[0] for column in cursor.description or ()], clock.rows(cursor)
        except (sqlite3.Error, sqlite3.Warning) as error:
            reason = str(error)
            if "authoriz" in reason or "within a transaction" in reason:
                reason = "only a SELECT can be run"
            if reason == "interrupted":
                reason = f"no row came for {seconds:g} s; ask for less, or wait longer with --seconds N"
            raise HistoryError(f"query on {path}: {reason}") from error


def permitted(action: int, table: str | None, column: str | None, *_) -> int:
    """SQLite's authorizer. What it keeps for itself is not checked as the rest is, and so not shown."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    own = action == sqlite3.SQLITE_READ and (table.startswith("sqlite_") or table == "dbstat")
    return sqlite3.SQLITE_OK if action in reading and (not own or column == "sql") else sqlite3.SQLITE_DENY


class Clock:
    """Ends a query that gives no row for so many seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def begin(self) -> None:
        self.end = time.monotonic() + self.seconds

    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple]:
        while True:
            self.begin()  # the time in which the last row was used does not count
            row = next(cursor, None)
            if row is None:
                return
            yield row


def print_csv(columns: list[str], rows: Iterable[tuple]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)
