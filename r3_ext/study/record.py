"""The record of a study: what its complete cells found, as two small files that outlive their run folders.

curves.csv has a row for each validation of a cell, ledger.csv one for each cell: what it generated, what became of its
groups, and what each mechanism did. A plan has both for all of its experiments, with FOLDER/ARM as the arm.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from r3_ext.host.files import replacing
from r3_ext.record.summary import GROUPS, read_metrics, total_of
from r3_ext.study.arms import TOKENS, TURNS, unit_of
from r3_ext.study.outcome import Curve, as_curve, curve_of

CURVES = "curves.csv"
LEDGER = "ledger.csv"
_CELL = ("arm", "seed")
COMMIT = "commit"
_SPENT = {TOKENS: "generated_tokens", TURNS: "turns"}
"""What a budget counts, as a column; all cells of a record count the same."""
COUNTS = (
    *("steps", "generated_tokens", "reflection_tokens", "prompt_tokens", *(f"groups_{name}" for name in GROUPS)),
    *("replayed_rows", "reflection_prompts", "reflection_solved", "restart_rows", "restart_right"),
    *("updates", "trained_rows", "seconds"),
)
"""`prompt_tokens` are those of the prompts, once for each answer or turn, without a restart's state; `restart_rows` are
answers that go on from a state or a stored answer; `updates` are optimizer steps; `seconds` are those of the whole run,
start-up included."""
Curves = dict[str, dict[int, Curve]]
"""By arm and seed."""
Ledger = dict[str, dict[int, dict[str, int | str]]]
"""By arm, seed and column: COUNTS are numbers, COMMIT the code that the cell ran, "" where that is not known."""
Cell = tuple[Curve, dict[str, int | str]]
"""Curve and row of the ledger."""


def read_curves(out: Path) -> Curves:
    """The curves of the complete cells, as the last summary left them; none before the first."""
    points: dict[str, dict[int, list]] = {}
    rows = _read(out / CURVES)
    spent = _SPENT[TURNS if rows and _SPENT[TURNS] in rows[0] else TOKENS]
    _has(out / CURVES, rows, (*_CELL, spent, "accuracy"))
    for number, row in enumerate(rows, start=2):
        cell = points.setdefault(row["arm"], {}).setdefault(int(row["seed"]), [])
        tokens, accuracy = float(row[spent]), float(row["accuracy"])
        if cell and tokens < cell[-1][0] or not 0 <= accuracy <= 1:
            raise ValueError(f"{out / CURVES}, line {number}: tokens of a cell fall, or an accuracy is none")
        cell.append((tokens, accuracy))
    return {arm: {seed: as_curve(cell) for seed, cell in cells.items()} for arm, cells in points.items()}


def read_ledger(out: Path) -> Ledger:
    """What the complete cells did; cells recorded without it are absent, and so are columns of a later version."""
    found: Ledger = {}
    rows = _read(out / LEDGER)
    _has(out / LEDGER, rows, _CELL)
    for row in rows:
        known = {column: int(row[column]) for column in COUNTS if column in row}
        known |= {COMMIT: row[COMMIT]} if COMMIT in row else {}
        found.setdefault(row["arm"], {})[int(row["seed"])] = known
    return found


def ledger_of(summary: dict, rows: list[dict], commit: str) -> dict[str, int | str]:
    """A complete cell's row of the ledger, from its summary.json and metrics.jsonl.

    Where a step of it was run by an earlier version, it has no prompt tokens.
    """
    prompts = [row.get("generated/prompt_tokens") for row in rows if "generated/tokens" in row]
    return {
        COMMIT: commit,
        "steps": summary["steps"],
        "generated_tokens": summary["generated_tokens"],
        "reflection_tokens": total_of(rows, "reflection/tokens"),
        **({"prompt_tokens": int(sum(prompts))} if None not in prompts else {}),
        **{f"groups_{name}": summary["groups"][name] for name in GROUPS},
        "replayed_rows": summary["replayed_rows"],
        "reflection_prompts": summary["reflection"]["prompts"],
        "reflection_solved": summary["reflection"]["solved"],
        "restart_rows": total_of(rows, "restart/rows"),
        "restart_right": round(sum(row.get("restart/rows", 0) * row.get("restart/acc/mean", 0) for row in rows)),
        "updates": summary["updates"],
        "trained_rows": summary["trained_rows"],
        "seconds": round(summary["seconds"]["total"]),
    }


def read_cell(folder: Path, tokens: int, unit: str = TOKENS) -> Cell | None:
    """Curve and row of the ledger of a cell that ended well, its last validation behind the budget; None of others.

    Raises:
        ValueError: a file of it is not what a run writes.
    """
    file = folder / "summary.json"
    if not file.exists():
        return None
    try:
        summary = json.loads(file.read_text())
        if summary["exit_code"] != 0:
            return None
        file = folder / "metrics.jsonl"
        rows = read_metrics(file)
        curve = curve_of(rows, unit)
        if not np.isfinite(curve).all():
            raise ValueError
        file = folder / "summary.json"
        counts = ledger_of(summary, rows, commit_of(folder))
        if not all(isinstance(counts[column], int) for column in COUNTS if column in counts):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise ValueError(f"{file} is not what a run writes") from None
    return (curve, counts) if len(curve[0]) > 1 and curve[0][-1] >= tokens else None


def commit_of(folder: Path) -> str:
    file = folder / "environment.json"
    return (json.loads(file.read_text())["git"]["commit"] or "")[:9] if file.exists() else ""


def update(out: Path, cells: dict[tuple[str, int], Cell], order: tuple[str, ...]) -> None:
    """Write the record anew with these complete cells, by arm and seed, added, arms in this order."""
    curves, ledger = read_curves(out), read_ledger(out)
    for (arm, seed), (curve, counts) in cells.items():
        curves.setdefault(arm, {})[seed] = curve
        ledger.setdefault(arm, {})[seed] = counts
    write(out, curves, ledger, order)


def pack(out: Path, folders: Iterable[str]) -> None:
    """Write the record of a plan from those of its experiments in OUT/FOLDER; of one that is not there it stays."""
    there = [folder for folder in folders if (out / folder).exists()]

    def joined(read: Callable[[Path], dict[str, dict]]) -> dict[str, dict]:
        kept = {arm: cells for arm, cells in read(out).items() if arm.rpartition("/")[0] not in there}
        return kept | {f"{folder}/{arm}": cells for folder in there for arm, cells in read(out / folder).items()}

    curves = joined(read_curves)
    write(out, curves, joined(read_ledger), tuple(curves))


def unpack(out: Path, budgets: dict[str, int], plan: str) -> None:
    """Lay the record of a plan into the folders of its experiments that are not there, to be summarised.

    Args:
        budgets: tokens by folder. plan: name of the file in which a folder keeps its budget.
    """
    recorded = {arm.rpartition("/")[0] for arm in read_curves(out)}
    for folder, tokens in budgets.items():
        if folder in recorded and not (out / folder).exists():
            (out / folder).mkdir()
            (out / folder / plan).write_text(json.dumps({"tokens": tokens}) + "\n")
            lay(out, folder)


def lay(out: Path, folder: str) -> int:
    """Lay the cells of an experiment in the record of a plan into OUT/FOLDER, if that has none; returns how many."""
    curves, ledger = read_curves(out), read_ledger(out)
    names = {arm: arm.rpartition("/")[2] for arm in curves if arm.rpartition("/")[0] == folder}
    if not names or (out / folder / CURVES).exists():
        return 0
    rows = {name: ledger[arm] for arm, name in names.items() if arm in ledger}
    write(out / folder, {name: curves[arm] for arm, name in names.items()}, rows, tuple(names.values()))
    return sum(len(curves[arm]) for arm in names)


def write(out: Path, curves: Curves, ledger: Ledger, order: tuple[str, ...]) -> None:
    """Write the record anew, arms in this order."""
    points = [
        (arm, seed, int(tokens), round(float(accuracy), 4))
        for arm, seed, curve in _sorted(curves, order)
        for tokens, accuracy in zip(*curve, strict=True)
    ]
    unit = unit_of(arm.rpartition("/")[2] for arm in curves)
    _write(out / CURVES, (*_CELL, _SPENT[unit], "accuracy"), points)
    # A record of an earlier version lacks some, and keeps lacking them.
    rows = [row for _, _, row in _sorted(ledger, order)]
    columns = [column for column in (*COUNTS, COMMIT) if all(column in row for row in rows)]
    counts = [(arm, seed, *(row[column] for column in columns)) for arm, seed, row in _sorted(ledger, order)]
    _write(out / LEDGER, (*_CELL, *columns), counts)


def _sorted(cells: dict[str, dict], order: tuple[str, ...]) -> list[tuple]:
    """(arm, seed, value); arms that are not in `order`, of another version, come last and are kept."""
    known = [arm for arm in order if arm in cells]
    return [
        (arm, seed, cells[arm][seed])
        for arm in [*known, *(arm for arm in cells if arm not in order)]
        for seed in sorted(cells[arm])
    ]


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    number = 1
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        for number, row in enumerate(rows, start=2):
            if not all(math.isfinite(float(value)) for column, value in row.items() if column not in ("arm", COMMIT)):
                raise ValueError
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path}, line {number}: not the record of a study") from error
    return rows


def _has(path: Path, rows: list[dict[str, str]], columns: tuple[str, ...]) -> None:
    if rows and not set(columns) <= set(rows[0]):
        raise ValueError(f"{path}: the columns {', '.join(columns)} are not all there")


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple]) -> None:
    """Replaces the file in one go: it may hold the only trace of a cell."""
    with replacing(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
