"""`r3 history`: look into the sample buffer of a run, and take samples out and in.

    r3 history show outputs/r3/run1                   works while a run writes
    r3 history show outputs/r3/run1 --query 3f2a9bcd0e41a7c2
    r3 history query outputs/r3/run1 never-solved     or pass-rate, replays, SQL
    r3 history export outputs/r3/run1 right.parquet --outcome correct
    r3 history import new.sqlite outputs/r3/run1      to seed a new run
    r3 history prune outputs/r3/run1 --abandoned

PATH is a history file, or the run folder that holds history.sqlite. Exit code 2
on an error.
"""

import argparse
import csv
import difflib
import hashlib
import json
import math
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from r3_ext.units import human
from recipe.r3.history import PLAIN, REFLECTION, History, Sample, decode, tokenizer_fingerprint
from recipe.r3.history_file import SCHEMA_VERSION, HistoryError, check_content, explained, open_for_reading

FORMAT = "1"
"""Of the parquet files that `export` writes."""
ROW_GROUP_TOKENS = 1 << 20
"""At which a row group ends; only one is in memory."""
UNBOUNDED = 1 << 62
IMPORTED = re.compile(r"imported ([0-9a-f]{16}) of steps to (\d{1,18})")
"""The key in `meta` of statistics that were imported: their fingerprint, and the source's last step at the time."""

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

SAMPLES = (
    "SELECT id, abandoned, query_id, variant, correct, truncated, score, length, entropy, step, checksum, tokens, "
    "log_probs FROM samples LEFT JOIN payloads USING (id)"
)


# paths, numbers, tables


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


def disk_size(path: str) -> int:
    return sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))


def printable(value: object) -> str:
    """A value for the terminal, without control characters: the file may come from somebody else."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "".join(char if char.isprintable() else " " for char in text)


def print_table(title: str, columns: list[str], rows: list[tuple]) -> None:
    """Rows as a table; without `columns`, as names and values."""
    cells = [[printable(value) for value in row] for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=bool(columns))
    for index, name in enumerate(columns or ["", ""]):
        numeric = columns and all(set(row[index]) <= set("-+.,/%0123456789") for row in cells)
        table.add_column(printable(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def track_samples(samples: Iterable, what: str, total: int) -> Iterable:
    """The same items, with a progress bar and the time left on a terminal."""
    console = Console(stderr=True)
    return track(samples, what, total, console=console, transient=True, disable=not console.is_terminal)


# show


def stored(db: sqlite3.Connection) -> dict[str, tuple[int, int, int]]:
    """(samples, bytes, tokens) that can be drawn, that checkpoints need, and that are abandoned."""
    states = {"drawn": "evicted IS NULL", "kept": "evicted IS NOT NULL AND NOT abandoned"}
    states["abandoned"] = "evicted IS NOT NULL AND abandoned"
    sums = "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(length), 0) FROM samples WHERE"
    return {name: db.execute(f"{sums} {where}").fetchone() for name, where in states.items()}


def show(args: argparse.Namespace) -> None:
    path = existing(args.path)
    with snapshot(path) as db:
        tables = query_tables(db, path, args.query) if args.query else [overview(db, path)]
    for table in tables:
        print_table(*table)


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
    number, first, last = db.execute("SELECT count(*), min(step), max(step) FROM steps WHERE step > 0").fetchone()
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


def meta_of(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT key, value FROM meta ORDER BY key"))


def query_tables(db: sqlite3.Connection, path: str, query_id: str) -> list[tuple[str, list, list[tuple]]]:
    require_query(db, path, query_id)
    steps = ["step", "plain", "rate", "reflected", "rate", "truncated", "replayed", "plain so far"]
    columns = ["id", "step", "outcome", "prompt", "truncated", "length", "entropy", "replayed", "state"]
    rows = db.execute(
        "SELECT id, step, iif(correct, 'correct', 'wrong'), variant, iif(truncated, 'yes', 'no'), length, entropy, "
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


# query


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
    with selected(existing(args.path), sql) as (columns, cursor):
        if args.csv:
            print_csv(columns, islice(cursor, limit))
        else:
            print_table("", columns, list(islice(cursor, limit)))
        if next(cursor, None) is not None:
            print(f"the first {limit} rows; --limit N shows more", file=sys.stderr)


@contextmanager
def selected(path: str, sql: str):
    """(columns, cursor) of one SELECT, which can only read, and only this file."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    with closing(open_for_reading(path)) as db:
        db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY)
        db.set_progress_handler(lambda: 0, 1 << 20)  # lets Ctrl-C in
        try:
            cursor = db.execute(sql)
            yield [column[0] for column in cursor.description or ()], cursor
        except (sqlite3.Error, sqlite3.Warning) as error:
            reason = "only a SELECT can be run" if "authoriz" in str(error) else str(error)
            raise HistoryError(f"query on {path}: {reason}") from error


