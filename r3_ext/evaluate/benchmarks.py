"""Benchmark files by name, and the hash of what is in them.

The hash is a sha256 over problems and reference answers in their order, so a parquet file written anew, and a file that
`examples/data_preprocess/benchmarks.py` converted, keep it. White space in a problem and the way an answer is written
(`025` and `25`, see `r3_ext.data.problems.normal_form`) do not count; another word, answer, row or order does.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from r3_ext.data import problems as data
from r3_ext.data import read
from r3_ext.evaluate import EvaluationError, checked
from r3_ext.host.files import sha256


@dataclass(frozen=True)
class Known:
    """A benchmark that results of different models may be compared on."""

    problems: int
    hash: str
    file: str
    """Its file's name without suffix."""
    first: int = 0
    """Its first row in the file; it goes to the end."""


KNOWN = {
    "aime24": Known(30, "8227863b9ae9b8353c8f84d4641e23c451c21f1c2293fb73ccc61d6943ad7123", "aime24"),
    "math500": Known(500, "7ab8b060f15c84f3fadc9146656a307ddef8de16b5b4e79b650ef21f4e95d696", "math500"),
    "amc23": Known(83, "d6eee94ffa03f793753f362ecd7ac1b68323942b2126fbc345e5293b68ddaa4e", "amc23"),
    "amc23_40": Known(40, "5c3809ad2e5d3ff65749dba8808a949e17b183a6092c4285fb1978f31ff5d940", "amc23", first=43),
    "minerva": Known(272, "1985966f5dfc6984d4bbbdef3d218ef2f0fddb0b130878049d36d84dab1c1a25", "minerva"),
    "olympiadbench": Known(675, "3c1bcc022e70671b2c004692382c327952a5cb6b953414c248c693da151543a5", "olympiadbench"),
}
"""`amc23` is the file of 83 problems from AMC 12 of 2022 and 2023, `amc23_40` its 40 problems of 2023."""


@dataclass(frozen=True)
class Benchmark:
    name: str
    file: str
    hash: str
    """Of all problems, whatever limit an evaluation has."""
    problems: list[data.Problem]
    dropped: str = ""
    """What the cleaning of an own file left out, as a clause for people."""


def content_hash(problems: list[data.Problem]) -> str:
    """sha256, 64 hex digits, over one JSON line per problem; how it is asked and judged counts where that is the file's
    own."""
    rows = (
        [" ".join(p.text.split()), data.normal_form(p.answer)]
        + ([] if p.prompt is None else [data.said(p.prompt)])
        + ([] if p.judged is None else [p.judged])
        for p in problems
    )
    return sha256(*(json.dumps(row) + "\n" for row in rows))


def read_problems(file: Path, name: str) -> tuple[list[data.Problem], Counter]:
    """Problems of a file, raw or in verl's format, cleaned by the rules of problems.py, and what these dropped."""
    counts = Counter()
    try:
        rows = read.read_rows(str(file))[0]
        checked.refuse_sessions(rows, file)
        checked.require_one_answer(rows, file)
        problems = data.clean(data.to_problems(rows, str(file), name), counts)
    except (ValueError, OSError) as error:
        raise EvaluationError(f"benchmark {name}: {error}") from error
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EvaluationError(f"benchmark {name}: {file} is not in this project's format ({error!r})") from error
    if not problems:
        raise EvaluationError(f"benchmark {name}: {file} has no usable problem, {dict(counts)}")
    return problems, counts


def load(spec: str, folder: Path) -> Benchmark:
    """The benchmark NAME, whose content must be the known one, or an own file given as NAME=FILE."""
    name, _, own = spec.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise EvaluationError(
            f"--benchmarks: a name must be made of letters, digits, '_', '.' and '-', got {name!r}; known: "
            + ", ".join(KNOWN)
        )
    return _own(name, Path(own).expanduser()) if "=" in spec else _known(name, folder)


def _own(name: str, file: Path) -> Benchmark:
    if name in KNOWN:
        raise EvaluationError(f"--benchmarks: {name} is the name of a known benchmark; give {file} another name")
    if not file.is_file():
        raise EvaluationError(f"--benchmarks {name}={file}: no such file; name a parquet, jsonl or json file")
    problems, counts = read_problems(file, name)
    lost = ", ".join(f"{count} {rule}" for rule, count in counts.items() if count and rule != "read")
    dropped = f" ({counts['read']:,} rows read, left out: {lost.replace('_', ' ')})" if lost else ""
    return Benchmark(name, str(file), content_hash(problems), problems, dropped)


def _known(name: str, folder: Path) -> Benchmark:
    if name not in KNOWN:
        raise EvaluationError(
            f"--benchmarks: {name} is unknown, expected one of {', '.join(KNOWN)}, or NAME=FILE for a file of your own"
        )
    known = KNOWN[name]
    found = [file for suffix in read.SUFFIXES if (file := folder / f"{known.file}{suffix}").is_file()]
    if not found:
        raise EvaluationError(
            f"benchmark {name}: no {known.file}.parquet, .jsonl or .json in {folder}; name the folder with --data, or "
            f"make it: python examples/data_preprocess/benchmarks.py --output-dir {folder}"
        )
    problems = read_problems(found[0], name)[0][known.first :]
    actual = content_hash(problems)
    if actual != known.hash:
        raise EvaluationError(
            f"benchmark {name}: {found[0]} does not hold the {known.problems} problems of that name but "
            f"{len(problems)} others: sha256 of its problems and answers must be {known.hash}, is {actual}. "
            f"To use it all the same, under a name of its own: --benchmarks my_{name}={found[0]}"
        )
    return Benchmark(name, str(found[0]), actual, problems)


def name_of(problems: list[data.Problem], otherwise: str) -> tuple[str, str]:
    """Name and hash of a set of problems: the known benchmark with that content, or `otherwise`."""
    actual = content_hash(problems)
    return next((name for name, known in KNOWN.items() if known.hash == actual), otherwise), actual
