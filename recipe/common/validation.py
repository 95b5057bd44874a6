# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What validation reports, with intervals over problems. Pure functions of numpy arrays.

P problems, R rows (one answer each), M metrics, B resamples. An interval resamples problems, not answers: it says how
far the figure would move with other problems of the same kind, and holds the chance of sampling the answers as well.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
CELLS = 1 << 22
"""Draws of the bootstrap that are in memory at a time: 32 MiB of indices, as much again of weights."""


def pass_at_k(attempts: Sequence[int] | np.ndarray, successes: Sequence[int] | np.ndarray, k: int) -> np.ndarray:
    """Probability that k of a problem's answers, drawn without replacement, hold a right one: 1 - C(n-c,k) / C(n,k).

    1 right of 4 gives 0.25, 0.5, 0.75, 1 for k = 1..4. The quotient is a product of k factors below 1, so that nothing
    overflows; n - c < k gives the factor 0.

    Args:
        attempts, successes: n and c of each problem, (P,).

    Returns:
        (P,) probabilities.

    Raises:
        ValueError: k is not in [1, smallest n], or c not in [0, n].
    """
    n_P, c_P = np.asarray(attempts, dtype=np.int64), np.asarray(successes, dtype=np.int64)
    if n_P.shape != c_P.shape or np.any(c_P < 0) or np.any(c_P > n_P):
        raise ValueError(f"successes must be in [0, attempts] for each problem, got {c_P} of {n_P}")
    if not 1 <= k or np.any(n_P < k):
        raise ValueError(f"k must be in [1, {n_P.min()}], the smallest number of attempts, got {k}")
    none_right_P = np.ones(n_P.shape)
    for drawn in range(k):
        none_right_P *= (n_P - c_P - drawn) / (n_P - drawn)
    return 1 - none_right_P


def is_no_better(number: float, one: float, other: float, errors: float = 1.0) -> bool:
    """Whether shares of `number` attempts each say that the first is no better: none of its attempts succeeded, or it
    lies below the other by that many standard errors of their difference at least."""
    return one == 0 or one + errors * error_of_difference(number, one, other) <= other


def error_of_difference(number: float, one: float, other: float) -> float:
    """Standard error of the difference of two shares, each of `number` attempts, were they equal: of 0.2 and 0.3 of 100
    attempts 0.0612."""
    share = min(1.0, max(0.0, (one + other) / 2))
    return float(np.sqrt(2 * share * (1 - share) / number))


