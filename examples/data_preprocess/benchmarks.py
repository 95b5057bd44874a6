"""Evaluation data: the five benchmarks in verl's format, one parquet each.

    python examples/data_preprocess/benchmarks.py --output-dir data/benchmarks
    python examples/data_preprocess/benchmarks.py --folder my_files --only aime24 math500
    python examples/data_preprocess/benchmarks.py --amc23 math-ai/amc23:test

Each source is a Hugging Face id with its split after a colon, or a local file or folder. `amc23` is by default the
83-problem set that DeepScaleR and later papers call AMC 2023; `math-ai/amc23:test` is the 40-problem one.
Rows keep the order of their source. Counts and the source's sha256 are written beside each parquet.
"""

import argparse
import sys
from pathlib import Path

from r3_ext.data import convert, read
from r3_ext.data import problems as data


def find_in_folder(folder: Path, name: str) -> str:
    paths = [folder / f"{name}{suffix}" for suffix in read.SUFFIXES]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        raise ValueError(
            f"{folder}: exactly one of {', '.join(path.name for path in paths)} must exist, found {len(found)}; "
            f"name the file with --{name}, or leave the benchmark out with --only"
        )
    return str(found[0])


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(convert.BENCHMARK_IDS)
    parser.add_argument("--output-dir", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--folder", type=Path, help="folder with <benchmark>.parquet, .jsonl or .json")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    for name, hub_id in convert.BENCHMARK_IDS.items():
        parser.add_argument(f"--{name}", metavar="SOURCE", help=f"default: {hub_id}, or the file in --folder")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    for name in args.only:
        source = getattr(args, name) or (
            find_in_folder(args.folder, name) if args.folder else convert.BENCHMARK_IDS[name]
        )
        output = args.output_dir / f"{name}.parquet"
        counts = convert.benchmark(name, source, output)
        print(f"{output}\n{data.format_counts(counts)}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
