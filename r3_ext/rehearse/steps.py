"""The steps of a rehearsal: their kinds and their rows of data.

    warm-up    problems of the data set; not counted
    first      other ones: no problem has a history, as in the first epoch
    later      of R^3: the problems of the steps before again, with replay and reflection as in later epochs
    grpo       of R^3: the same problems with all mechanisms off, which is verl's GRPO
    held       of R^3 with `reflection.when=next_step`: as the worst one, of problems without a history; its groups wait
    worst      every prompt and response at its limit; of R^3, all mechanisms at their caps; of sessions, every one as
               long as it may be

One parquet file holds the rows in the order of the steps.
"""

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from omegaconf import DictConfig

from r3_ext.data.read import to_table
from r3_ext.data.write import write_table
from r3_ext.doctor.model_files import tokenizer_of
from recipe.common.query_ids import make_query_id
from recipe.common.row_files import files_of

WARM_UP, FIRST, LATER, GRPO, HELD, WORST = "warm-up", "first", "later", "grpo", "held", "worst"
PHASES, STEPS = "phases.jsonl", "steps.parquet"
FILLERS = (" 7", " and", " x", "7", " ", "\n", ".")


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    kinds: list[str]
    """Of the steps."""
    problems: int
    """Of the whole run."""
    caps: dict[str, int]
    """The most that the settings allow in a step, by name: `fresh` rows, and what R^3 has besides."""
    overrides: tuple[str, ...] = ()
    """Settings of the rehearsal that are not the run's."""


def kinds_of(repeat: int, has_history: bool = False, holds: bool = False) -> list[str]:
    """The steps, `repeat` typical ones of each kind.

    Args:
        has_history: whether a problem that comes again is trained otherwise than at first.
        holds: whether groups wait for the step after theirs.
    """
    return [WARM_UP, *[FIRST] * repeat, *[LATER, GRPO] * (repeat * has_history), *[HELD] * holds, WORST]


def batches_of(repeat: int, has_history: bool = False) -> list[int]:
    """The batch of data that each typical step trains."""
    again = [batch for number in range(repeat) for batch in (number, number)]
    return [0, *range(1, repeat + 1), *(again if has_history else ())]


def lengthened(messages: list[dict], limit: int, count: Callable[[list[dict]], int]) -> list[dict]:
    """The chat with filler behind its last message: `limit` tokens, or as near below as the fillers come.

    count: tokens of a chat under the model's template.
    """

    def chat(filler: str) -> list[dict]:
        return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + filler}]

    best, most = chat(""), count(chat(""))
    for filler in FILLERS:
        copies = bisect_right(
            range(1, limit + 1), limit, key=lambda number, filler=filler: count(chat(filler * number))
        )
        for end in ("", *FILLERS):
            found = chat(filler * copies + end)
            if most < (tokens := count(found)) <= limit:
                best, most = found, tokens
        if most == limit:
            break
    return best


class Data:
    """The rows that the steps train, from the files that the run trains.

    Args:
        repeat: typical steps of each kind.

    Raises:
        ValueError: too few of the rows have prompts within the limit.
    """

    def __init__(self, config: DictConfig, repeat: int):
        self.config, self.repeat, self.tokenizer = config, repeat, tokenizer_of(config)
        self.kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
        tables = [to_table(file) for file in files_of(config.data, "train_files")]
        self.table = pa.concat_tables(tables, promote_options="permissive")
        self.schema = self.table.schema
        self.size, self.batches = config.data.train_batch_size, repeat + 2
        self.rows = self._choose()

    @property
    def problems(self) -> int:
        """Of the whole run."""
        most = self.config.data.get("train_max_samples", -1)
        return min(len(self.table), most) if most > 0 else len(self.table)

    def count(self, messages: list[dict]) -> int:
        """Tokens of a chat under the model's template."""
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **self.kwargs)
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _choose(self) -> list[dict]:
        """Rows of the typical steps and, last, those that the worst one is made of, drawn at random."""
        limit, key = self.config.data.max_prompt_length, self.config.data.prompt_key
        order = list(range(len(self.table)))
        random.Random(self.config.data.seed).shuffle(order)
        chosen, wanted = [], self.batches * self.size
        for number in order:
            [row] = self.table.slice(number, 1).to_pylist()
            if self.count(row[key]) <= limit:
                chosen.append(row)
            if len(chosen) == wanted:
                return chosen
        if len(chosen) < self.size:
            raise ValueError(
                f"data.train_files: {len(chosen)} prompts of at most data.max_prompt_length={limit} tokens are fewer "
                f"than data.train_batch_size={self.size}"
            )
        # Few problems: steps share some, each within a step once.
        return [chosen[place % len(chosen)] for place in range(wanted)]

    def last(self) -> list[dict]:
        """The rows that the worst step is made of, those with short prompts first."""
        return sorted(self.rows[-self.size :], key=lambda row: self.count(row[self.config.data.prompt_key]))

    def longest(self, row: dict, limit: int | None = None) -> dict:
        """The row with a prompt of so many tokens, or as many as the settings allow."""
        key, most = self.config.data.prompt_key, self.config.data.max_prompt_length
        return {**row, key: lengthened(row[key], most if limit is None else limit, self.count)}

    def write(self, folder: Path, batches: list[int], *last: list[dict]) -> None:
        """All rows in the order of the steps: of those batches, then the last ones."""
        rows = [row for batch in batches for row in self.rows[batch * self.size : (batch + 1) * self.size]]
        rows += [row for part in last for row in part]
        write_table(folder / STEPS, pa.Table.from_pylist(rows, schema=self.schema))

    def query_id(self, row: dict) -> str:
        if "query_id" in row:
            return str(row["query_id"])
        return make_query_id(row[self.config.data.prompt_key], row["reward_model"].get("ground_truth"))


def of_one_turn(data: Data, folder: Path) -> Plan:
    """Write the rows of all steps of a method that asks each prompt in its own words alone."""
    data.write(folder, batches_of(data.repeat), [data.longest(row) for row in data.last()])
    rows = data.size * data.config.actor_rollout_ref.rollout.n
    return Plan(kinds_of(data.repeat), data.problems, {"fresh": rows})
