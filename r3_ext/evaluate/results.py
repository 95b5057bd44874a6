"""Figures of scored answers with intervals over problems: results.json, results.md and a table for the terminal.

    pass@k      unbiased, for every k up to the smallest number of answers of a problem; pass@1 is the mean of n
    maj@n       majority vote over all answers of a problem; tied answers count their mean
    tokens/...  mean response length over all, right and wrong answers
    truncated   share of answers that hit the limit
    strict      pass@1 if only equal normalised strings counted as right
    no_answer   share of answers without a closed box

The macro average is the mean over benchmarks, each resampled on its own. `amc23_40` is a part of `amc23` and does not
count beside it.
"""

import json
import zlib
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from r3_ext.evaluate import plan
from r3_ext.evaluate.score import Scores, read_scores
from r3_ext.host.files import write_text
from recipe.common.validation import LEVEL, RESAMPLES, bootstrap, maj_at_n, pass_at_k, percentiles, powers_of_two

SEED = 0
MACRO = "macro"
PARTS = {"amc23_40": "amc23"}
"""Benchmarks that are part of another."""
METHOD = f"{LEVEL:.0%} percentile bootstrap over problems, {RESAMPLES} resamples, seed {SEED}"
LABELS = {"maj@n": "Maj@n", "tokens/all": "tokens, all", "tokens/correct": "  correct", "tokens/wrong": "  wrong"}
LABELS |= {"truncated": "truncated", "no_answer": "no answer", "strict": "strict match"}

Measured = dict[str, tuple[float, np.ndarray]]
"""Estimate and bootstrap means (B,) by figure."""


def seed_of(name: str) -> list[int]:
    """Of a benchmark: equal in every evaluation, different from that of another benchmark."""
    return [SEED, zlib.crc32(name.encode())]


