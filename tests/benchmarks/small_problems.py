"""Rows for a language model of 135 M parameters, and their reward: sums, products, comparisons, word problems.

    python -m tests.benchmarks.small_problems FOLDER    # FOLDER/train.parquet, FOLDER/val.parquet

The reward is 1 where the answer's last number is right: such a model writes no box.
"""

import argparse
import random
import re
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

KINDS = {
    "sum of one digit": lambda a, b, c: (f"What is {a % 10} + {b % 10}?", a % 10 + b % 10),
    "sum of two digits": lambda a, b, c: (f"What is {a} + {b}?", a + b),
    "product": lambda a, b, c: (f"What is {a % 10} * {c}?", a % 10 * c),
    "larger": lambda a, b, c: (f"Which number is larger, {a} or {b}?", max(a, b)),
    "bought": lambda a, b, c: (f"Eva has {c} pens and buys {b % 10} more. How many pens has Eva now?", c + b % 10),
    "given away": lambda a, b, c: (f"Ben has {a} stamps and gives {c} of them away. How many are left?", a - c),
}
"""(two numbers of two digits, one of one) to the question and its answer."""
TRAIN, VAL = 320, 128


def rows(number: int, draw: random.Random, without: Collection[str] = ()) -> list[dict]:
    """That many different questions in verl's format, none of `without`."""
    found = {}
    while len(found) < number:
        kind = draw.choice([*KINDS])
        question, answer = KINDS[kind](draw.randint(11, 99), draw.randint(11, 99), draw.randint(2, 9))
        if question not in without:
            text = f"{question} Answer with the number only."
            found[question] = {
                "data_source": kind,
                "prompt": [{"role": "user", "content": text}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(answer)},
                "extra_info": {"question": question},
            }
    return [*found.values()]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> dict:
    """verl's custom reward function: the last whole number of the answer against the right one."""
    numbers = re.findall(r"-?\d+", solution_str)
    right = bool(numbers) and numbers[-1] == ground_truth
    return {"score": float(right), "acc": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    train = rows(TRAIN, draw)
    val = rows(VAL, draw, {row["extra_info"]["question"] for row in train})
    for name, found in (("train", train), ("val", val)):
        pq.write_table(pa.Table.from_pylist(found), folder / f"{name}.parquet")


if __name__ == "__main__":
    main()
