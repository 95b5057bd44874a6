"""What a study found, from the metrics of its cells: pure functions, no runs, no files.

A curve is (tokens, accuracy): generated tokens so far, and Pass@1 on validation, at each validation of a cell. Where
cells train on sessions, turns stand in the place of tokens.
Shapes: V validations of a cell, S seeds.
"""

import math
from collections.abc import Iterable

import numpy as np

from r3_ext.record.summary import environment_steps, generated_tokens, validation_accuracy
from r3_ext.report.bands import t_interval
from r3_ext.study.arms import TOKENS, TURNS

Curve = tuple[np.ndarray, np.ndarray]
BASELINE = "grpo"
REFERENCES = (BASELINE, "r3")
"""Arms that each arm is compared with: what is gained on GRPO, what is lost on the full method."""
OF_SESSIONS = ("grpo_sessions", "hgpo")
"""The same of arms that train on sessions."""


def references(found: Iterable[str]) -> tuple[str, ...]:
    """Which of both, by the arms that there are."""
    return OF_SESSIONS if set(OF_SESSIONS) & set(found) else REFERENCES


def curve_of(rows: list[dict], unit: str = TOKENS) -> Curve:
    """The curve of a cell from the rows of its metrics.jsonl; two (V,) arrays."""
    tokens, points = 0.0, []
    for row in rows:
        tokens += environment_steps(row) if unit == TURNS else generated_tokens(row) or 0
        accuracy = validation_accuracy(row)
        if accuracy is not None:
            points.append((tokens, accuracy))
    return as_curve(points)


def as_curve(points: list[tuple[float, float]]) -> Curve:
    """Two (V,) arrays from V pairs of tokens and accuracy."""
    return tuple(np.array(column, dtype=float) for column in zip(*points, strict=True)) if points else (_NONE, _NONE)


_NONE = np.zeros(0)


def accuracy_at(curve: Curve, tokens: float) -> float:
    """Accuracy at that many generated tokens, linear between validations; NaN where the curve does not reach.

    Validations (0, 0.2) and (100, 0.4): 0.3 at 50 tokens.
    """
    x_V, y_V = curve
    return float(np.interp(tokens, x_V, y_V)) if len(x_V) and x_V[0] <= tokens <= x_V[-1] else math.nan


def mean_accuracy(curve: Curve, tokens: float) -> float:
    """Mean accuracy over the whole budget, the area under the curve: less noisy than any one validation."""
    x_V, y_V = curve
    if math.isnan(end := accuracy_at(curve, tokens)):
        return math.nan
    kept_V = x_V < tokens
    x, y = np.append(x_V[kept_V], tokens), np.append(y_V[kept_V], end)
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def tokens_to(curve: Curve, accuracy: float) -> float:
    """Generated tokens from which on the curve has that accuracy, linear between validations; inf if it ends below.

    Noise touches an accuracy long before it is held: the last crossing counts, not the first.
    """
    x_V, y_V = curve
    below_V = np.flatnonzero(y_V < accuracy)
    if not len(y_V) or y_V[-1] < accuracy:
        return math.inf
    if not len(below_V):
        return float(x_V[0])
    at = below_V[-1]
    share = (accuracy - y_V[at]) / (y_V[at + 1] - y_V[at])
    return float(x_V[at] + share * (x_V[at + 1] - x_V[at]))


def spread(values: list[float]) -> dict[str, float | int]:
    """Mean and 95 % t-interval over seeds, without the NaN ones; one value has no interval."""
    known = np.array([value for value in values if not math.isnan(value)])
    if len(known) < 3:
        return {"mean": float(known.mean()) if len(known) else math.nan, "seeds": len(known)}
    mean, low, high = map(float, t_interval(known))
    return {"mean": mean, "low": low, "high": high, "seeds": len(known)}


def in_common(curves: dict[str, dict[int, Curve]], budget: float) -> list[dict[str, dict[int, Curve]]]:
    """What compares: the arms that reach the budget in a set of seeds, for each set that an arm has or that two share.

    The largest set first. Means over different worlds differ by the worlds: with GRPO in 0 and 1 and R^3 in 0 alone
    this gives {grpo: 0, 1} and {grpo: 0, r3: 0}.
    """
    reached = {
        arm: frozenset(seed for seed, curve in cells.items() if math.isfinite(accuracy_at(curve, budget)))
        for arm, cells in curves.items()
    }
    shared = {one & other for one in reached.values() for other in reached.values()} - {frozenset()}
    return [
        {arm: {seed: curves[arm][seed] for seed in sorted(seeds)} for arm in curves if seeds <= reached[arm]}
        for seeds in sorted(shared, key=lambda seeds: (-len(seeds), sorted(seeds)))
    ]


def compare(curves: dict[str, dict[int, Curve]], budget: float) -> dict[str, dict]:
    """Figures of each arm at `budget` generated tokens, from its curves by seed.

    accuracy, mean_accuracy: see above. difference: of `accuracy` to that of each arm of REFERENCES, seed by seed.
    speedup: see `speedup`, of any arm but the baseline, with its cells of the same seeds. Without cells of a reference,
    its figures are absent.
    """
    at = {arm: {seed: accuracy_at(curve, budget) for seed, curve in cells.items()} for arm, cells in curves.items()}
    found = {}
    for arm, cells in curves.items():
        found[arm] = {
            "accuracy": spread(list(at[arm].values())),
            "mean_accuracy": spread([mean_accuracy(curve, budget) for curve in cells.values()]),
            "difference": {
                reference: spread([at[arm][seed] - at[reference][seed] for seed in cells if seed in at[reference]])
                for reference in references(at)
                if reference in at
            },
        }
        if BASELINE in curves and arm != BASELINE:
            both = [seed for seed in cells if math.isfinite(at[arm][seed] + at[BASELINE].get(seed, math.nan))]
            found[arm]["speedup"] = speedup([(cells[seed], curves[BASELINE][seed]) for seed in both], budget)
    return found


LEAST_PAIRS = 6


def speedup(pairs: list[tuple[Curve, Curve]], budget: float, resamples: int = 2000) -> dict[str, float]:
    """Budget over the tokens from which on the mean of the first curves has the final mean accuracy of the second.

    2 means half the tokens, 0 more than the budget: the curve ends there. NaN: the second gains nothing that could be
    had sooner. low, high: 95 % of bootstrap resamples of the pairs, of LEAST_PAIRS or more: of fewer, an end of the
    interval is one pair drawn many times. Where two arms are equal, chance alone gives values above 1, so the interval
    is a description and no test.
    """
    if not pairs:
        return {"mean": math.nan}
    grid = np.linspace(0, budget, 200)
    first_SN, second_SN = (
        np.array([np.interp(grid, *curve) for curve in curves]) for curves in zip(*pairs, strict=True)
    )

    def of(chosen: np.ndarray) -> float:
        mean_N, final = first_SN[chosen].mean(axis=0), second_SN[chosen, -1].mean()
        if final <= second_SN[chosen, 0].mean():
            return math.nan
        needed = tokens_to((grid, mean_N), final - 1e-9)
        return 0.0 if math.isinf(needed) else budget / max(needed, budget / len(grid))

    found = {"mean": of(np.arange(len(pairs)))}
    if len(pairs) >= LEAST_PAIRS and math.isfinite(found["mean"]):
        drawn = np.random.default_rng(0).integers(len(pairs), size=(resamples, len(pairs)))
        values = np.array([of(chosen) for chosen in drawn])
        if np.isfinite(values).any():
            low, high = np.nanquantile(values, (0.025, 0.975))
            found |= {"low": float(low), "high": float(high)}
    return found