def quantities(scores: Scores) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values (P,) and their counts (P,): a figure is the sum of its values over the sum of its counts."""
    n_P, once_P = scores.attempts_P, np.ones(len(scores.query_ids))
    found = {f"pass@{k}": (pass_at_k(n_P, scores.successes_P, k), once_P) for k in range(1, int(n_P.min()) + 1)}
    ends = np.cumsum(n_P).tolist()
    votes = [
        maj_at_n(scores.answers[begin:end], scores.correct_R[begin:end])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    found["maj@n"] = (np.array(votes), once_P)
    no_answer_R = np.array([answer is None for answer in scores.answers])
    found["strict"] = (scores.sums(scores.strict_R) / n_P, once_P)
    found["no_answer"] = (scores.sums(no_answer_R) / n_P, once_P)
    selections = {"all": np.ones(len(scores.correct_R), bool), "correct": scores.correct_R, "wrong": ~scores.correct_R}
    if not np.isnan(scores.tokens_R).any():
        for name, rows_R in selections.items():
            if rows_R.any():
                found[f"tokens/{name}"] = (scores.sums(scores.tokens_R * rows_R), scores.sums(rows_R))
    if not np.isnan(scores.truncated_R).any():
        found["truncated"] = (scores.sums(scores.truncated_R) / n_P, once_P)
    return found


def measure(found: dict[str, tuple[np.ndarray, np.ndarray]], seed: list[int]) -> Measured:
    values_PM, counts_PM = (np.stack(columns, axis=1) for columns in zip(*found.values(), strict=True))
    estimates_M, means_BM = values_PM.sum(0) / counts_PM.sum(0), bootstrap(values_PM, seed, counts_PM)
    return {name: (float(estimates_M[m]), means_BM[:, m]) for m, name in enumerate(found)}


def macro(measured: dict[str, Measured]) -> tuple[list[str], Measured]:
    """Names of the benchmarks that count, and the means over them of the figures that all of them have."""
    over = [name for name in measured if PARTS.get(name) not in measured]
    common = [figure for figure in measured[over[0]] if all(figure in measured[name] for name in over)]
    means = {
        figure: (
            float(np.mean([measured[name][figure][0] for name in over])),
            np.mean([measured[name][figure][1] for name in over], axis=0),
        )
        for figure in common
    }
    return over, means


def with_interval(measured: Measured) -> dict[str, list[float]]:
    """[value, low, high] of each figure."""
    return {
        figure: [value, *(float(end) for end in percentiles(means_B))] for figure, (value, means_B) in measured.items()
    }


def results(folder: Path) -> dict:
    """Content of results.json."""
    content, scored = plan.read_plan(folder), read_scores(folder)
    measured = {name: measure(quantities(scores), seed_of(name)) for name, scores in scored.items()}
    over, means = macro(measured)
    return {
        "model": content["model"],
        "sampling": content["sampling"],
        "interval": METHOD,
        "benchmarks": {
            name: {
                "hash": content["benchmarks"][name]["hash"],
                "problems": len(scores.query_ids),
                "answers": len(scores.correct_R),
                "answers_per_problem": [int(scores.attempts_P.min()), int(scores.attempts_P.max())],
                "grader_timeouts": int(scores.timeout_R.sum()),
                "metrics": with_interval(measured[name]),
            }
            for name, scores in scored.items()
        },
        MACRO: {"over": over, "metrics": with_interval(means)},
    }


def write_results(folder: Path) -> dict:
    found = results(folder)
    write_text(folder / "results.json", json.dumps(found, indent=1) + "\n")
    write_text(folder / "results.md", markdown(found))
    return found


def columns_of(found: dict) -> dict[str, dict[str, list[float]]]:
    """Figures by column of the table: the benchmarks, and their mean if there are several."""
    columns = {name: benchmark["metrics"] for name, benchmark in found["benchmarks"].items()}
    return columns | ({MACRO: found[MACRO]["metrics"]} if len(found[MACRO]["over"]) > 1 else {})


def figures_of(columns: dict[str, dict]) -> list[tuple[str, str]]:
    """Name and label of the rows of the table: of Pass@k the powers of two and n."""
    names = {figure for metrics in columns.values() for figure in metrics}
    largest = {max(int(f[5:]) for f in metrics if f.startswith("pass@")) for metrics in columns.values()}
    ks = sorted({k for n in largest for k in powers_of_two(n)})
    rows = [(f"pass@{k}", f"Pass@{k}") for k in ks] + list(LABELS.items())
    return [(figure, label) for figure, label in rows if figure in names]


def number(figure: str, value: float) -> str:
    return f"{value:,.0f}" if figure.startswith("tokens/") else f"{100 * value:.1f}"


def describe(found: dict) -> str:
    settings = "generated elsewhere"
    if found["sampling"]:
        names = [(key.replace("_", " "), value) for key, value in found["sampling"].items() if value is not None]
        settings = ", ".join(f"{key} {value}" for key, value in names)
    return f"{settings}; shares in per cent, each with its {LEVEL:.0%} interval"


def markdown(found: dict) -> str:
    columns = columns_of(found)
    lines = [["", *columns], ["---", *["---:"] * len(columns)], ["", *(size_of(found, name) for name in columns)]]
    for figure, label in figures_of(columns):
        triples = [metrics.get(figure) for metrics in columns.values()]
        cells = ["{} ({} to {})".format(*(number(figure, v) for v in triple)) if triple else "" for triple in triples]
        lines.append([label.replace("  ", "tokens, "), *cells])
    over = f" Macro average over {', '.join(found[MACRO]['over'])}." if MACRO in columns else ""
    hashes = {"model": found["model"]["fingerprint"]} | {name: b["hash"] for name, b in found["benchmarks"].items()}
    parts = [
        f"# {Path(found['model']['path']).name}",
        describe(found),
        "\n".join("| " + " | ".join(line) + " |" for line in lines),
        f"Intervals: {METHOD}.{over}",
        "\n".join(f"- {name}: sha256 {digest}" for name, digest in hashes.items()),
    ]
    return "\n\n".join(parts) + "\n"


def size_of(found: dict, name: str) -> str:
    return "mean" if name == MACRO else f"{found['benchmarks'][name]['problems']} problems"


def tables(found: dict, width: int) -> Group:
    """For the terminal: figures down, benchmarks across, in as many tables as the width needs."""
    columns = columns_of(found)
    names, per_table = list(columns), max(1, (width - 14) // 14)
    shown = [names[begin : begin + per_table] for begin in range(0, len(names), per_table)]
    return Group(
        *(_table(found, {name: columns[name] for name in part}) for part in shown), Text(describe(found), "dim")
    )


def _table(found: dict, columns: dict[str, dict]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold", min_width=10)
    table.add_row("", *(Text(size_of(found, name), "dim") for name in columns))
    for figure, label in figures_of(columns):
        table.add_row(label, *(_cell(figure, metrics.get(figure)) for metrics in columns.values()))
    return table


def _cell(figure: str, triple: list[float] | None) -> Text:
    if triple is None:
        return Text("-")
    value, low, high = (number(figure, end) for end in triple)
    return Text.assemble((value, "bold"), "\n", (f"{low} - {high}", "dim"))
