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
from dataclasses import dataclass

import numpy as np

from recipe.r3.validation import bootstrap, pass_at_k, percentiles

Figure = list[float]
"""[value, low, high]"""
Z = 1.959964


@dataclass(frozen=True)
class Plain:
    """Answers to plain prompts. One that is longer than the limit counts as cut off, and so as wrong."""

    correct_PA: np.ndarray
    """Right and within the limit."""
    cut_PA: np.ndarray
    tokens_PA: np.ndarray
    """Generated up to the limit."""

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


def group_of(right: int, cut: int, n: int) -> dict[str, float]:
    """Probabilities of a group of n out of 2n answers, `right` of which are right and `cut` cut off.

    mixed, all_right, all_wrong: what GRPO sees. rankable: all wrong, and at least two cut off, which can be ranked.
    drawn_right: all wrong, while the other n answers, the history, hold a right one. drawn_wrong: the reverse.

    n = 2, 1 right and 2 cut off of 4: of the 6 groups 3 are mixed and 3 all wrong, one of which has both that are cut
    off; each of the 3 finds the right answer in the other half.
    """
    wrong, finished, ways = 2 * n - right, 2 * n - right - cut, math.comb(2 * n, n)
    all_right, all_wrong = math.comb(right, n) / ways, math.comb(wrong, n) / ways
    fewer_than_two = (math.comb(finished, n) + cut * math.comb(finished, n - 1)) / ways
    return {
        "mixed": 1 - all_right - all_wrong,
        "all_right": all_right,
        "all_wrong": all_wrong,
        "rankable": all_wrong - fewer_than_two,
        "drawn_right": all_wrong - (right == 0),
        "drawn_wrong": all_right - (wrong == 0),
    }


def groups(plain: Plain) -> dict[str, np.ndarray]:
    """`group_of` every problem, (P,) each."""
    counts = zip(plain.correct_PA.sum(1).tolist(), plain.cut_PA.sum(1).tolist(), strict=True)
    found = [group_of(right, cut, plain.n) for right, cut in counts]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def opened(plain: Plain, reflected: Reflected) -> np.ndarray:
    """(P,) 1 where no plain answer is right and one under reflection is: replay can draw it into the dead group."""
    return ((plain.correct_PA.sum(1) == 0) & (reflected.right_P > 0)).astype(float)


def token_share(plain: Plain, seed: int) -> Figure:
    """Share of the generated tokens that are in mixed groups, of the two groups of n that were drawn."""
    halves = np.split(np.arange(2 * plain.n), 2)
    tokens = [plain.tokens_PA[:, half].sum(1) for half in halves]
    mixed = [plain.correct_PA[:, half].any(1) & ~plain.correct_PA[:, half].all(1) for half in halves]
    values_P = sum(t * m for t, m in zip(tokens, mixed, strict=True))
    counts_P = sum(tokens)
    return [values_P.sum() / counts_P.sum(), *map(float, percentiles(bootstrap(values_P, seed, counts_P)))]


def reflection(plain: Plain, reflected: Reflected, seed: int) -> dict[str, Figure]:
    """Reflection against asking the hard problems again without it, at equal generated tokens.

    right: share of right answers under reflection. right_again: right answers that the tokens of one answer under
    reflection give when they are spent on asking again.
    solved: share of the asked problems with a right answer under reflection. solved_again: when asked again. The side
    that took more tokens is asked less often, n times the other's tokens over its own: both then generate the same.
    gain: solved minus solved_again, per asked problem. reach: the same per problem of the sample.
    The figures per asked problem are NaN where none was asked.
    """
    values_PM, n = _columns(plain, reflected), plain.n
    found = _equal_tokens(values_PM.mean(0, keepdims=True), n)
    resampled = _equal_tokens(bootstrap(values_PM, seed), n)
    if not reflected.asked_P.any():
        return {name: [float(value[0])] * 3 for name, value in found.items()}
    return {name: [float(value[0]), *map(float, percentiles(resampled[name]))] for name, value in found.items()}


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


def _equal_tokens(means_BM: np.ndarray, n: int) -> dict[str, np.ndarray]:
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
            "reach": solved_B - solved_again_B,
        }


def _at(curve_BN: np.ndarray, answers_B: np.ndarray) -> np.ndarray:
    """The curve at a number of answers between two whole ones, linearly."""
    low_B = np.minimum(answers_B.astype(int), curve_BN.shape[1] - 2)
    rows = np.arange(len(curve_BN))
    part_B = answers_B - low_B
    return (1 - part_B) * curve_BN[rows, low_B] + part_B * curve_BN[rows, low_B + 1]


def measure(plain: Plain, reflected: Reflected, seed: int) -> dict[str, Figure]:
    """All figures but the ranking's foresight."""
    found, opened_P = groups(plain), opened(plain, reflected)
    figures = {name: share(found[name]) for name in ("mixed", "all_right", "all_wrong", "rankable")}
    drawn_P = found["drawn_right"] + found["drawn_wrong"]
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
        **{f"reflection/{name}": figure for name, figure in reflection(plain, reflected, seed).items()},
    }
