"""R^3 beside what others do about dead groups, in both records: tables that no plan makes, and one figure of both.

    python -m tests.benchmarks.rivals                                  # tables of the records' pages and of the docs
    python -m tests.benchmarks.rivals --figure examples/results/rivals.png

R^3 and GRPO are trained more than once with the same settings; here, as in the plans, each is the mean of its runs.
Shapes: W worlds.
"""

import argparse
import csv
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np

from r3_ext.report.draw import STYLE
from r3_ext.settings.compose import ROOT
from r3_ext.study import record
from r3_ext.study.command import recorded_curves
from r3_ext.study.design import Design, read_design
from r3_ext.study.figure import contrasts
from r3_ext.study.hypotheses import judge
from r3_ext.study.outcome import accuracy_at, mean_accuracy
from r3_ext.study.text import mean_and_interval, on_single_worlds

RESULTS = ROOT / "examples" / "results"
FACTS, SORTING = "rivals_facts", "rivals_sorting"
FAMILIES = {FACTS: "facts", SORTING: "sorting"}
RUNS = {"R^3": ("r3", "at_once_adaptive"), "GRPO": ("grpo", "none")}
RIVALS = {
    "GRPO": ("over_grpo", "GRPO"),
    "dapo": ("over_dapo", "DAPO as set here"),
    "rl_zvp": ("over_rl_zvp", "RL-ZVP as set here"),
    "grpo_extra": ("over_extra", "GRPO with further answers to all-wrong groups"),
    "any_prompt": ("over_any_prompt", "replay of right answers to any prompt"),
}
"""Of each method that R^3 is compared with: the hypothesis, and what it is called."""


def design_of(name: str) -> Design:
    return read_design(ROOT / "examples" / "studies" / f"{name}.yaml")


def verdicts_of(name: str) -> dict[str, dict]:
    return json.loads((RESULTS / name / "verdicts.json").read_text())


class Cells:
    """The record of a plan, by method."""

    def __init__(self, name: str):
        design = design_of(name)
        by_place, counts = recorded_curves(RESULTS / name, design), record.read_ledger(RESULTS / name)
        self.budget = design.experiments[0].tokens
        self.curves = {place.partition("/")[2]: of for place, of in by_place.items()}
        self.counts = {place.partition("/")[2]: of for place, of in counts.items()}
        self.worlds = sorted(set.intersection(*(set(of) for of in self.curves.values())))
        self.rivals = [method for method in RIVALS if self.runs(method)]

    def runs(self, method: str) -> list[str]:
        return [arm for arm in RUNS.get(method, (method,)) if arm in self.curves]

    def mean(self, method: str, tokens: float | np.ndarray, measure: Callable = mean_accuracy) -> np.ndarray:
        """(W,) Pass@1 on average over that many generated tokens, or by another measure; the mean of its runs."""
        at_W = np.broadcast_to(tokens, len(self.worlds))
        cells = [[self.curves[arm][world] for world in self.worlds] for arm in self.runs(method)]
        return np.mean([[*map(measure, curves, at_W)] for curves in cells], axis=0)

    def count(self, method: str, column: str) -> np.ndarray:
        """(W,) of the ledger; the mean of its runs."""
        return np.mean([[self.counts[arm][w][column] for w in self.worlds] for arm in self.runs(method)], axis=0)

    def read(self, method: str) -> np.ndarray:
        """(W,) prompt tokens for each generated one."""
        return self.count(method, "prompt_tokens") / self.count(method, "generated_tokens")

    def paid(self, rival: str) -> np.ndarray:
        """(W,) R^3 less that method, at as many prompt and generated tokens together as that has in its budget."""
        tokens_W = self.budget * (1 + self.read(rival)) / (1 + self.read("R^3"))
        return self.mean("R^3", tokens_W) - self.mean(rival, self.budget)


