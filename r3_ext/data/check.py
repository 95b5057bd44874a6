"""Rows in verl's format: every one is looked at, and what is wrong with it is said by file, row and column.

verl and its rollout workers would find out in the middle of a run, or train on it without a word. Rows count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.host.text import first_line, is_utf8, short
from recipe.common.checks import is_number
from recipe.common.reward.answerable import Asked, said
from recipe.common.reward.judge import FUNCTION, MANAGER, is_verls, judge_of
from recipe.common.reward.row_graders import asker
from recipe.common.reward.truths import accepted_answers

if TYPE_CHECKING:
    from omegaconf import DictConfig

MAX_PROMPT_CHARS = 200_000
"""Longest prompt. Its tokens are counted before training; tokenising 6 million characters took 42 s."""
SAMPLE_ROWS = 64
"""Prompts of a file that are rendered, evenly spaced; the longest, and one of each order of roles, come on top."""
MOST_ROLE_ORDERS = 256
NEEDED = ("reward_model", "data_source")
TRUTH = "reward_model.ground_truth"
OF_VERL = frozenset(
    "sampling_params trajectory trace session_id validate output priority prompts responses response_mask "
    "rollout_log_probs old_log_probs ref_log_prob rm_scores token_level_scores token_level_rewards advantages returns "
    "entropy attention_mask input_ids position_ids loss_mask num_turns metrics extra_fields routed_experts "
    "multi_modal_data multi_modal_inputs mm_processor_kwargs mm_processor_output __rollout_n__ __do_sample__".split()
)
"""Columns that verl would take for arguments of its agent loop, or write over the fields of an answer."""
LEAVE_OUT = "nothing earns a reward there; give the file as DATA or VAL_DATA, which leave such rows out, or mend them"
NO_ROW = (
    "no row of this data_source can be answered right: ask for the form that is graded, mend the ground truths, or "
    "name a function that reads them with reward.custom_reward_function.path"
)


@dataclass
class Fault:
    """What is wrong with a column: the first bad row, and how many follow."""

    column: str
    row: int
    found: str
    rule: str
    more: int = 0

    def __str__(self) -> str:
        more = f" ({self.more:,} further row{'s' if self.more > 1 else ''})" if self.more else ""
        return f"row {self.row}: {self.column} {self.found}{more}"


@dataclass
class DataFile:
    path: Path
    columns: list[str]
    rows: int = 0
    faults: list[Fault] = field(default_factory=list)
    named_prompts: list[tuple] = field(default_factory=list)
    """(query_id, prompt) of every row, where there are both columns."""
    sample: list[list[dict]] = field(default_factory=list)
    """Prompts to render."""
    verls: set[str] = field(default_factory=set)
    """Data sources of rows that verl's reward judges, unless the config names another judge."""
    asked: Asked = field(default_factory=Asked)
    """Which rows cannot be answered right."""
    problems: set[int] = field(default_factory=set)
    """A hash of each problem: what is asked, and its reference."""

    def missing(self, prompt_key: str = "prompt") -> list[str]:
        """Columns that verl needs and the file lacks."""
        return [column for column in (prompt_key, *NEEDED) if column not in self.columns]