def print_csv(columns: list[str], rows: Iterable[tuple]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)


# export


def export(args: argparse.Namespace) -> None:
    path, out = existing(args.path), Path(args.out)
    if out.suffix != ".parquet":
        raise HistoryError(f"{out}: the name of the output must end in .parquet")
    where, values = filters(args)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with snapshot(path) as db:
            tokenizer = load_tokenizer(args.tokenizer, meta_of(db)) if args.tokenizer else None
            total = db.execute(f"SELECT count(*) FROM samples WHERE {where}", values).fetchone()[0]
            rows = track_samples(read_samples(db, path, where, values), "exporting", total)
            write_parquet(temporary, rows, meta_of(db), tokenizer)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
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


def read_samples(
    db: sqlite3.Connection, path: str, where: str, values: Iterable
) -> Iterator[tuple[Sample, float | None, bool]]:
    """(sample, entropy, abandoned) in the order in which they were stored; raises HistoryError on a damaged one."""
    with explained(path):
        for sample_id, abandoned, *row in db.execute(f"{SAMPLES} WHERE {where} ORDER BY id", values):
            yield decode(tuple(row), sample_id, path), row[6], bool(abandoned)


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


def require_same_tokenizer(meta: dict[str, str], other: dict[str, str], source: object) -> None:
    ours, theirs = meta.get("tokenizer"), other.get("tokenizer")
    if ours and theirs and ours != theirs:
        raise HistoryError(f"{source}: is of another tokenizer ({theirs}) than the history's tokens ({ours})")


def parquet_schema(meta: dict[str, str], text: bool):
    import pyarrow as pa

    fields = {"query_id": pa.string(), "variant": pa.string(), "correct": pa.bool_(), "truncated": pa.bool_()}
    fields |= {"score": pa.float64(), "length": pa.int32(), "entropy": pa.float64(), "step": pa.int64()}
    # The stored float16 values, as a type that every reader knows.
    fields |= {"tokens": pa.list_(pa.int32()), "log_probs": pa.list_(pa.float32()), "abandoned": pa.bool_()}
    if text:
        fields["text"] = pa.string()
    return pa.schema(fields, metadata={"r3.format": FORMAT, "r3.meta": json.dumps(meta)})


def write_parquet(file: Path, rows: Iterable[tuple], meta: dict[str, str], tokenizer) -> None:
    """Write (sample, entropy, abandoned) rows, holding one row group in memory."""
    import pyarrow.parquet as pq

    schema = parquet_schema(meta, tokenizer is not None)
    group, tokens = [], 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for row in rows:
            group.append(row)
            tokens += len(row[0].tokens)
            if tokens >= ROW_GROUP_TOKENS:
                writer.write_batch(row_group(group, schema, tokenizer))
                group, tokens = [], 0
        if group:
            writer.write_batch(row_group(group, schema, tokenizer))


def row_group(rows: list[tuple], schema, tokenizer):
    import pyarrow as pa

    values = [columns_of(*row, tokenizer) for row in rows]
    return pa.record_batch([pa.array([row[f.name] for row in values], f.type) for f in schema], schema=schema)


def columns_of(sample: Sample, entropy: float | None, abandoned: bool, tokenizer) -> dict:
    columns = {**vars(sample), "length": len(sample.tokens), "entropy": entropy, "abandoned": abandoned}
    if tokenizer is not None:
        columns["text"] = tokenizer.decode(sample.tokens, skip_special_tokens=True)
    return columns


# import


def import_samples(args: argparse.Namespace) -> None:
    path, source = target(args.path), args.source if is_parquet(args.source) else existing(args.source)
    if os.path.exists(path) and os.path.samefile(path, source):
        raise HistoryError(f"{source} is the history to import into")
    with opened(source) as (meta, total, samples, statistics):
        with new_or_old(path, *bounds(args), args.seed) as history:
            require_same_tokenizer(history.meta(), meta, source)
            if statistics is not None:
                require_new_statistics(history.meta(), meta, source)
            before = history.size()
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
    return per_outcome, int(gib * 2**30)


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
    """(meta, number of samples, samples, statistics) of a history, or of a parquet, whose statistics are None."""
    if is_parquet(path):
        yield open_parquet(path)
        return
    where = "evicted IS NULL AND length > 0"
    with snapshot(path) as db:
        check_content(db, path)
        total = db.execute(f"SELECT count(*) FROM samples WHERE {where}").fetchone()[0]
        rows = read_samples(db, path, where, ())
        samples = (checked(sample, path, f"sample {sample.id}") for sample, *_ in rows)
        yield {**meta_of(db), **provenance(db, path)}, total, samples, read_statistics(db, path)


