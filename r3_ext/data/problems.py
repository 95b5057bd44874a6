"""Math problems: made of rows (read.py), cleaned, and known again.

One problem becomes one row with `query_id`, `data_source`, `prompt`, `ability`, `reward_model`, `extra_info`.
What is dropped on the way is counted, and the counts add up to the number of rows read:

1. empty problem, empty answer, or one that nobody can match (`recipe.common.reward.answerable`);
2. the same problem twice (`query_id` equal) with the same answer text: the first row stays;
3. the same problem with answers that differ in text: if all are equal in `normal_form`, the first row stays,
   otherwise the reference cannot be trusted and every row of the problem goes;
4. longer than the wanted number of characters;
5. also in a benchmark (compared by `overlap_key`).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from r3_ext.data.read import is_verl, read_file, read_rows
from r3_ext.host.files import sha256
from r3_ext.host.text import short
from recipe.common.reward.answerable import unmatchable
from recipe.common.reward.judge import is_verls
from recipe.common.reward.wrapped import bare

INSTRUCTION = " Please reason step by step, and put your final answer within \\boxed{}."
"""What the model card of DeepSeek-R1-Distill asks users to append to a math problem."""

PROBLEM_COLUMNS = ("problem", "question")
ANSWER_COLUMNS = ("answer", "final_answer")

WORKED = re.compile(r"(?:^|\n)[ \t]*####[ \t]*(\S[^\n]*?)\s*$")
GROUPED = re.compile(r"[-+]?\$?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")

RULES = (
    *(
        "empty_problem",
        "empty_answer",
        "unmatchable_answer",
        "duplicate",
        "same_answer_other_form",
        "conflicting_answers",
    ),
    *("too_long", "in_benchmark"),
)
"""Names of the counts of what is dropped."""


@dataclass(frozen=True)
class Problem:
    text: str
    answer: str
    source: str
    """Origin inside the data set (`aime`, `math`, ...), or the name of the data set where none is told."""
    index: int
    """Row number in the file it was read from."""
    prompt: tuple[dict, ...] | None = None
    """Messages that ask it; None: the text and `INSTRUCTION` in one message."""
    judged: str | None = None
    """`data_source` and `ground_truth` as JSON, where verl's reward of that source judges answers; None: the grader."""

    @property
    def messages(self) -> list[dict]:
        return [{"role": "user", "content": self.text + INSTRUCTION}] if self.prompt is None else list(self.prompt)

    @property
    def query_id(self) -> str:
        """Of the text, and of what else is said in several messages."""
        return query_id(self.text if self.prompt is None or len(self.prompt) == 1 else said(self.prompt))


def said(prompt: Iterable[dict]) -> str:
    """Messages as one text."""
    return json.dumps(list(prompt), sort_keys=True, ensure_ascii=False, default=str)


def query_id(problem: str) -> str:
    """First 16 hex digits of the sha256 of the text with runs of whitespace as one space."""
    return sha256(" ".join(problem.split()))[:16]


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


def final_answer(answer: str) -> str:
    """The answer alone, of a worked solution in GSM8K's form what it ends in. `Add them.\n#### 3,780`: `3780`."""
    match = WORKED.search(answer)
    if match is None:
        return bare(answer)
    return match[1].replace(",", "") if GROUPED.fullmatch(match[1]) else match[1]


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
    return [
        Problem(
            _text(row.get(problem_column)),
            final_answer(_text(row.get(answer_column))),
            _text(row.get("source")) or name,
            index,
        )
        for index, row in enumerate(rows)
    ]


def _from_verl(row: dict, index: int, file: str) -> Problem:
    """The last message as the problem; of several accepted answers, the first (`r3 eval` refuses several)."""
    try:
        prompt = tuple(row["prompt"])
        text = prompt[-1]["content"].removesuffix(INSTRUCTION)
        truth = row["reward_model"]["ground_truth"]
        source = (row.get("extra_info") or {}).get("source") or row["data_source"]
        judged = {"data_source": row["data_source"], "ground_truth": truth} if is_verls(row) else None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        wanted = "prompt (messages), reward_model.ground_truth and data_source"
        raise ValueError(f"{file}, row {index}: not in this project's format: {wanted} ({error!r})") from error
    answer = _text(truth[0] if isinstance(truth, list) and truth else truth)
    problem = Problem(_text(text), answer, source, index, judged=judged and json.dumps(judged, default=str))
    return problem if problem.messages == list(prompt) else replace(problem, prompt=prompt)


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
        if not (problem.text and problem.answer):
            continue
        if unmatchable(problem.answer):
            counts["unmatchable_answer"] += 1
        else:
            groups.setdefault(problem.query_id, []).append(problem)
    kept = [problem for group in groups.values() if (problem := _settle(group, counts))]
    return [problem for problem in kept if not _filtered(problem, counts, max_chars, exclude)]


def first_unmatchable(problems: Iterable[Problem]) -> str:
    """The first problem whose answer nobody can give, and why, as a clause; empty where there is none."""
    for problem in problems:
        if problem.text and problem.answer and (why := unmatchable(problem.answer)):
            return f"row {problem.index}: {short(problem.answer)} {why}"
    return ""


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


def overlap_keys(sources: Iterable[str]) -> frozenset[str]:
    """Keys of all problems in the given local files, for `clean(exclude=...)`."""
    problems = [p for source in sources for p in to_problems(read_rows(source)[0], source, source, need_answer=False)]
    return frozenset(overlap_key(problem.text) for problem in problems) - {""}


def say_counts(counts: dict[str, int]) -> str:
    """One line for people: how many were read, and what was left out."""
    left_out = [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if name in RULES and number]
    return f"{counts['read']:,} rows read" + (f", left out: {', '.join(left_out)}" if left_out else "")


def format_counts(counts: dict[str, int]) -> str:
    return "\n".join(f"  {name:<24}{number:>8,}" for name, number in counts.items())
