"""Puts tables, findings and figures together into one HTML page that needs nothing else."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.progress import track

from r3_ext.report import episodes, session_words
from r3_ext.report.bands import FENCE, MOST_POINTS, SMOOTH_FROM
from r3_ext.report.draw import panel_svg
from r3_ext.report.findings import details, facts, findings, headline
from r3_ext.report.opening import LABELS, opening
from r3_ext.report.panels import Section, color_of
from r3_ext.report.run_facts import cautions
from r3_ext.report.runs import Arm, Run, all_play

TITLE = "Training report of r3"
TITLES = (TITLE, "R³ training report", "Training report: sessions")
"""By which a page is known as ours; all but the first are those of earlier versions."""
MOST_EPISODES = 3
"""Steps of a run whose sessions are shown, the last ones."""


def render(arms: list[Arm], sections: list[Section], empty: list[str], remarks: list[str]) -> str:
    """The HTML text. Everything from files is escaped; only our own SVG is not.

    Args:
        arms: what was run.
        sections, empty: as `figures.all_sections` returns them.
        remarks: sentences on runs that are left out.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    colors = [color_of(index) for index in range(len(arms))]
    panels = [panel for section in sections for panel in section.panels]
    console = Console(stderr=True)
    drawn = track(list(enumerate(panels)), "drawing", console=console, transient=True, disable=not console.is_terminal)
    svgs = [Markup(panel_svg(panel, number)) for number, panel in drawn]
    shown = [{**vars(section), "panels": [(panel, svgs.pop(0)) for panel in section.panels]} for section in sections]
    runs = [run for arm in arms for run in arm.runs]
    return environment.get_template("page.html.jinja").render(
        title=TITLE,
        cautions=cautions(runs),
        opening=list(zip(session_words.LABELS if all_play(runs) else LABELS, opening(arms), strict=True)),
        sections=shown,
        episodes=[(run.name, list(lines.values())[-MOST_EPISODES:]) for run in runs if (lines := episodes_of(run))],
        facts=[(arm.label, color, facts(arm)) for arm, color in zip(arms, colors, strict=True)],
        headlines=[(arm.label, color, headline(arm, all_play(runs))) for arm, color in zip(arms, colors, strict=True)],
        details=[details(run) for run in runs],
        findings=findings(arms),
        footer=footer(arms, empty, remarks),
    )


def episodes_of(run: Run) -> dict[int, list[str]]:
    """Lines by step; what cannot be read is not there."""
    try:
        return episodes.read(run.folder)
    except OSError:
        return {}


def footer(arms: list[Arm], empty: list[str], remarks: list[str]) -> list[str]:
    """How to read the figures, and what is not there."""
    lines = [
        f"Lines of over {SMOOTH_FROM} points are running means over a fiftieth of them, with the single points faint "
        f"behind; at most {MOST_POINTS} points are drawn, extremes kept. Values over {FENCE:g} interquartile ranges "
        "off are drawn at the edge of the axis."
    ]
    if any(len(arm.runs) > 1 for arm in arms):
        lines.append(
            "Several runs of an arm: their mean with the 95 % t-interval of the mean over seeds; for two runs, their "
            "minimum and maximum."
        )
    if empty:
        lines.append(f"No figure, because no run logged the metrics: {', '.join(empty)}.")
    return lines + remarks
