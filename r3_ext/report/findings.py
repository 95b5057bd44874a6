"""What the report says in words: facts on the runs, headline numbers, findings computed from the metrics."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from r3_ext.recipes import R3
from r3_ext.record.summary import NO_USE, compared_restarts, environment_steps, reward_of, skipped_steps
from r3_ext.report.bands import interval
from r3_ext.report.figures import alarm_names, validation_band
from r3_ext.report.readers import (
    ACCURACY,
    DEAD_SHARE,
    LENGTH,
    MECHANISMS,
    RESCUED,
    SAMPLE_SIZE,
    SECONDS,
    TAILS,
    TRANSFER,
    TRUNCATED,
    get,
    mean_pass_at_1,
)
from r3_ext.report.runs import Arm, Reader, Run, clean, first_and_last
from r3_ext.report.sessions import SIGNAL, TURNS
from recipe.common.validation import error_of_difference

TRUNCATION_RISE = 0.05
LENGTH_RISE = 1.2
ACCURACY_RISE = 0.01
"""Truncation is said to climb by 5 points, length by a fifth, without accuracy gaining 1 point."""
LOW_ESS = 0.3
MOST_REMARKS = 12
NONE = "–"


@dataclass(frozen=True)
class Finding:
    """A sentence; `arm` is whose, empty where there is one arm or all are meant."""

    text: str
    warning: bool = False
    arm: str = ""


def span(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float) -> str:
    return f"{100 * value:.3g}\N{NO-BREAK SPACE}%"


def compact(value: float) -> str:
    """Counts of tokens: 193448 is 193 k."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def over_seeds(values: Iterable[float], show: Callable[[float], str] = span) -> str:
    """A number over seeds: the value, the range of two, or mean and half the 95 % t-interval to its first digit."""
    values = np.array(list(values))
    if len(values) < 2:
        return show(float(values[0])) if len(values) else NONE
    mean, low, high = (float(part[0]) for part in interval(values[:, None]))
    if len(values) == 2:
        return show(low) if show(low) == show(high) else f"{show(low)}–{show(high)}"
    scale, unit = (100, "\N{NO-BREAK SPACE}%") if show is percent else (1, "")
    half = scale * (high - mean)
    digits = min(4, max(0, -math.floor(math.log10(half)))) if half > 0 else 3
    return f"{scale * mean:,.{digits}f} ± {half:,.{digits}f}{unit}".replace(" ", "\N{NO-BREAK SPACE}")


def ends_of(arm: Arm, read: Reader) -> list[tuple[float, float]]:
    """Per run with values, the means over the first and the last tenth of the steps."""
    return [first_and_last(y) for run in arm.runs if len(y := run.points(read, "step")[1])]


def change(arm: Arm, read: Reader) -> tuple[float, float] | None:
    """Mean over the runs of `ends_of`; None without values."""
    pairs = ends_of(arm, read)
    return tuple(np.mean(pairs, axis=0).tolist()) if pairs else None


def arrow(pairs: list[tuple[float, float]], show: Callable[[float], str] = span) -> str:
    """First to last, the last over seeds."""
    if not pairs:
        return NONE
    return f"{show(float(np.mean([first for first, _ in pairs])))} → {over_seeds((last for _, last in pairs), show)}"


def total(arm: Arm, read: Reader) -> int:
    """Sum over the steps of all runs."""
    return sum(int(run.points(read, "step")[1].sum()) for run in arm.runs)


def _joined(values: Iterable[object], most: int = 200) -> str:
    return clean(", ".join(dict.fromkeys(str(value) for value in values if value not in (None, ""))), most) or NONE


def _short_path(value: object) -> str:
    """The last two parts of a path or hub name."""
    return "/".join(str(value).rstrip("/").split("/")[-2:]) if value is not None else ""


def seeds_of(arm: Arm) -> str:
    """The seed setting in which the runs differ; data.seed where none does."""
    keys = sorted({key for run in arm.runs for key in run.config if key.split(".")[-1] == "seed"})
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in arm.runs}) > 1]
    chosen = "data.seed" if "data.seed" in differing or not differing else differing[0]
    return _joined(run.config.get(chosen) for run in arm.runs)


