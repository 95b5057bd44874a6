"""`r3 report`: one self-contained HTML page and PNG figures from the metrics.jsonl of runs.

    r3 report outputs/EXPERIMENT/RUN                 report.html and figures/ in the run's folder
    r3 report outputs/r3_embedded                    every run of an experiment; those equal but for seeds are one arm
    r3 report outputs/r3 outputs/grpo --labels R3 GRPO --by tokens --out comparison/

Each arm is a mean over its seeds with the 95 % t-interval of the mean (minimum and maximum for two seeds).
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

from r3_ext.host.files import write_text
from r3_ext.report.runs import ReportError, Run, arms_of, clean, find_folders, load_run

PAGE = "report.html"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="r3 report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a folder of runs")
    parser.add_argument(
        "--out", type=Path, help=f"FILE.html, or a folder for {PAGE} (default: RUN, or report/ for several)"
    )
    parser.add_argument(
        "--labels", nargs="+", metavar="LABEL", help="one per RUN; RUNs with the same label are one arm"
    )
    parser.add_argument("--by", choices=("step", "tokens"), default="step", help="x axis: step or generated tokens")
    parser.add_argument("--hard", type=Path, metavar="hard.json", help="result of `r3 eval hard`")
    return parser.parse_args(argv)


def load(arguments: list[Path], labels: list[str] | None) -> tuple[list[Run], list[str]]:
    """The runs that have metrics, and a sentence on each that has none.

    Raises:
        ReportError: the labels do not fit, a folder is not a run, or no run has metrics.
    """
    if labels is not None and len(labels) != len(arguments):
        raise ReportError(f"--labels needs one label per RUN: got {len(labels)} for {len(arguments)}")
    runs = {}
    for argument, label in zip(arguments, labels or [None] * len(arguments), strict=True):
        for folder in find_folders(argument):
            runs.setdefault(folder, load_run(folder, label))
    empty = [f"Left out: {run.name} has no metrics yet." for run in runs.values() if not run.rows]
    if len(empty) == len(runs):
        raise ReportError(f"no metrics yet in {', '.join(run.name for run in runs.values())}: the first step logs them")
    return [run for run in runs.values() if run.rows], empty


def read_hard(path: Path) -> dict:
    """hard.json of `r3 eval hard`, checked; points whose numbers are not finite are left out.

    Raises:
        ReportError: it cannot be read or has another form.
    """
    try:
        content = json.loads(path.read_text())
        for run in content["runs"]:
            run["name"] = str(run["name"])
            for benchmark in run["benchmarks"].values():
                for kind in ("pass_at_k", "pass_at_16_by_limit"):
                    benchmark[kind] = _hard_points(benchmark.get(kind, {}))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{clean(path, 400)} cannot be read: {clean(error, 200)}") from None
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ReportError(f"{clean(path, 400)} is not the hard.json that `r3 eval hard` writes") from None
    return content


def _hard_points(points: dict) -> dict[str, list[float]]:
    checked = {}
    for x, triple in points.items():
        value, low, high = (float(number) for number in triple)
        if 1 <= int(x) <= 1e9 and all(math.isfinite(number) for number in (value, low, high)):
            checked[x] = [value, low, high]
    return checked


def target_of(out: Path | None, arguments: list[Path]) -> Path:
    """The page's path: --out, else in the only RUN, else in ./report."""
    if out is not None and out.suffix.lower() in (".html", ".htm"):
        return out
    return (out or (arguments[0] if len(arguments) == 1 else Path("report"))) / PAGE


def refuse_others_files(path: Path, titles: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Refuse a page that is not ours, and figures without a page of ours beside them.

    Raises:
        ReportError: naming the file.
        OSError: a path that cannot be looked at.
    """

    def is_ours(page: Path) -> bool:
        if not page.is_file():
            return False
        with open(page, "rb") as file:
            begins = file.read(2000)
        return any(f"<title>{title}</title>".encode() in begins for title in titles)

    if path.exists() and not is_ours(path):
        raise ReportError(f"{clean(path, 400)} is not a page of `r3 report` and stays as it is; take another --out")
    if (path.parent / "metrics.jsonl").is_file() or any(map(is_ours, path.parent.glob("*.htm*"))):
        return
    figures = (path.parent / "figures" / f"{key}.png" for key in keys)
    if foreign := [figure for figure in figures if figure.exists()]:
        raise ReportError(f"{clean(foreign[0], 400)} lies there without a page of `r3 report`; take another --out")


def write(
    arguments: list[Path], out: Path | None = None, labels: list[str] | None = None, by: str = "step",
    hard: Path | None = None,
) -> Path:  # fmt: skip
    """Make the report; returns the path of the page.

    Raises:
        ReportError: there is nothing to report on, or it cannot be read or written.
    """
    runs, remarks = load(arguments, labels)
    untold = [run.name for run in runs if not run.tokens[-1] > 0]
    if by == "tokens" and untold:
        raise ReportError(f"--by tokens: {', '.join(untold)} logged no count of tokens; use --by step")
    content = read_hard(hard) if hard else None
    try:
        from r3_ext.report import draw, figures, page
    except ModuleNotFoundError as error:
        raise ReportError(f"the package {error.name} is missing: run examples/install.sh") from None
    arms = arms_of(runs)
    sections, empty = figures.all_sections(arms, by, content)
    html = page.render(arms, sections, empty, remarks)
    path = target_of(out, arguments)
    try:
        refuse_others_files(path, page.TITLES, figures.KEYS)
        folder = path.parent / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        # First the page, which says whose the figures are.
        write_text(path, html)
        for key in figures.KEYS:
            # A figure of an earlier report that this one lacks would look like a part of it.
            (folder / f"{key}.png").unlink(missing_ok=True)
        for section in sections:
            if section.panels:
                draw.section_png(section, folder / f"{section.key}.png")
    except OSError as error:
        raise ReportError(f"the report cannot be written: {clean(error, 300)}") from None
    return path


def main(argv: list[str]) -> int:
    args = parse(argv)
    try:
        path = write(args.runs, args.out, args.labels, args.by, args.hard)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"report: {os.path.relpath(path)} ({path.stat().st_size / 1e6:.1f} MB), figures in {path.parent / 'figures'}")
    return 0
