"""The curves of a study as figures, a few arms each: what is to be compared stands side by side."""

from pathlib import Path

from r3_ext.report import draw
from r3_ext.report.bands import seed_band
from r3_ext.report.figures import X_LABEL, Curve, Key, Panel, Section, color_of
from r3_ext.study import arms
from r3_ext.study.outcome import on_grid
from r3_ext.study.record import Curves

CAPTION = "Pass@1 in validation, mean over the seeds in brackets; shaded its 95 % interval, the ends of two seeds."


def section(name: str, curves: Curves, budget: float) -> Section | None:
    """A figure of arms.FIGURES, with the curves that reach the budget; None unless two of its arms have some."""
    title, compared = arms.FIGURES[name]
    found = Section(name, title, CAPTION)
    lines = []
    for index, arm in enumerate(compared):
        grid, y_SN = on_grid(list(curves.get(arm, {}).values()), budget)
        band = seed_band([(grid, y_N) for y_N in y_SN], smoothed=False)
        if band is not None:
            label = f"{arms.ARMS[arm].title} ({len(y_SN)})"
            lines.append(Curve(label, color_of(index), band))
            found.legend.append(Key("line", color_of(index), label))
    found.panels.append(Panel("", "share solved", X_LABEL["tokens"], tuple(lines), floor=False))
    return found if len(lines) > 1 else None


def write(out: Path, curves: Curves, budget: float) -> None:
    """Draw what there is to compare as PNGs in `out`."""
    for name in arms.FIGURES:
        path = out / f"{name}.png"
        path.unlink(missing_ok=True)
        if (found := section(name, curves, budget)) is not None:
            draw.section_png(found, path)
