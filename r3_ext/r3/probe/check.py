"""`r3 probe check`: the probe's verdicts on worlds of a study against what training did there.

    r3 probe check --add outputs/probe/*                    verdicts of these probes, kept in examples/results/probe
    r3 probe check --out examples/results/probe_first_rule  those of the first rule

A mechanism's effect in a world is the plan's own contrast for it, in that world alone, by the plan's measure of Pass@1.
The probe is right where it says on and the effect is at least what matters by the plan, or off and it is less; unclear
is neither right nor wrong. One world is mostly noise, so the mean over the worlds of a verdict is told as well.
"""

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from r3_ext.host.files import write_text
from r3_ext.r3.probe.verdicts import OFF, ON, UNCLEAR
from r3_ext.settings.compose import ROOT
from r3_ext.study.command import recorded_curves
from r3_ext.study.design import Design, read_design
from r3_ext.study.hypotheses import Hypothesis, contrast_values, worlds_of
from r3_ext.study.text import mean_and_interval
from r3_ext.tiny.world import parse

CONTRASTS = {
    "r3": ("gain", "over_grpo", "little_without_reflection", "little_without_mistakes", "gain_with_many_mistakes"),
    "replay": ("effect_of_ccr",),
    "reflection": ("effect_of_isr",),
    "ranking": ("effect_of_serr", "ranking_helps"),
}
"""Hypotheses of the plan whose contrast is the effect of R^3 or of a mechanism, each in its kind of world."""
VERDICTS, TABLE, PROBES = "verdicts.csv", "check.md", "probes.json"
KEPT = ("figures", "foresight", "cost")
"""What PROBES keeps of each probe: what a rule goes by, and what it took."""
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Row:
    """A verdict on a world."""

    world: str
    """Without its seed."""
    seed: int
    mechanism: str
    """One of CONTRASTS."""
    verdict: str


def rows_of(found: dict) -> list[Row]:
    """The verdicts of a probe.json. Raises ValueError where it is of no world."""
    text = found["settings"]["world"]
    if not text:
        raise ValueError("only probes of the tiny model's worlds compare with the study")
    world = ",".join(part for part in text.split(",") if not part.startswith("seed="))
    verdicts = {"r3": found["r3"]} | {name: verdict["verdict"] for name, verdict in found["verdicts"].items()}
    return [Row(world, parse(text).seed, name, verdicts[name]) for name in CONTRASTS]


def asked(row: Row, design: Design, curves: dict) -> Hypothesis | None:
    """The hypothesis about it; None where the record lacks an arm in that world, or the plan the question."""
    for hypothesis in design.hypotheses:
        if hypothesis.name in CONTRASTS[row.mechanism] and _is_of(hypothesis, row.world, design):
            if row.seed in worlds_of(hypothesis, curves, design.budgets, design.worlds):
                return hypothesis
    return None


def effect(row: Row, design: Design, curves: dict) -> tuple[float | None, float]:
    """What training with it gained in that world, and what matters there by the plan."""
    if not (hypothesis := asked(row, design, curves)):
        return None, 0.0
    return float(contrast_values(hypothesis, [row.seed], curves, design.budgets)[0]), hypothesis.matters


def _is_of(hypothesis: Hypothesis, world: str, design: Design) -> bool:
    """Whether all cells of the contrast are in worlds of that kind."""
    folders = {arm.partition("/")[0] for arm in hypothesis.contrast}
    kinds = {_kind(one.world) for one in design.experiments if one.folder in folders}
    return kinds == {_kind(world)}


def _kind(world: str):
    return parse(",".join(filter(None, [world, "seed=0"])))


def is_right(verdict: str, gained: float | None, matters: float) -> bool | None:
    """None where the probe said neither, or nothing is known."""
    if gained is None or verdict == UNCLEAR:
        return None
    return (gained >= matters) == (verdict == ON)