def _method(run: Run) -> str:
    switches = [name for name in MECHANISMS if run.config.get(f"algorithm.r3.{name}.enable")]
    return f"{run.method} ({', '.join(switches) or 'all mechanisms off'})" if run.method in R3.methods else run.method


def _inner(tree: dict, name: str) -> dict:
    value = tree.get(name)
    return value if isinstance(value, dict) else {}


def _commit(run: Run) -> str:
    git = _inner(run.environment, "git")
    return f"{git.get('commit') or ''}"[:10] + (" with changes" if git.get("commit") and git.get("changes") else "")


def facts(arm: Arm) -> dict[str, str]:
    """What was run, each fact once for all runs of the arm."""
    runs, configs = arm.runs, [run.config for run in arm.runs]
    files = [config.get("data.train_files", config.get("data.train_files.0")) for config in configs]
    return {
        "Method": _joined(_method(run) for run in runs),
        "Model": _joined(_short_path(config.get("actor_rollout_ref.model.path")) for config in configs),
        "Data": _joined(_short_path(file) for file in files),
        "Steps": _joined(f"{sum('training/global_step' in row for row in run.rows):,}" for run in runs),
        "Seeds": seeds_of(arm),
        "Commit": _joined(_commit(run) for run in runs),
        "Hardware": _joined(run.environment.get("machine") for run in runs),
    }


def details(run: Run) -> dict[str, str]:
    """Folder, versions and command of a run."""
    versions = {"python": run.environment.get("python"), **_inner(run.environment, "versions")}
    return {
        "run": clean(run.folder, 400),
        "last start": _joined([run.environment.get("started")]),
        "over all starts": _over_starts(run),
        "versions": _joined((f"{name} {version}" for name, version in versions.items() if version), 1000),
        "command": clean(run.environment.get("command", NONE), 6000),
    }


def _over_starts(run: Run) -> str:
    """How often the run was started, how long it took in all, and what it trained twice for that."""
    again = _inner(run.summary, "trained_again")
    facts = {
        "starts": run.summary.get("starts"),
        "seconds": _inner(run.summary, "seconds").get("total"),
        "steps trained again": again.get("steps"),
        "tokens of them": again.get("generated_tokens"),
    }
    return _joined(f"{name} {value}" for name, value in facts.items() if value is not None)


def headline(arm: Arm, of_sessions: bool = False) -> dict[str, str]:
    """First to last of the numbers one looks at first.

    of_sessions: whether all arms of the report are.
    """
    scores = [y for run in arm.runs if len(y := run.points(mean_pass_at_1(run), "step")[1])]
    seconds = [value for run in arm.runs for value in run.points(SECONDS, "step")[1].tolist()]
    tokens = [float(run.tokens[-1]) for run in arm.runs if run.tokens[-1] > 0]
    return {
        "Mean reward": arrow(ends_of(arm, reward_of)),
        "Validation Pass@1": arrow([(y[0], y[-1]) for y in scores], percent),
        "Dead groups": arrow(ends_of(arm, DEAD_SHARE), percent),
        **(session_headline(arm) if of_sessions else answer_headline(arm)),
        "Generated tokens": compact(float(np.mean(tokens))) if tokens else NONE,
        "Seconds per step": span(median(seconds)) if seconds else NONE,
    }


def answer_headline(arm: Arm) -> dict[str, str]:
    return {
        "All wrong rescued": arrow(ends_of(arm, RESCUED[0]), percent),
        "Response length": arrow(ends_of(arm, LENGTH)),
        "Truncated": arrow(ends_of(arm, TRUNCATED), percent),
    }


def session_headline(arm: Arm) -> dict[str, str]:
    return {
        "Success, training": arrow(ends_of(arm, ACCURACY), percent),
        "Turns of a session": arrow(ends_of(arm, TURNS)),
        "Turns with a signal": arrow(ends_of(arm, SIGNAL), percent),
        "Turns played": compact(float(np.mean([sum(map(environment_steps, run.rows)) for run in arm.runs]))),
    }


