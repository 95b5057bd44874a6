"""What the answers of a probe say of an epoch of training, over problems: pure functions of verdicts and lengths.

A problem has 2n plain answers, as two epochs with groups of n would give them. The first n are what a history would
hold after an epoch; who is hard, and with which attempt it is asked again, comes from them alone. The last n are what
asking again without reflection gives. Figures of groups use all 2n: every choice of n of them is as good as any other,
so the mean over all choices is taken, which is unbiased and has no order.

Every figure is [value, low, high], 95 %. Problems are the unit, as a run meets other answers and other problems. A
share has Wilson's interval over problems: each problem's part lies between 0 and 1, so that its variance is at most
that of a yes or no, and the interval is wide enough, and never of no width. Differences and ratios have a bootstrap's.

Shapes: P problems, A = 2n answers, B resamples, M columns.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from recipe.common.validation import bootstrap, pass_at_k, percentiles
from recipe.r3.config.r3_config import R3Config

Figure = list[float]
"""[value, low, high]"""
Z = 1.959964


@dataclass(frozen=True)
class Plain:
    """Answers to plain prompts, ended at the limit."""

    correct_PA: np.ndarray
    """By the text up to the limit."""
    cut_PA: np.ndarray
    tokens_PA: np.ndarray
    """Generated up to the limit."""
    score_PA: np.ndarray
    """Before the length bonus: 1 where it is right and 0 elsewhere, or what a reward function says."""

    @property
    def n(self) -> int:
        return self.correct_PA.shape[1] // 2


@dataclass(frozen=True)
class Reflected:
    """n answers to the reflection prompt of each hard problem; 0 where a problem was not asked."""

    hard_P: np.ndarray
    asked_P: np.ndarray
    """The hard ones whose prompt fits its budget."""
    right_P: np.ndarray
    drawable_P: np.ndarray
    """The right ones that replay may draw into groups of the plain prompt."""
    tokens_P: np.ndarray
    """Generated."""


def wilson(value: float, problems: int) -> Figure:
    """A share over problems with Wilson's interval. 1 of 10: 0.1, from 0.018 to 0.404; 0 of 10: up to 0.278."""
    middle = (value + Z**2 / (2 * problems)) / (1 + Z**2 / problems)
    half = Z / (1 + Z**2 / problems) * math.sqrt(value * (1 - value) / problems + Z**2 / (4 * problems**2))
    return [float(value), max(0.0, middle - half), min(1.0, middle + half)]


def share(values_P: np.ndarray) -> Figure:
    return wilson(float(np.mean(values_P)), len(values_P))


def is_hard(correct_PN: np.ndarray, threshold: float) -> np.ndarray:
    """(P,) whether the share of right answers so far is below the threshold, as `algorithm.r3.reflection` has it."""
    return correct_PN.mean(axis=1) < threshold


def without_signal(correct_PN: np.ndarray, score_PN: np.ndarray) -> np.ndarray:
    """(P,) whether all n answers are equally right and have one score, so that GRPO learns nothing from them."""
    return np.logical_and(*((part == part[:, :1]).all(1) for part in (correct_PN, score_PN)))


def group_of(answers: Iterable[tuple[bool, float, bool]], n: int) -> dict[str, float]:
    """Probabilities of a group of n out of 2n answers: of each whether it is right, its score, whether it is ranked.

    all_right, all_wrong: the group is dead, all its answers are right, or wrong, and have one score. mixed: it is not.
    rankable: all wrong, and at least two are ranked: those that are cut off.
    drawn_right: all wrong, while the other n answers, the history, hold a right one. drawn_wrong: the reverse.

    n = 2, 1 right and 2 cut off of 4: of the 6 groups 3 are mixed and 3 all wrong, one of which has both that are cut
    off; each of the 3 finds the right answer in the other half.
    """
    alike = Counter(answers)
    ways, right = math.comb(2 * n, n), sum(count for (is_right, _, _), count in alike.items() if is_right)
    dead, rankable = {True: 0.0, False: 0.0}, 0.0
    for is_right, score in {key[:2] for key in alike}:
        others, ranked = alike[is_right, score, False], alike[is_right, score, True]
        groups = math.comb(others + ranked, n)
        dead[is_right] += groups / ways
        if not is_right:
            rankable += (groups - math.comb(others, n) - ranked * math.comb(others, n - 1)) / ways
    return {
        "mixed": 1 - dead[True] - dead[False],
        "all_right": dead[True],
        "all_wrong": dead[False],
        "rankable": rankable,
        "drawn_right": dead[False] if right else 0.0,
        "drawn_wrong": dead[True] if right < 2 * n else 0.0,
    }


def groups(plain: Plain) -> dict[str, np.ndarray]:
    """`group_of` every problem, (P,) each."""
    parts = (part.tolist() for part in (plain.correct_PA, plain.score_PA, plain.cut_PA))
    found = [group_of(zip(*of_problem, strict=True), plain.n) for of_problem in zip(*parts, strict=True)]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def opened(plain: Plain, reflected: Reflected, all_wrong_P: np.ndarray) -> np.ndarray:
    """(P,) part of the groups that are dead where no plain answer is right and one under reflection is, which replay
    can draw."""
    return all_wrong_P * ((plain.correct_PA.sum(1) == 0) & (reflected.drawable_P > 0))


