"""Math problems in the format verl trains on: reading, cleaning and writing.

One problem becomes one row with `query_id`, `data_source`, `prompt`, `ability`, `reward_model`, `extra_info`.
What is dropped on the way is counted, and the counts add up to the number of rows read:

1. empty problem or empty answer;
2. the same problem twice (`query_id` equal) with the same answer text: the first row stays;
3. the same problem with answers that differ in text: if all are equal in `normal_form`, the first row stays,
   otherwise the reference cannot be trusted and every row of the problem goes;
4. longer than the wanted number of characters;
5. also in a benchmark (compared by `overlap_key`).
"""

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.host import hub

INSTRUCTION = " Please reason step by step, and put your final answer within \\boxed{}."
"""What the model card of DeepSeek-R1-Distill asks users to append to a math problem."""

PROBLEM_COLUMNS = ("problem", "question")
ANSWER_COLUMNS = ("answer", "final_answer")
SUFFIXES = (".parquet", ".jsonl", ".json")

MAX_DEPTH = 50
"""Lists and groups in each other that a value of JSON may hold: many that read it count on Python's recursion."""
HALF_A_CHARACTER = "holds half a character (a lone surrogate); write the text as UTF-8"

RULES = (
    *("empty_problem", "empty_answer", "duplicate", "same_answer_other_form", "conflicting_answers"),
    *("too_long", "in_benchmark"),
)
"""Names of the counts of what is dropped."""

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), ("source", pa.string())])),
    ]
)


@dataclass(frozen=True)
class Problem:
    text: str
    answer: str
    source: str
    """Origin inside the data set (`aime`, `math`, ...), or the name of the data set where none is told."""
    index: int
    """Row number in the file it was read from."""

    @property
    def query_id(self) -> str:
        return query_id(self.text)


def query_id(problem: str) -> str:
    """First 16 hex digits of the sha256 of the text with runs of whitespace as one space."""
    return _sha256(" ".join(problem.split()).encode())[:16]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def overlap_key(problem: str) -> str:
    """Lower-cased letters and digits only, so that punctuation and LaTeX spacing do not hide a copy."""
    return "".join(char for char in problem.lower() if char.isalnum())


def normal_form(answer: str) -> str:
    r"""Cheap form for "the same answer written differently": `$\dfrac12$`, `1/2` and `0.50` agree.

    Meant for comparing two reference answers, not for grading: unequal forms may still be equal numbers.
    """
    text = re.sub(r"\\(left|right|displaystyle|[,!;: ])|\\?\$|(?<![0-9])\s+|\s+(?![0-9])", "", answer).rstrip(".")
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}", r"\1", text).replace("{\\circ}", "\\circ")
    text = re.sub(r"\\[dt]?frac(?:\{([^{}]*)\}|([0-9]))(?:\{([^{}]*)\}|([0-9]))", r"\\frac{\1\2}{\3\4}", text)
    text = re.sub(r"^(-?)\\frac\{(-?[0-9]+)\}\{([0-9]+)\}$", r"\1\2/\3", text)
    if re.fullmatch(r"-?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?", text):
        text = text.replace(",", "")
    if re.fullmatch(r"-?([0-9]{1,99}(/0*[1-9][0-9]{0,99}|\.[0-9]{0,99})?|\.[0-9]{1,99})", text):
        text = str(Fraction(text))
    return text


def read_rows(source: str, split: str = "train", revision: str | None = None) -> tuple[list[dict], dict]:
    """Rows of a local file, of the data files of a local folder, or of a data set on the Hugging Face hub.

    The second value says where they came from: file names with sha256, or hub id with a sha256 over the rows.
    """
    files = local_files(source)
    if files is None:
        return _read_hub(source, split, revision)
    rows = [row for file in files for row in read_file(file)]
    return rows, {"source": source, "files": {file.name: _sha256(file.read_bytes()) for file in files}}


