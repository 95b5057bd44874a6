"""Is B better than A? The difference of two evaluations, problem by problem, with a paired bootstrap over problems.

Both are drawn with the same problems in every resample, so that easy and hard draws cancel: the interval of the
difference is narrower than the two intervals of the figures suggest. An interval without 0 is a difference.

Benchmarks are paired by what is in them: two files of the same problems compare, whatever they are called and in
whatever order their rows are. A file of answers stands for the folder that `r3 eval score` made of it.
"""

from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from r3_ext.data import problems as data
from r3_ext.evaluate import EvaluationError, plan
from r3_ext.evaluate.results import MACRO, METHOD, Measured, macro, measure, number, seed_of, with_interval
from r3_ext.evaluate.score import Scores, read_scores
from r3_ext.host.files import sha256
from recipe.common.validation import LEVEL


def paired(a: Scores, b: Scores, seed: list[int]) -> Measured:
    """Pass@1 and mean tokens of A and B, and B - A; the problems of B are taken in the order of A's."""
    place = {query_id: at for at, query_id in enumerate(b.query_ids)}
    order_P = [place[query_id] for query_id in a.query_ids]
    columns = {"pass@1": [a.successes_P / a.attempts_P, (b.successes_P / b.attempts_P)[order_P]]}
    if not any(np.isnan(s.tokens_R).any() for s in (a, b)):
        columns["tokens/all"] = [a.sums(a.tokens_R) / a.attempts_P, (b.sums(b.tokens_R) / b.attempts_P)[order_P]]
    once_P = np.ones(len(a.query_ids))
    found = {}
    for figure, (a_P, b_P) in columns.items():
        found |= {f"{figure}/a": (a_P, once_P), f"{figure}/b": (b_P, once_P), f"{figure}/change": (b_P - a_P, once_P)}
    return measure(found, seed)


Contents = dict[str, tuple[str, set[tuple[str, str]]]]
"""By benchmark: the hash of its file, and (query id, reference answer however it is written) of the problems asked."""


def folder_of(path: Path) -> Path:
    """The scored folder that a path names: itself, or the one beside a file of answers."""
    if not path.is_file():
        return path
    folder = path.with_name(path.name + ".eval")
    if not (folder / "scores.parquet").is_file():
        raise EvaluationError(f"{path} is not scored yet; run `r3 eval score {path}` first")
    if plan.read_plan(folder)["model"]["fingerprint"] != sha256(path):
        raise EvaluationError(f"{path} was changed since it was scored; delete {folder} and run `r3 eval score {path}`")
    return folder


def contents(folder: Path) -> Contents:
    found: dict[str, set[tuple[str, str]]] = {}
    for row in plan.read_problems(folder):
        found.setdefault(row["benchmark"], set()).add((row["query_id"], data.normal_form(row["answer"])))
    return {name: (part["hash"], found[name]) for name, part in plan.read_plan(folder)["benchmarks"].items()}


def is_same(a: tuple[str, set], b: tuple[str, set]) -> bool:
    """One file, whatever limit an evaluation had, or the same problems in another order."""
    return a[0] == b[0] or a[1] == b[1]


def pair(a: Contents, b: Contents) -> dict[str, str]:
    """The benchmark of B for each of A that has one: of the same name, or else of the same content."""
    pairs = {name: name for name in a if name in b}
    for name in a:
        same = [other for other in b if other not in pairs.values() and is_same(a[name], b[other])]
        if name not in pairs and same:
            pairs[name] = same[0]
    return pairs


def compare(a: Path, b: Path) -> dict:
    """Every figure as [value, low, high], by benchmark and their mean.

    Raises:
        EvaluationError: no benchmark is in both, or one has other problems there.
    """
    folders = folder_of(a), folder_of(b)
    plans, scored, known = zip(*((plan.read_plan(f), read_scores(f), contents(f)) for f in folders), strict=True)
    pairs = pair(*known)
    if not pairs:
        raise EvaluationError(
            f"{a} and {b} have no benchmark in common: {', '.join(scored[0])} and {', '.join(scored[1])}"
        )
    for names in pairs.items():
        require_same(names, folders, scored, known)
    measured = {name: paired(scored[0][name], scored[1][other], seed_of(name)) for name, other in pairs.items()}
    over, means = macro(measured)
    return {
        "a": {"folder": folders[0].name, "model": plans[0]["model"], "sampling": plans[0]["sampling"]},
        "b": {"folder": folders[1].name, "model": plans[1]["model"], "sampling": plans[1]["sampling"]},
        "interval": f"paired {METHOD}",
        "not_compared": sorted((set(scored[0]) - set(pairs)) | (set(scored[1]) - set(pairs.values()))),
        "benchmarks": {
            name: {
                "problems": len(scored[0][name].query_ids),
                "name_in_b": other,
                "metrics": with_interval(measured[name]),
            }
            for name, other in pairs.items()
        },
        MACRO: {"over": over, "metrics": with_interval(means)},
    }


def require_same(names: tuple, folders: tuple, scored: tuple, known: tuple) -> None:
    """Raise EvaluationError unless a benchmark has the same problems and answers in both, and all of them scored."""
    a, b = (content[name] for content, name in zip(known, names, strict=True))
    ids = [scores[name].query_ids for scores, name in zip(scored, names, strict=True)]
    title = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}"
    if not is_same(a, b):
        raise EvaluationError(
            f"benchmark {title} is not the same in both: sha256 {a[0]} in {folders[0]}, {b[0]} in {folders[1]}; "
            "evaluate both models on one file"
        )
    if set(ids[0]) != set(ids[1]):
        raise EvaluationError(
            f"benchmark {title}: {len(ids[0])} problems in {folders[0]}, {len(ids[1])} in {folders[1]}; use the same "
            "--limit"
        )


def notes(found: dict) -> list[str]:
    """What a reader must know before trusting the table."""
    a, b = (found[side]["sampling"] or {} for side in "ab")
    differing = [f"{key} {a.get(key)} and {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key)]
    said = [f"the settings differ: {', '.join(differing)}"] if differing else []
    names = {name: part["name_in_b"] for name, part in found["benchmarks"].items()}
    said += [f"{name} of A and {other} of B hold the same problems" for name, other in names.items() if name != other]
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
