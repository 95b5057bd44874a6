"""Is B better than A? The difference of two evaluations, problem by problem, with a paired bootstrap over problems.

Both are drawn with the same problems in every resample, so that easy and hard draws cancel: the interval of the
difference is narrower than the two intervals of the figures suggest. An interval without 0 is a difference.
"""

from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from r3_ext.evaluate import EvaluationError, plan
from r3_ext.evaluate.results import MACRO, METHOD, Measured, macro, measure, number, seed_of, with_interval
from r3_ext.evaluate.score import Scores, read_scores
from recipe.r3.validation import LEVEL


def paired(a: Scores, b: Scores, seed: list[int]) -> Measured:
    """Pass@1 and mean tokens of A and B, and B - A."""
    columns = {"pass@1": [s.successes_P / s.attempts_P for s in (a, b)]}
    if not any(np.isnan(s.tokens_R).any() for s in (a, b)):
        columns["tokens/all"] = [s.sums(s.tokens_R) / s.attempts_P for s in (a, b)]
    once_P = np.ones(len(a.query_ids))
    found = {}
    for figure, (a_P, b_P) in columns.items():
        found |= {f"{figure}/a": (a_P, once_P), f"{figure}/b": (b_P, once_P), f"{figure}/change": (b_P - a_P, once_P)}
    return measure(found, seed)


def compare(folder_a: Path, folder_b: Path) -> dict:
    """Every figure as [value, low, high], by benchmark and their mean.

    Raises:
        EvaluationError: no benchmark is in both, or one has another content or other problems there.
    """
    plans, scored = zip(
        *((plan.read_plan(folder), read_scores(folder)) for folder in (folder_a, folder_b)), strict=True
    )
    common = [name for name in scored[0] if name in scored[1]]
    if not common:
        raise EvaluationError(
            f"{folder_a} and {folder_b} have no benchmark in common: {', '.join(scored[0])} and {', '.join(scored[1])}"
        )
    for name in common:
        hashes = [content["benchmarks"][name]["hash"] for content in plans]
        if hashes[0] != hashes[1]:
            raise EvaluationError(
                f"benchmark {name} is not the same in both: sha256 {hashes[0]} in {folder_a}, {hashes[1]} in "
                f"{folder_b}; evaluate both models on one file"
            )
        if scored[0][name].query_ids != scored[1][name].query_ids:
            sizes = [len(scores[name].query_ids) for scores in scored]
            raise EvaluationError(
                f"benchmark {name}: {sizes[0]} problems in {folder_a}, {sizes[1]} in {folder_b}; use the same --limit"
            )
    measured = {name: paired(scored[0][name], scored[1][name], seed_of(name)) for name in common}
    over, means = macro(measured)
    return {
        "a": {"folder": folder_a.name, "model": plans[0]["model"], "sampling": plans[0]["sampling"]},
        "b": {"folder": folder_b.name, "model": plans[1]["model"], "sampling": plans[1]["sampling"]},
        "interval": f"paired {METHOD}",
        "not_compared": sorted(set(scored[0]) ^ set(scored[1])),
        "benchmarks": {
            name: {"problems": len(scored[0][name].query_ids), "metrics": with_interval(measured[name])}
            for name in common
        },
        MACRO: {"over": over, "metrics": with_interval(means)},
    }


def notes(found: dict) -> list[str]:
    """What a reader must know before trusting the table."""
    a, b = (found[side]["sampling"] or {} for side in "ab")
    differing = [f"{key} {a.get(key)} and {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key)]
    said = [f"the settings differ: {', '.join(differing)}"] if differing else []
    return said + ([f"only in one of the two: {', '.join(found['not_compared'])}"] if found["not_compared"] else [])


def grids(found: dict) -> list[list[list[str]]]:
    """Cells of a table for each figure, the header first."""
    lines = {name: (str(part["problems"]), part["metrics"]) for name, part in found["benchmarks"].items()}
    if len(found[MACRO]["over"]) > 1:
        lines[MACRO] = ("", found[MACRO]["metrics"])
    shown = []
    for figure, label in (("pass@1", "Pass@1, per cent"), ("tokens/all", "response tokens")):
        cells = [[name, size, *_cells(part, figure)] for name, (size, part) in lines.items() if f"{figure}/a" in part]
        shown += [[[label, "problems", "A", "B", "B - A", f"{LEVEL:.0%} interval"], *cells]] if cells else []
    return shown


def _cells(metrics: dict, figure: str) -> list[str]:
    a, b = (number(figure, metrics[f"{figure}/{side}"][0]) for side in "ab")
    signs = ["+" if value > 0 else "" for value in metrics[f"{figure}/change"]]
    change, low, high = (f"{s}{number(figure, v)}" for s, v in zip(signs, metrics[f"{figure}/change"], strict=True))
    return [a, b, change, f"{low} to {high}"]


def tables(found: dict) -> list[Table]:
    shown = []
    for header, *lines in grids(found):
        shown.append(Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold"))
        for position, title in enumerate(header):
            shown[-1].add_column(title, justify="right" if position else "left", overflow="fold")
        for cells in lines:
            shown[-1].add_row(*map(Text, cells))
    return shown


def markdown(found: dict) -> str:
    parts = [f"A: {found['a']['folder']}, B: {found['b']['folder']}. Interval: {found['interval']}."]
    for header, *lines in grids(found):
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines]))
    return "\n\n".join([*parts, *notes(found)]) + "\n"
