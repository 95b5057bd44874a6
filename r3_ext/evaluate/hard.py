"""The challenging subset: problems that a base model solves at most once in 16, and what other models do on them.

The first 16 answers of the base choose the subset. Its own curve includes them, and is therefore low for small k.

Pass@16 by response limit comes from one long generation: an answer longer than the limit counts as failed. A model
that was really stopped there would have given the same tokens up to the limit, so this is exact for a model that is
not told of the limit.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from r3_ext.data.write import to_row, write_rows
from r3_ext.evaluate import EvaluationError, plan
from r3_ext.evaluate.results import METHOD, measure, number, seed_of, with_interval
from r3_ext.evaluate.score import Scores, read_scores
from r3_ext.host.files import write_text
from recipe.common.validation import pass_at_k, powers_of_two

ATTEMPTS = 16
AT_MOST = 1
LIMITS = tuple(4096 << power for power in range(5))
"""4k to 64k tokens."""


def choose(scores: Scores) -> list[str]:
    """Query ids of the problems with at most one right answer among the first 16."""
    first_R = scores.sample_R < ATTEMPTS
    attempts_P, solved_P = scores.sums(first_R), scores.sums(first_R & scores.correct_R)
    if attempts_P.min() < ATTEMPTS:
        raise EvaluationError(f"--base needs {ATTEMPTS} answers per problem, got {int(attempts_P.min())}; use --n 16")
    return [query_id for query_id, solved in zip(scores.query_ids, solved_P, strict=True) if solved <= AT_MOST]


def curves(scores: Scores, subset: set[str], limits: Iterable[int], seed: list[int]) -> dict:
    """Pass@k for k = 1, 2, 4, .. and Pass@16 by limit on the problems of the subset, as [value, low, high]."""
    chosen_P = np.array([query_id in subset for query_id in scores.query_ids])
    n_P, c_P = scores.attempts_P[chosen_P], scores.successes_P[chosen_P]
    once_P = np.ones(len(n_P))
    found = {f"pass@{k}": (pass_at_k(n_P, c_P, k), once_P) for k in powers_of_two(int(n_P.min()))}
    if n_P.min() >= ATTEMPTS:
        for limit in limits:
            in_time_P = scores.sums(scores.correct_R & (scores.tokens_R <= limit))[chosen_P].astype(np.int64)
            found[f"limit/{limit}"] = (pass_at_k(n_P, in_time_P, ATTEMPTS), once_P)
    triples = with_interval(measure(found, seed))
    return {
        "problems": int(chosen_P.sum()),
        "pass_at_k": {name[5:]: triple for name, triple in triples.items() if name.startswith("pass@")},
        "pass_at_16_by_limit": {name[6:]: triple for name, triple in triples.items() if name.startswith("limit/")},
    }


def limits_of(content: dict, scores: Scores) -> list[int]:
    """The limits that a run's own leaves room for, and its own."""
    if not content["sampling"] or np.isnan(scores.tokens_R).any():
        return []
    longest = content["sampling"]["max_tokens"]
    return sorted({limit for limit in LIMITS if limit < longest} | {longest})


def on_subset(folder: Path, subset: dict[str, list[str]]) -> tuple[dict, list[str]]:
    """Curves of a run by benchmark of the subset, and the benchmarks that it has not answered.

    A run may hold a benchmark under another name, such as the files that `write_problems` makes.
    """
    content, scored = plan.read_plan(folder), read_scores(folder)
    found, missing = {}, []
    for name, query_ids in subset.items():
        order = sorted(scored, key=lambda other: other != name)
        holder = next((other for other in order if set(query_ids) <= set(scored[other].query_ids)), None)
        if not query_ids or holder is None:
            missing += [name] if query_ids else []
            continue
        scores = scored[holder]
        found[name] = curves(scores, set(query_ids), limits_of(content, scores), seed_of(name))
    if not found:
        raise EvaluationError(
            f"{folder} has not answered all problems of the subset of any benchmark ({', '.join(subset)}); "
            "evaluate it on the same benchmarks, or on the files that `r3 eval hard` writes"
        )
    return found, missing


def hard(base: Path, folders: list[Path]) -> dict:
    """Content of hard.json; the base is the first of the runs."""
    content = plan.read_plan(base)
    subset = {name: choose(scores) for name, scores in read_scores(base).items()}
    if not any(subset.values()):
        raise EvaluationError(f"{base}: no problem was solved at most {AT_MOST} time in {ATTEMPTS}; there is no subset")
    runs = []
    for folder in [base, *folders]:
        found, missing = on_subset(folder, subset)
        runs.append({"name": folder.resolve().name, "benchmarks": found, "missing": missing})
    rule = f"solved at most {AT_MOST} time in the first {ATTEMPTS} answers of the base"
    return {
        "subset": {
            "rule": rule,
            "base": {"name": base.resolve().name, "model": content["model"]["fingerprint"]},
            "benchmarks": {
                name: {
                    "hash": content["benchmarks"][name]["hash"],
                    "of": sum(row["benchmark"] == name for row in plan.read_problems(base)),
                    "query_ids": query_ids,
                }
                for name, query_ids in subset.items()
            },
        },
        "interval": METHOD,
        "by_limit": "from the token counts of one generation: an answer longer than the limit counts as failed",
        "runs": runs,
    }


def write_problems(base: Path, found: dict, out: Path) -> list[Path]:
    """The subset as benchmark files, to generate more answers to these problems alone."""
    files = []
    for name, part in found["subset"]["benchmarks"].items():
        chosen = set(part["query_ids"])
        rows = [row for row in plan.read_problems(base) if row["benchmark"] == name and row["query_id"] in chosen]
        problems = [plan.problem_of(row) for row in rows]
        truths = [json.loads(problem.judged)["ground_truth"] for problem in problems if problem.judged]
        if not all(isinstance(truth, str) for truth in truths):
            raise EvaluationError(
                f"{name}: ground truths that are no texts cannot be written to a file of hard problems"
            )
        if problems:
            files.append(out / f"hard_{name}.parquet")
            write_rows(files[-1], [to_row(problem, f"hard_{name}", "test") for problem in problems])
    return files


def write(found: dict, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "hard.json", json.dumps(found, indent=1) + "\n")


def tables(found: dict) -> list[Table]:
    """For each benchmark Pass@k and Pass@16 by limit, a column for each run."""
    shown = []
    for name, part in found["subset"]["benchmarks"].items():
        runs = {run["name"]: run["benchmarks"][name] for run in found["runs"] if name in run["benchmarks"]}
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(Text(f"{name}, {len(part['query_ids'])} of {part['of']}"))
        for run in runs:
            table.add_column(Text(run), justify="right", overflow="fold")
        for key, label in (("pass_at_k", "Pass@{}"), ("pass_at_16_by_limit", "Pass@16 in {:,} tokens")):
            for column in sorted({int(column) for curve in runs.values() for column in curve[key]}):
                cells = [one_line(curve[key].get(str(column))) for curve in runs.values()]
                table.add_row(label.format(column), *cells)
        shown += [table] if runs else []
    return shown


def one_line(triple: list[float] | None) -> str:
    return "{}  ({} - {})".format(*(number("pass@k", end) for end in triple)) if triple else "-"
