"""The parts that the report's figures are made of, as data: sections of panels of lines, stacks or marks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from r3_ext.report.bands import Band, seed_band, thin
from r3_ext.report.runs import Arm, Reader

X_LABEL = {"step": "training step", "tokens": "generated tokens"}
Layers = tuple[tuple[str, str], ...]
"""Name and color of the layers of a stack, from the bottom."""


@dataclass(frozen=True)
class Curve:
    name: str
    color: str
    band: Band
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One small plot of `curves`, of layers (name, color, y (N,)) stacked over `stack_x`, or of `marks`.

    `marks` are x positions by row and color, on an axis over `x_span`; `styles` says what is solid and what dashed;
    `floor` starts y at 0.
    """

    title: str
    unit: str
    x_label: str
    curves: tuple[Curve, ...] = ()
    stack_x: np.ndarray | None = None
    layers: tuple[tuple[str, str, np.ndarray], ...] = ()
    marks: tuple[tuple[str, tuple[tuple[str, np.ndarray], ...]], ...] = ()
    x_ticks: tuple[tuple[float, str], ...] | None = None
    x_span: tuple[float, float] | None = None
    styles: tuple[str, ...] = ()
    log_y: bool = False
    floor: bool = True


@dataclass(frozen=True)
class Key:
    """A legend entry; shape is line or area."""

    shape: str
    color: str
    label: str


@dataclass
class Section:
    key: str
    title: str
    caption: str
    panels: list[Panel] = field(default_factory=list)
    legend: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Lines:
    """A panel with a line per arm and reader; a second reader is dashed, and `styles` names the two."""

    title: str
    unit: str
    readers: tuple[Reader, ...]
    styles: tuple[str, ...] = ()
    log_y: bool = False
    floor: bool = True


def color_of(index: int) -> str:
    return f"s{index % 8}"


def add_lines(section: Section, arms: list[Arm], specs: tuple[Lines, ...], by: str) -> None:
    """Add the panels for which some arm has values; note what is missing."""
    missing: dict[str, list[str]] = {}
    for spec in specs:
        curves, without = [], []
        for index, arm in enumerate(arms):
            bands = [seed_band([run.points(read, by) for run in arm.runs]) for read in spec.readers]
            found = [Curve(arm.label, color_of(index), b, dashed=n > 0) for n, b in enumerate(bands) if b is not None]
            curves += found
            without += [] if found else [arm.label]
        if curves:
            options = {"styles": spec.styles, "log_y": spec.log_y, "floor": spec.floor}
            section.panels.append(Panel(spec.title, spec.unit, X_LABEL[by], tuple(curves), **options))
        if without:
            missing.setdefault("any run" if len(without) == len(arms) else ", ".join(without), []).append(spec.title)
    if section.panels:
        for who, titles in missing.items():
            what = "" if len(titles) == len(specs) else f": {', '.join(titles)}"
            section.notes.append(f"Not logged by {who}{what}.")


def stack_panel(arm: Arm, title: str, unit: str, by: str, read: Callable, layers: Layers) -> Panel | None:
    """An arm's stacked layers, means over its runs; None without values.

    Smoothing, interpolation and means are linear: the layers keep adding up.

    Args:
        read: a row's values of all layers, or None.
        layers: as many names and colors.
    """
    readers = [lambda row, i=i: None if read(row) is None else read(row)[i] for i in range(len(layers))]
    bands = [seed_band([run.points(reader, by) for run in arm.runs]) for reader in readers]
    if any(band is None for band in bands):
        return None
    kept = thin(np.sum([band.y for band in bands], axis=0))
    stacked = tuple((name, color, band.y[kept]) for (name, color), band in zip(layers, bands, strict=True))
    return Panel(title, unit, X_LABEL[by], stack_x=bands[0].x[kept], layers=stacked)


def add_stacks(
    section: Section,
    arms: list[Arm],
    title: str,
    unit: str,
    by: str,
    read: Callable,
    layers: Layers,
) -> None:
    """Add one stacked panel per arm that has values, as stack_panel makes them."""
    titles = [f"{title}, {arm.label}" if len(arms) > 1 else title for arm in arms]
    panels = [stack_panel(arm, name, unit, by, read, layers) for arm, name in zip(arms, titles, strict=True)]
    section.panels += [panel for panel in panels if panel is not None]
    without = [arm.label for arm, panel in zip(arms, panels, strict=True) if panel is None]
    if len(without) < len(arms):
        section.legend += [Key("area", color, name) for name, color in layers]
        section.notes += [f"{title}: not logged by {', '.join(without)}."] if without and not section.notes else []
