"""Lengths of real reasoning models by problem, for waiting.py: which groups are wrong, and how long their answers are.

"Llama-8B on MATH-500" is measured: DeepSeek-R1-Distill-Llama-8B, 100 problems with 80 answers each, in groups of 8, by
how many of a group are right. Source: github.com/menik1126/Asynchronous-Test-Time-Scaling at bedf81d, its five folders
results/self{,_prefill,_opt,_prefill_v2sys,_prefill_v2sys_kvenv_nocompress}_deepseek-ai_..._math500_sm500_t15_temp0.8*.
Its answers are chunks of 500 tokens, which were counted, the last one by its characters; math-verify graded them. Those
runs gave up after 7,500 to 15,000 tokens, on 6 % of the answers. Such an answer counts as cut off at the limit.

"Qwen-1.5B on DeepScaleR" is fitted: no public file was found that has lengths of a smaller model by problem.
DeepSeek-R1-Distill-Qwen-1.5B, as training begins: log-normal lengths of right and of wrong answers, to problems like
MATH-500 and like AIME 2024, half of each. Sources, which a test compares with what the fit gives:

    github.com/PrimeIntellect-ai/prime-rl, configs/deepscaler/README.md at 39a1cb5, limit 32,768. MATH-500: mean 5,450,
        standard deviation 7,328, 3.8 % cut off, 81.4 % right. AIME 2024: 16,390, 10,201, 15.2 %, 27.3 %, and 61.3 % of
        the problems solved by 8 answers
    arXiv 2505.00127, table 1 (as told in github.com/yjkim-stat/Wiki-For-Overthinking at 9a3c55e), MATH, limit 8k: right
        answers 2,907, wrong ones 6,521. Not fitted: a correlation of -0.72 of a problem's mean length with its accuracy
    DeepScaleR's report (as told in github.com/long8v/PTIR, issue 225): wrong answers to AIME are three times as long as
        right ones; answers have 5,500 tokens as training at 8k begins, 3,500 later

The correlation within a problem and the spread of success over MATH problems are those measured above.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LIMITS = (8192, 16384)


@dataclass(frozen=True)
class Problems:
    """A world's problems: their kind, what their lengths have in common (standard normal), how often they succeed."""

    kind_P: np.ndarray
    effect_P: np.ndarray
    skill_P: np.ndarray

    def take(self, rows: Sequence[int]) -> "Problems":
        index = np.asarray(rows, dtype=int)
        return Problems(self.kind_P[index], self.effect_P[index], self.skill_P[index])


@dataclass(frozen=True)
class Measured:
    """Groups of 8 by how many of them are right."""

    kinds: dict[int, np.ndarray]
    """By limit, a row for each kind: share of the groups, right answers, correlation of log lengths in a group, and 21
    quantiles of the length. The third kind stands for 2 to 7 right answers."""

    def problems(self, rng: np.random.Generator, count: int, limit: int) -> Problems:
        shares = self.kinds[limit][:, 0]
        kind_P = rng.choice(len(shares), count, p=shares / shares.sum())
        return Problems(kind_P, rng.normal(size=count), np.zeros(count))

    def answers(self, rng: np.random.Generator, of: Problems, n: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Lengths (P, n), and the share of right ones (P)."""
        lengths_PN, right_P = np.zeros((len(of.kind_P), n)), np.zeros(len(of.kind_P))
        for kind, (_, right, correlation, *quantiles) in enumerate(self.kinds[limit]):
            rows = of.kind_P == kind
            own = rng.normal(size=(rows.sum(), n))
            z = math.sqrt(correlation) * of.effect_P[rows, None] + math.sqrt(1 - correlation) * own
            levels = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))
            lengths_PN[rows] = np.exp(np.interp(levels, np.linspace(0, 1, len(quantiles)), np.log(quantiles)))
            right_P[rows] = right / 8
        return lengths_PN.round().astype(int), right_P


@dataclass(frozen=True)
class Fitted:
    """Log-normal lengths. An answer would be right with its problem's probability, a beta variable; it is, if uncut."""

    kinds: tuple[tuple[float, float, float, float, float, float, float], ...]
    """Share of the problems; median and sd of the log length of right answers, of wrong ones; a and b of the beta."""
    correlation: float

    def problems(self, rng: np.random.Generator, count: int, limit: int) -> Problems:
        share, *_, a, b = np.array(self.kinds).T
        kind_P = rng.choice(len(share), count, p=share)
        return Problems(kind_P, rng.normal(size=count), rng.beta(a[kind_P], b[kind_P]))

    def answers(self, rng: np.random.Generator, of: Problems, n: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Lengths (P, n), and the share of right ones (P)."""
        _, right, right_sd, wrong, wrong_sd, *_ = np.array(self.kinds).T[:, of.kind_P, None]
        own = rng.normal(size=(len(of.kind_P), n))
        z = math.sqrt(self.correlation) * of.effect_P[:, None] + math.sqrt(1 - self.correlation) * own
        is_right = rng.random(z.shape) < of.skill_P[:, None]
        lengths = np.where(is_right, right * np.exp(right_sd * z), wrong * np.exp(wrong_sd * z))
        return lengths.clip(1, limit).astype(int), (is_right & (lengths < limit)).mean(1)


def _numbers(table: str) -> np.ndarray:
    return np.array([line.split() for line in table.strip().splitlines()], dtype=float)


MATH, AIME = (0.5, 2620, 0.71, 10254, 1.52, 0.628, 0.144), (0.5, 5498, 0.65, 18943, 0.67, 0.392, 1.038)
LLAMA = {
    8192: """
0.080 0 0.92 446 500 553 607 647 699 807 1223 1699 2000 2297 2762 8192 8192 8192 8192 8192 8192 8192 8192 8192
0.045 1 0.80 432 500 500 519 566 618 652 698 727 784 857 1046 1271 1680 2500 3814 6990 8192 8192 8192 8192
0.440 4 0.82 233 500 500 541 587 629 667 718 772 837 1036 1244 1624 2172 2927 3670 4823 6498 8192 8192 8192
0.435 8 0.84 186 335 380 418 455 500 500 528 580 629 688 755 839 1010 1231 1494 1810 2065 2500 3223 8058
""",
    16384: """
0.075 0 0.93 446 500 543 600 635 683 754 1034 1423 1882 2144 2417 3114 16384 16384 16384 16384 16384 16384 16384 16384
0.038 1 0.80 432 500 500 526 584 618 648 681 715 744 791 858 1036 1218 1511 1994 2720 4418 16384 16384 16384
0.428 4 0.80 233 500 500 532 581 620 657 701 756 812 924 1163 1500 2000 2778 3604 4922 6884 9500 16384 16384
0.459 8 0.85 186 340 383 424 467 500 500 545 598 659 725 799 929 1150 1429 1714 2000 2402 2914 4120 14911
""",
}
WORLDS = {
    "Qwen-1.5B on DeepScaleR, fitted": Fitted((MATH, AIME), 0.8),
    "Llama-8B on MATH-500, measured": Measured({limit: _numbers(table) for limit, table in LLAMA.items()}),
}
