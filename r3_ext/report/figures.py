"""Which figures the report has, as data: sections of panels of lines, stacks or marks. Nothing is drawn here."""

import re
from collections import Counter
from itertools import product

import numpy as np

from r3_ext.record.console import found_by
from r3_ext.record.summary import WAYS, asked_again, reward_of
from r3_ext.report import sessions
from r3_ext.report.bands import Band, seed_band
from r3_ext.report.panels import X_LABEL, Curve, Key, Lines, Panel, Section, add_lines, add_stacks, color_of
from r3_ext.report.readers import (
    ACCURACY,
    LENGTH,
    OFF_POLICY,
    PROMPTS,
    RESCUED,
    SAMPLE_SIZE,
    SECONDS,
    TAILS,
    TOTAL,
    TRANSFER,
    TRUNCATED,
    WAITING,
    get,
    ledger,
    mean_of,
    share,
    validation_reader,
)
from r3_ext.report.runs import Arm, Row, all_play, clean

MOST_BENCHMARKS = 12
PHASES = 5


LEDGER = (
    ("mixed from the start", "l0"),
    ("rescued by replay", "l1"),
    ("rescued by ranking alone", "l2"),
    ("still dead: all wrong", "l3"),
    ("still dead: all right", "l4"),
)
TOKENS = (
    ("plain prompts", "l1"),
    ("reflection", "l4"),
    ("restarts", "l5"),
    ("generated, thrown away", "l3"),
    ("replayed, not generated", "l2"),
)
TOKEN_KEYS = ("fresh/tokens", "reflection/tokens", "restart/tokens", "generated/discarded_tokens", "replay/tokens")
DYNAMICS = (
    Lines("Solve-all", "share of groups", (share(get("groups/all_correct"), TOTAL),)),
    Lines("Solve-none", "share of groups", (share(get("groups/all_wrong"), TOTAL),)),
    Lines("Mean reward", "reward", (reward_of,)),
    Lines("Policy entropy", "nats per token", (get("actor/entropy"),)),
)
GROUPS = (Lines("Dead groups rescued", "share of their kind", RESCUED, ("all wrong", "all right")),)
IN_FLIGHT = (Lines("Groups in flight or waiting", "after a step's last batch", WAITING, ("plain", "reflection")),)
"""Of the asynchronous modes."""
LENGTHS = (
    Lines("Response length, training", "tokens", (LENGTH,)),
    Lines("Truncated, training", "share of responses", (TRUNCATED,)),
    Lines("Accuracy, training", "share correct", (ACCURACY,)),
    Lines("Response length, validation", "tokens", (mean_of("/tokens/all"),)),
    Lines("Truncated, validation", "share of responses", (mean_of("/truncated"),)),
    Lines("Right answers, validation", "tokens", (mean_of("/tokens/correct"),)),
    Lines("Wrong answers, validation", "tokens", (mean_of("/tokens/wrong"),)),
)
REPLAY = (
    Lines("Replayed rows", "rows per step", (get("replay/rows"),)),
    Lines("Age of replayed rows", "steps, mean", (get("replay/age/mean"),)),
    Lines("Ratio tails", "current / stored, log", TAILS, ("99th percentile", "1st"), log_y=True),
    Lines("Tokens off policy", "share of tokens", OFF_POLICY, ("ratio above 2", "below 0.5")),
    Lines("Effective sample size", "share", SAMPLE_SIZE, ("over tokens", "over rows")),
    Lines("KL(stored || current)", "nats per token", (get("replay/kl/all"),), floor=False),
)
REFLECTION = (
    Lines("Reflection prompts", "per step", PROMPTS, ("asked", "solved")),
    Lines("Correct under reflection", "share of answers", (get("reflection/acc/mean"),)),
    Lines("Transfer to the plain prompt", "share correct", TRANSFER, ("since the first reflection", "before")),
    Lines("Problems behind the transfer", "per step", (get("reflection/transfer/queries"),)),
)