def provenance(db: sqlite3.Connection, path: str) -> dict[str, str]:
    """What `meta` keeps of an import of this history's statistics; nothing when it has none."""
    [(last,)] = db.execute("SELECT max(step) FROM statistics")
    return {} if last is None else {f"imported {fingerprint(db, last)} of steps to {last}": path}


def is_parquet(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


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


def checked(sample: Sample, path: str, place: str) -> Sample:
    """The sample; raises HistoryError when it cannot be one: the file may come from somebody else."""
    tokens, log_probs = sample.tokens, sample.log_probs
    rules = {
        "query_id": (sample.query_id != "", "must not be empty"),
        "variant": (sample.variant in (PLAIN, REFLECTION), f"must be {PLAIN} or {REFLECTION}, got {sample.variant!r}"),
        "score": (math.isfinite(sample.score), f"must be finite, got {sample.score}"),
        "tokens": (len(tokens) > 0 and tokens.min() >= 0 and tokens.max() < 2**31, "must be ids from 0 to 2^31 - 1"),
    }
    if log_probs is not None:
        fits = len(log_probs) == len(tokens)
        rules["log_probs"] = (fits, f"holds {len(log_probs)} values for {len(tokens)} tokens")
        if fits:
            rules["log_probs"] = (bool((log_probs < 1).all()), "must be log-probabilities")
    for column, (holds, rule) in rules.items():
        if not holds:
            raise HistoryError(f"{path}: column {column}, {place}: {rule}")
    return sample


def open_parquet(path: str) -> tuple[dict, int, Iterator[Sample], None]:
    import pyarrow.parquet as pq

    with readable(path):
        file = pq.ParquetFile(path)
        require_columns(file.schema_arrow, path)
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(b"r3.format", FORMAT.encode()) != FORMAT.encode():
            raise HistoryError(f"{path}: is of format {metadata[b'r3.format']!r}, this recipe reads {FORMAT}")
        meta = json.loads(metadata.get(b"r3.meta", b"{}"))
        if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
            raise HistoryError(f"{path}: the metadata r3.meta must be an object of texts")
    meta = {key: value for key, value in meta.items() if not IMPORTED.fullmatch(key)}  # those of its statistics
    return meta, file.metadata.num_rows, read_parquet(file, path), None


@contextmanager
def readable(path: str):
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HistoryError(f"{path}: not a readable parquet: {error}") from error


def column_kinds() -> dict[str, tuple]:
    """The columns that are imported: how to tell their type, and its name. Those of `export` but not here are not."""
    from pyarrow import types

    def text(kind):
        return types.is_string(kind) or types.is_large_string(kind)

    def lists(inner):
        return lambda kind: (types.is_list(kind) or types.is_large_list(kind)) and inner(kind.value_type)

    return {
        "query_id": (text, "text"),
        "variant": (text, "text"),
        "correct": (types.is_boolean, "boolean"),
        "truncated": (types.is_boolean, "boolean"),
        "score": (types.is_floating, "floating point"),
        "length": (types.is_integer, "whole numbers"),
        "tokens": (lists(types.is_integer), "lists of whole numbers"),
        "log_probs": (lists(types.is_floating), "lists of floating point numbers"),
    }


def require_columns(schema, path: str) -> None:
    for name, (is_kind, kind) in column_kinds().items():
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            raise HistoryError(f"{path}: column {name} is there {len(places)} times, not once; has {schema.names}")
        if not is_kind(found := schema.field(places[0]).type):
            raise HistoryError(f"{path}: column {name} must hold {kind}, not {found}")


def read_parquet(file, path: str) -> Iterator[Sample]:
    row = 0
    with readable(path):
        for batch in file.iter_batches(batch_size=256, columns=list(column_kinds())):
            for index in range(batch.num_rows):
                yield checked(sample_at(batch, index, path, row), path, f"row {row}")
                row += 1


def sample_at(batch, index: int, path: str, row: int) -> Sample:
    """Row `index` of a batch, which is row `row` of the file, the first being 0."""
    values = {}
    for name in batch.schema.names:
        try:
            values[name] = value_of(batch.column(name)[index], optional=name == "log_probs")
        except ValueError as error:
            raise HistoryError(f"{path}: column {name}, row {row}: {error}") from error
    if (length := values.pop("length")) != len(values["tokens"]):
        raise HistoryError(f"{path}: column length, row {row}: is {length} for {len(values['tokens'])} tokens")
    return Sample(**values, step=0)


def value_of(scalar, optional: bool):
    """A pyarrow scalar as a Python value, a list as an array; raises ValueError on null."""
    if not scalar.is_valid:
        if optional:
            return None
        raise ValueError("is null")
    if not hasattr(scalar, "values"):
        return scalar.as_py()
    if scalar.values.null_count:
        raise ValueError("holds a null")
    return scalar.values.to_numpy(zero_copy_only=False)


# prune


def prune(args: argparse.Namespace) -> None:
    path = existing(args.path)
    before, size = state(path), disk_size(path)
    with closing(History(path, UNBOUNDED, UNBOUNDED)) as history:
        if args.abandoned:
            history.drop_abandoned()
        damaged = f"{history.drop_damaged():,} damaged samples deleted, " if args.damaged else ""
        if args.keep_checkpoints is not None:
            kept = pins_to_keep(history.pinned(), args.keep_checkpoints)
            history.unpin(lambda step: step not in kept)
        history.compact()
    rows = [(name, old, new) for (name, old), (_, new) in zip(before, state(path), strict=True)]
    print_table(path, ["", "before", "after"], rows)
    print(f"{damaged}{human(max(0, size - disk_size(path)))} freed")


def state(path: str) -> list[tuple]:
    with snapshot(path) as db:
        return [*sample_lines(stored(db), path), *step_lines(db)]


def pins_to_keep(pinned: list[int], checkpoints: int) -> set[int]:
    """The newest checkpoints and step 0, the state before the first step; of no checkpoints, not even that."""
    return {0, *[step for step in pinned if step][-checkpoints:]} if checkpoints else set()


# command line


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise HistoryError(f"{message}; `{self.prog} --help` tells more")


def count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def positive(text: str) -> int:
    if count(text) == 0:
        raise ValueError
    return int(text)


def gib(text: str) -> float:
    if not 0 < float(text) < 1 << 30:
        raise ValueError
    return float(text)


def parse(argv: list[str]) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(prog="r3 history", description=__doc__, **style)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, act: Callable, text: str) -> Parser:
        examples = "\n".join(line.strip() for line in __doc__.splitlines() if f"r3 history {name}" in line)
        added = commands.add_parser(
            name, help=text.splitlines()[0], description=text, epilog=f"examples:\n{examples}", **style
        )
        added.set_defaults(act=act)
        added.add_argument("path", metavar="PATH", help="history file, or run folder that holds history.sqlite")
        return added

    add_reading(command)
    add_writing(command)
    return parser.parse_args(argv)


