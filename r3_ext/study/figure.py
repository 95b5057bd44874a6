"""The figures of a study: every world of every arm as a dot, mean curves with a marker at each validation, and what
each hypothesis's contrast is in every world.

Arms differ by place, marker and dashes as well as by colour, so that the figures can be read in grey.
"""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from r3_ext.report.draw import COLORS, STYLE
from r3_ext.study import arms
from r3_ext.study.hypotheses import Hypothesis, Verdict
from r3_ext.study.outcome import BASELINE, Curve, accuracy_at, spread
from r3_ext.study.record import Curves

CURVES = {
    "grpo": ("#1d2126", "o", "-"),
    "dapo": ("#0072b2", "s", (0, (5, 2))),
    "r3": ("#d55e00", "^", "-"),
    "r3_paper": ("#d55e00", "v", (0, (1, 1.5))),
}
"""Colour, marker and dashes of the arms whose curves are drawn."""


def write(out: Path, curves: Curves, budget: float) -> None:
    """Draw what there is to compare as dots.png and curves.png in `out`; none of an arm alone."""
    for name, make in {"dots": dots, "curves": means}.items():
        path = out / f"{name}.png"
        path.unlink(missing_ok=True)
        with matplotlib.rc_context(STYLE):
            if (made := make(curves, budget)) is not None:
                made.savefig(path, dpi=110, metadata={"Software": None})


Judged = tuple[Hypothesis, list[float], Verdict | None]
"""A hypothesis, its contrast in each world that has it, and its verdict."""


def write_families(out: Path, found: list[Judged]) -> None:
    """Draw FAMILY.png in `out` for each family."""
    for family in {hypothesis.family for hypothesis, _, _ in found}:
        with matplotlib.rc_context(STYLE):
            made = contrasts([judged for judged in found if judged[0].family == family])
            made.savefig(out / f"{family}.png", dpi=110, metadata={"Software": None})


def contrasts(found: list[Judged]) -> Figure:
    """A row per hypothesis: its contrast in each world, the mean with both intervals, its bound and verdict."""
    figure = Figure(figsize=(9.6, 1.3 + 0.5 * len(found)), facecolor=COLORS["page"])
    axes = figure.subplots()
    for place, (hypothesis, values, verdict) in enumerate(found):
        _row(axes, place, values)
        axes.plot([hypothesis.bound] * 2, (place - 0.42, place + 0.42), color=COLORS["muted"], linewidth=0.8)
        told = f"{len(values)} worlds"
        if verdict is not None:
            ends = verdict.corrected_low, verdict.corrected_high
            axes.plot(ends, (place, place), color=COLORS["ink"], linewidth=0.9, marker="|", markersize=8)
            told = f"{verdict.verdict}\n{verdict.worlds} of {verdict.planned} worlds"
        axes.annotate(
            told, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=COLORS["ink"]
        )
    claims = [f"{hypothesis.says} (claim: {hypothesis.claim} {hypothesis.bound:g})" for hypothesis, _, _ in found]
    axes.set_yticks(range(len(found)), ["\n".join(textwrap.wrap(claim, 46)) for claim in claims])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("contrast of Pass@1, of the arms in the same world")
    _plain(axes)
    axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)
    _head(figure, "A dot per world; diamond: mean; thick bar: 95 % interval; thin bar: corrected for the family")
    return figure


def dots(curves: Curves, budget: float) -> Figure | None:
    """Pass@1 at the budget and its difference to GRPO, world by world, with means and 95 % intervals."""
    at = {
        arm: found
        for arm in ordered(curves)
        if (found := {w: value for w, curve in curves[arm].items() if np.isfinite(value := accuracy_at(curve, budget))})
    }
    if len(at) < 2:
        return None
    figure = Figure(figsize=(9.6, 1.5 + 0.36 * len(at)), facecolor=COLORS["page"])
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (arm, found) in enumerate(at.items()):
        _row(left, place, list(found.values()))
        if BASELINE in at and arm != BASELINE:
            _row(right, place, [value - at[BASELINE][world] for world, value in found.items() if world in at[BASELINE]])
    labels = [f"{arms.title(arm)} ({len(found)})" for arm, found in at.items()]
    left.set_yticks(range(len(at)), labels)
    left.set_ylim(len(at) - 0.5, -0.5)
    right.axvline(0, color=COLORS["muted"], linewidth=0.8)
    left.set_xlabel(f"Pass@1 at {budget:,.0f} generated tokens")
    right.set_xlabel("difference to GRPO in the same world")
    for axes in (left, right):
        _plain(axes)
        axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)
    _head(
        figure, "A dot per world; diamonds and bars: mean and 95 % interval over the worlds, their number in brackets"
    )
    return figure


def _row(axes: Axes, place: int, values: list[float]) -> None:
    if not values:
        return
    # Worlds in their order from top to bottom: the same height is the same world in every row.
    offsets = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
    axes.plot(values, place + offsets, "o", color=COLORS["muted"], markersize=3.5, markerfacecolor="none", alpha=0.9)
    found = spread(values)
    if "low" in found:
        axes.plot((found["low"], found["high"]), (place, place), color=COLORS["ink"], linewidth=2.2)
    axes.plot(found["mean"], place, "D", color=COLORS["ink"], markersize=5.5)


def means(curves: Curves, budget: float) -> Figure | None:
    """Mean Pass@1 over the worlds that reach the budget, with a marker where the validations lie on average."""
    drawn = {arm: [c for c in curves.get(arm, {}).values() if np.isfinite(accuracy_at(c, budget))] for arm in CURVES}
    drawn = {arm: found for arm, found in drawn.items() if found}
    if len(drawn) < 2:
        return None
    figure = Figure(figsize=(7.2, 4.2), facecolor=COLORS["page"])
    axes = figure.subplots()
    for arm, found in drawn.items():
        color, marker, dashes = CURVES[arm]
        x, y = at_validations(found, budget)
        axes.plot(
            x, y, color=color, marker=marker, linestyle=dashes, linewidth=1.6, markersize=5, label=arms.title(arm)
        )
    axes.set_xlabel("generated tokens")
    axes.set_ylabel("Pass@1")
    axes.set_xlim(0, budget)
    _plain(axes)
    axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)
    _head(
        figure, f"Mean over {' / '.join(str(len(found)) for found in drawn.values())} worlds, marked at the validations"
    )
    return figure


def at_validations(curves: list[Curve], budget: float, most: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """(V,) tokens and mean accuracy, V the most common number of validations up to the budget, at most `most`."""
    counts = [int((x_V < budget).sum()) for x_V, _ in curves]
    grid = np.linspace(0, budget, min(most, max(set(counts), key=counts.count)) + 1)
    return grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0)


def ordered(curves: Curves) -> list[str]:
    """Arms in the order of `arms.ARMS`, those of other versions last."""
    return [arm for arm in arms.ARMS if arm in curves] + [arm for arm in curves if arm not in arms.ARMS]


def _plain(axes: Axes) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
    axes.tick_params(labelsize=9, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)


def _head(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=9.5, color=COLORS["muted"], x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
