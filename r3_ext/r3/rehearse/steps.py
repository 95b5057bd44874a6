"""The steps of a rehearsal: their kinds, their rows of data and the history that the worst one finds.

    warm-up    problems of the data set; not counted
    first      other ones: no problem has a history, as in the first epoch
    later      the problems of the steps before again: replay and reflection as in later epochs
    grpo       the same problems with all mechanisms off, which is verl's GRPO
    held       with `reflection.when=next_step`: as the worst one, of problems without a history, whose groups wait
    worst      every prompt and response at its limit, all mechanisms at their caps

One parquet file holds the rows in the order of the steps. What the mechanisms find in the worst step is planted: of
every problem as many right answers as a group can be given, all as long as the limit, and of as many problems as may
be reflected on a share of right answers below the threshold and a wrong answer that long. Where all-wrong groups are
asked sooner the worst step asks those instead: at once, which takes longer, or the groups that the step before it held.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from omegaconf import DictConfig

from r3_ext.data.read import to_table
from r3_ext.data.write import write_table
from recipe.common.query_ids import make_query_id
from recipe.common.rows import PLAIN
from recipe.r3.config.r3_config import NEXT_STEP, NEXT_VISIT, R3Config, ReflectionConfig
from recipe.r3.history.store import History, Sample
from recipe.r3.reflection import CUT_MARK

WARM_UP, FIRST, LATER, GRPO, HELD, WORST = "warm-up", "first", "later", "grpo", "held", "worst"
PHASES = "phases.jsonl"
NO_ANSWER = "-90071992547409931"
"""Ground truth of the worst step: no answer is right, so every group is dead and all of it is ranked."""
FILLERS = (" 7", " and", " x", "7", " ", "\n", ".")
ROOM = 16
"""Tokens of a reflection prompt that are left to the stored attempt."""


def kinds_of(repeat: int, r3: R3Config) -> list[str]:
    """The steps, `repeat` typical ones of each kind."""
    return [WARM_UP, *[FIRST] * repeat, *[LATER, GRPO] * repeat, *[HELD] * holds(r3), WORST]


def holds(r3: R3Config) -> bool:
    """Whether groups wait for the step after theirs."""
    return r3.reflection.enable and r3.reflection.when == NEXT_STEP


def batches_of(repeat: int) -> list[int]:
    """The batch of data that each typical step trains."""
    again = [batch for number in range(repeat) for batch in (number, number)]
    return [0, *range(1, repeat + 1), *again]


@dataclass(frozen=True)
class Caps:
    """The most that the settings allow in a step."""

    fresh: int
    """Rows of plain prompts, those of the step before that waited included."""
    reflection: int
    """Reflection prompts."""
    replayed: int
    """Replayed rows."""
    ranked: int
    """Groups that are ranked."""

    @classmethod
    def of(cls, config: DictConfig, r3: R3Config) -> "Caps":
        prompts, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
        reflection = max(1, int(r3.reflection.max_fraction * prompts)) if r3.reflection.enable else 0
        held, groups = holds(r3) * reflection, prompts + reflection
        ranked = groups + held if r3.ranking.enable else 0
        return cls((prompts + held) * n, reflection, groups * stored(r3), ranked)


def stored(r3: R3Config) -> int:
    """Replayed rows of a dead group whose answers are all wrong, at most."""
    finds = r3.replay.enable and r3.replay.outcome != "wrong"
    return min(r3.replay.k, r3.history.max_per_outcome) if finds else 0


def bisect(fits: Callable[[int], bool], high: int) -> int:
    """The largest number from 0 to `high` that fits, given that all below one that fits do."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def lengthened(messages: list[dict], limit: int, count: Callable[[list[dict]], int]) -> list[dict]:
    """The chat with filler behind its last message: `limit` tokens, or as near below as the fillers come.

    count: tokens of a chat under the model's template.
    """

    def chat(filler: str) -> list[dict]:
        return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + filler}]

    best, most = chat(""), count(chat(""))
    for filler in FILLERS:
        copies = bisect(lambda number, filler=filler: count(chat(filler * number)) <= limit, limit)
        for end in ("", *FILLERS):
            found = chat(filler * copies + end)
            if most < (tokens := count(found)) <= limit:
                best, most = found, tokens
        if most == limit:
            break
    return best