def local_files(source: str) -> list[Path] | None:
    """The data files of a folder, or the file itself; None for a name that can only be one on the hub.

    Raises ValueError for a path that does not exist, a folder without data and a file of another type.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and not p.name.endswith(".parquet.json"))
        if not files:
            raise ValueError(f"{path}: no data file found; expected files ending in {', '.join(SUFFIXES)}")
        return files
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path}: file type must be one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
        return [path]
    if path.suffix in SUFFIXES or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source):
        raise ValueError(f"{source}: no such file or folder; pass an existing one or a Hugging Face data set id")
    return None


def _read_hub(name: str, split: str, revision: str | None) -> tuple[list[dict], dict]:
    rows = load_from_hub(name, split, revision).to_list()
    digest = _sha256(json.dumps(rows, sort_keys=True, default=str).encode())
    return rows, {"source": name, "split": split, "revision": revision, "rows_sha256": digest}


def load_from_hub(name: str, split: str = "train", revision: str | None = None):
    """The `datasets.Dataset`. Raises ValueError where it cannot be had, soon when the hub is out of reach."""
    hub.go_offline_if_unreachable()
    from datasets import load_dataset  # slow to import, and not needed for local files
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(name, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:  # of the hub's client, of the network, of the data
        raise ValueError(f"{name}: {hub.why_not(error)}; pass a local file instead") from error


def read_file(path: Path) -> list[dict]:
    """The rows of one file. Raises ValueError or OSError with the file's name when it cannot be read."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if path.suffix == ".parquet":
        return to_rows(read_parquet(path), path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = _loads(text) if text.lstrip().startswith("[") else _read_lines(path, text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON in UTF-8 ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: every row must be a JSON object with a problem and an answer")
    for number, row in enumerate(rows):
        for column, value in row.items():
            if not is_utf8(column):
                raise ValueError(f"{path}, row {number}: the column {column!r} {HALF_A_CHARACTER}")
            if _is_deeper(value, MAX_DEPTH):
                raise ValueError(f"{path}, row {number}: {column} is nested over {MAX_DEPTH} deep; leave it out")
    return rows


def is_utf8(text: str) -> bool:
    """Whether it can be written: JSON may hold half a character, "\\ud800"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_deeper(value, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        groups = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for group in groups for item in group]
    return bool(level)


def to_rows(table: pa.Table | pa.RecordBatch, path: Path, first: int = 0) -> list[dict]:
    """The rows as Python values. Raises ValueError with file, row and column for one that there is none for, such as a
    date after the year 9999.

    first: number of the first row in the file.
    """
    impossible = (ValueError, OverflowError)  # text that is not UTF-8 is the former
    try:
        return table.to_pylist()
    except impossible as error:
        for name in table.schema.names:
            for number, value in enumerate(table[name]):
                try:
                    value.as_py()
                except impossible as found:
                    text = f"{path}, row {first + number}: {name} cannot be read ({first_line(found)})"
                    raise ValueError(f"{text}; correct it or leave it out") from found
        raise ValueError(f"{path}: not readable ({first_line(error)})") from error


def read_parquet(path: Path) -> pa.Table:
    try:
        # Not read_table(path): that takes `name=value` in the path for a column.
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({first_line(error)}); copy or make it again") from error


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def columns_of(path: Path) -> list[str]:
    if path.suffix != ".parquet":
        return sorted({column for row in read_file(path) for column in row})
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    try:
        return pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({first_line(error)}); copy or make it again") from error


def is_verl(columns: Iterable[str]) -> bool:
    """Whether rows with these columns are in verl's format, and are trained on as they are."""
    return {"prompt", "reward_model"} <= set(columns)


def _read_lines(path: Path, text: str) -> list:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            rows += [_loads(line)] if line.strip() else []
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}); one object per line") from error
    return rows