SOONER = (
    Lines("Next asked by reflection", "share of all-wrong groups", (get("reflection/by_reflection/share"),)),
    Lines("Batches waited for the answers", "seconds", (get("reflection/at_once/wait_s"),)),
    Lines("Groups held for the next step", "groups", (get("groups/held"),)),
)
"""Each of runs with one choice of `reflection.ask` or `reflection.when`: adaptive, at_once, next_step."""
WAY_COLORS = {"reflection": ("l4", "l5"), "plain": ("l1", "l2"), "restart": ("l3", "l0")}


def validation_band(arm: Arm, source: str, by: str) -> Band | None:
    """Pass@1 of an arm; the interval is over seeds, or for one run the logged bootstrap interval over problems."""
    runs = [run for run in arm.runs if source in run.benchmarks]
    band = seed_band([run.points(validation_reader(source), by) for run in runs], smoothed=False)
    if band is None or len(runs) > 1:
        return band
    ends = [runs[0].points(get(f"val/{source}/pass@1/{end}"), by)[1] for end in ("low", "high")]
    return Band(band.x, band.y, *ends) if all(len(end) == len(band.x) for end in ends) else band


def most_attempts(arms: list[Arm], source: str) -> int:
    """The largest k > 1 with a logged val/SOURCE/pass@k, or 0."""
    prefix = f"val/{source}/pass@"
    keys = {key for arm in arms for run in arm.runs for row in run.rows for key in row if key.startswith(prefix)}
    numbers = [key.removeprefix(prefix) for key in keys]
    return max((int(k) for k in numbers if re.fullmatch(r"[0-9]{1,6}", k) and int(k) > 1), default=0)


def add_validation(section: Section, arms: list[Arm], by: str) -> None:
    sources = sorted({source for arm in arms for run in arm.runs for source in run.benchmarks})
    if len(sources) > MOST_BENCHMARKS:
        section.notes.append(f"{len(sources) - MOST_BENCHMARKS} more benchmarks are not drawn.")
    for source in sources[:MOST_BENCHMARKS]:
        most, curves = most_attempts(arms, source), []
        largest = get(f"val/{source}/pass@{most}") if most else lambda row: None
        for index, arm in enumerate(arms):
            band = validation_band(arm, source, by)
            if band is not None:
                curves.append(Curve(arm.label, color_of(index), band))
            band = seed_band([run.points(largest, by) for run in arm.runs], smoothed=False)
            if band is not None:
                curves.append(Curve(arm.label, color_of(index), Band(band.x, band.y), dashed=True))
        styles = ("Pass@1", f"Pass@{most}") if most else ()
        section.panels.append(Panel(clean(source, 60), "share solved", X_LABEL[by], tuple(curves), styles=styles))


def phases(arms: list[Arm]) -> list[str]:
    """The largest phases under timing_s/, by seconds in all; what is further below is a part of them."""
    totals = Counter()
    for row in (row for arm in arms for run in arm.runs for row in run.rows):
        for key, value in row.items():
            if key.startswith("timing_s/") and key.count("/") == 1 and key != "timing_s/step" and value > 0:
                totals[key] += value
    return [key for key, _ in totals.most_common(PHASES)]


def add_time(section: Section, arms: list[Arm], by: str) -> None:
    names = phases(arms)

    def read(row: Row) -> list[float] | None:
        parts = [row.get(name, 0.0) for name in names]
        return None if SECONDS(row) is None else [*parts, max(0.0, SECONDS(row) - sum(parts))]

    add_lines(section, arms, (Lines("Whole step", "seconds", (SECONDS,)),), by)
    layers = [(clean(name.removeprefix("timing_s/"), 40), f"l{number}") for number, name in enumerate(names, start=1)]
    add_stacks(section, arms, "By phase", "seconds per step", by, read, (*layers, ("other", "l0")))


def add_generated(section: Section, arms: list[Arm], by: str) -> None:
    curves = []
    for index, arm in enumerate(arms):
        counted = [run for run in arm.runs if run.tokens[-1] > 0]
        band = seed_band([(np.array([row["step"] for row in run.rows]), run.tokens) for run in counted])
        curves += [] if band is None else [Curve(arm.label, color_of(index), band)]
    if curves:
        section.panels.append(Panel("Generated so far", "tokens", X_LABEL["step"], tuple(curves)))


