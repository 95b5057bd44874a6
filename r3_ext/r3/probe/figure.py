"""The picture of a probe: who solves what, what becomes of the groups, and each mechanism's reach against the bound.

Kinds differ by hatch, marker and place as well as by colour, so that it can be read in grey.
"""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from r3_ext.r3.probe.verdicts import MATTERS, UNCLEAR
from r3_ext.report.draw import COLORS, STYLE, plain_axes

BLUE, VERMILION, ORANGE, GREY = COLORS["s0"], COLORS["s1"], COLORS["l2"], COLORS["l0"]
REACH = {"replay": ("drawn_with_reflection", "drawn"), "reflection": ("reflection/reach",), "ranking": ("rankable",)}
"""Figures of each mechanism's reach, the one that counts reflection's answers first."""
FILL = {"on": "full", "off": "none", UNCLEAR: "left"}


def write(file: Path, found: dict) -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.2, 3.9), facecolor=COLORS["page"])
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.15))
        _solved(left, found)
        _groups(middle, found)
        _reach(right, found)
        for axes in (left, middle, right):
            plain_axes(axes)
        name = Path(found["settings"]["model"]["path"])
        name = f"world {found['settings']['world']}" if found["settings"]["world"] else name.name
        figure.suptitle(f"r3 probe: {name}, R^3 {found['r3']}", fontsize=12, x=0.01, ha="left")
        figure.tight_layout(rect=(0, 0, 1, 0.99), w_pad=2)
        figure.savefig(file, dpi=110, metadata={"Software": None})


def _solved(axes: Axes, found: dict) -> None:
    counts, hard = found["right_answers"]["problems"], found["right_answers"]["hard"]
    places = range(len(counts))
    axes.bar(places, counts, color=GREY, edgecolor=COLORS["ink"], linewidth=0.6, label="problems")
    axes.bar(places, hard, color=ORANGE, edgecolor=COLORS["ink"], linewidth=0.6, hatch="////", label="of them hard")
    axes.set_xticks([k for k in places if k % 2 == 0 or len(counts) < 12])
    axes.set_xlabel(f"right answers of {len(counts) - 1}")
    axes.set_title("How often problems are solved", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8.5)
    axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)


def _groups(axes: Axes, found: dict) -> None:
    """Shares with intervals, a row each."""
    figures = found["figures"]
    rows = [
        ("groups mixed", "mixed", "o", BLUE),
        ("all right", "all_right", "s", BLUE),
        ("all wrong", "all_wrong", "X", BLUE),
        ("hard, reflected on", "reflection/solved", "^", VERMILION),
        ("hard, asked again", "reflection/solved_again", "v", VERMILION),
        ("first without signal", "sooner/no_signal", "o", BLUE),
        ("reflected on sooner", "sooner/reflection/no_signal", "^", VERMILION),
        ("asked plainly sooner", "sooner/plain/no_signal", "v", VERMILION),
    ]
    for place, (_, name, marker, color) in enumerate(rows):
        if None not in figures[name]:
            _interval(axes, place, figures[name], marker, color, "full")
    for place in (2.5, 4.5):
        axes.axhline(place, color=COLORS["grid"], linewidth=0.8)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("share of groups; of hard ones solved")
    axes.set_title("Groups, and the hard problems at equal tokens", fontsize=10, loc="left", x=-0.3)
    axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)


def _reach(axes: Axes, found: dict) -> None:
    reflects = found["verdicts"]["reflection"]["verdict"] == "on"
    labels, ends = [], [0.0, 2 * MATTERS]
    for place, (name, figures) in enumerate(REACH.items()):
        verdict, reach = found["verdicts"][name]["verdict"], found["figures"][figures[0 if reflects else -1]]
        _interval(axes, place, reach, "o", COLORS["ink"], FILL[verdict])
        labels.append(f"{name}: {verdict}")
        ends += reach
    if found["foresight"]:
        labels[-1] += "\nforesight {} %\n({} to {})".format(*(round(100 * end) for end in found["foresight"]["auc"]))
    axes.axvline(MATTERS, color=VERMILION, linewidth=1.4, linestyle=(0, (4, 2)))
    axes.text(MATTERS, -0.47, f" from {MATTERS:g} it matters", fontsize=8.5, color=VERMILION, va="top")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    margin = 0.05 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.set_xlabel("share of groups made live")
    axes.set_title("What each mechanism adds", fontsize=10, loc="left")
    axes.grid(axis="x", color=COLORS["grid"], linewidth=0.8)


def _interval(axes: Axes, place: float, figure: list[float], marker: str, color: str, fill: str) -> None:
    value, low, high = figure
    axes.plot((low, high), (place, place), color=color, linewidth=2)
    axes.plot(value, place, marker, color=color, markersize=8, fillstyle=fill, markerfacecoloralt=COLORS["page"])
