"""Training data: DeepScaleR in verl's format.

    python examples/data_preprocess/deepscaler.py --output data/deepscaler/train.parquet
    python examples/data_preprocess/deepscaler.py --source my_rows.jsonl --val-rows 256 --exclude data/benchmarks

Without `--source` the data set comes from the Hugging Face hub. What is dropped, and why, is printed and written beside
the parquet as `<output>.json`; the rules are in `r3_ext/data.py`.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from r3_ext import data

NAME = "deepscaler"
HUB_ID = "agentica-org/DeepScaleR-Preview-Dataset"


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


def convert(args: argparse.Namespace) -> Counter:
    rows, origin = data.read_rows(args.source, args.split, args.revision)
    counts = Counter()
    exclude = data.overlap_keys(args.exclude)
    problems = data.clean(data.to_problems(rows, args.source, NAME), counts, args.max_problem_chars, exclude)
    split = split_problems(problems, args.val_rows, args.max_rows, args.seed)
    counts.update(train=len(split.train), val=len(split.val))
    counts["over_max_rows"] = len(problems) - counts["train"] - counts["val"]

    options = {key: getattr(args, key) for key in ("seed", "max_rows", "val_rows", "max_problem_chars", "exclude")}
    report = {"data_source": NAME, "origin": origin, "options": options, "counts": dict(counts)}
    data.write_rows(args.output, [data.to_row(problem, NAME, "train") for problem in split.train], report)
    if split.val:
        val_output = args.val_output or args.output.with_name("val.parquet")
        data.write_rows(val_output, [data.to_row(problem, NAME, "val") for problem in split.val], report)
    return counts


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=HUB_ID, help="hub id, or a parquet/json/jsonl file, or a folder of them")
    parser.add_argument("--split", default="train", help="split of a hub data set")
    parser.add_argument("--revision", help="commit of a hub data set, for a run that can be repeated")
    parser.add_argument("--output", type=Path, default=Path("data/deepscaler/train.parquet"))
    parser.add_argument("--val-output", type=Path, help="held-out rows; default: val.parquet beside --output")
    parser.add_argument("--val-rows", type=int, default=0, help="rows to hold out")
    parser.add_argument("--max-rows", type=int, help="training rows to keep, after the shuffle")
    parser.add_argument("--max-problem-chars", type=int, help="drop longer problems")
    parser.add_argument(
        "--exclude", nargs="+", default=[], metavar="FILE", help="benchmarks; their problems are dropped"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    arguments = build_parser().parse_args()
    print(f"{arguments.output}\n{data.format_counts(convert(arguments))}")
