"""Evaluation data: the five benchmarks in verl's format, one parquet each.

    python examples/data_preprocess/benchmarks.py --output-dir data/benchmarks
    python examples/data_preprocess/benchmarks.py --folder my_files --only aime24 math500
    python examples/data_preprocess/benchmarks.py --amc23 math-ai/amc23:test

Each source is a Hugging Face id with its split after a colon, or a local file or folder. `amc23` is by default the
83-problem set that DeepScaleR and later papers call AMC 2023; `math-ai/amc23:test` is the 40-problem one.
Rows keep the order of their source. Counts and the source's sha256 are written beside each parquet.
"""

import argparse
from collections import Counter
from pathlib import Path

from r3_ext import data

HUB_IDS = {
    "aime24": "HuggingFaceH4/aime_2024:train",
    "math500": "HuggingFaceH4/MATH-500:test",
    "amc23": "AI-MO/aimo-validation-amc:train",
    "minerva": "math-ai/minervamath:test",
    "olympiadbench": "math-ai/olympiadbench:test",
}


def find_in_folder(folder: Path, name: str) -> str:
    paths = [folder / f"{name}{suffix}" for suffix in data.SUFFIXES]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        raise ValueError(
            f"{folder}: exactly one of {', '.join(path.name for path in paths)} must exist, found {len(found)}; "
            f"name the file with --{name}, or leave the benchmark out with --only"
        )
    return str(found[0])


def read_source(source: str) -> tuple[list[dict], dict]:
    if Path(source).expanduser().exists() or ":" not in source:
        return data.read_rows(source, "test")
    name, split = source.rsplit(":", 1)
    return data.read_rows(name, split)


def convert(name: str, source: str, output_dir: Path) -> Counter:
    rows, origin = read_source(source)
    counts = Counter()
    problems = data.clean(data.to_problems(rows, source, name), counts)
    counts["test"] = len(problems)
    report = {"data_source": name, "origin": origin, "counts": dict(counts)}
    data.write_rows(output_dir / f"{name}.parquet", [data.to_row(p, name, "test") for p in problems], report)
    return counts


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--folder", type=Path, help="folder with <benchmark>.parquet, .jsonl or .json")
    parser.add_argument("--only", nargs="+", choices=list(HUB_IDS), default=list(HUB_IDS), metavar="NAME")
    for name, hub_id in HUB_IDS.items():
        parser.add_argument(f"--{name}", metavar="SOURCE", help=f"default: {hub_id}, or the file in --folder")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    for name in args.only:
        source = getattr(args, name) or (find_in_folder(args.folder, name) if args.folder else HUB_IDS[name])
        print(f"{args.output_dir / name}.parquet\n{data.format_counts(convert(name, source, args.output_dir))}")


if __name__ == "__main__":
    main()
