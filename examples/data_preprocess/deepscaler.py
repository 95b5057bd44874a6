"""Training data: DeepScaleR in verl's format.

    python examples/data_preprocess/deepscaler.py --output data/deepscaler/train.parquet
    python examples/data_preprocess/deepscaler.py --source my_rows.jsonl --val-rows 256 --exclude data/benchmarks

Without `--source` the data set comes from the Hugging Face hub. What is dropped, and why, is printed and written beside
the parquet as `<output>.json`; the rules are in `r3_ext/data/problems.py`.
"""

import argparse
import sys
from pathlib import Path

from r3_ext.data import convert
from r3_ext.data import problems as data


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", default=convert.DEEPSCALER_ID, help="hub id, or a parquet/json/jsonl file, or a folder of them"
    )
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
    try:
        counts = convert.training_set(**vars(arguments))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{arguments.output}\n{data.format_counts(counts)}")