def read(path: str | Path, prompt_key: str = "prompt", any_truth: bool = False) -> DataFile:
    """The file with the faults of all its rows; read once for one content.

    any_truth: ground truths are read by a reward function of the user's own, which alone knows what they may be and
        is not asked about the rows.

    Raises OSError or ValueError when it cannot be read (pyarrow's errors are of these two kinds).
    """
    file = Path(path).expanduser()
    stat = file.stat()
    return _read(file, prompt_key, any_truth, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _read(path: Path, prompt_key: str, any_truth: bool, modified: int, size: int) -> DataFile:
    columns, number, rows = open_rows(path, (prompt_key, *NEEDED, "query_id", "extra_info"))
    data = DataFile(path, columns, number)
    data.faults = [
        Fault(name, 0, "is a name that verl gives away itself", "rename or drop the column")
        for name in columns
        if name in OF_VERL
    ]
    data.faults += check(collect(data, rows, prompt_key, not any_truth), prompt_key, any_truth)
    return data


def open_rows(path: Path, wanted: Iterable[str]) -> tuple[list[str], int, Iterator[dict]]:
    """(all columns, number of rows, rows with the wanted columns); a parquet file is never in memory as a whole."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path)
        columns = file.schema_arrow.names
        # verl reads every column of a row, and Python has no date after the year 9999.
        dates = [field.name for field in file.schema_arrow if re.search("date|timestamp|duration", str(field.type))]
        chosen = [name for name in columns if name in {*wanted, *dates}]
        return columns, file.metadata.num_rows, parquet_rows(file, path, chosen)
    from r3_ext.data.read import read_rows

    rows = read_rows(str(path))[0]
    return sorted({column for row in rows for column in row}), len(rows), iter(rows)


def parquet_rows(file, path: Path, columns: list[str]) -> Iterator[dict]:
    """Raises ValueError with file and row where a page is damaged or a value has no like in Python."""
    import pyarrow

    from r3_ext.data.read import to_rows

    number = 0
    try:
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            yield from to_rows(batch, path, number)
            number += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        found = f"{path}: damaged after row {number - 1}" if number else f"{path}: damaged"
        raise ValueError(f"{found} ({first_line(error)}); copy or make it again") from error


def spaced(rows: int) -> set[int]:
    """At most SAMPLE_ROWS row numbers: 0, 2, 4, ... for twice as many rows."""
    return {index * rows // min(rows, SAMPLE_ROWS) for index in range(min(rows, SAMPLE_ROWS))}


def collect(data: DataFile, rows: Iterable[dict], prompt_key: str, asks: bool) -> Iterator[dict]:
    """The rows as they come; what they are called and ask, and which to render is put into `data` on the way."""
    chosen, seen, longest, ask = spaced(data.rows), set(), (0, None), asker().ask
    has_ids = {"query_id", prompt_key} <= set(data.columns)
    for number, row in enumerate(rows):
        prompt = row.get(prompt_key)
        if has_ids:
            data.named_prompts.append((row.get("query_id"), prompt))
        if prompt_fault(prompt) is None:
            roles = tuple(message["role"] for message in prompt)
            is_new = roles not in seen and len(seen) < MOST_ROLE_ORDERS
            length = sum(len(message["content"]) for message in prompt)
            if number in chosen or is_new:
                data.sample.append(prompt)
            elif length > longest[0]:
                longest = length, prompt
            seen.add(roles)
            text = said(prompt)
            data.problems.add(hash((row.get("data_source"), text, repr(row.get("reward_model")))))
            if asks:
                ask(data.asked, number, row, text)
        if asks and is_verls(row):  # else nobody asks who judges it, and to find out is to import verl
            data.verls.add(str(row.get("data_source")))
        yield row
    data.sample += [longest[1]] if longest[1] else []


def check(rows: Iterable[dict], prompt_key: str = "prompt", any_truth: bool = False) -> list[Fault]:
    """The first fault of each column and rule, with the number of rows that follow it."""
    faults, first_kind = {}, None
    for number, row in enumerate(rows):
        found_here = list(row_faults(row, prompt_key, any_truth))
        if not any(column == TRUTH for column, _, _ in found_here):
            kind = truth_kind(row["reward_model"]["ground_truth"])
            first_kind = first_kind or kind
            if kind not in (None, first_kind):
                found = f"is {kind}, in the rows before it was {first_kind}"
                found_here.append((TRUTH, found, "give all rows of a file the same kind of ground truth"))
        for column, found, rule in found_here:
            faults.setdefault((column, rule), Fault(column, number, found, rule, more=-1)).more += 1
    return list(faults.values())


def truth_kind(truth) -> str | None:
    """One kind a file: where JSON mixes them, verl's dataset reads the text "5" as the number 5."""
    kinds = {list: "a list", str: "a text", dict: "a group of values", type(None): None}
    return next((name for kind, name in kinds.items() if isinstance(truth, kind)), "a number")


def row_faults(row: dict, prompt_key: str, any_truth: bool = False) -> Iterator[tuple[str, str, str]]:
    """(column, what it is, what to do) of everything in a row that verl or the reward manager could not use."""
    if fault := prompt_fault(row.get(prompt_key)):
        yield prompt_key, *fault
    if fault := truth_fault(row.get("reward_model"), any_truth or is_verls(row)):
        yield TRUTH, *fault
    if not is_text(row.get("data_source")):
        rule = "name the data set in every row: validation is reported by it"
        yield "data_source", f"is {short(row.get('data_source'))}", rule
    if "query_id" in row and not (is_text(row["query_id"]) or is_number(row["query_id"])):
        rule = "give every row an id, or leave the column out: then ids are made from prompt and answer"
        yield "query_id", f"is {short(row['query_id'])}", rule
    if not isinstance(row.get("extra_info"), dict | None):
        yield (
            "extra_info",
            f"is {short(row['extra_info'])}",
            "a group of values, as verl reads from it, or leave it out",
        )


def may_be_any_truth(config: DictConfig) -> bool:
    """Whether a reward function or a manager of verl's reads all ground truths, and never the recipe's grader."""
    return judge_of({}, config) in (FUNCTION, MANAGER)


def truth_fault(reward, any_truth: bool) -> tuple[str, str] | None:
    """(what it is, what to do), or None for what the grader, or else a reward function, can be asked with."""
    if any_truth:
        if isinstance(reward, dict) and "ground_truth" in reward:
            return None
        return "is missing", "reward_model is a group of values with ground_truth, which the reward function is given"
    try:
        answers = accepted_answers(reward.get("ground_truth") if isinstance(reward, dict) else None)
    except ValueError as error:
        rule = "every row needs an answer (text or a number), or a list of accepted answers"
        return f"is {str(error).partition(', got ')[2]}"[:80], rule
    if not all(is_text(answer) for answer in answers):
        return "holds half a character (a lone surrogate)", "write the text as UTF-8"
    return None


def prompt_fault(prompt) -> tuple[str, str] | None:
    """(what it is, what to do), or None for messages with text."""
    rule = "a prompt is a list of messages with role and content"
    if not isinstance(prompt, list) or not prompt:
        return f"is {short(prompt)}", rule
    chars = 0
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or not is_text(message.get("role")):
            return f"has a message {number} without a role: {short(message)}", rule
        content = message.get("content")
        if isinstance(content, list):
            found = f"has content in parts in message {number}: {short(content)}"
            return found, "give the content as one text: pictures and other parts are not trained on"
        if not is_text(content):
            return f"has a message {number} without content: {short(content)}", rule
        chars += len(content)
    if chars > MAX_PROMPT_CHARS:
        return f"has {chars:,} characters, over {MAX_PROMPT_CHARS:,}", "shorten it, or leave the row out"
    return None


def is_text(value) -> bool:
    """Whether it is text with something in it that can be written as UTF-8."""
    return is_utf8(value) and bool(value.strip())