def findings(arms: list[Arm]) -> list[Finding]:
    """Sentences computed from the data: warnings first, then what compares the arms."""
    found = equal_tokens_said(arms)
    rules = (validation_said, lengths_said, reflection_said, replay_said, restarts_said, alarms_said, trouble_said)
    for arm in arms:
        label = arm.label if len(arms) > 1 else ""
        found += [replace(one, arm=label) for rule in rules for one in rule(arm)]
    return sorted(found, key=lambda one: not one.warning)


def equal_tokens_said(arms: list[Arm]) -> list[Finding]:
    """Validation of all arms at the most generated tokens that every one of them reached."""
    curves = {}
    for arm in arms:
        points = [run.points(mean_pass_at_1(run), "tokens") for run in arm.runs if run.tokens[-1] > 0]
        curves[arm.label] = [(x, y) for x, y in points if len(x)]
    curves = {label: points for label, points in curves.items() if points}
    budget = min((x[-1] for points in curves.values() for x, _ in points), default=0.0)
    if len(curves) < 2 or budget <= 0:
        return []
    scores = {label: [np.interp(budget, x, y) for x, y in points] for label, points in curves.items()}
    said = ", ".join(f"{label} {over_seeds(values, percent)}" for label, values in scores.items())
    return [Finding(f"At {compact(budget)} generated tokens, validation Pass@1: {said}.")]


def validation_said(arm: Arm) -> list[Finding]:
    """First to last validation of every benchmark, and on how many of them the intervals part."""
    sources = sorted({source for run in arm.runs for source in run.benchmarks})
    bands = {clean(source, 60): validation_band(arm, source, "step") for source in sources}
    bands = {source: band for source, band in bands.items() if band is not None and len(band.y) > 1}
    if not bands:
        return []
    shown = [f"{source} {percent(band.y[0])} → {percent(band.y[-1])}" for source, band in bands.items()]
    text = f"Validation Pass@1: {', '.join(shown[:MOST_REMARKS])}"
    known = [band for band in bands.values() if band.low is not None]
    if known:
        apart = sum(bool(band.low[-1] > band.high[0] or band.high[-1] < band.low[0]) for band in known)
        text += f"; the first and the last interval are apart on {apart} of {len(known)} benchmarks"
        text += "" if apart == len(known) else ", the rest may be noise"
    return [Finding(f"{text}.")]


def lengths_said(arm: Arm) -> list[Finding]:
    """The alarm of length and truncation: they climb and accuracy does not."""
    accuracy = change(arm, ACCURACY) or change(arm, mean_pass_at_1(arm.runs[0]))
    truncated, length = change(arm, TRUNCATED), change(arm, LENGTH)
    if accuracy is None or accuracy[1] - accuracy[0] >= ACCURACY_RISE:
        return []
    said, against = [], f"while accuracy did not ({percent(accuracy[0])} → {percent(accuracy[1])})."
    if truncated and truncated[1] - truncated[0] > TRUNCATION_RISE:
        text = f"Truncation rose from {percent(truncated[0])} to {percent(truncated[1])} {against}"
        said.append(Finding(text, warning=True))
    if length and length[1] > LENGTH_RISE * length[0]:
        text = f"Responses grew from {span(length[0])} to {span(length[1])} tokens {against}"
        said.append(Finding(text, warning=True))
    return said


def further_prompt(arm: Arm) -> str:
    """What problems were asked again with: some all-wrong groups may be asked by their plain prompt."""
    others = sum(total(arm, get(f"reflection/by_{way}/asked")) for way in ("plain", "restart"))
    return "further prompt" if others else "reflection prompt"


