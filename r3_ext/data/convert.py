"""Raw problems and answers to rows in verl's format: the training set and the benchmarks, from files or the hub."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from r3_ext.data import problems as data
from r3_ext.data import read, write

UNMATCHABLE = "first_unmatchable"
DEEPSCALER = "deepscaler"
DEEPSCALER_ID = "agentica-org/DeepScaleR-Preview-Dataset"
BENCHMARK_IDS = {
    "aime24": "HuggingFaceH4/aime_2024:train",
    "math500": "HuggingFaceH4/MATH-500:test",
    "amc23": "AI-MO/aimo-validation-amc:train",
    "minerva": "math-ai/minervamath:test",
    "olympiadbench": "math-ai/olympiadbench:test",
}


@dataclass(frozen=True)
class Split:
    train: list[data.Problem]
    val: list[data.Problem]


def split_problems(problems: list[data.Problem], val_rows: int, max_rows: int | None, seed: int) -> Split:
    """Shuffle, hold out the first `val_rows`, train on the next `max_rows`: the held-out rows do not depend on it."""
    if not 0 <= val_rows < max(len(problems), 1):
        raise ValueError(f"--val-rows must be in [0, {len(problems)}), the rows left after cleaning, got {val_rows}")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"--max-rows must be at least 1, got {max_rows}; leave it out for all rows")
    # Ordered by id first, so that the order of the source file does not decide which rows are held out.
    shuffled = sorted(problems, key=lambda problem: problem.query_id)
    random.Random(seed).shuffle(shuffled)
    end = None if max_rows is None else val_rows + max_rows
    return Split(train=shuffled[val_rows:end], val=shuffled[:val_rows])


def training_set(
    output: Path,
    source: str = DEEPSCALER_ID,
    *,
    split: str = "train",
    revision: str | None = None,
    exclude: Iterable[str] = (),
    val_rows: int = 0,
    val_output: Path | None = None,
    max_rows: int | None = None,
    max_problem_chars: int | None = None,
    seed: int = 0,
) -> Counter:
    """Write the training set, and the held-out rows if any; returns what was read, dropped and written.

    exclude: files of benchmarks, whose problems are dropped.

    Raises:
        ValueError, OSError: a source that cannot be read or has nothing to train on.
    """
    rows, origin = read.read_rows(source, split, revision)
    exclude, counts = [str(file) for file in exclude], Counter()
    keys = data.overlap_keys(exclude)
    raw = data.to_problems(rows, source, DEEPSCALER)
    problems = data.clean(raw, counts, max_problem_chars, keys)
    require_some(problems, source, counts, raw)
    parts = split_problems(problems, val_rows, max_rows, seed)
    counts.update(train=len(parts.train), val=len(parts.val))
    counts["over_max_rows"] = len(problems) - counts["train"] - counts["val"]

    options = {"seed": seed, "max_rows": max_rows, "val_rows": val_rows, "max_problem_chars": max_problem_chars}
    options["exclude"] = exclude
    report = {"data_source": DEEPSCALER, "origin": origin, "options": options, "counts": dict(counts)}
    report[UNMATCHABLE] = data.first_unmatchable(raw)
    write.write_rows(output, [write.to_row(problem, DEEPSCALER, "train") for problem in parts.train], report)
    if parts.val:
        held_out = [write.to_row(problem, DEEPSCALER, "val") for problem in parts.val]
        write.write_rows(val_output or output.with_name("val.parquet"), held_out, report)
    return counts


def benchmark(name: str, source: str, output: Path, max_problem_chars: int | None = None) -> Counter:
    """Write the problems of `source` in their order; `source` is local, or a hub id with its split after a colon."""
    rows, origin = _read_with_split(source)
    counts = Counter()
    raw = data.to_problems(rows, source, name)
    problems = data.clean(raw, counts, max_problem_chars)
    require_some(problems, source, counts, raw)
    counts["test"] = len(problems)
    report = {"data_source": name, "origin": origin, "counts": dict(counts)}
    report[UNMATCHABLE] = data.first_unmatchable(raw)
    write.write_rows(output, [write.to_row(problem, name, "test") for problem in problems], report)
    return counts


def require_some(problems: list[data.Problem], source: str, counts: Counter, raw: list[data.Problem]) -> None:
    """Raises ValueError, with what was left out and why, where no problem is left."""
    if not problems:
        raise ValueError(f"{source}: no rows left of {_said(counts, data.first_unmatchable(raw))}")


def told(file: Path) -> str:
    """One line for people on a file that was written here: how many were read, and what was left out."""
    report = json.loads(file.with_name(file.name + ".json").read_text())
    return _said(report["counts"], report.get(UNMATCHABLE, ""))


def _said(counts: dict[str, int], first: str) -> str:
    return data.say_counts(counts) + (f"; nobody can give the answer of {first}" if first else "")


def _read_with_split(source: str) -> tuple[list[dict], dict]:
    if re.fullmatch(r"[\w./-]+:\w+", source) and not Path(source).expanduser().exists():
        name, split = source.rsplit(":", 1)
        return read.read_rows(name, split)
    return read.read_rows(source, "test")
