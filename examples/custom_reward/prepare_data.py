"""Rows of reasoning-gym in verl's format: several tasks in turn, made from a seed, no question twice.

    python examples/custom_reward/prepare_data.py
    python examples/custom_reward/prepare_data.py --tasks gcd lcm:min_numbers=3,max_numbers=4 --train-rows 4000

A task is a name of reasoning-gym, and settings of its own after a colon. Those that are chosen here are short enough
for the model of the embedded profile. Of each task's questions the first ones are for validation and the next ones for
training, so what is validated on does not depend on --train-rows. What was left out, and why, is printed and written
beside the parquet as `<output>.json`.
"""

import argparse
import dataclasses
import difflib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from r3_ext.data import problems as data
from r3_ext.data import write

try:
    from reasoning_gym_reward import DATASETS, PREFIX, REFUSED, compute_score, reasoning_gym
except ImportError as missing:
    sys.exit(f"error: {missing}")

SHORT = (
    *("chain_sum", "count_bits", "gcd", "lcm", "letter_counting:max_words=8", "number_sequence"),
    *("simple_equations", "spell_backward:max_word_len=8"),
)
MOST_DRAWS, MOST_USELESS = 20_000, 200
"""Questions of a task that are looked at (its word_ladder makes no more), and those in a row that may be of no use."""
INFO = pa.struct([*write.SCHEMA.field("extra_info").type, ("entry", pa.string())])
SCHEMA = write.SCHEMA.set(write.SCHEMA.get_field_index("extra_info"), pa.field("extra_info", INFO))


@dataclasses.dataclass(frozen=True)
class Task:
    text: str
    """As it was asked for."""
    name: str
    settings: dict


def parse_task(text: str) -> Task:
    """`gcd`, or `gcd:max_value=50,max_numbers=3`. Raises ValueError for what is no task or no setting of it."""
    name, _, rest = text.partition(":")
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, cutoff=0.0)
        raise ValueError(f"--tasks {text}: reasoning-gym has no task {name!r}; the nearest are {', '.join(near)}")
    if name in REFUSED:
        raise ValueError(f"--tasks {text}: {REFUSED[name]}; choose another task")
    known = sorted({field.name for field in dataclasses.fields(DATASETS[name][1])} - {"seed", "size"})
    settings = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise ValueError(f"--tasks {text}: {key!r} is no setting of {name}; it has {', '.join(known)}")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return Task(text, name, settings)


def entries(task: Task, seed: int) -> Iterator[dict]:
    """What the task makes, one after the other. Raises ValueError where it refuses its settings."""
    # Entry i of reasoning-gym comes from seed + i alone: neighbouring seeds would share all entries but one.
    own_seed = random.Random(f"{task.name}/{seed}").randrange(2**31)
    try:
        made = reasoning_gym.create_dataset(task.name, seed=own_seed, size=MOST_DRAWS, **task.settings)
        for index in range(MOST_DRAWS):
            yield made[index]
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"--tasks {task.text}: reasoning-gym cannot make it: {error}") from error


def rows(task: Task, wanted: int, seed: int, counts: Counter) -> list[dict]:
    """Rows with different questions; `counts` receives what was made and what of it was left out.

    Raises:
        ValueError: the task gives fewer.
    """
    found: dict[str, dict] = {}
    last = -1
    for index, entry in enumerate(entries(task, seed)):
        counts["read"] += 1
        # By letters and digits, as `r3 run` compares the rows of DATA with those of VAL_DATA.
        key = data.overlap_key(entry["question"])
        row = to_row(task.name, index, entry)
        if key in found:
            counts["duplicate"] += 1
        elif row is None:
            counts["own_answer_not_right"] += 1
        else:
            found[key], last = row, index
        if len(found) == wanted:
            return list(found.values())
        if index - last == MOST_USELESS:
            break
    raise ValueError(
        f"--tasks {task.text}: {len(found):,} usable questions among {index + 1:,}, {wanted:,} needed: the others are "
        "equal to one of them or their own answer is not right; ask for fewer rows, or change the task's settings"
    )


def to_row(name: str, index: int, entry: dict) -> dict | None:
    """None where the task gives no answer of its own, or one that boxed as a model is asked to is not right."""
    problem = data.Problem(entry["question"], entry["answer"], name, index)
    row = write.to_row(problem, PREFIX + name, split="") | {"ability": "reasoning"}
    row["extra_info"]["entry"] = json.dumps(entry)
    try:
        is_right = compute_score(row["data_source"], f"\\boxed{{{problem.answer}}}", problem.answer, row["extra_info"])
    except ValueError:
        return None
    return row if is_right["acc"] and isinstance(problem.answer, str) else None


def in_turn(parts: list[list[dict]], split: str, wanted: int) -> list[dict]:
    """The first row of every task, then the second ones, and so on: `wanted` in all."""
    picked = list(islice(chain(*zip(*parts, strict=True)), wanted))
    for row in picked:
        row["extra_info"]["split"] = split
    return picked


def prepare(output_dir: Path, tasks: list[str], train_rows: int, val_rows: int, seed: int) -> Counter:
    """Write train.parquet and val.parquet; returns what was made, left out and written.

    Raises:
        ValueError: an argument out of range, or a task that cannot be had.
    """
    for name, value, least in (("--train-rows", train_rows, 1), ("--val-rows", val_rows, 1), ("--seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    chosen = [parse_task(text) for text in tasks]
    names = Counter(task.name for task in chosen)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ValueError(f"--tasks names {twice[0]} twice: give each task once, with the settings that it should have")
    counts = Counter()
    of_val, of_train = (-(-number // len(chosen)) for number in (val_rows, train_rows))
    made = [rows(task, of_val + of_train, seed, counts) for task in chosen]
    val = in_turn([part[:of_val] for part in made], "val", val_rows)
    train = in_turn([part[of_val:] for part in made], "train", train_rows)
    counts.update(train=len(train), val=len(val))
    report = {"tasks": tasks, "seed": seed, "reasoning_gym": version("reasoning-gym"), "counts": dict(counts)}
    for name, part in (("train", train), ("val", val)):
        path = output_dir / f"{name}.parquet"
        write.write_table(path, pa.Table.from_pylist(part, schema=SCHEMA))
        path.with_name(path.name + ".json").write_text(json.dumps(report, indent=2) + "\n")
    return counts


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("data/reasoning_gym"))
    parser.add_argument("--tasks", nargs="+", default=list(SHORT), metavar="TASK", help=f"default: {' '.join(SHORT)}")
    parser.add_argument("--train-rows", type=int, default=512)
    parser.add_argument("--val-rows", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    arguments = build_parser().parse_args()
    try:
        counts = prepare(**vars(arguments))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{arguments.output_dir}\n{data.format_counts(counts)}")