def reflection_limit(reflection: ReflectionConfig, budget: int, count: Callable[[list[dict]], int]) -> tuple[int, bool]:
    """Tokens of the longest plain prompt that can be reflected on, and whether it takes a cut-off attempt for that.

    The template for attempts that were cut off is another text than the one for others; the longer one is the worse.
    """
    question = [{"role": "user", "content": "?"}]
    longest = {}
    for cut_off, template in ((False, reflection.template), (True, reflection.template_cut_off)):
        text = template.replace("{question}", "?").replace("{attempt}", CUT_MARK)
        longest[cut_off] = count([{"role": "user", "content": text}]) - count(question)
    cut_off = longest[True] >= longest[False]
    return budget - longest[cut_off] - ROOM, cut_off


class Data:
    """The rows that the steps train, from the files that the run trains.

    Args:
        count: tokens of a chat under the model's template.

    Raises:
        ValueError: too few of the rows have prompts within the limit.
    """

    def __init__(self, config: DictConfig, r3: R3Config, count: Callable[[list[dict]], int], repeat: int):
        self.config, self.r3, self.count = config, r3, count
        files = config.data.train_files
        tables = [to_table(Path(file)) for file in ([files] if isinstance(files, str) else files)]
        self.table = pa.concat_tables(tables, promote_options="permissive")
        self.size, self.batches = config.data.train_batch_size, repeat + 2
        self.rows = self._choose()

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

    def worst(self, kind: str = WORST) -> tuple[list[dict], list[dict], bool]:
        """Rows of the worst step, or of the held one: those to be reflected on, then the others; and whether attempts
        were cut off."""
        key, longest = self.config.data.prompt_key, self.config.data.max_prompt_length
        reflection = self.r3.reflection
        limit, cut_off = reflection_limit(reflection, longest, self.count)
        rows = sorted(self.rows[-self.size :], key=lambda row: self.count(row[key]))
        cap = Caps.of(self.config, self.r3).reflection
        made = []
        for number, row in enumerate(rows):
            most = min(limit, longest) if number < cap else longest
            row = {**row, key: lengthened(row[key], most, self.count)}
            truth = NO_ANSWER if kind == WORST else NO_ANSWER + "1"  # a problem of its own
            row["reward_model"] = {**row["reward_model"], "ground_truth": truth}
            if "query_id" in row:
                row["query_id"] = f"rehearse-{kind}-{number}"
            made.append(row)
        return made[:cap], made[cap:], cut_off

    def write(self, file: Path, batches: list[int], *last: list[dict]) -> None:
        """All rows in the order of the steps: of those batches, then the last ones."""
        rows = [row for batch in batches for row in self.rows[batch * self.size : (batch + 1) * self.size]]
        rows += [row for part in last for row in part]
        write_table(file, pa.Table.from_pylist(rows, schema=self.table.schema))

    def query_id(self, row: dict) -> str:
        if "query_id" in row:
            return str(row["query_id"])
        return make_query_id(row[self.config.data.prompt_key], row["reward_model"].get("ground_truth"))


def plant(
    path: str,
    config: DictConfig,
    r3: R3Config,
    reflected: list[str],
    others: list[str],
    cut_off: bool,
    vocabulary: list[int],
) -> None:
    """The history that the worst step finds; its answers are as long as answers can be.

    Args:
        reflected, others: query ids of the problems to be reflected on, and of the others.
        vocabulary: token ids that answers are made of.
    """
    seed, length = config.data.seed, config.data.max_response_length
    rng = np.random.default_rng(seed)
    right = stored(r3)

    def sample(query_id: str, correct: bool, truncated: bool) -> Sample:
        tokens = rng.choice(vocabulary, length).astype(np.int32)
        log_probs = np.full(length, -1.0, np.float32)
        return Sample(query_id, tokens, correct, float(correct), truncated, 0, PLAIN, log_probs)

    samples = [sample(query_id, True, False) for query_id in (*reflected, *others) for _ in range(right)]
    # Right in less than `threshold` of its attempts, and in all of them.
    attempts = max(r3.reflection.min_attempts, int(right / r3.reflection.threshold) + 1)
    # Asked sooner, groups are so for what they are in the step, and no query is to be hard by its history.
    hard, easy = (reflected, others) if r3.reflection.when == NEXT_VISIT else ([], [*reflected, *others])
    samples += [sample(query_id, False, cut_off) for query_id in hard]
    statistics = [(query_id, PLAIN, attempts, right, int(cut_off)) for query_id in hard]
    statistics += [(query_id, PLAIN, right, right, 0) for query_id in easy if right]
    history = History(path, r3.history.max_per_outcome, int(r3.history.max_gib * 2**30), seed)
    try:
        history.absorb(samples, statistics)
    finally:
        history.close()