def _loads(text: str):
    """JSON. Raises json.JSONDecodeError, with the place also for a number that Python does not take, or RecursionError
    for what is nested too deep."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        place = re.search(rf"\d{{{most + 1}}}", text)
        raise json.JSONDecodeError(f"a number of over {most:,} digits", text, place.start()) from error


def to_problems(rows: list[dict], file: str, name: str, need_answer: bool = True) -> list[Problem]:
    """Problems of rows with a problem and an answer column, or of rows that are already in our own schema.

    `file` is for messages, `name` is the source of rows that tell none.
    """
    if not rows:
        raise ValueError(f"{file}: no rows; pass a file with a problem and an answer in each row")
    columns = sorted({column for row in rows for column in row})
    if is_verl(columns):
        return [_from_verl(row, index, file) for index, row in enumerate(rows)]
    problem_column = _pick_column(columns, PROBLEM_COLUMNS, "problem", file)
    answer_column = _pick_column(columns, ANSWER_COLUMNS, "answer", file) if need_answer else None
    for index, row in enumerate(rows):
        for column in (problem_column, answer_column, "source"):
            if column != "source" and isinstance(row.get(column), dict | bytes):
                raise ValueError(f"{file}, row {index}: {column} must be text, a number or a list of them")
            if not is_utf8(_text(row.get(column))):
                raise ValueError(f"{file}, row {index}: {column} {HALF_A_CHARACTER}")
    return [
        Problem(_text(row.get(problem_column)), _text(row.get(answer_column)), _text(row.get("source")) or name, index)
        for index, row in enumerate(rows)
    ]


def _from_verl(row: dict, index: int, file: str) -> Problem:
    """The last message as the problem; of several accepted answers, the first (`r3 eval` refuses several)."""
    try:
        text = row["prompt"][-1]["content"].removesuffix(INSTRUCTION)
        truth = row["reward_model"]["ground_truth"]
        source = (row.get("extra_info") or {}).get("source") or row["data_source"]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        wanted = "prompt (messages), reward_model.ground_truth and data_source"
        raise ValueError(f"{file}, row {index}: not in this project's format: {wanted} ({error!r})") from error
    return Problem(_text(text), _text(truth[0] if isinstance(truth, list) and truth else truth), source, index)


def _pick_column(columns: list[str], accepted: tuple[str, ...], what: str, file: str) -> str:
    for column in accepted:
        if column in columns:
            return column
    raise ValueError(
        f"{file}: no {what} column; found {', '.join(columns)}; rename one of them to {' or '.join(accepted)}, or give "
        "verl's columns prompt, reward_model and data_source"
    )


def _text(value) -> str:
    """Hub copies of one benchmark hold answers as text, as number (142.0) or as list: one text for all."""
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if value is None or value != value:  # NaN, which pandas writes for a missing value
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def clean(
    problems: Iterable[Problem], counts: Counter, max_chars: int | None = None, exclude: frozenset[str] = frozenset()
) -> list[Problem]:
    """The rules of the module docstring, in their order; `counts` receives what each of them dropped."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        counts["read"] += 1
        counts["empty_problem"] += not problem.text
        counts["empty_answer"] += bool(problem.text and not problem.answer)
        if problem.text and problem.answer:
            groups.setdefault(problem.query_id, []).append(problem)
    kept = [problem for group in groups.values() if (problem := _settle(group, counts))]
    return [problem for problem in kept if not _filtered(problem, counts, max_chars, exclude)]


def _settle(group: list[Problem], counts: Counter) -> Problem | None:
    """The row that stands for all rows of one problem, or None if their answers conflict."""
    answers = {problem.answer for problem in group}
    conflict = len({normal_form(answer) for answer in answers}) > 1
    counts["duplicate"] += len(group) - len(answers)
    counts["same_answer_other_form"] += 0 if conflict else len(answers) - 1
    counts["conflicting_answers"] += len(answers) if conflict else 0
    return None if conflict else group[0]


