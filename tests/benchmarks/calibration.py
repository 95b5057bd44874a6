"""How much two runs of one method differ: what a comparison of methods can see at which price.

    r3 study --plan examples/studies/calibration.yaml --out outputs/calibration
    python -m tests.benchmarks.calibration outputs/calibration
    python -m tests.benchmarks.calibration examples/results/first_step --arms grpo r3 --budgets 30000

For each experiment of the record, its two arms being one method: at each budget and by each measure the standard
deviation of their paired difference over the worlds with its 95 % limits, what is learned, and the worlds that a
comparison needs at least to find an effect of 0.06 with a power of 0.8 in the first step of Holm's correction for four
hypotheses. At least: how an effect differs from world to world is not in it. Minutes are those of a cell, as far as
the budget. (`grpo` and `r3` of first_step, the last example, are two methods: what they differ by is in that figure.)
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from r3_ext.study.hypotheses import LEAST_WORLDS, LEVEL, MEASURES
from r3_ext.study.outcome import Curve, accuracy_at
from r3_ext.study.record import read_curves, read_ledger

EFFECT, POWER, FAMILY = 0.06, 0.8, 4
COLUMNS = (
    *("experiment", "worlds", "tokens", "measure", "SD of a difference", "95 %", "mean", "gained", "SD / gained"),
    *(f"worlds for {EFFECT}", "minutes"),
)


@dataclass(frozen=True)
class Noise:
    """Of one measure at one budget: W worlds, each with two runs of one method."""

    worlds: int
    mean: float
    """Of the differences, which is 0 but for chance."""
    sd: float
    """Of a difference, about 0."""
    gained: float
    """Accuracy at the budget less that at the start, the mean of all runs."""

    def limits(self) -> tuple[float, float]:
        """Of the standard deviation, by the chi-square distribution: its mean is known to be 0."""
        low, high = stats.chi2.ppf([1 - LEVEL / 2, LEVEL / 2], self.worlds)
        return self.sd * math.sqrt(self.worlds / low), self.sd * math.sqrt(self.worlds / high)

    def needed(self) -> int:
        """Worlds from which on a paired t test at LEVEL / FAMILY finds EFFECT with POWER."""
        return next(worlds for worlds in range(LEAST_WORLDS, 10**4) if power(self.sd, worlds) >= POWER)


def power(sd: float, worlds: int) -> float:
    """Chance that a two-sided paired t test at LEVEL / FAMILY finds EFFECT."""
    if sd == 0:
        return 1.0
    beyond = stats.t.ppf(1 - LEVEL / FAMILY / 2, worlds - 1)
    return float(stats.nct.sf(beyond, worlds - 1, EFFECT / sd * math.sqrt(worlds)))


def noise(pairs: list[tuple[Curve, Curve]], measure: str, budget: float) -> Noise:
    """
    Args:
        pairs: two curves of one method, of each world.
    """
    differences = [MEASURES[measure](one, budget) - MEASURES[measure](other, budget) for one, other in pairs]
    gains = [accuracy_at(curve, budget) - float(curve[1][0]) for pair in pairs for curve in pair]
    sd = math.sqrt(statistics.fmean(difference**2 for difference in differences))
    return Noise(len(pairs), statistics.fmean(differences), sd, statistics.fmean(gains))


def lines(out: Path, arms: tuple[str, str], budgets: list[int]) -> Iterator[str]:
    curves, ledger = read_curves(out), read_ledger(out)
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for folder in dict.fromkeys(name.rpartition("/")[0] for name in curves):
        one, other = (curves.get(f"{folder}/{arm}", {}) for arm in arms)
        worlds = sorted({*one} & {*other})
        minutes = [
            int(row["seconds"]) / 60 / int(row["generated_tokens"])
            for arm in arms
            for row in ledger.get(f"{folder}/{arm}", {}).values()
        ]
        for budget in budgets:
            pairs = [(one[world], other[world]) for world in worlds]
            reached = all(math.isfinite(accuracy_at(curve, budget)) for pair in pairs for curve in pair)
            for measure in MEASURES if pairs and reached else ():
                found = noise(pairs, measure, budget)
                low, high = found.limits()
                yield (
                    f"| {folder} | {found.worlds} | {budget:,} | {measure} | {found.sd:.3f} | "
                    f"{low:.3f} to {high:.3f} | {found.mean:+.3f} | {found.gained:+.3f} | "
                    f"{found.sd / abs(found.gained):.2f} | {found.needed()} | "
                    f"{statistics.median(minutes) * budget:.1f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="folder with curves.csv and ledger.csv")
    parser.add_argument("--arms", nargs=2, default=["grpo", "none"], metavar="ARM", help="two arms of one method")
    parser.add_argument("--budgets", nargs="+", type=int, default=[15000, 30000, 60000], metavar="TOKENS")
    args = parser.parse_args()
    for line in lines(args.record, tuple(args.arms), args.budgets):
        print(line)


if __name__ == "__main__":
    main()
