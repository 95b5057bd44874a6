"""What the metrics and stored answers of a study's cells say of each step, for a record that has neither.

    python -m tests.benchmarks.cells outputs/rivals_sorting/main examples/results/rivals_sorting \\
        --arms grpo grpo_extra r3 at_once_adaptive --first-epoch 8 --model CACHE/warm-start-KEY/model

FOLDER/steps.csv: each step of each cell whose metrics are there. Asked and found are all-wrong groups that were asked
again in the step, and those with a right answer then. With --model, whose tokenizer reads the answers of worlds of
sorting, FOLDER/working.csv: right answers of these cells, and how many of them have a working, the digits before the
box, that does not give the boxed answer.
"""

import argparse
import csv
import json
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

COLUMNS = {
    "grad_norm": "actor/grad_norm",
    "replayed_rows": "replay/rows",
    "asked_by_reflection": "reflection/by_reflection/asked",
    "found_by_reflection": "reflection/by_reflection/found",
    "asked_plainly": "reflection/by_plain/asked",
    "found_plainly": "reflection/by_plain/found",
}
REPLAYED = (
    "SELECT s.variant, r.times, p.tokens FROM replays r JOIN samples s ON s.id = r.sample_id JOIN payloads p USING (id)"
)
STORED = (
    "SELECT variant, 1, tokens FROM samples JOIN payloads USING (id) WHERE correct AND variant = 'plain' AND step <= ?"
)


def steps(folder: Path, arm: str) -> Iterator[tuple]:
    for cell in sorted(folder.glob(f"{arm}/seed_*/metrics.jsonl")):
        for row in map(json.loads, cell.read_text().splitlines()):
            accuracy = next((f"{row[key]:.4f}" for key in row if re.fullmatch(r"val/\w+/pass@1", key)), "")
            found = (f"{row[key]:.4g}" if key in row else "" for key in COLUMNS.values())
            yield (arm, cell.parent.name.removeprefix("seed_"), row["step"], accuracy, *found)


def gives_its_answer(text: str) -> bool:
    """Whether the digits before the box are those in it."""
    working, _, after = text.partition("</think>")
    box = re.search(r"boxed\{(\d+)\}", after)
    return bool(box) and re.sub(r"\D", "", working) == box[1]


def working(folder: Path, arm: str, tokenizer, first_epoch: int) -> Iterator[tuple]:
    for cell in sorted(folder.glob(f"{arm}/seed_*/history.sqlite")):
        found, without = Counter(), Counter()
        db = sqlite3.connect(f"file:{cell}?mode=ro", uri=True)
        for kind, rows in (("replayed", db.execute(REPLAYED)), ("first epoch", db.execute(STORED, (first_epoch,)))):
            for variant, times, tokens in rows:
                text = tokenizer.decode(np.frombuffer(zlib.decompress(tokens), "<i4"))
                found[kind, variant] += times
                without[kind, variant] += times * (not gives_its_answer(text))
        db.close()
        yield from ((arm, cell.parent.name.removeprefix("seed_"), *key, n, without[key]) for key, n in found.items())


def write(file: Path, head: tuple, rows: list[tuple]) -> None:
    with open(file, "w", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of an experiment's cells, ARM/seed_N")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--first-epoch", type=int, default=0, help="its steps")
    args = parser.parse_args()
    found = [row for arm in args.arms for row in steps(args.folder, arm)]
    write(args.out / "steps.csv", ("arm", "seed", "step", "pass@1", *COLUMNS), found)
    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        found = [row for arm in args.arms for row in working(args.folder, arm, tokenizer, args.first_epoch)]
        write(args.out / "working.csv", ("arm", "seed", "kind", "prompt", "answers", "without_working"), found)


if __name__ == "__main__":
    main()