def _filtered(problem: Problem, counts: Counter, max_chars: int | None, exclude: frozenset[str]) -> bool:
    too_long = max_chars is not None and len(problem.text) > max_chars
    in_benchmark = not too_long and overlap_key(problem.text) in exclude
    counts["too_long"] += too_long
    counts["in_benchmark"] += in_benchmark
    return too_long or in_benchmark


def problem_keys(file: Path) -> list[set[str]]:
    """For each row in verl's format, the `overlap_key`s of what it asks: of the user's messages as they are, and of the
    last message without what all rows begin and end with, which is where instructions stand."""
    rows = read_file(file)
    asked = [[m["content"] for m in row["prompt"] if m["role"] == "user"] for row in rows]
    keys = [overlap_key(problem.text) for problem in to_problems(rows, str(file), file.name)]
    start = len(os.path.commonprefix(keys))
    end = len(os.path.commonprefix([key[::-1] for key in keys]))
    parts = [{key, key[start:], key[: len(key) - end], key[start : len(key) - end]} for key in keys]
    return [part | set(map(overlap_key, texts)) for part, texts in zip(parts, asked, strict=True)]


def to_table(file: Path) -> pa.Table:
    """All rows with the types that they have. Raises ValueError where JSON mixes types in one column."""
    if file.suffix == ".parquet":
        return read_parquet(file)
    rows, columns = read_file(file), columns_of(file)
    arrays = {}
    for name in columns:
        try:
            arrays[name] = pa.array([row.get(name) for row in rows])
        except UnicodeEncodeError as error:
            row = next(number for number, row in enumerate(rows) if not is_utf8(_spelled(row.get(name))))
            raise ValueError(f"{file}, row {row}: {name} {HALF_A_CHARACTER}") from error
        except (pa.ArrowException, OverflowError) as error:
            raise ValueError(f"{file}: column {name} holds values of different kinds ({first_line(error)})") from error
    return pa.table(arrays)


def _spelled(value) -> str:
    """All texts in the value, in one."""
    return json.dumps(value, ensure_ascii=False)


def tables(source: str) -> pa.Table:
    """All rows of a local file or folder as they are; columns that a file lacks are null."""
    parts = [to_table(file) for file in local_files(source)]
    try:
        return pa.concat_tables(parts, promote_options="default")
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"{source}: its files have columns of different kinds ({first_line(error)})") from error


def overlap_keys(sources: Iterable[str]) -> frozenset[str]:
    """Keys of all problems in the given local files, for `clean(exclude=...)`."""
    problems = [p for source in sources for p in to_problems(read_rows(source)[0], source, source, need_answer=False)]
    return frozenset(overlap_key(problem.text) for problem in problems) - {""}


def to_row(problem: Problem, data_source: str, split: str) -> dict:
    return {
        "query_id": problem.query_id,
        "data_source": data_source,
        "prompt": [{"role": "user", "content": problem.text + INSTRUCTION}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": problem.index, "split": split, "source": problem.source},
    }


def write_rows(path: str | Path, rows: list[dict], report: dict | None = None) -> None:
    """Parquet, and `report` as JSON beside it; a reader never sees half a file."""
    if not rows:
        raise ValueError(f"{path}: no rows left to write; counts: {(report or {}).get('counts')}")
    path = Path(path)
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))
    if report is not None:
        path.with_name(path.name + ".json").write_text(json.dumps(report, indent=2) + "\n")


def write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        pq.write_table(table, partial, compression="zstd")
    except pa.ArrowNotImplementedError as error:  # a group without a value, `{}`, in all rows
        raise ValueError(f"{path}: parquet cannot hold these rows ({first_line(error)})") from error
    os.replace(partial, path)


def say_counts(counts: dict[str, int]) -> str:
    """One line for people: how many were read, and what was left out."""
    left_out = [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if name in RULES and number]
    return f"{counts['read']:,} rows read" + (f", left out: {', '.join(left_out)}" if left_out else "")


def format_counts(counts: dict[str, int]) -> str:
    return "\n".join(f"  {name:<24}{number:>8,}" for name, number in counts.items())
