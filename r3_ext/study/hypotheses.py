"""What a study set out to test, judged from its record: pure functions, no runs, no files.

A hypothesis claims that a contrast of arms lies above or below a bound. A contrast is a weighted sum of a measure over
arms, taken in each world by itself: {"r3": 1, "grpo": -1} is the paired difference. Shapes: W worlds, M hypotheses.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from r3_ext.study.outcome import Curve, accuracy_at, mean_accuracy, mean_curve, tokens_to

MEASURES = {"accuracy": accuracy_at, "mean_accuracy": mean_accuracy}
HELD, NOT_HELD, UNDECIDED = "held", "not held", "not decided"
LEVEL = 0.05
LEAST_WORLDS = 3
"""Below that there is no interval worth the name."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Hypothesis:
    name: str
    says: str
    contrast: dict[str, float]
    """Weights by FOLDER/ARM."""
    measure: str
    """One of MEASURES, or `speedup`: the tokens the second arm needs for its final accuracy over those of the first."""
    claim: str
    """`above` or `below`."""
    bound: float
    matters: float
    """An effect smaller than this beyond the bound does not matter: a claim is given up when the interval leaves out
    such an effect."""
    family: str
    """The hypotheses that are corrected together."""


@dataclass(frozen=True)
class Verdict:
    verdict: str
    estimate: float
    low: float
    high: float
    """95 % interval, uncorrected."""
    corrected_low: float
    corrected_high: float
    """The interval at the level of its place in Holm's procedure, by which a hypothesis is held or not."""
    p: float
    """Two-sided, corrected."""
    worlds: int


def judge(hypotheses: list[Hypothesis], curves: dict[str, dict[int, Curve]], budgets: dict[str, float]) -> dict:
    """The verdict of each hypothesis by name; None where fewer than LEAST_WORLDS worlds have all its arms.

    Within a family Holm's procedure corrects for their number: the hypothesis with the k-th smallest p-value of M
    (k from 0) is tested at LEVEL / (M - k), and none after the first that fails is held. Those without data count.

    Args:
        curves: by FOLDER/ARM and world. budgets: tokens at which each FOLDER is compared.
    """
    found = {}
    for family in {hypothesis.family: None for hypothesis in hypotheses}:
        members = [hypothesis for hypothesis in hypotheses if hypothesis.family == family]
        tested = {hypothesis.name: test(hypothesis, curves, budgets) for hypothesis in members}
        order = sorted(members, key=lambda hypothesis: getattr(tested[hypothesis.name], "p", math.inf))
        is_open, largest = True, 0.0
        for place, hypothesis in enumerate(order):
            result = tested[hypothesis.name]
            if result is None:
                found[hypothesis.name] = None
                continue
            left = len(members) - place
            largest = max(largest, min(1.0, left * result.p))
            low, high = result.interval(LEVEL / left)
            is_held = is_open and (low > hypothesis.bound if hypothesis.claim == "above" else high < hypothesis.bound)
            is_open = is_open and largest < LEVEL
            found[hypothesis.name] = Verdict(
                HELD if is_held else _otherwise(hypothesis, *result.interval(LEVEL)),
                result.estimate,
                *result.interval(LEVEL),
                low,
                high,
                largest,
                result.worlds,
            )
    return {hypothesis.name: found[hypothesis.name] for hypothesis in hypotheses}


def _otherwise(hypothesis: Hypothesis, low: float, high: float) -> str:
    """A claim that is not held is given up where the 95 % interval leaves out an effect that would matter."""
    if hypothesis.claim == "above":
        return NOT_HELD if high < hypothesis.bound + hypothesis.matters else UNDECIDED
    return NOT_HELD if low > hypothesis.bound - hypothesis.matters else UNDECIDED


