"""What a study of several experiments found, as Markdown: written from the record, never by hand."""

import math
from collections.abc import Iterable

import numpy as np

from r3_ext.study import arms, outcome
from r3_ext.study.design import Design
from r3_ext.study.hypotheses import LEAST_WORLDS, Verdict
from r3_ext.study.outcome import REFERENCES, references

COSTS = {
    "generated_tokens": "generated tokens",
    "reflection_tokens": "of them under reflection",
    "prompt_tokens": "prompt tokens",
    "steps": "steps",
    "updates": "updates",
    "trained_rows": "trained rows",
    "seconds": "seconds",
}
LEDGER = {
    "groups_total": "groups",
    "groups_mixed": "mixed",
    "groups_all_wrong": "all wrong",
    "groups_all_correct": "all right",
    "groups_rescued_by_replay": "replay",
    "groups_ranked": "ranking",
    "groups_still_dead": "still dead",
    "reflection_prompts": "reflections",
    "reflection_solved": "solved",
}


OF_ANSWERS = {
    *("reflection_tokens", "groups_rescued_by_replay", "groups_ranked", "groups_still_dead"),
    *("reflection_prompts", "reflection_solved"),
}
"""Of these, what sessions do not have."""


def results(design: Design, found: dict[str, dict], verdicts: dict[str, Verdict | None]) -> str:
    """Markdown with the verdicts and, for each folder of `found`, what its arms reached, cost and did.

    A table holds the arms of the same worlds only: over different ones their means do not compare.
    """
    parts = ["# Results", "Made by `r3 study --plan PLAN --out FOLDER --summarise` from the record beside it.", ""]
    parts += ["## Hypotheses", "", *verdict_table(design, verdicts)]
    parts += ["", "What hangs on single worlds:", "", *world_table(design, verdicts)]
    for family in {hypothesis.family: None for hypothesis in design.hypotheses}:
        parts += ["", f"![The contrast of each hypothesis of the family {family} in every world]({family}.png)"]
    for folder, of in found.items():
        worlds = next((one.world for one in design.experiments if one.folder == folder), "")
        names = [arm for compared in of["comparisons"] for arm in compared["arms"]]
        title = f"## {folder}: at {of['tokens']:,} {arms.WORDS[arms.unit_of(names)]}"
        title += f", worlds with {worlds}" if worlds else ""
        if "commits" in of:
            title += f"; code: {', '.join(of['commits'])}"
        parts += ["", title]
        # Of an arm alone there is no figure.
        if any(len(compared["arms"]) > 1 for compared in of["comparisons"]):
            parts += ["", f"![Every world of every arm]({folder}/dots.png)"]
        for compared in of["comparisons"]:
            found_of, cells = compared["arms"], len(compared["seeds"])
            parts += ["", f"Worlds {seeds(compared['seeds'])}:", "", *arm_table(found_of)]
            if any("ledger" in row for row in found_of.values()):
                parts += ["", "A cell on average: what it cost, and what became of its groups."]
                costs, ledger = COSTS, LEDGER
                if arms.unit_of(found_of) == arms.TURNS:
                    costs, ledger = ({key: of[key] for key in of if key not in OF_ANSWERS} for of in (COSTS, LEDGER))
                parts += ["", *sums_table(found_of, costs, cells), "", *sums_table(found_of, ledger, cells)]
    return "\n".join(parts) + "\n"


TOO_FEW = f"fewer than {LEAST_WORLDS} worlds yet"


def verdict_table(design: Design, verdicts: dict[str, Verdict | None]) -> list[str]:
    rows = []
    for hypothesis in design.hypotheses:
        verdict = verdicts[hypothesis.name]
        known = ("", "", "", "", TOO_FEW)
        if verdict:
            known = (
                f"{verdict.worlds} of {verdict.planned}",
                f"{verdict.estimate:+.3f}",
                f"{verdict.low:+.3f} to {verdict.high:+.3f}",
                f"{verdict.corrected_low:+.3f} to {verdict.corrected_high:+.3f}",
                f"**{final(verdict)}**",
            )
        bound = f"{hypothesis.claim} {hypothesis.bound:g}"
        rows.append((hypothesis.family, hypothesis.says, bound, *known))
    head = ("family", "hypothesis", "claim", "worlds", "estimate", "95 % interval", "corrected interval", "verdict")
    return table(head, rows)