def add_reading(command: Callable) -> None:
    added = command("show", show, "overview, or the timeline of one problem; works while a run is writing")
    added.add_argument("--query", metavar="ID", help="query id of the problem")
    names = "\n".join(f"  {name:<14}{sql.splitlines()[0][3:]}" for name, sql in QUERIES.items())
    added = command("query", query, f"a ready query, or SQL of your own, read-only\n\n{names}")
    added.add_argument("query", metavar="NAME_OR_SQL", help="name of a ready query, or one SELECT")
    added.add_argument("--limit", type=positive, metavar="N", help="at most N rows (default: 50; with --csv all)")
    added.add_argument("--csv", action="store_true", help="print CSV")
    added.add_argument("--sql", action="store_true", help="print the SQL and do not run it")
    added = command("export", export, "samples to parquet; the checksum of each is compared")
    added.add_argument("out", metavar="OUT.parquet", help="replaced when it exists")
    added.add_argument("--outcome", choices=("correct", "wrong", "any"), default="any")
    added.add_argument("--variant", choices=(PLAIN, REFLECTION, "any"), default="any", help="prompt of the response")
    added.add_argument("--abandoned", action="store_true", help="also what a resumed run left behind")
    added.add_argument("--tokenizer", metavar="DIR", help="adds the column text; folder of the run's model")


def add_writing(command: Callable) -> None:
    text = "seed a history that has no steps of its own; what is imported counts as step 0"
    added = command("import", import_samples, text)
    added.add_argument("source", metavar="SOURCE", help="history, run folder, or parquet (all its rows, no statistics)")
    added.add_argument("--max-per-outcome", type=positive, metavar="N", help="as algorithm.r3.history.max_per_outcome")
    added.add_argument("--max-gib", type=gib, metavar="GIB", help="as algorithm.r3.history.max_gib")
    added.add_argument("--seed", type=count, default=0, metavar="N", help="as algorithm.r3.seed of the run to come")
    added = command("prune", prune, "delete what no draw needs and give the space back; not while a run is writing")
    added.add_argument("--abandoned", action="store_true", help="delete what a resumed run left behind")
    added.add_argument("--damaged", action="store_true", help="delete samples whose checksum does not fit")
    text = "newest checkpoints that the history can still go back to, and the start; 0: none, and not the start"
    added.add_argument("--keep-checkpoints", type=count, metavar="N", help=text)


def main(argv: list[str]) -> int:
    try:
        args = parse(argv)
        args.act(args)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (HistoryError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