@dataclass(frozen=True)
class Tested:
    """A contrast over W worlds: paired t statistics, or bootstrap resamples where the measure is no mean."""

    estimate: float
    values_W: np.ndarray
    bound: float
    resamples: np.ndarray | None = None

    @property
    def worlds(self) -> int:
        return len(self.values_W)

    @property
    def p(self) -> float:
        if self.resamples is not None:
            below, above = (self.resamples <= self.bound).mean(), (self.resamples >= self.bound).mean()
            return float(min(1.0, 2 * min(below, above) + 1 / len(self.resamples)))
        if np.ptp(self.values_W) == 0:
            return float(self.estimate == self.bound)
        return float(stats.ttest_1samp(self.values_W, self.bound).pvalue)

    def interval(self, level: float) -> tuple[float, float]:
        if self.resamples is not None:
            return tuple(float(end) for end in np.quantile(self.resamples, (level / 2, 1 - level / 2)))
        half = stats.t.ppf(1 - level / 2, self.worlds - 1) * self.values_W.std(ddof=1) / math.sqrt(self.worlds)
        return self.estimate - half, self.estimate + half


def test(hypothesis: Hypothesis, curves: dict[str, dict[int, Curve]], budgets: dict[str, float]) -> Tested | None:
    worlds = worlds_of(hypothesis.contrast, curves, budgets)
    if len(worlds) < LEAST_WORLDS:
        return None
    if hypothesis.measure == "speedup":
        first, second = hypothesis.contrast
        pairs = [(curves[first][world], curves[second][world]) for world in worlds]
        resamples = bootstrap_speedup(pairs, budgets[_folder(second)])
        estimate = speedup(pairs, budgets[_folder(second)])
        return Tested(estimate, np.full(len(pairs), estimate), hypothesis.bound, resamples)
    values_W = contrast_values(hypothesis.contrast, hypothesis.measure, worlds, curves, budgets)
    return Tested(float(values_W.mean()), values_W, hypothesis.bound)


def worlds_of(contrast: dict[str, float], curves: dict[str, dict[int, Curve]], budgets: dict[str, float]) -> list[int]:
    """Worlds in which every arm of the contrast reaches its budget."""
    reached = [
        {
            world
            for world, curve in curves.get(arm, {}).items()
            if math.isfinite(accuracy_at(curve, budgets[_folder(arm)]))
        }
        for arm in contrast
    ]
    return sorted(set.intersection(*reached)) if reached else []


def contrast_values(
    contrast: dict[str, float],
    measure: str,
    worlds: list[int],
    curves: dict[str, dict[int, Curve]],
    budgets: dict[str, float],
) -> np.ndarray:
    """(W,) the contrast in each world."""
    of = MEASURES[measure]
    return np.array(
        [
            sum(weight * of(curves[arm][world], budgets[_folder(arm)]) for arm, weight in contrast.items())
            for world in worlds
        ]
    )


def speedup(pairs: list[tuple[Curve, Curve]], budget: float) -> float:
    """Budget over the tokens after which the mean of the first curves holds the final mean accuracy of the second.

    Below 1 the first needs more than the budget; as its curve ends there, that is 0: "more than the budget", no size.
    """
    firsts, seconds = zip(*pairs, strict=True)
    needed = tokens_to(
        mean_curve(list(firsts), budget), float(np.mean([accuracy_at(curve, budget) for curve in seconds]))
    )
    return 0.0 if math.isinf(needed) else budget / max(needed, 1.0)


def bootstrap_speedup(pairs: list[tuple[Curve, Curve]], budget: float, resamples: int = RESAMPLES) -> np.ndarray:
    """(resamples,) speed-ups of worlds drawn with replacement, both arms of a world together."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0, budget, 200)
    first_WN = np.array([np.interp(grid, *first) for first, _ in pairs])
    final_W = np.array([accuracy_at(second, budget) for _, second in pairs])
    found = np.empty(resamples)
    for number, chosen in enumerate(rng.integers(len(pairs), size=(resamples, len(pairs)))):
        needed = tokens_to((grid, first_WN[chosen].mean(axis=0)), float(final_W[chosen].mean()))
        found[number] = 0.0 if math.isinf(needed) else budget / max(needed, 1.0)
    return found


def _folder(arm: str) -> str:
    return arm.rpartition("/")[0]
