"""Runs as the report sees them: rows of numbers, cumulated tokens, facts, and arms of runs that differ in the seed."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import yaml

from r3_ext.host.text import in_one_line
from r3_ext.recipes import BASELINE, RECIPES, SESSION_SETTINGS, recipe_of_trainer
from r3_ext.record.folder import is_held, read_starts
from r3_ext.record.summary import generated_tokens, read_metrics
from r3_ext.report.bands import Points

BOUND = 1e30
"""Values beyond are drawn as this, so that sums and squares of them stay finite."""
MOST_SETTINGS = 20_000
PER_RUN = re.compile(
    r"(^|[._])seed$|^trainer\.(default_local_dir|experiment_name|project_name|logger|resume_\w+)|^skip\.|"
    + "|".join(f"^{re.escape(key)}$" for recipe in RECIPES.values() for key in recipe.files)
)
"""Settings in which runs of one arm may differ: seeds, and where a run writes."""
BENCHMARK = re.compile(r"^(?:val/(?P<own>.+)/pass@1|val-core/(?P<verl>.+)/acc/mean@\d+)$", re.DOTALL)

Row = dict[str, float]
Reader = Callable[[Row], float | None]


class ReportError(Exception):
    """The report cannot be made; the message is a sentence for the user."""


def clean(value: object, most: int = 120) -> str:
    """Text from a file as one short printable line: XML and terminals choke on control characters."""
    text = in_one_line(str(value)[: most + 1], "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass
class Run:
    """One run folder; `rows` hold finite numbers only, one row per step, ascending."""

    folder: Path
    rows: list[Row]
    config: dict[str, object] = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    starts: list[dict] = field(default_factory=list)
    """The lines of starts.jsonl."""
    is_training: bool = False
    """Whether a process was training in the folder when it was read."""
    label: str | None = None
    not_finite: Counter = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return clean("/".join(self.folder.parts[-2:]))

    @cached_property
    def tokens(self) -> np.ndarray:
        """(rows,) generated tokens up to and with each row's step."""
        return np.cumsum([generated_tokens(row) or 0.0 for row in self.rows])

    @cached_property
    def benchmarks(self) -> list[str]:
        keys = {key for row in self.rows for key in row if key.startswith("val")}
        matches = [match for key in keys if (match := BENCHMARK.match(key))]
        return sorted({match["own"] or match["verl"] for match in matches})

    @property
    def options(self) -> dict:
        """What `r3 run` was given at the last start; none where no start is on record."""
        return next((line["arguments"]["options"] for line in reversed(self.starts) if line["event"] == "start"), {})

    @property
    def method(self) -> str:
        """What `--method` named, where the trainer is of that recipe; else the recipe's name, or dapo, grpo and
        the like by the resolved config; without one, the experiment's folder."""
        if not self.config:
            return clean(self.folder.parent.name)
        recipe, named = recipe_of_trainer(self.config.get("trainer.v1.trainer_mode")), self.options.get("method")
        if recipe and recipe is not BASELINE:
            return named if named in recipe.methods else recipe.name
        if self.config.get("algorithm.filter_groups.enable") is True:
            return "dapo"
        estimator = self.config.get("algorithm.adv_estimator")
        return estimator if estimator in BASELINE.methods else "grpo"

    @property
    def has_sessions(self) -> bool:
        """Whether it trained on sessions of several turns."""
        settings = f"{SESSION_SETTINGS}."
        return any(key.startswith(settings) for key in self.config) or any(
            "sessions/number" in row for row in self.rows
        )

    @property
    def identity(self) -> object:
        """Equal for runs that repeat each other with another seed."""
        if self.label is not None or not self.config:
            return self.label or self.folder
        return frozenset((key, repr(value)) for key, value in self.config.items() if not PER_RUN.search(key))

    def points(self, read: Reader, by: str) -> Points:
        """x and y of a metric, over the rows that have it; x is the step or the generated tokens."""
        found = [(i, value) for i, row in enumerate(self.rows) if (value := read(row)) is not None]
        found = [(i, value) for i, value in found if math.isfinite(value)]
        xs = self.tokens if by == "tokens" else np.array([row["step"] for row in self.rows])
        return np.array([xs[i] for i, _ in found]), np.array([value for _, value in found])


@dataclass
class Arm:
    """Runs that differ in the seed only, in one colour."""

    label: str
    runs: list[Run]


def all_play(runs: list[Run]) -> bool:
    """Whether all of them trained on sessions of several turns."""
    return all(run.has_sessions for run in runs)


