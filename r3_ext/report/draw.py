"""Draws panels with matplotlib: inline SVG that takes its colours and fonts from the page, and PNG."""

import io
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, ScalarFormatter

from r3_ext.report.bands import limits, thin
from r3_ext.report.panels import Curve, Panel, Section

COLORS = {
    **{f"s{i}": color for i, color in enumerate(
        ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#d99000", "#3fa3db", "#1d2126", "#8a8f98"))},
    **{f"l{i}": color for i, color in enumerate(
        ("#c5ced6", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7"))},
    "ink": "#1d2126", "muted": "#62676f", "grid": "#e4e6e9", "page": "#ffffff",
}  # fmt: skip
"""Okabe and Ito's palette, two of its colours darkened for lines on white; the page has lighter ones for dark mode."""
PLACEHOLDER = {name: f"#fe{number:02x}fe" for number, name in enumerate(COLORS)}
"""Stands for a CSS variable until the SVG is written, as matplotlib takes no other colours than its own."""
SIZE = (300, 196)
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "r3",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.size": 10,
    "path.simplify": False,
}
FEW_POINTS = 30
PNG_COLUMNS = 4


def panel_svg(panel: Panel, number: int) -> str:
    """The panel as an <svg> element whose ids are unique by `number`; colours are var(--NAME), text stays text."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] / 72, SIZE[1] / 72))
        axes = figure.add_axes((50 / 300, 36 / 196, 242 / 300, 152 / 196))
        draw(axes, panel, PLACEHOLDER.__getitem__)
        axes.yaxis.set_label_coords(-0.155, 0.5)  # the same in all panels, however wide the tick labels are
        target = io.BytesIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return inline(target.getvalue(), panel.title, describe(panel), f"p{number}-")


def section_png(section: Section, path: Path) -> None:
    """Write the section's panels, title, caption and legend as a PNG on white."""
    columns = min(PNG_COLUMNS, len(section.panels))
    rows = -(-len(section.panels) // columns)
    width = max(2, columns)
    longest = max((len(key.label) for key in section.legend), default=0)
    legend_columns = max(1, min(2 * width, 55 * width // (longest + 7)))
    legend = 0.25 + 0.2 * -(-len(section.legend) // legend_columns)
    with matplotlib.rc_context(STYLE):
        height = 2.9 * rows + 1.05 + legend
        figure = Figure(figsize=(3.9 * width, height), facecolor=COLORS["page"])
        grid = figure.subplots(rows, columns, squeeze=False)
        caption = textwrap.fill(section.caption, 55 * width)
        figure.text(0.02, 1 - 0.12 / height, section.title, fontsize=15, weight="bold", va="top")
        figure.text(0.02, 1 - 0.45 / height, caption, fontsize=10, color=COLORS["muted"], va="top")
        for axes, panel in zip(grid.flat, section.panels, strict=False):
            draw(axes, panel, COLORS.__getitem__)
            styles = " · ".join(f"{line} {name}" for line, name in zip(("solid", "dashed"), panel.styles, strict=False))
            axes.set_title(panel.title + (f"\n{styles}" if styles else ""), fontsize=10, loc="left")
        for axes in grid.flat[len(section.panels) :]:
            axes.set_visible(False)
        handles = [
            Patch(color=COLORS[key.color], label=key.label)
            if key.shape == "area"
            else Line2D([], [], color=COLORS[key.color], label=key.label)
            for key in section.legend
        ]
        if handles:
            place = {"loc": "lower left", "bbox_to_anchor": (0.012, 0), "ncols": legend_columns}
            figure.legend(handles=handles, **place, frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, legend / height, 1, 1 - 0.85 / height))
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})


def draw(axes: Axes, panel: Panel, color: Callable[[str], str]) -> None:
    """Draw a panel; `color` turns the name of a colour into one."""
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(color("muted"))
    axes.tick_params(colors=color("muted"), labelsize=9, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(panel.x_label, color=color("muted"), fontsize=9.5)
    axes.set_ylabel(panel.unit, color=color("muted"), fontsize=9.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=color("grid"), linewidth=0.8)
    axes.margins(x=0.02)
    if panel.marks:
        _draw_marks(axes, panel, color)
    elif panel.layers:
        _draw_stack(axes, panel, color)
    else:
        _draw_curves(axes, panel, color)
    _x_axis(axes, panel)


def _draw_curves(axes: Axes, panel: Panel, color: Callable[[str], str]) -> None:
    values = [part for curve in panel.curves for part in _drawn(curve) if part is not None]
    low, high = _log_limits(values) if panel.log_y else limits(np.concatenate(values), panel.floor)
    if panel.log_y:
        axes.set_yscale("log")
        # Powers of ten alone could leave an axis of one tick or none.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,), numticks=7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(_formatter(low, high))
    axes.set_ylim(low, high)
    for curve in panel.curves:
        band, tone = curve.band, color(curve.color)
        if band.raw is not None:
            kept = thin(band.raw)
            axes.plot(band.x[kept], np.clip(band.raw[kept], low, high), color=tone, alpha=0.3, linewidth=0.7)
        kept = thin(band.y)
        x, y = band.x[kept], np.clip(band.y[kept], low, high)
        if band.low is not None:
            ends = (np.clip(end[kept], low, high) for end in (band.low, band.high))
            axes.fill_between(x, *ends, color=tone, alpha=0.18, linewidth=0)
            if len(x) == 1:
                axes.vlines(x, *(np.clip(end, low, high) for end in (band.low, band.high)), color=tone, linewidth=1)
        marker = {"marker": "o", "markersize": 3.2} if len(x) <= FEW_POINTS else {}
        axes.plot(x, y, color=tone, linewidth=1.5, linestyle=(0, (3, 2)) if curve.dashed else "-", **marker)


def _drawn(curve: Curve) -> tuple:
    return curve.band.y, curve.band.low, curve.band.high, curve.band.raw


def _log_limits(values: list[np.ndarray]) -> tuple[float, float]:
    positive = np.concatenate(values)
    positive = positive[positive > 0]
    if not len(positive):
        return 0.1, 10.0
    return float(positive.min()) / 1.5, float(positive.max()) * 1.5


def _draw_stack(axes: Axes, panel: Panel, color: Callable[[str], str]) -> None:
    layers = np.stack([layer for _, _, layer in panel.layers])
    ends = np.vstack([np.zeros(layers.shape[1]), np.cumsum(layers, axis=0)])
    _, high = limits(ends[-1], floor=True)
    high = max(high, 1e-9)
    ends = np.clip(ends, 0, high)
    x = panel.stack_x
    if len(x) == 1:  # an area of one point has no width
        x, ends = np.array([x[0] - 0.4, x[0] + 0.4]), np.repeat(ends, 2, axis=1)
    for (_, name, _), lower, upper in zip(panel.layers, ends[:-1], ends[1:], strict=True):
        axes.fill_between(x, lower, upper, color=color(name), linewidth=0)
    axes.set_ylim(0, high)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(_formatter(0, high))


def _draw_marks(axes: Axes, panel: Panel, color: Callable[[str], str]) -> None:
    axes.grid(visible=False)
    axes.set_ylim(len(panel.marks) - 0.4, -0.9)
    axes.plot(panel.x_span, (0, 0), alpha=0)  # the axis covers the run
    axes.set_yticks([])
    for height, (name, marks) in enumerate(panel.marks):
        axes.text(0, height - 0.35, name, transform=axes.get_yaxis_transform(), fontsize=9.5, color=color("ink"))
        for tone, x in marks:
            axes.plot(x, np.full(len(x), height), "|", color=color(tone), markersize=9, alpha=0.8)


def _formatter(low: float, high: float) -> ScalarFormatter | EngFormatter:
    if max(abs(low), abs(high)) >= 1e4:
        return EngFormatter(sep="")
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_powerlimits((-4, 5))
    return formatter


def _x_axis(axes: Axes, panel: Panel) -> None:
    if panel.x_ticks is not None:
        axes.set_xticks([x for x, _ in panel.x_ticks], [label for _, label in panel.x_ticks])
        return
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(_formatter(low, high))


def describe(panel: Panel) -> str:
    """What a screen reader says instead of the plot."""
    text = [f"{panel.title}, {panel.unit}, by {panel.x_label}." if panel.unit else f"{panel.title}."]
    for curve in panel.curves:
        style = panel.styles[curve.dashed] if len(panel.styles) > curve.dashed else ""
        name = f"{curve.name} {style}".strip()
        text.append(f"{name}: from {curve.band.y[0]:.4g} to {curve.band.y[-1]:.4g}.")
    text += [f"{name}: from {layer[0]:.4g} to {layer[-1]:.4g}." for name, _, layer in panel.layers]
    text += [f"{name}: {sum(len(x) for _, x in marks)} steps." for name, marks in panel.marks]
    return " ".join(text)


def inline(svg: bytes, title: str, description: str, prefix: str) -> str:
    """matplotlib's SVG made fit for a page: no document parts, unique ids, CSS colours and fonts, two decimals."""
    root = ET.fromstring(svg)
    text = svg.decode()
    used = set(re.findall(r"(?:href=\"|url\()#([^\")]+)", text))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            value = value.replace("#", f"#{prefix}") if value.startswith(("#", "url(#")) else value
            if name == "id":
                value = f"{prefix}{value}" if value in used else None
            if name in ("d", "x", "y", "transform", "points"):
                value = re.sub(r"-?\d+\.\d{3,}(?:e[-+]?\d+)?", lambda number: f"{float(number[0]):.2f}", value)
            if value is not None:
                element.set(name.rpartition("}")[2], _css(value) if name == "style" else value)
    for parent in list(root.iter()):
        for child in list(parent):
            # matplotlib's style element would apply to the whole page.
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", description)
    heading = ET.Element("title")
    heading.text = title
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")


def _css(style: str) -> str:
    for name, placeholder in PLACEHOLDER.items():
        style = style.replace(placeholder, f"var(--{name})")
    return re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", style)


def plain_axes(axes: Axes) -> None:
    """A line at the bottom alone, and no ticks at the names on the left."""
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
    axes.tick_params(labelsize=9, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