def world_table(design: Design, verdicts: dict[str, Verdict | None]) -> list[str]:
    """The contrast of each hypothesis in each world, their median and sign, and how far one world moves the mean."""
    rows = []
    for hypothesis in design.hypotheses:
        if verdict := verdicts[hypothesis.name]:
            above, median, moved = on_single_worlds(verdict.values.values())
            each = ", ".join(f"{world}: {value:+.2f}" for world, value in verdict.values.items())
            above = f"{above} of {len(verdict.values)}"
            rows.append((hypothesis.says, each, f"{verdict.estimate:+.3f}", median, above, moved))
    head = ("hypothesis", "contrast in each world", "mean", "median", "worlds above 0", "mean without any one world")
    return table(head, rows)


def on_single_worlds(values: Iterable[float]) -> tuple[str, str, str]:
    """How many worlds lie above 0, the median one, and the lowest and highest mean without any one world."""
    values_W = np.array([*values])
    others_W = (values_W.sum() - values_W) / (len(values_W) - 1)
    moved = f"{others_W.min():+.3f} to {others_W.max():+.3f}"
    return str((values_W > 0).sum()), f"{np.median(values_W):+.3f}", moved


def compared_with(arm: str) -> str:
    return "to R^3" if arm == "r3" else f"to {arms.title(arm)}"


def arm_table(found: dict[str, dict]) -> list[str]:
    rows, others = [], references(found)
    for arm, row in found.items():
        differences = [spread(row["difference"][other], "+") if other in row["difference"] else "" for other in others]
        figures = [spread(row["accuracy"]), spread(row["mean_accuracy"]), *differences]
        if others == REFERENCES:
            figures.append(speedup(row["speedup"]) if "speedup" in row else "")
        rows.append((arms.title(arm), *figures))
    columns = [f"{arms.SCORES[arms.unit_of(found)]} at the budget", "mean over the budget", *map(compared_with, others)]
    return table(("arm", *columns, *(["speed-up"] if others == REFERENCES else [])), rows)


def seeds(numbers: list[int]) -> str:
    """13, 14, 15, 20: `13 to 15, 20`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    joined = (f"{p[0]} to {p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)
    return ", ".join(joined)


def sums_table(found: dict[str, dict], columns: dict[str, str], cells: int) -> list[str]:
    """Means over the cells of an arm of these columns of the ledger, those that an arm has."""
    ledgers = {arm: row["ledger"] for arm, row in found.items() if "ledger" in row}
    known = {name: title for name, title in columns.items() if any(name in ledger for ledger in ledgers.values())}
    rows = []
    for arm, ledger in ledgers.items():
        values = [ledger.get(name) for name in known]
        rows.append((arms.title(arm), *("" if v is None else f"{v / cells:,.0f}" for v in values)))
    return table(("arm", *known.values()), rows)


def final(verdict: Verdict) -> str:
    """No verdict is final before every planned world is there."""
    return verdict.verdict if verdict.worlds == verdict.planned else f"{verdict.verdict} so far"


def speedup(found: dict) -> str:
    """Budget over the tokens to GRPO's final accuracy; 0 is more than the budget."""
    if not math.isfinite(found["mean"]):
        return ""
    interval = f" [{found['low']:.2f}, {found['high']:.2f}]" if "low" in found else ""
    return f"{found['mean']:.2f}{interval}" if found["mean"] else f"below 1{interval}"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def mean_and_interval(values: Iterable[float]) -> str:
    """With its 95 % interval, where there is one: +0.019 (-0.004 to +0.041)."""
    found = outcome.spread([*values])
    interval = f" ({found['low']:+.3f} to {found['high']:+.3f})" if "low" in found else ""
    return f"{found['mean']:+.3f}{interval}"


def spread(found: dict, sign: str = "", digits: int = 3) -> str:
    if not math.isfinite(found["mean"]):
        return ""
    half = f" ± {(found['high'] - found['low']) / 2:.{digits}f}" if "low" in found else ""
    return f"{found['mean']:{sign}.{digits}f}{half}"