def reflection_said(arm: Arm) -> list[Finding]:
    prompts, solved = (total(arm, get(f"reflection/{name}")) for name in ("prompts", "solved"))
    if not prompts:
        return []
    text = f"{prompts:,} {further_prompt(arm)}s, {solved:,} with a correct answer ({percent(solved / prompts)})"
    after, before = (change(arm, read) for read in TRANSFER)
    if after is None or before is None:
        return [Finding(f"{text}.")]
    text += f"; in the last tenth of the steps their problems' plain prompts had succeeded in {percent(before[1])} of "
    text += f"attempts before the first reflection and in {percent(after[1])} since."
    return [Finding(text, warning=after[1] < before[1])]


def replay_said(arm: Arm) -> list[Finding]:
    ess, high = change(arm, SAMPLE_SIZE[0]), change(arm, TAILS[0])
    if ess is None or high is None:
        return []
    text = f"In the last tenth of the steps replayed tokens keep {percent(ess[1])} of their sample size"
    return [Finding(f"{text}; the 99th percentile of their ratio is {span(high[1])}.", warning=ess[1] < LOW_ESS)]


def restarts_said(arm: Arm) -> list[Finding]:
    """Whether restarts were worth it: against fresh attempts at the same problems, all steps together."""
    found = compared_restarts([row for run in arm.runs for row in run.rows])
    if found is None:
        return []
    number, own, fresh = (found[name] for name in ("compared", "success", "fresh_success"))
    text = (
        f"{number:,.0f} restarts succeeded in {percent(own)}, fresh attempts at the same problems in "
        f"{percent(max(0.0, fresh))}"
    )
    if "right" in found:
        text += f" ({percent(found['right'])} of all {found['rows']:,} restarts)"
    # Of few that can be compared none may be right while others were.
    is_worse = own + error_of_difference(number, own, fresh) < fresh
    in_vain = is_worse or found.get("right", own) == 0
    return [Finding(f"{text}: {NO_USE}." if in_vain else f"{text}.", warning=in_vain)]


def alarms_said(arm: Arm) -> list[Finding]:
    said = []
    for name in alarm_names([arm])[:MOST_REMARKS]:
        raised = np.concatenate([x[y > 0] for x, y in (run.points(get(name), "step") for run in arm.runs)])
        if len(raised):
            text = f"Alarm {clean(name.removeprefix('alarm/'), 60)} was raised in {len(raised):,} steps"
            said.append(Finding(f"{text}, first in step {raised.min():g}.", warning=True))
    counts = [skipped_steps(row) for run in arm.runs for row in run.rows]
    if skipped := sum(lost for lost, _ in counts):
        text = f"{skipped:,} of {sum(map(sum, counts)):,} optimizer steps were skipped, as gradients were not finite"
        said.append(Finding(f"{text}.", warning=True))
    return said


def trouble_said(arm: Arm) -> list[Finding]:
    """Values that are no numbers, damaged files, seeds that end early, tokens not counted."""
    said = []
    for run in arm.runs:
        for key, count in sorted(run.not_finite.items())[:MOST_REMARKS]:
            said.append(f"Run {run.name}: {count:,} values of {clean(key, 80)} are not finite and are left out.")
        said += [f"Run {run.name}: {remark}." for remark in run.remarks]
    ends = {run.name: run.rows[-1]["step"] for run in arm.runs}
    if len(set(ends.values())) > 1:
        first = min(ends, key=ends.get)
        said.append(f"Run {first} ends at step {ends[first]:g}, and the means over seeds end with it.")
    if any(run.method == "dapo" for run in arm.runs) and not total(arm, get("generated/tokens")):
        said.append("What dynamic sampling generated and threw away is not in the count of tokens.")
    return [Finding(text, warning=True) for text in said]


def setting(run: Run, key: str) -> float:
    """A number above 0 of the run's configuration; 0 where there is none."""
    value = run.config.get(key)
    return value if type(value) in (int, float) and 0 < value < math.inf else 0


def lower_rate(run: Run) -> str:
    rate = setting(run, key := "actor_rollout_ref.actor.optim.lr")
    return f"train anew with a lower learning rate, `{key}{f'={rate / 2:g}' if rate else ''}`"