def maj_at_n(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Share of right ones among a problem's most frequent answers: 1 or 0 unless several are tied.

    Ties count their mean, which is what a fair draw among them earns and does not depend on the order of the rows.
    No answer (None) has no vote; without any answer the vote is wrong. `["5", "4", "5", None]` votes 5.

    Args:
        answers: answers in one normal form, (R,).
        correct: verdicts, (R,).
    """
    votes: Counter[str | None] = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=None)
    elected = [right for answer, right in zip(answers, correct, strict=True) if votes[answer] == most]
    return float(np.mean(elected)) if elected else 0.0


def powers_of_two(largest: int) -> list[int]:
    """1, 2, 4, .. up to `largest`, and `largest`."""
    return sorted({1 << power for power in range(largest.bit_length())} | {largest}) if largest else []


def bootstrap(values, seed: int | Sequence[int], counts=None, resamples: int = RESAMPLES) -> np.ndarray:
    """Means of `resamples` draws of P problems with replacement; equal seeds and P draw the same problems.

    Args:
        values: of each problem, (P,) or (P, M).
        counts: without it a problem counts once. With it, shape of `values`: `values` are sums over that many rows, and
            the mean is one over rows, sum(values) / sum(counts).
        seed: of a generator of its own.

    Returns:
        (B,) or (B, M); NaN where the drawn problems have no row at all.
    """
    values_PM = np.asarray(values, dtype=np.float64)
    counts_PM = np.ones_like(values_PM) if counts is None else np.asarray(counts, dtype=np.float64)
    if not len(values_PM) or counts_PM.shape != values_PM.shape:
        raise ValueError(
            f"values and counts must have one shape and a problem, got {values_PM.shape}, {counts_PM.shape}"
        )
    means = []
    for weights_BP in _resampled(len(values_PM), np.random.default_rng(seed), resamples):
        with np.errstate(invalid="ignore"):
            means.append((weights_BP @ values_PM) / (weights_BP @ counts_PM))
    return np.concatenate(means)


def _resampled(problems: int, rng: np.random.Generator, resamples: int) -> Iterator[np.ndarray]:
    """How often each problem was drawn in each resample, (B, P), in blocks that fit the memory."""
    block = max(1, CELLS // problems)
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        cells = rng.integers(problems, size=(size, problems)) + problems * np.arange(size)[:, None]
        yield np.bincount(cells.ravel(), minlength=size * problems).reshape(size, problems).astype(np.float64)


def percentiles(means: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the percentile interval of bootstrap means (B,) or (B, M)."""
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def interval(values, seed: int | Sequence[int], counts=None, level: float = LEVEL, resamples: int = RESAMPLES):
    """Percentile interval of the mean over problems: (low, high) for values (P,), two (M,) arrays for (P, M).

    Arguments as in `bootstrap`. A single problem gives an interval of no width, since nothing is known of others.
    """
    return percentiles(bootstrap(values, seed, counts, resamples), level)


def by_problem(expected: Mapping[tuple[str, str], int], problem: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Answers asked for, by data source and problem, of those by data source and uid: copies of a row are one problem
    with more answers. `{(s, a): 1, (s, b): 1}` with `{a: p, b: p}`: `{(s, p): 2}`."""
    asked: Counter[tuple[str, str]] = Counter()
    for (source, uid), count in expected.items():
        asked[source, problem[uid]] += count
    return dict(asked)


def validation_metrics(
    data_sources: Sequence[str],
    uids: Sequence[str],
    correct: Sequence[float],
    truncated: Sequence[float],
    tokens: Sequence[float],
    seed: int = 0,
    expected: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, float]:
    """Figures of each data source under `val/<source>/`; all arguments have one entry per row, (R,).

    `pass@1` is the mean over problems of the share of right answers, with `pass@1/low` and `/high`; `pass@k` is
    unbiased, for k = 2, 4, .. and n, the smallest number of answers that a problem has. `tokens/all`, `/correct` and
    `/wrong` are means over rows, absent when there is no such row of a known length.

    An answer that was asked for and never came counts as wrong, as in verl's own figures: `failed` is their number, and
    tokens and `truncated` are those of the others.

    Args:
        uids: the same for all rows of a problem, copies of it among them.
        correct, truncated: 0 or 1. truncated and tokens may be NaN: not known.
        expected: answers asked for, by data source and uid; None: those that are there.

    Raises:
        ValueError: lengths differ, or a verdict is neither 0 nor 1.
    """
    columns = [np.asarray(column) for column in (data_sources, uids, correct)]
    columns += [np.asarray(column, dtype=np.float64) for column in (truncated, tokens)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"every column must have one entry per row, got lengths {[len(c) for c in columns]}")
    for name, column in (("correct", columns[2]), ("truncated", columns[3])):
        wrong = ~np.isin(column, (0, 1))
        wrong &= ~np.isnan(column) if name == "truncated" else True
        if wrong.any():
            raise ValueError(f"{name} must be 0 or 1 in every row, got {column[wrong][0]}")
    metrics = {}
    for source in np.unique([*columns[0], *(source for source, _ in expected or ())]):
        rows = columns[0] == source
        asked = {uid: count for (name, uid), count in (expected or {}).items() if name == source}
        figures = _source_metrics(*(column[rows] for column in columns[1:]), asked=asked, seed=seed)
        metrics |= {f"val/{source}/{name}": float(value) for name, value in figures.items()}
    return metrics


def _source_metrics(uids_R, correct_R, truncated_R, tokens_R, asked: dict[str, int], seed: int) -> dict[str, float]:
    names_P, problem_U = np.unique([*uids_R, *asked], return_inverse=True)
    problem_R = problem_U[: len(uids_R)]
    found_P = np.bincount(problem_R, minlength=len(names_P))
    attempts_P = np.maximum(found_P, [asked.get(name, 0) for name in names_P])
    successes_P = np.bincount(problem_R[correct_R == 1], minlength=len(attempts_P))
    low, high = interval(successes_P / attempts_P, seed)
    metrics = {"pass@1": np.mean(successes_P / attempts_P), "pass@1/low": low, "pass@1/high": high}
    for k in powers_of_two(int(attempts_P.min()))[1:]:
        metrics[f"pass@{k}"] = np.mean(pass_at_k(attempts_P, successes_P, k))
    is_known_R = ~np.isnan(tokens_R)
    for name, rows_R in (("all", is_known_R), ("correct", correct_R == 1), ("wrong", correct_R == 0)):
        if (rows_R & is_known_R).any():
            metrics[f"tokens/{name}"] = np.mean(tokens_R[rows_R & is_known_R])
    if not np.isnan(truncated_R).all():
        metrics["truncated"] = np.nanmean(truncated_R)
    return metrics | {"problems": len(attempts_P), "failed": (attempts_P - found_P).sum()}