def token_share(plain: Plain, seed: int) -> Figure:
    """Share of the generated tokens that are in mixed groups, of the two groups of n that were drawn."""
    halves = np.split(np.arange(2 * plain.n), 2)
    tokens = [plain.tokens_PA[:, half].sum(1) for half in halves]
    mixed = [~without_signal(plain.correct_PA[:, half], plain.score_PA[:, half]) for half in halves]
    values_P = sum(t * m for t, m in zip(tokens, mixed, strict=True))
    counts_P = sum(tokens)
    return [values_P.sum() / counts_P.sum(), *map(float, percentiles(bootstrap(values_P, seed, counts_P)))]


def reflection(plain: Plain, reflected: Reflected, seed: int, most: float = 1.0) -> dict[str, Figure]:
    """Reflection against asking the hard problems again without it, at equal generated tokens.

    right: share of right answers under reflection. right_again: right answers that the tokens of one answer under
    reflection give when they are spent on asking again.
    solved: share of the asked problems with a right answer under reflection. solved_again: when asked again. The side
    that took more tokens is asked less often, n times the other's tokens over its own: both then generate the same.
    gain: solved minus solved_again, per asked problem. reach: the same per problem of the sample, of which training
    asks the share `most` in an epoch.
    The figures per asked problem are NaN where none was asked.
    """
    values_PM, n = _columns(plain, reflected), plain.n
    found = _equal_tokens(values_PM.mean(0, keepdims=True), n, most)
    resampled = _equal_tokens(bootstrap(values_PM, seed), n, most)
    if not reflected.asked_P.any():
        return {name: [float(value[0])] * 3 for name, value in found.items()}
    figures = {name: [float(value[0]), *map(float, percentiles(resampled[name]))] for name, value in found.items()}
    # Resamples of equal signs have no width; P problems without a case leave room for one in others.
    figures["reach"][2] = max(figures["reach"][2], wilson(0.0, len(values_PM))[2])
    return figures


def _columns(plain: Plain, reflected: Reflected) -> np.ndarray:
    """(P, M): asked, right and tokens of both sides, then the chance of a right answer in 0 .. n answers of both."""
    n, asked_P = plain.n, reflected.asked_P.astype(float)
    again_P = plain.correct_PA[:, n:].sum(1) * asked_P
    tokens_P = plain.tokens_PA[:, n:].sum(1) * asked_P
    columns = [asked_P, reflected.right_P, again_P, reflected.tokens_P, tokens_P]
    for right_P in (reflected.right_P, again_P):
        attempts_P = np.full(len(right_P), n)
        columns += [0 * asked_P, *(pass_at_k(attempts_P, right_P.astype(int), k) for k in range(1, n + 1))]
    return np.stack(columns, axis=1)


def _equal_tokens(means_BM: np.ndarray, n: int, most: float) -> dict[str, np.ndarray]:
    asked_B, right_B, again_B, tokens_B, tokens_again_B = means_BM[:, :5].T
    least_B = np.minimum(tokens_B, tokens_again_B)
    with np.errstate(invalid="ignore"):  # a resample without a hard problem
        solved_B = _at(means_BM[:, 5 : 6 + n], np.nan_to_num(n * least_B / tokens_B))
        solved_again_B = _at(means_BM[:, 6 + n :], np.nan_to_num(n * least_B / tokens_again_B))
        return {
            "right": right_B / asked_B / n,
            "right_again": again_B / asked_B / n * tokens_B / tokens_again_B,
            "solved": solved_B / asked_B,
            "solved_again": solved_again_B / asked_B,
            "gain": (solved_B - solved_again_B) / asked_B,
            "reach": (solved_B - solved_again_B) * asked_part(asked_B, most),
        }


def asked_part(hard: np.ndarray, most: float) -> np.ndarray:
    """Part of the hard problems (a share of all) that is asked where at most the share `most` is: 0.5, 0.25: 0.5."""
    return most / np.maximum(hard, most)


def _at(curve_BN: np.ndarray, answers_B: np.ndarray) -> np.ndarray:
    """The curve at a number of answers between two whole ones, linearly."""
    low_B = np.minimum(answers_B.astype(int), curve_BN.shape[1] - 2)
    rows = np.arange(len(curve_BN))
    part_B = answers_B - low_B
    return (1 - part_B) * curve_BN[rows, low_B] + part_B * curve_BN[rows, low_B + 1]


def measure(plain: Plain, reflected: Reflected, seed: int, r3: R3Config, batch_size: int) -> dict[str, Figure]:
    """All figures but the ranking's foresight, as these settings and a batch of so many prompts would have them."""
    found, most = groups(plain), r3.reflection.cap(batch_size) / batch_size
    opened_P = opened(plain, reflected, found["all_wrong"]) * asked_part(reflected.asked_P.mean(), most)
    right, wrong = r3.replay.outcome != "wrong", r3.replay.outcome in ("both", "wrong")
    figures = {name: share(found[name]) for name in ("mixed", "all_right", "all_wrong", "rankable")}
    drawn_P = right * found["drawn_right"] + wrong * found["drawn_wrong"]
    return figures | {
        "pass@1": share(plain.correct_PA.mean(1)),
        "cut_off": share(plain.cut_PA.mean(1)),
        "tokens_in_mixed": token_share(plain, seed),
        "drawn_right": share(found["drawn_right"]),
        "drawn_wrong": share(found["drawn_wrong"]),
        "drawn": share(drawn_P),
        "opened": share(opened_P),
        "drawn_with_reflection": share(drawn_P + opened_P),
        "hard": share(reflected.hard_P),
        **{f"reflection/{name}": figure for name, figure in reflection(plain, reflected, seed, most).items()},
    }
