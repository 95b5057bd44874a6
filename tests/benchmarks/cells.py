"""What the metrics and stored answers of a study's cells say of each step, for a record that has neither.

    python -m tests.benchmarks.cells outputs/rivals_sorting/main examples/results/rivals_sorting \\
        --arms grpo grpo_extra r3 at_once_adaptive --first-epoch 8 --model CACHE/warm-start-KEY/model

FOLDER/steps.csv: each step of each cell whose metrics are there, with the columns that a cell has something in. Asked
and found are all-wrong groups that were asked again in the step, and those with a right answer then; success is that
of restarts, and fresh_success that of later fresh attempts at their problems. With --model, whose tokenizer reads the
answers of worlds of sorting, FOLDER/working.csv: right answers of these cells, and how many of them have a working,
the digits before the box, that does not give the boxed answer.
"""

import argparse
import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from r3_ext.host.stores import load_tokenizer, meta_of, snapshot
from r3_ext.r3.history.shared import read_samples
from r3_ext.record.summary import read_metrics, validation_accuracy
from recipe.common.rows import PLAIN
from recipe.r3.history.file import HISTORY

COLUMNS = {
    "grad_norm": "actor/grad_norm",
    "replayed_rows": "replay/rows",
    "asked_by_reflection": "reflection/by_reflection/asked",
    "found_by_reflection": "reflection/by_reflection/found",
    "asked_plainly": "reflection/by_plain/asked",
    "found_plainly": "reflection/by_plain/found",
    "restarts": "restart/rows",
    "restarts_right": "restart/acc/mean",
    "compared": "restart/compared",
    "success": "restart/success",
    "fresh_success": "restart/fresh_success",
    "value_correlation": "restart/value_correlation",
}


def steps(folder: Path, arm: str) -> Iterator[tuple]:
    for cell in sorted(folder.glob(f"{arm}/seed_*/metrics.jsonl")):
        for row in read_metrics(cell):
            accuracy = validation_accuracy(row)
            found = (f"{row[key]:.4g}" if key in row else "" for key in COLUMNS.values())
            yield (arm, seed_of(cell), row["step"], "" if accuracy is None else f"{accuracy:.4f}", *found)


def seed_of(file: Path) -> str:
    return file.parent.name.removeprefix("seed_")


def gives_its_answer(text: str) -> bool:
    """Whether the digits before the box are those in it."""
    working, _, after = text.partition("</think>")
    box = re.search(r"boxed\{(\d+)\}", after)
    return bool(box) and re.sub(r"\D", "", working) == box[1]


def working(folder: Path, arm: str, model: str, first_epoch: int) -> Iterator[tuple]:
    for cell in sorted(folder.glob(f"{arm}/seed_*/history.sqlite")):
        found, without = Counter(), Counter()
        with snapshot(str(cell), HISTORY) as db:
            tokenizer, times = load_tokenizer(model, meta_of(db), HISTORY), Counter()
            for sample_id, groups in db.execute("SELECT sample_id, times FROM replays"):
                times[sample_id] += groups
            for sample, _, _ in read_samples(db, str(cell), "correct", ()):
                is_first = sample.variant == PLAIN and sample.step <= first_epoch
                lacks = not gives_its_answer(tokenizer.decode(sample.tokens))
                for kind, number in (("replayed", times[sample.id]), ("first epoch", int(is_first))):
                    found[kind, sample.variant] += number
                    without[kind, sample.variant] += number * lacks
        yield from ((arm, seed_of(cell), *key, number, without[key]) for key, number in found.items() if number)


def write(file: Path, head: tuple, rows: list[tuple]) -> None:
    with open(file, "w", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of an experiment's cells, ARM/seed_N")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--model")
    parser.add_argument("--first-epoch", type=int, default=0, help="its steps")
    args = parser.parse_args()
    found = [row for arm in args.arms for row in steps(args.folder, arm)]
    head = ("arm", "seed", "step", "pass@1", *COLUMNS)
    told = [at for at in range(len(head)) if any(row[at] != "" for row in found)]
    write(args.out / "steps.csv", tuple(head[at] for at in told), [tuple(row[at] for at in told) for row in found])
    if args.model:
        found = [row for arm in args.arms for row in working(args.folder, arm, args.model, args.first_epoch)]
        write(args.out / "working.csv", ("arm", "seed", "kind", "prompt", "answers", "without_working"), found)


if __name__ == "__main__":
    main()