def table(rows: Iterable[Row], design: Design, curves: dict) -> str:
    """Markdown: a line per verdict, and the mean effect by verdict."""
    gains = [(row, *effect(row, design, curves)) for row in rows]
    lines = ["| world | seed | | probe | effect in training | right |", "|---|---|---|---|---|---|"]
    for row, gained, matters in gains:
        right = {True: "yes", False: "no", None: ""}[is_right(row.verdict, gained, matters)]
        told = "not trained" if gained is None else f"{gained:+.4f}"
        lines.append(f"| {row.world or 'default'} | {row.seed} | {row.mechanism} | {row.verdict} | {told} | {right} |")
    judged = [is_right(row.verdict, gained, matters) for row, gained, matters in gains]
    right, wrong = judged.count(True), judged.count(False)
    least = sorted({matters for _, gained, matters in gains if gained is not None})
    if not least:
        return "\n".join(lines) + "\n"
    if right + wrong:
        lines += ["", f"Right in {right} of {right + wrong} that training has tested: on claims an effect of at least"]
        lines[-1] += f" {' or '.join(map('{:g}'.format, least))} of Pass@1, off a smaller one."
    lines += ["", "| | probe | worlds trained | mean effect, 95 % interval |", "|---|---|---|---|"]
    for mechanism in CONTRASTS:
        for verdict in (ON, UNCLEAR, OFF):
            known = [g for row, g, _ in gains if (row.mechanism, row.verdict) == (mechanism, verdict) and g is not None]
            if known:
                lines.append(f"| {mechanism} | {verdict} | {len(known)} | {mean_and_interval(known)} |")
    return "\n".join(lines) + "\n"


def read(file: Path) -> list[Row]:
    if not file.exists():
        return []
    try:
        with open(file, newline="") as lines:
            return [Row(r["world"], int(r["seed"]), r["mechanism"], r["verdict"]) for r in csv.DictReader(lines)]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{file}: not the verdicts of probes ({error!r})") from error


def write(file: Path, rows: list[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([asdict(rows[0]), *(asdict(row).values() for row in rows)])
    write_text(file, text.getvalue())


def read_probe(folder: Path) -> dict:
    file = folder / "probe.json"
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}); name folders of finished probes") from error
    if not isinstance(found, dict) or (missing := {"settings", "r3", "verdicts", *KEPT} - found.keys()):
        lacks = "is no object" if not isinstance(found, dict) else f"lacks {', '.join(sorted(missing))}"
        raise ValueError(f"{file} {lacks}; name folders of probes finished with this version")
    return found


def main(argv: list[str], say: Callable) -> int:
    parser = argparse.ArgumentParser(
        prog="r3 probe check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FOLDER", help="of finished probes")
    parser.add_argument("--out", type=Path, default=EXAMPLES / "results" / "probe", help=f"folder of {VERDICTS}")
    parser.add_argument("--record", type=Path, default=EXAMPLES / "results" / "worlds", help="record of the study")
    parser.add_argument("--plan", type=Path, default=EXAMPLES / "studies" / "worlds.yaml", help="its plan")
    args = parser.parse_args(argv)
    design = read_design(args.plan)
    found = {(row.world, row.seed, row.mechanism): row for row in read(args.out / VERDICTS)}
    kept = args.out / PROBES
    probes = json.loads(kept.read_text()) if kept.exists() else {}
    for folder in args.add:
        rows = rows_of(probe := read_probe(folder))
        found |= {(row.world, row.seed, row.mechanism): row for row in rows}
        probes[f"{rows[0].world or 'default'}, {rows[0].seed}"] = {name: probe[name] for name in KEPT}
    if not found:
        raise ValueError(f"{args.out / VERDICTS} holds no verdict; --add folders of finished probes")
    rows = sorted(found.values(), key=lambda row: (row.world, row.seed, list(CONTRASTS).index(row.mechanism)))
    write(args.out / VERDICTS, rows)
    write_text(kept, json.dumps(probes, indent=1) + "\n")
    told = table(rows, design, recorded_curves(args.record, design))
    write_text(args.out / TABLE, told)
    say(told.rstrip())
    return 0
