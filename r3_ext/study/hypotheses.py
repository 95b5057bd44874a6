"""What a study set out to test, judged from its record: pure functions, no runs, no files.

A hypothesis claims that a contrast of arms lies above or below a bound. A contrast is a weighted sum of a measure over
arms, taken in each world by itself: {"main/r3": 1, "main/grpo": -1} is the paired difference, and
{"main/r3@30000": 1, "main/grpo": -1} that of R^3 at half of GRPO's tokens. Shapes: W worlds, M hypotheses.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from r3_ext.report.bands import t_interval
from r3_ext.study.outcome import Curve, accuracy_at, mean_accuracy

MEASURES = {"accuracy": accuracy_at, "mean_accuracy": mean_accuracy}
HELD, NOT_HELD, UNDECIDED = "held", "not held", "not decided"
LEVEL = 0.05
LEAST_WORLDS = 3
"""Below that there is no interval worth the name."""


@dataclass(frozen=True)
class Hypothesis:
    name: str
    says: str
    contrast: dict[str, float]
    """Weights by FOLDER/ARM or FOLDER/ARM@TOKENS; they add up to 0."""
    measure: str
    """One of MEASURES."""
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
    planned: int
    """Worlds that the plan has; while some are missing, no verdict is final."""
    values: dict[int, float]
    """The contrast in each world."""


def judge(
    hypotheses: tuple[Hypothesis, ...],
    curves: dict[str, dict[int, Curve]],
    budgets: dict[str, float],
    planned: dict[str, tuple[int, ...]],
) -> dict[str, Verdict | None]:
    """The verdict of each hypothesis by name; None where fewer than LEAST_WORLDS planned worlds have all its arms.

    Within a family Holm's procedure corrects for their number: the hypothesis with the k-th smallest p-value of M
    (k from 0) is tested at LEVEL / (M - k), and none after the first that fails is held. Those without data count.

    Args:
        curves: by FOLDER/ARM and world. budgets: tokens at which each FOLDER is compared. planned: worlds, too.
    """
    found = {}
    for family in {hypothesis.family: None for hypothesis in hypotheses}:
        members = [hypothesis for hypothesis in hypotheses if hypothesis.family == family]
        by_world = {h.name: values_of(h, curves, budgets, planned) for h in members}
        values = {name: np.array(list(of.values())) for name, of in by_world.items()}
        order = sorted(members, key=lambda h: p_value(values[h.name], h.bound))
        is_open, largest = True, 0.0
        for place, hypothesis in enumerate(order):
            values_W, left = values[hypothesis.name], len(members) - place
            if len(values_W) < LEAST_WORLDS:
                found[hypothesis.name] = None
                continue
            largest = max(largest, min(1.0, left * p_value(values_W, hypothesis.bound)))
            is_open = is_open and largest < LEVEL
            mean, *ends = map(float, t_interval(values_W, LEVEL))
            corrected = tuple(map(float, t_interval(values_W, LEVEL / left)[1:]))
            found[hypothesis.name] = Verdict(
                UNDECIDED if are_alike(values_W) else _verdict(hypothesis, is_open, *corrected),
                mean,
                *ends,
                *corrected,
                largest,
                len(values_W),
                len(_planned(hypothesis, planned)),
                by_world[hypothesis.name],
            )
    return {hypothesis.name: found[hypothesis.name] for hypothesis in hypotheses}


def _verdict(hypothesis: Hypothesis, is_open: bool, low: float, high: float) -> str:
    """Held where the corrected interval lies beyond the bound; given up where it leaves out an effect that matters.

    An interval beyond the bound that comes after a failure in its family says neither. Holm's order is that of the
    claims: it bounds how often one is held that is not so, not how often one is given up that is.
    """
    bound, matters = hypothesis.bound, hypothesis.matters
    beyond, too_small = (low > bound, high < bound + matters)
    if hypothesis.claim == "below":
        beyond, too_small = (high < bound, low > bound - matters)
    if beyond:
        return HELD if is_open else UNDECIDED
    return NOT_HELD if too_small else UNDECIDED


def p_value(values_W: np.ndarray, bound: float) -> float:
    """Two-sided, of the mean over worlds against the bound; inf where there are too few."""
    if len(values_W) < LEAST_WORLDS:
        return math.inf
    if are_alike(values_W):
        return 1.0
    return float(stats.ttest_1samp(values_W, bound).pvalue)


def are_alike(values_W: np.ndarray) -> bool:
    """Whether nothing is left to estimate an error from; what differs by less than the record's digits is rounding."""
    return bool(np.ptp(values_W) < 1e-9)


def worlds_of(
    hypothesis: Hypothesis,
    curves: dict[str, dict[int, Curve]],
    budgets: dict[str, float],
    planned: dict[str, tuple[int, ...]],
) -> list[int]:
    """Planned worlds in which every arm of the contrast reaches its budget."""

    def reached(arm: str) -> set[int]:
        at, tokens = place_of(arm, budgets)
        return {world for world, curve in curves.get(at, {}).items() if math.isfinite(accuracy_at(curve, tokens))}

    return sorted(_planned(hypothesis, planned).intersection(*map(reached, hypothesis.contrast)))


def _planned(hypothesis: Hypothesis, planned: dict[str, tuple[int, ...]]) -> set[int]:
    return set.intersection(*(set(planned[arm.partition("@")[0]]) for arm in hypothesis.contrast))


def values_of(
    hypothesis: Hypothesis,
    curves: dict[str, dict[int, Curve]],
    budgets: dict[str, float],
    planned: dict[str, tuple[int, ...]],
) -> dict[int, float]:
    """The contrast in each world that has it."""
    worlds = worlds_of(hypothesis, curves, budgets, planned)
    return dict(zip(worlds, contrast_values(hypothesis, worlds, curves, budgets).tolist(), strict=True))


def contrast_values(
    hypothesis: Hypothesis, worlds: list[int], curves: dict[str, dict[int, Curve]], budgets: dict[str, float]
) -> np.ndarray:
    """(W,) the contrast in each world."""
    of = MEASURES[hypothesis.measure]
    places = {arm: place_of(arm, budgets) for arm in hypothesis.contrast}

    def value(world: int) -> float:
        return sum(
            weight * of(curves[places[arm][0]][world], places[arm][1]) for arm, weight in hypothesis.contrast.items()
        )

    return np.array([value(world) for world in worlds])


def place_of(arm: str, budgets: dict[str, float]) -> tuple[str, float]:
    """FOLDER/ARM and the tokens it is read at: those after the @, else the folder's. 0 where they are no number."""
    at, _, tokens = arm.partition("@")
    if tokens:
        return at, float(tokens) if tokens.isdecimal() else 0.0
    return at, budgets.get(at.rpartition("/")[0], 0.0)