def add_tokens(section: Section, arms: list[Arm], by: str) -> None:
    add_generated(section, arms, by)

    def read(row: Row) -> list[float] | None:
        return [row.get(key, 0.0) for key in TOKEN_KEYS] if TOKEN_KEYS[0] in row else None

    add_stacks(section, arms, "Tokens of a step", "tokens per step", by, read, TOKENS)


def alarm_names(arms: list[Arm]) -> list[str]:
    return sorted({key for arm in arms for run in arm.runs for row in run.rows for key in row if key[:6] == "alarm/"})


def add_alarms(section: Section, arms: list[Arm], by: str) -> None:
    names, raised = alarm_names(arms), []
    for name in names:
        points = [[run.points(get(name), by) for run in arm.runs] for arm in arms]
        marks = [np.concatenate([x[y > 0] for x, y in seeds]) for seeds in points]
        if any(len(x) for x in marks):
            colored = tuple((color_of(index), x) for index, x in enumerate(marks))
            raised.append((clean(name.removeprefix("alarm/"), 40), colored))
    if raised:
        x = np.concatenate([run.points(get(name), by)[0] for arm in arms for run in arm.runs for name in names])
        marks, span = tuple(raised[:MOST_BENCHMARKS]), (float(x.min()), float(x.max()))
        section.panels.append(Panel("Raised", "", X_LABEL[by], marks=marks, x_span=span))
    elif names:
        section.notes.append(f"Not raised in any step: {', '.join(clean(n, 40) for n in names[:MOST_BENCHMARKS])}.")