def paid_rows(cells: Cells) -> list[str]:
    """R^3 less each method, at equal generated tokens and at equal tokens in all."""
    ours_W = cells.mean("R^3", cells.budget)
    equal = {rival: mean_and_interval(ours_W - cells.mean(rival, cells.budget)) for rival in cells.rivals}
    return [f"| {RIVALS[rival][1]} | {of} | {mean_and_interval(cells.paid(rival))} |" for rival, of in equal.items()]


def arm_rows(cells: Cells) -> list[str]:
    """What a cell of each arm reached and cost, on average."""
    columns = ("prompt_tokens", "updates", "trained_rows", "groups_still_dead", "groups_total", "reflection_prompts")
    rows = []
    for arm in cells.curves:
        reached = [f"{cells.mean(arm, cells.budget, of).mean():.3f}" for of in (mean_accuracy, accuracy_at)]
        prompt, updates, trained, dead, groups, asked = (f"{cells.count(arm, of).mean():,.0f}" for of in columns)
        solved = f"{asked}, {cells.count(arm, 'reflection_solved').mean():.0f}" if asked != "0" else "-"
        rows.append(
            f"| `{arm}` | {' | '.join(reached)} | {prompt} | {updates} | {trained} | {dead} of {groups} | {solved} |"
        )
    return rows


def twice_rows(cells: Cells) -> list[str]:
    """How much two runs of one method differ."""
    rows = []
    for method, arms in RUNS.items():
        if len(cells.runs(method)) == len(arms):
            between_W = np.subtract(*(cells.mean(arm, cells.budget) for arm in arms))
            rows.append(f"| {method} twice | {between_W.mean():+.3f} | {between_W.std(ddof=1):.3f} |")
    return rows


def verdict_row(found: dict) -> str:
    """A verdict as the pages tell it: with worlds above 0, their median, and the mean without any one world."""
    ends = (f"{found[f'{of}low']:+.3f} to {found[f'{of}high']:+.3f}" for of in ("", "corrected_"))
    hangs = on_single_worlds(found["values"].values())
    return f"| {found['estimate']:+.3f} | {' | '.join((*ends, found['verdict'], *hangs))} |"


def both_rows() -> list[str]:
    """The main family of both plans, side by side."""
    found = {name: verdicts_of(name) for name in FAMILIES}
    rows = []
    for hypothesis, label in RIVALS.values():
        of = [verdicts[hypothesis] if hypothesis in verdicts else None for verdicts in found.values()]
        told_of = [
            f"{v['estimate']:+.3f} ({v['low']:+.3f} to {v['high']:+.3f}) | {v['verdict']}" if v else "not trained |"
            for v in of
        ]
        rows.append(f"| {label} | {' | '.join(told_of)} |")
    return rows


def rescue_rows() -> list[str]:
    """Dead groups in both families, and what each method gained on GRPO."""
    of = [Cells(name) for name in FAMILIES]

    def share(method: str, part: str, whole: str) -> list[str]:
        return [f"{100 * cells.count(method, part).sum() / cells.count(method, whole).sum():.0f} %" for cells in of]

    def gained(method: str) -> list[str]:
        found = [cells if method in (*cells.rivals, "R^3") else None for cells in of]
        return [
            mean_and_interval(c.mean(method, c.budget) - c.mean("GRPO", c.budget)) if c else "not trained"
            for c in found
        ]

    rows = {
        "groups of GRPO that are all wrong": share("GRPO", "groups_all_wrong", "groups_total"),
        "groups of GRPO that are mixed": share("GRPO", "groups_mixed", "groups_total"),
        "R^3": gained("R^3"),
        **{RIVALS[method][1]: gained(method) for method in RIVALS if method != "GRPO"},
    }
    return [f"| {name} | {' | '.join(found)} |" for name, found in rows.items()]


def steps_of(name: str) -> list[dict[str, str]]:
    """Of each step of the cells that were there when steps.csv was made, see cells.py."""
    with open(RESULTS / name / "steps.csv", newline="") as lines:
        return [*csv.DictReader(lines)]


