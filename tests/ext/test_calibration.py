"""The noise of a comparison: figures by hand, and the record that the calibration's plan cites."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from r3_ext.study import design
from tests.benchmarks.calibration import EFFECT, FAMILY, LEVEL, Noise, lines, noise, power

RESULTS = Path(__file__).parents[2] / "examples" / "results"


def curve(*values: float):
    return np.linspace(0, 100, len(values)), np.array(values)


def test_it_is_the_root_of_the_mean_squared_difference_for_what_is_learned():
    # Ends 0.6 and 0.3, then 0.5 and 0.9: differences 0.3 and -0.4; gained 0.4, 0.1, 0.3, 0.7.
    pairs = [(curve(0.2, 0.6), curve(0.2, 0.3)), (curve(0.2, 0.5), curve(0.2, 0.9))]
    found = noise(pairs, "accuracy", 100)
    assert (found.worlds, found.mean, found.sd, found.gained) == pytest.approx((2, -0.05, 0.125**0.5, 0.375))
    # Means over the budget differ by half of that.
    assert noise(pairs, "mean_accuracy", 100).sd == pytest.approx(0.125**0.5 / 2)


def test_worlds_follow_from_power():
    found = noise([(curve(0.2, 0.557), curve(0.2, 0.5))] * 3, "accuracy", 100)
    assert found.needed() == 14
    assert noise([(curve(0, 1), curve(0, 1))], "accuracy", 100).needed() == 3, "fewer have no verdict"


def test_power_is_the_share_of_tests_that_find_the_effect():
    rng, worlds, sd = np.random.default_rng(0), 10, 0.06
    tests = stats.ttest_1samp(rng.normal(EFFECT, sd, (20_000, worlds)), 0, axis=1)
    found = np.mean((tests.pvalue < LEVEL / FAMILY) & (tests.statistic > 0))
    assert power(sd, worlds) == pytest.approx(found, abs=0.01)


def test_the_limits_of_a_deviation_hold_it_in_95_of_100_cases():
    rng, worlds, held = np.random.default_rng(0), 4, 0
    for differences in rng.normal(0, 1, (2000, worlds)):
        low, high = Noise(worlds, 0.0, float(np.sqrt(np.mean(differences**2))), 1.0).limits()
        held += low < 1 < high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_the_plan_cites_the_records():
    cited = " ".join(design.read_design(RESULTS.parent / "studies" / "calibration.yaml").about.split())
    (first,) = [line for line in lines(RESULTS / "first_step", ("grpo", "r3"), [30000]) if "| accuracy |" in line]
    assert "| 12 | 30,000 | accuracy | 0.057 |" in first and "| +0.190 |" in first and "0.057 at the end" in cited
    (old,) = [line for line in lines(RESULTS / "worlds", ("grpo", "none"), [60000]) if "| accuracy |" in line]
    assert "| 6 | 60,000 | accuracy | 0.236 |" in old
    assert "from itself by 0.236 at the end, while 0.32 was learned" in cited
