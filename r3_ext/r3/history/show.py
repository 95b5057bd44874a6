"""`r3 history show`: sums of a file, or the attempts at one problem; `r3 history query`: what any SQLite tool does."""

import argparse
import csv
import difflib
import sqlite3
import sys

from r3_ext.host.stores import meta_of, snapshot
from r3_ext.host.tables import print_table, printable, share
from r3_ext.host.units import human
from r3_ext.r3.history.shared import disk_size, existing, stored
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.file import HISTORY, SCHEMA_VERSION, HistoryError


def show(args: argparse.Namespace) -> None:
    path = existing(args.path)
    with snapshot(path, HISTORY) as db:
        tables = query_tables(db, path, args.query) if args.query else [overview(db, path)]
    for table in tables:
        print_table(*table)


def query(args: argparse.Namespace) -> None:
    path = existing(args.path)
    with snapshot(path, HISTORY) as db:
        try:
            cursor = db.execute(args.sql)
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(column for column, *_ in cursor.description or ())
            writer.writerows([value.hex() if isinstance(value, bytes) else value for value in row] for row in cursor)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise HistoryError(f"query on {path}: {error}") from error


def overview(db: sqlite3.Connection, path: str) -> tuple[str, list, list[tuple]]:
    sums = stored(db)
    lines = [("schema version", SCHEMA_VERSION), *sample_lines(sums, path), trajectory_line(sums), *step_lines(db)]
    return path, [], [*lines, *attempt_lines(db), query_line(db), replay_line(db), *meta_of(db).items()]


def sample_lines(sums: dict[str, tuple[int, int, int]], path: str) -> list[tuple]:
    names = {"drawn": "can be drawn", "kept": "kept for checkpoints", "abandoned": "abandoned"}
    lines = [("file", human(disk_size(path)))]
    for state, (number, size, _) in sums.items():
        lines.append((names[state], f"{number:,} samples, {human(size)}"))
    return lines


def trajectory_line(sums: dict[str, tuple[int, int, int]]) -> tuple:
    number, size, tokens = sums["drawn"]
    return "per trajectory", f"{size / number:,.0f} bytes, {size / tokens:.2f} per token" if tokens else "-"


def step_lines(db: sqlite3.Connection) -> list[tuple]:
    number, first, last = db.execute(
        "SELECT count(DISTINCT step), min(step), max(step) FROM statistics WHERE step > 0"
    ).fetchone()
    pins = ", ".join(str(step) for (step,) in db.execute("SELECT step FROM pins ORDER BY step"))
    return [("steps", f"{number:,}, {first} to {last}" if number else 0), ("pinned steps", pins or "-")]


def attempt_lines(db: sqlite3.Connection) -> list[tuple]:
    lines = []
    for variant in (PLAIN, REFLECTION):
        sums = "SELECT sum(attempts), sum(successes), sum(truncated) FROM statistics WHERE variant = ?"
        attempts, successes, truncated = (value or 0 for value in db.execute(sums, (variant,)).fetchone())
        text = f"{successes:,} correct ({share(successes, attempts)}), {truncated:,} truncated"
        lines.append((f"{variant} attempts", f"{attempts:,}: {text}"))
    return lines


def query_line(db: sqlite3.Connection) -> tuple:
    queries, never, always = db.execute(
        "SELECT count(*), coalesce(sum(solved = 0), 0), coalesce(sum(solved = tried), 0) FROM "
        "(SELECT sum(attempts) AS tried, sum(successes) AS solved FROM statistics GROUP BY query_id)"
    ).fetchone()
    return "queries", f"{queries:,}: {share(never, queries)} never solved, {share(always, queries)} always solved"


def replay_line(db: sqlite3.Connection) -> tuple:
    times, samples, age, oldest = db.execute(
        "SELECT coalesce(sum(times), 0), count(DISTINCT sample_id), "
        "1.0 * sum(times * (step - sample_step)) / sum(times), max(step - sample_step) FROM replays"
    ).fetchone()
    ages = f", mean age {age:.1f} steps, oldest {oldest}" if times else ""
    return "replays", f"{times:,} of {samples:,} samples{ages}"


def query_tables(db: sqlite3.Connection, path: str, query_id: str) -> list[tuple[str, list, list[tuple]]]:
    require_query(db, path, query_id)
    steps = ["step", "plain", "rate", "reflected", "rate", "truncated", "replayed", "plain so far"]
    columns = ["id", "step", "weights", "outcome", "prompt", "length", "entropy", "replayed", "state"]
    rows = db.execute(
        "SELECT id, step, iif(versions = 1, version, version || '-' || (version + versions - 1)), "
        "iif(correct, 'correct', 'wrong'), variant, iif(truncated, length || ' cut', length), entropy, "
        "(SELECT coalesce(sum(times), 0) FROM replays WHERE sample_id = samples.id), "
        "CASE WHEN evicted IS NULL THEN 'drawable' WHEN abandoned THEN 'abandoned' ELSE 'kept' END "
        "FROM samples WHERE query_id = ? ORDER BY id",
        (query_id,),
    ).fetchall()
    title = f"query {printable(query_id)}, by training step (0: imported)"
    return [(title, steps, timeline(db, query_id)), ("\nits stored samples", columns, rows)]


def require_query(db: sqlite3.Connection, path: str, query_id: str) -> None:
    ids = {name for (name,) in db.execute("SELECT query_id FROM statistics UNION SELECT query_id FROM samples")}
    if query_id not in ids:
        begin = sorted(name for name in ids if name.startswith(query_id))
        near = begin or difflib.get_close_matches(query_id, ids)
        hint = f"close to it: {', '.join(near[:5])}" if near else f"none of its {len(ids):,} is close"
        raise HistoryError(f"history {path}: has no query {query_id!r}; {hint}")


def timeline(db: sqlite3.Connection, query_id: str) -> list[tuple]:
    """Per step: plain attempts, reflected attempts, truncated, replays with their ages, plain pass rate so far."""
    sums = "SELECT step, variant, attempts, successes, truncated FROM statistics WHERE query_id = ?"
    counts = {(step, variant): values for step, variant, *values in db.execute(sums, (query_id,))}
    replays: dict[int, list[int]] = {}
    ages = "SELECT step, step - sample_step, times FROM replays WHERE query_id = ? ORDER BY step, sample_step DESC"
    for step, age, times in db.execute(ages, (query_id,)):
        replays.setdefault(step, []).extend([age] * times)
    rows, tried, solved = [], 0, 0
    for step in sorted({step for step, _ in counts} | set(replays)):
        plain, reflected = (counts.get((step, variant), (0, 0, 0)) for variant in (PLAIN, REFLECTION))
        tried, solved = tried + plain[0], solved + plain[1]
        aged = replays.get(step)
        replayed = f"{len(aged)}, age {' '.join(map(str, aged))}" if aged else None
        so_far = f"{solved / tried:.2f}" if tried else None
        rows.append((step, *passed(plain), *passed(reflected), plain[2] + reflected[2], replayed, so_far))
    return rows


def passed(counts: tuple[int, int, int]) -> tuple[str | None, str | None]:
    attempts, successes, _ = counts
    return (f"{successes}/{attempts}", f"{successes / attempts:.2f}") if attempts else (None, None)
