"""The figures of a study: every world of every arm as a dot, mean curves marked where the validations lie on average,
and what each hypothesis's contrast is in every world.

Arms differ by place, marker and dashes as well as by colour, so that the figures can be read in grey.
"""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from r3_ext.report.draw import COLORS, STYLE, plain_axes
from r3_ext.study import arms, text
from r3_ext.study.hypotheses import Hypothesis, Verdict, place_of
from r3_ext.study.outcome import Curve, accuracy_at, in_common, references, spread
from r3_ext.study.record import Curves

CURVES = {
    "grpo": ("#1d2126", "o", "-"),
    "dapo": ("#0072b2", "s", (0, (5, 2))),
    "r3": ("#d55e00", "^", "-"),
    "r3_paper": ("#d55e00", "v", (0, (1, 1.5))),
    "grpo_sessions": ("#1d2126", "o", "-"),
    "gigpo": ("#0072b2", "s", (0, (5, 2))),
    "hgpo": ("#d55e00", "^", "-"),
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


Judged = tuple[Hypothesis, dict[int, float], Verdict | None]
"""A hypothesis, its contrast by world, and its verdict."""


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
    worlds = sorted({world for _, values, _ in found for world in values})
    for place, (hypothesis, values, verdict) in enumerate(found):
        _row(axes, place, values, worlds)
        matters = hypothesis.bound + (hypothesis.matters if hypothesis.claim == "above" else -hypothesis.matters)
        for at, dashes in ((hypothesis.bound, "-"), (matters, ":")):
            axes.plot([at] * 2, (place - 0.42, place + 0.42), dashes, color=COLORS["muted"], linewidth=0.8)
        told = f"{len(values)} worlds"
        if verdict is not None:
            ends = verdict.corrected_low, verdict.corrected_high
            axes.plot(ends, (place, place), color=COLORS["ink"], linewidth=0.9, marker="|", markersize=8)
            told = f"{text.final(verdict)}\n{verdict.worlds} of {verdict.planned} worlds"
        axes.annotate(
            told, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=COLORS["ink"]
        )
    claims = [f"{hypothesis.says} (claim: {hypothesis.claim} {hypothesis.bound:g})" for hypothesis, _, _ in found]
    axes.set_yticks(range(len(found)), ["\n".join(textwrap.wrap(claim, 46)) for claim in claims])
    axes.set_ylim(len(found) - 0.5, -0.5)
    names = [place_of(place, {})[0].rpartition("/")[2] for hypothesis, _, _ in found for place in hypothesis.contrast]
    axes.set_xlabel(f"contrast of {arms.SCORES[arms.unit_of(names)]}, of the arms in the same world")
    plain_axes(axes)
    axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)
    head = "A dot per world; diamond: mean; thick bar: 95 % interval; thin bar: at its step of Holm's correction\n"
    _head(figure, head + "Line: the bound of the claim; dotted: an effect that would matter")
    return figure


def dots(curves: Curves, budget: float) -> Figure | None:
    """Pass@1 at the budget and its difference to GRPO, world by world, with means and 95 % intervals.

    Arms stand together in the worlds that they share.
    """
    compared = [found for found in in_common(curves, budget) if len(found) > 1]
    if not compared:
        return None
    rows = sum(len(found) + 1 for found in compared)
    figure = Figure(figsize=(9.6, 1.5 + 0.36 * rows), facecolor=COLORS["page"])
    left, right = figure.subplots(1, 2, sharey=True)
    baseline, unit = references(curves)[0], arms.unit_of(curves)
    labels: list[str] = []
    heads = []
    for found in compared:
        at = {arm: {w: accuracy_at(curve, budget) for w, curve in found[arm].items()} for arm in ordered(found)}
        worlds = list(next(iter(at.values())))
        heads.append(len(labels))
        labels.append(f"worlds {text.seeds(worlds)}")
        for arm, values in at.items():
            _row(left, len(labels), values, worlds)
            if baseline in at and arm != baseline:
                gains = {world: value - at[baseline][world] for world, value in values.items()}
                _row(right, len(labels), gains, worlds)
            labels.append(arms.title(arm))
    left.set_yticks(range(rows), labels)
    for place in heads:
        left.get_yticklabels()[place].set_fontweight("bold")
    left.set_ylim(rows - 0.5, -0.5)
    right.axvline(0, color=COLORS["muted"], linewidth=0.8)
    left.set_xlabel(f"{arms.SCORES[unit]} at {budget:,.0f} {arms.WORDS[unit]}")
    right.set_xlabel(f"difference to {arms.title(baseline)} in the same world")
    for axes in (left, right):
        plain_axes(axes)
        axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)
    _head(figure, "A dot per world; diamonds and bars: mean and 95 % interval over these worlds")
    return figure