def hard_section(content: dict) -> Section:
    """The paper's Figure 3, from the content of hard.json as `command.read_hard` checked it."""
    runs = [(clean(run["name"], 60), run["benchmarks"]) for run in content["runs"]]
    section = Section(*HARD, legend=[Key("line", color_of(index), name) for index, (name, _) in enumerate(runs)])
    sources = sorted({source for _, benchmarks in runs for source in benchmarks})[:MOST_BENCHMARKS]
    kinds = (("pass_at_k", "Pass@K", "K"), ("pass_at_16_by_limit", "Pass@16", "response limit in tokens"))
    for source, (kind, unit, x_label) in product(sources, kinds):
        curves, ticks = [], set()
        for index, (name, benchmarks) in enumerate(runs):
            points = sorted((int(x), *triple) for x, triple in benchmarks.get(source, {}).get(kind, {}).items())
            if points:
                x, *values = np.array(points, dtype=float).T
                ticks |= set(x)
                curves.append(Curve(name, color_of(index), Band(np.log2(x), *values)))
        if curves:
            shown = sorted(ticks)[:: -(-len(ticks) // 6)]
            labels = tuple((float(np.log2(x)), f"{x / 1024:g}k" if x >= 1024 else f"{x:g}") for x in shown)
            section.panels.append(Panel(f"{clean(source, 60)}, {unit}", unit, x_label, tuple(curves), x_ticks=labels))
    return section


def add_groups(section: Section, arms: list[Arm], by: str) -> None:
    is_async = any(WAITING[0](row) is not None for arm in arms for run in arm.runs for row in run.rows)
    add_lines(section, arms, GROUPS + (IN_FLIGHT if is_async else ()), by)
    add_stacks(section, arms, "All groups", "groups per step", by, ledger, LEDGER)


def add_reflection(section: Section, arms: list[Arm], by: str) -> None:
    add_lines(section, arms, REFLECTION, by)
    found = [asked_again(row for run in arm.runs for row in run.rows) for arm in arms]
    ways = [way for way in WAYS if any(way in of_arm["by"] for of_arm in found)]
    if not ways:
        return

    def read(row: Row) -> list[float] | None:
        asked, found = ([row.get(f"reflection/by_{way}/{name}") for way in ways] for name in ("asked", "found"))
        pairs = list(zip(asked, found, strict=True))
        return None if None in asked + found else [part for a, f in pairs for part in (f, a - f)]

    ends = "right answer found", "none"
    layers = [(f"{way}: {end}", c) for way in ways for end, c in zip(ends, WAY_COLORS[way], strict=True)]
    add_stacks(section, arms, "All-wrong groups asked again", "groups per step", by, read, tuple(layers))
    rows = [row for arm in arms for run in arm.runs for row in run.rows]
    logged = [spec for spec in SOONER if any(spec.readers[0](row) is not None for row in rows)]
    add_lines(section, arms, tuple(logged), by)
    for arm, of_arm in zip(arms, found, strict=True):
        told = [f"{way} {found_by(counts)}" for way, counts in of_arm["by"].items()]
        name = f"{arm.label}: a" if len(arms) > 1 else "A"
        section.notes += [f"{name}ll-wrong groups asked again, {'; '.join(told)}."] if told else []


SECTIONS = (
    ("dynamics", "Training dynamics", sessions.lines(*DYNAMICS),
     "The paper's Figure 4 for these runs: the reward should rise while fewer groups are all right or all wrong, "
     "and entropy should not fall to zero."),
    ("validation", "Validation", add_validation,
     "Trust a gain that leaves the shaded interval: 95 % over problems (bootstrap) for a single run, over seeds "
     "for several."),
    ("groups", "What became of the groups", add_groups,
     "Every step's groups add up to the full height; those still dead at the top taught nothing of right and wrong "
     "(ngrpo and rl_zvp train them by their outcome). "
     "The all wrong are what R^3 is for; the all right it leaves alone, unless replay.outcome says otherwise."),
    ("lengths", "Length and truncation", sessions.lines(*LENGTHS),
     "Longer or more truncated answers without better accuracy are the alarm, shorter ones at equal accuracy the "
     "promise; validation is the mean over benchmarks."),
    ("replay", "Replay: age and how far off policy", sessions.lines(*REPLAY),
     "Tails that widen and an effective sample size that falls mean that replay teaches from answers which the "
     "policy has left behind."),
    ("reflection", "Reflection and its transfer", add_reflection,
     "Reflection pays when the plain prompts of reflected problems succeed more often since their first reflection "
     "than before it."),
    ("tokens", "Tokens per phase", add_tokens,
     "What a step generates and trains on: replayed tokens were generated in an earlier step and cost no "
     "generation."),
    ("time", "Time per phase", add_time,
     "Where a step's seconds go: generation should dominate, and a phase that keeps growing is worth a look."),
    ("alarms", "Alarms", add_alarms,
     "Each mark is a step at which the trainer raised the alarm of that name."),
)  # fmt: skip
"""key, title, what adds the panels, and a caption that says what to look for."""
HARD = (
    "hard",
    "Challenging problems",
    "The paper's Figure 3 from r3 eval hard: a curve that still rises at large K has answers that training can make "
    "likelier; shaded is the 95 % interval over problems.",
)
_SHARED = {key: entry for key, *entry in SECTIONS}
OF_SESSIONS = (
    *sessions.OWN,
    *((key, *_SHARED[key]) for key in ("validation", "time")),
    ("tokens", "Tokens", add_generated, "What was generated for training, prompts and validation left out."),
    ("alarms", *_SHARED["alarms"]),
)
"""The same of runs that train on sessions of several turns."""
KEYS = tuple(dict.fromkeys(key for key, *_ in (*SECTIONS, HARD, *OF_SESSIONS)))
"""Of all sections, and the names of their PNG files."""


def all_sections(arms: list[Arm], by: str, hard: dict | None = None) -> tuple[list[Section], list[str]]:
    """The sections with something to show, and the titles of those without."""
    sections = [hard_section(hard)] if hard else []
    of_sessions = all_play([run for arm in arms for run in arm.runs])
    for key, title, add, caption in reversed(OF_SESSIONS if of_sessions else SECTIONS):
        legend = [Key("line", color_of(index), arm.label) for index, arm in enumerate(arms)] if len(arms) > 1 else []
        section = Section(key, title, caption, legend=legend)
        add(section, arms, by)
        sections.insert(0, section)
    for section in sections:
        drawn = {curve.color for panel in section.panels for curve in panel.curves}
        drawn |= {color for panel in section.panels for _, marks in panel.marks for color, x in marks if len(x)}
        section.legend = [key for key in section.legend if key.shape == "area" or key.color in drawn]
    empty = [section.title for section in sections if not section.panels and not section.notes]
    return [section for section in sections if section.panels or section.notes], empty
