"""What the cells of a study with a language model say, for a record that has neither their metrics nor their texts.

    python -m tests.benchmarks.small_model outputs/smollm2/main examples/results/smollm2

FOLDER/kinds.csv: Pass@1 of each kind of problem at each validation. FOLDER/answers.csv: five problems of the
validation, drawn by seed 0, with their first answer at the first and at the last validation. FOLDER/reflections.csv:
every different answer under reflection, whether it is right, speaks of the attempt, was cut off. Each has the
cells that ended and whose folders are there, and keeps those that it has already. The tables of the page are printed,
made from these and from ledger.csv, which `r3 study` writes.
"""

import argparse
import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from r3_ext.host.stores import load_tokenizer, meta_of, snapshot
from r3_ext.r3.history.shared import read_samples
from r3_ext.record.summary import read_metrics
from r3_ext.study.record import read_ledger
from recipe.common.rows import REFLECTION
from recipe.r3.config.r3_config import ReplayConfig
from recipe.r3.history.file import HISTORY
from tests.benchmarks.cells import write

Rows = Iterator[tuple]
KIND = re.compile(r"val-core/(.+)/acc/mean@\d+")
ASKED = re.compile(r"\nuser\n(.+?)\nassistant", re.DOTALL)


def kinds(cell: Path) -> Rows:
    """step, kind, Pass@1."""
    for row in read_metrics(cell / "metrics.jsonl"):
        found = {match[1]: row[key] for key in sorted(row) if (match := KIND.fullmatch(key))}
        yield from ((row["step"], kind, f"{value:.4f}") for kind, value in found.items())


def answers(cell: Path) -> Rows:
    """step, question, what is right, whether the answer is, its text."""
    dumps = {int(file.stem): file for file in (cell / "validation").glob("*.jsonl")}
    for step in (min(dumps), max(dumps)):
        first = {}
        for row in map(json.loads, dumps[step].read_text().splitlines()):
            [question] = ASKED.findall(row["input"])
            first.setdefault(question, row)
        for question in random.Random(0).sample(sorted(first), 5):
            row = first[question]
            yield step, question, row["gts"], int(row["acc"]), row["output"]


def reflections(cell: Path) -> Rows:
    """step, whether the answer is right, whether it speaks of the attempt, whether it was cut off, its text."""
    history = cell / "history.sqlite"
    if not history.exists():
        return
    model = OmegaConf.load(cell / "config.yaml").actor_rollout_ref.model.path
    with snapshot(str(history), HISTORY) as db:
        tokenizer = load_tokenizer(model, meta_of(db), HISTORY)
        for sample, _, _ in read_samples(db, str(history), "variant = ?", [REFLECTION]):
            text = tokenizer.decode(sample.tokens, skip_special_tokens=True)
            speaks = ReplayConfig().speaks_of_attempt(text)
            yield sample.step, int(sample.correct), int(speaks), int(sample.truncated), text


TABLES: dict[str, tuple[Callable[[Path], Rows], tuple[str, ...]]] = {
    "kinds": (kinds, ("step", "kind", "pass@1")),
    "answers": (answers, ("step", "question", "right_answer", "right", "text")),
    "reflections": (reflections, ("step", "right", "speaks_of_attempt", "cut_off", "text")),
}
CELL = ("arm", "seed")
LEDGER_TITLES = {
    "steps": "steps",
    "generated_tokens": "generated tokens",
    "reflection_tokens": "of them by asking again",
    "prompt_tokens": "prompt tokens",
    "seconds": "seconds",
    "groups_total": "groups of plain prompts",
    "groups_mixed": "mixed",
    "groups_all_correct": "all right",
    "groups_all_wrong": "all wrong",
    "groups_rescued_by_replay": "rescued by replay",
    "groups_ranked": "ranked",
    "groups_still_dead": "still dead",
    "reflection_prompts": "asked again or ahead, by either prompt",
    "reflection_solved": "solved then",
}
"""Columns of ledger.csv, as the page calls them."""


def kind_rows(record: Path) -> list[str]:
    """Pass@1 of each kind of problem and their mean, at the first and at the last validation of each cell."""
    found: dict[str, dict[tuple, dict[int, float]]] = {}
    for arm, seed, step, kind, share in read_rows(record / "kinds.csv")[1:]:
        found.setdefault(kind, {}).setdefault((arm, seed), {})[int(step)] = float(share)
    rows = {
        kind: [(cell[min(cell)], cell[max(cell)]) for _, cell in sorted(cells.items())] for kind, cells in found.items()
    }
    rows["mean of the kinds"] = [tuple(np.mean(ends, axis=0)) for ends in zip(*rows.values(), strict=True)]
    return [_row(kind, *(f"{first:.2f} to {last:.2f}" for first, last in ends)) for kind, ends in rows.items()]


def ledger_rows(record: Path) -> list[str]:
    """What each cell spent, and what became of its groups of plain prompts."""
    ledger = read_ledger(record)
    cells = [counts for arm in sorted(ledger) for _, counts in sorted(ledger[arm].items())]
    return [_row(title, *(f"{counts[key]:,}" for counts in cells)) for key, title in LEDGER_TITLES.items()]


def reflection_rows(record: Path) -> list[str]:
    """Of each cell: different answers under reflection, those cut off, right ones, and how many speak of the attempt
    of the right and of the wrong ones."""
    cells: dict[tuple, list[tuple[bool, ...]]] = {}
    for arm, seed, _, *said, _ in read_rows(record / "reflections.csv")[1:]:
        cells.setdefault((arm, seed), []).append(tuple(bool(int(each)) for each in said))
    return [
        _row(
            f"{arm}, seed {seed}",
            len(answers),
            sum(cut_off for _, _, cut_off in answers),
            sum(right for right, _, _ in answers),
            sum(right and speaks for right, speaks, _ in answers),
            sum(speaks and not right for right, speaks, _ in answers),
        )
        for (arm, seed), answers in sorted(cells.items())
    ]


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of an experiment's cells, ARM/seed_N")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    cells = {
        (cell.parent.name, cell.name.removeprefix("seed_")): cell
        for cell in args.folder.glob("*/seed_*")
        if (cell / "summary.json").exists()
    }
    for name, (read, columns) in TABLES.items():
        file = args.out / f"{name}.csv"
        known = [row for row in read_rows(file)[1:] if tuple(row[:2]) not in cells] if file.exists() else []
        found = [[*key, *map(str, row)] for key, cell in cells.items() for row in read(cell)]
        write(file, (*CELL, *columns), sorted([*known, *found], key=lambda row: (row[:2], int(row[2]))))
    print(*kind_rows(args.out), *ledger_rows(args.out), *reflection_rows(args.out), sep="\n")


def read_rows(file: Path) -> list[list[str]]:
    with open(file, newline="") as lines:
        return [*csv.reader(lines)]


if __name__ == "__main__":
    main()