def asked_again(name: str, arms: tuple[str, ...], way: str, steps: float = math.inf) -> tuple[float, float]:
    """All-wrong groups that were asked again in that way up to that step, and those with a right answer then."""
    cells = [row for row in steps_of(name) if row["arm"] in arms and int(row["step"]) <= steps]
    return tuple(sum(float(row[f"{of}_{way}"] or 0) for row in cells) for of in ("asked", "found"))


def asked_rows() -> list[str]:
    """What was found by reflection, plainly by R^3, plainly by GRPO with further answers."""
    ways = (RUNS["R^3"], "by_reflection"), (RUNS["R^3"], "plainly"), (("grpo_extra",), "plainly")
    rows = []
    for name, family in FAMILIES.items():
        pairs = (asked_again(name, arms, way) for arms, way in ways)
        shown = (f"{found:.0f} of {asked:,.0f}, {100 * found / asked:.0f} %" for asked, found in pairs)
        rows.append(f"| {family} | {' | '.join(shown)} |")
    return rows


def gradient_rows(since: int = 9, most: int = 5) -> list[str]:
    """Mean gradient norm of R^3's steps in sorting from `since` on, by the number of replayed rows in the step."""
    rows = []
    for arm in RUNS["R^3"]:
        norms = [[] for _ in range(most + 1)]
        for row in steps_of(SORTING):
            if row["arm"] == arm and int(row["step"]) >= since:
                norms[min(most, int(row["replayed_rows"]))].append(float(row["grad_norm"]))
        rows.append(f"| `{arm}` | {' | '.join(f'{np.mean(of):.2f}' for of in norms)} |")
    return rows


def step_rows(at: tuple[int, ...] = (4, 8, 10, 12, 14)) -> list[str]:
    """Pass@1 and gradient norm of GRPO and R^3 in sorting at these steps, and the replayed rows of R^3's; means."""
    mean = defaultdict(list)
    for row in steps_of(SORTING):
        for column in ("pass@1", "grad_norm", "replayed_rows"):
            if row[column]:
                mean[row["arm"], int(row["step"]), column].append(float(row[column]))
    rows = []
    for step in at:
        arms = ("grpo", *RUNS["R^3"])
        shown = (f"{np.mean(mean[a, step, 'pass@1']):.3f}, {np.mean(mean[a, step, 'grad_norm']):.2f}" for a in arms)
        replayed = ", ".join(f"{np.mean(mean[a, step, 'replayed_rows']):.1f}" for a in arms[1:])
        rows.append(f"| {step} | {' | '.join(shown)} | {replayed} |")
    return rows


def draw(file: Path) -> None:
    """R^3 less each method in every world of both plans."""
    judged, labels = [], dict(RIVALS.values())
    for name, family in FAMILIES.items():
        design = design_of(name)
        verdicts = judge(design.hypotheses, recorded_curves(RESULTS / name, design), design.budgets, design.worlds)
        for hypothesis in design.hypotheses:
            if hypothesis.family == "main":
                says, verdict = f"{family}: R^3 above {labels[hypothesis.name]}", verdicts[hypothesis.name]
                judged.append((replace(hypothesis, says=says), verdict.values, verdict))
    with matplotlib.rc_context(STYLE):
        contrasts(judged).savefig(file, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="draw this file")
    args = parser.parse_args()
    for name in FAMILIES:
        cells = Cells(name)
        tables = [map(verdict_row, verdicts_of(name).values()), paid_rows(cells), arm_rows(cells), twice_rows(cells)]
        print(f"{name}, {len(cells.worlds)} worlds", *itertools.chain(*tables), "", sep="\n")
    print("both", *both_rows(), *rescue_rows(), *asked_rows(), "", "sorting", *step_rows(), *gradient_rows(), sep="\n")
    if args.figure:
        draw(args.figure)


if __name__ == "__main__":
    main()
