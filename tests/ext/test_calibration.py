"""The noise of a comparison: figures by hand, and the record that the calibration's plan cites."""

from pathlib import Path

import numpy as np
import pytest

from r3_ext.study import design
from tests.benchmarks.calibration import lines, noise

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
    # z 1.960 and 0.842: (2.802 * 0.057 / 0.06)^2 = 7.1 worlds; without noise two are needed for an interval.
    found = noise([(curve(0.2, 0.557), curve(0.2, 0.5))] * 3, "accuracy", 100)
    assert found.needed() == 8
    assert noise([(curve(0, 1), curve(0, 1))], "accuracy", 100).needed() == 2


def test_the_plan_cites_the_records():
    cited = " ".join(design.read_design(RESULTS.parent / "studies" / "calibration.yaml").about.split())
    (first,) = [line for line in lines(RESULTS / "first_step", ("grpo", "r3"), [30000]) if "| accuracy |" in line]
    assert "| 12 | 30,000 | accuracy | 0.057 |" in first and "| +0.190 |" in first and "0.057 at the end" in cited
    (old,) = [line for line in lines(RESULTS / "worlds", ("grpo", "none"), [60000]) if "| accuracy |" in line]
    assert "| 6 | 60,000 | accuracy | 0.236 |" in old and "it was 0.236, while 0.32 was" in cited