def _row(axes: Axes, place: int, values: dict[int, float], worlds: list[int]) -> None:
    """One row of a figure of these worlds."""
    if not values:
        return
    # From top to bottom in their order: the same height is the same world in every row.
    heights = place + np.linspace(-0.22, 0.22, len(worlds)) if len(worlds) > 1 else [place]
    height = dict(zip(worlds, heights, strict=True))
    found = spread(list(values.values()))
    if "low" in found:
        ends = (found["low"], found["high"])
        axes.plot(ends, (place, place), color=COLORS["ink"], linewidth=2.2, solid_capstyle="butt")
    axes.plot(found["mean"], place, "D", color=COLORS["ink"], markersize=5.5)
    # Last, so that no bar hides one.
    axes.plot(
        *(list(values.values()), [height[world] for world in values], "o"),
        **dict(color=COLORS["muted"], markersize=3.5, markerfacecolor=COLORS["page"], zorder=3),
    )


def means(curves: Curves, budget: float) -> Figure | None:
    """Mean Pass@1 over the worlds that these arms share, marked where their validations lie on average."""
    drawn = {arm: curves[arm] for arm in CURVES if arm in curves}
    compared = [found for found in in_common(drawn, budget) if len(found) > 1]
    if not compared:
        return None
    figure = Figure(figsize=(1.2 + 6 * len(compared), 4.2), facecolor=COLORS["page"])
    panels = figure.subplots(1, len(compared), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, compared, strict=True):
        for arm, cells in found.items():
            color, marker, dashes = CURVES[arm]
            (x, y), marked = mean_curve(list(cells.values()), budget)
            axes.plot(
                *(x, y),
                **dict(color=color, linestyle=dashes, linewidth=1.6, label=arms.title(arm)),
                **dict(marker=marker, markevery=marked, markersize=5),
            )
        axes.set_xlabel(f"{arms.WORDS[arms.unit_of(found)]}; mean over worlds {text.seeds([*cells])}")
        axes.set_xlim(0, budget)
        plain_axes(axes)
        axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
        axes.legend(frameon=False, fontsize=9)
    panels[0].set_ylabel(arms.SCORES[arms.unit_of(drawn)])
    _head(figure, "Marked where the validations lie on average")
    return figure


def mean_curve(curves: list[Curve], budget: float) -> tuple[Curve, list[int]]:
    """The mean over cells up to the budget, each linear between its validations, and where in it the validations are.

    Cells validate at tokens of their own: the mean has its first marker at their mean first validation, and so on, as
    long as every cell has one before the budget.
    """
    each = min(int((x_V < budget).sum()) for x_V, _ in curves)
    marks = np.mean([x_V[:each] for x_V, _ in curves], axis=0)
    grid = np.union1d(np.linspace(0, budget, 200), marks)
    y = np.mean([np.interp(grid, *curve) for curve in curves], axis=0)
    return (grid, y), np.searchsorted(grid, marks).tolist()


def ordered(curves: Curves) -> list[str]:
    """Arms in the order of `arms.ARMS`, those of other versions last."""
    return [arm for arm in arms.ARMS if arm in curves] + [arm for arm in curves if arm not in arms.ARMS]


def _head(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=9.5, color=COLORS["muted"], x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