def find_folders(argument: Path) -> list[Path]:
    """The run folders that an argument names: itself, or all runs one or two levels below.

    Raises:
        ReportError: there is none.
    """
    try:
        if (argument / "metrics.jsonl").is_file():
            return [argument.resolve()]
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise ReportError(f"{clean(argument, 400)} cannot be read: {error.strerror}") from None
    files = sorted(argument.glob("*/metrics.jsonl")) or sorted(argument.glob("*/*/metrics.jsonl"))
    if not files:
        raise ReportError(
            f"{clean(argument, 400)} has no metrics.jsonl, nor has a folder in it: name a run folder or an experiment"
        )
    return [file.parent.resolve() for file in files]


def load_run(folder: Path, label: str | None = None) -> Run:
    """Read a run folder. Only metrics.jsonl is needed; what else is damaged or absent becomes a remark.

    Raises:
        ReportError: metrics.jsonl cannot be read at all.
    """
    file = folder / "metrics.jsonl"
    try:
        raw = read_metrics(file)
        lines = sum(bool(line.strip()) for line in file.read_text().splitlines())
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{clean(file, 400)} cannot be read: {clean(error, 200)}") from None
    run = Run(folder, [], label=label)
    if lines - len(raw) > 1:
        run.remarks.append(f"line {len(raw) + 1} of metrics.jsonl is damaged: it and all after it are left out")
    rows: dict[float, Row] = {}
    for entry in raw:
        row = _numbers(entry, run.not_finite)
        if "step" in row:
            rows.setdefault(row["step"], {}).update(row)
    run.rows = [rows[step] for step in sorted(rows)]
    run.config = _read(run, "config.yaml", _flat_yaml)
    run.environment = _read(run, "environment.json", json.loads)
    run.summary = _read(run, "summary.json", json.loads)
    try:
        run.starts = read_starts(folder)
        run.is_training = bool(run.starts) and run.starts[-1]["event"] == "start" and is_held(folder)
    except (OSError, ValueError) as error:
        run.remarks.append(clean(error, 400))
    return run


def _numbers(entry: object, not_finite: Counter) -> Row:
    """The finite numbers of a logged row, within +-BOUND; others are counted by key, or left out if no numbers."""
    row = {}
    for key, value in entry.items() if isinstance(entry, dict) else ():
        if isinstance(value, int | float):
            # An int may be too long for a float.
            number = max(-BOUND, min(BOUND, value)) if value == value else math.nan
            if math.isfinite(number) and not (isinstance(value, float) and math.isinf(value)):
                row[key] = float(number)
            else:
                not_finite[key] += 1
    return row


def _read(run: Run, name: str, parse: Callable[[str], object]) -> dict:
    file = run.folder / name
    if not file.is_file():
        return {}
    try:
        content = parse(file.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        run.remarks.append(f"{name} cannot be read")
        return {}
    return content


def _flat_yaml(text: str) -> dict[str, object]:
    """Dotted keys of a YAML tree. Bounded: a few lines of aliases can stand for more nodes than memory holds."""
    tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(tree, dict):
        raise ValueError("no settings")
    flat, waiting, seen = {}, [("", tree)], 0
    while waiting:
        prefix, node = waiting.pop()
        seen += 1
        if seen > MOST_SETTINGS:
            raise ValueError(f"over {MOST_SETTINGS} settings")
        if isinstance(node, dict):
            waiting += [(f"{prefix}.{key}" if prefix else str(key), child) for key, child in node.items()]
        elif isinstance(node, list):
            waiting += [(f"{prefix}.{index}", child) for index, child in enumerate(node)]
        else:
            flat[prefix] = node
    return flat


def arms_of(runs: list[Run]) -> list[Arm]:
    """Group runs by identity, in the order given, and name the arms: by method where that tells them apart."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.identity, []).append(run)
    members = list(groups.values())
    schemes = (lambda run: run.method, lambda run: clean(run.folder.parent.name), lambda run: run.name)
    for scheme in schemes:
        names = [clean(group[0].label or scheme(group[0]), 60) for group in members]
        if len(set(names)) == len(names):
            break
    else:
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return [Arm(name, group) for name, group in zip(names, members, strict=True)]


def first_and_last(y_N: np.ndarray) -> tuple[float, float]:
    """Means over the first and the last tenth of the points (N >= 1), at least one, as summary.json has them."""
    window = max(1, len(y_N) // 10)
    return float(y_N[:window].mean()), float(y_N[-window:].mean())
