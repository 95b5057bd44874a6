"""Verdicts on hypotheses: hand numbers, reduction to scipy's tests, invariances, and no gain where there is none."""

import math

import numpy as np
import pytest
from scipy import stats

from r3_ext.study import hypotheses
from r3_ext.study.hypotheses import HELD, NOT_HELD, UNDECIDED, Hypothesis, judge


def straight(end, start=0.2, budget=100.0):
    return np.array([0.0, budget]), np.array([start, end])


def claim(name="h", contrast=None, **changed):
    values = {"says": "", "measure": "accuracy", "claim": "above", "bound": 0.0, "matters": 0.05, "family": "f"}
    return Hypothesis(name=name, contrast=contrast or {"m/a": 1, "m/b": -1}, **values | changed)


def judged(claims, **ends):
    curves = {f"m/{arm}": {world: straight(end) for world, end in enumerate(of)} for arm, of in ends.items()}
    return judge(claims, curves, {"m": 100})


def test_a_paired_difference_has_the_t_interval_and_p_value_of_its_worlds():
    a, b = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.55, 0.6]
    found = judged([claim()], a=a, b=b)["h"]
    expected = stats.ttest_rel(a, b)
    assert (found.estimate, found.p) == (pytest.approx(0.1625), pytest.approx(expected.pvalue))
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert (found.corrected_low, found.worlds) == (pytest.approx(found.low), 4), "alone, nothing is corrected"
    # Hand: differences 0.1, 0.2, 0.05, 0.3; s = 0.110868, t(3) = 3.182446, half = 0.176416.
    assert found.low == pytest.approx(0.1625 - 0.176416, abs=1e-5)


def test_holm_tests_the_smallest_p_value_at_the_strictest_level():
    a, weak, strong = [0.50, 0.61, 0.55, 0.58], [0.45, 0.55, 0.44, 0.56], [0.20, 0.31, 0.24, 0.29]
    claims = [claim("weak", {"m/a": 1, "m/w": -1}), claim("strong", {"m/a": 1, "m/s": -1})]
    found = judged(claims, a=a, w=weak, s=strong)
    p_weak, p_strong = (stats.ttest_rel(a, other).pvalue for other in (weak, strong))
    assert p_strong < 0.025 < p_weak < 0.05
    assert (found["strong"].p, found["weak"].p) == (pytest.approx(2 * p_strong), pytest.approx(p_weak))
    assert found["strong"].corrected_low == pytest.approx(stats.ttest_rel(a, strong).confidence_interval(0.975).low)
    assert [found[name].verdict for name in ("strong", "weak")] == [HELD, HELD]


def test_nothing_is_held_after_the_first_that_fails_in_its_family():
    a, failing, later = [0.50, 0.61, 0.55, 0.58], [0.45, 0.55, 0.44, 0.56], [0.445, 0.545, 0.44, 0.555]
    p_failing, p_later = (stats.ttest_rel(a, other).pvalue for other in (failing, later))
    assert 0.025 < p_failing < 0.05 and p_later < 0.05
    claims = [claim("first", {"m/a": 1, "m/f": -1}), claim("later", {"m/a": 1, "m/l": -1})]
    assert {verdict.verdict for verdict in judged(claims, a=a, f=failing, l=later).values()} == {UNDECIDED}
    alone = judged([claims[0], claim("later", {"m/a": 1, "m/l": -1}, family="other")], a=a, f=failing, l=later)
    assert {verdict.verdict for verdict in alone.values()} == {HELD}


@pytest.mark.parametrize(
    "differences, settings, verdict",
    [
        ([0.10, 0.12, 0.11], {}, HELD),
        ([0.01, 0.00, 0.02, -0.01], {}, NOT_HELD),  # 0.05 is outside its interval
        ([0.10, 0.20, -0.10], {}, UNDECIDED),
        ([-0.10, -0.12, -0.11], {}, NOT_HELD),
        ([0.01, 0.00, 0.02, -0.01], {"claim": "below", "bound": 0.05}, HELD),
        ([0.10, 0.12, 0.11], {"claim": "below", "bound": 0.05}, NOT_HELD),
        ([0.00, 0.12, 0.02], {"claim": "below", "bound": 0.05}, UNDECIDED),
    ],
)
def test_a_claim_is_held_given_up_or_left_open_by_its_interval(differences, settings, verdict):
    b = [0.3 + 0.1 * world for world in range(len(differences))]
    found = judged([claim(**settings)], a=np.add(b, differences), b=b)["h"]
    assert found.verdict == verdict


def test_worlds_in_which_an_arm_is_missing_or_does_not_reach_the_budget_are_left_out():
    curves = {
        "m/a": {world: straight(0.5 + 0.01 * world) for world in range(5)},
        "m/b": {world: straight(0.4, budget=100 if world else 99) for world in range(4)},
    }
    assert hypotheses.worlds_of({"m/a": 1, "m/b": -1}, curves, {"m": 100}) == [1, 2, 3]
    assert judge([claim()], curves, {"m": 100})["h"].worlds == 3
    del curves["m/b"][3]
    assert judge([claim()], curves, {"m": 100})["h"] is None, "two worlds have no interval"


def test_the_order_of_worlds_and_a_constant_in_both_arms_change_nothing():
    a, b = np.array([0.5, 0.7, 0.6, 0.9]), np.array([0.4, 0.5, 0.55, 0.6])
    found = judged([claim()], a=a, b=b)["h"]
    for other in (judged([claim()], a=a[::-1], b=b[::-1])["h"], judged([claim()], a=a - 0.1, b=b - 0.1)["h"]):
        assert other.estimate == pytest.approx(found.estimate) and other.p == pytest.approx(found.p)


def test_an_interaction_is_the_difference_of_differences():
    both, one, other, none = [0.9, 0.8, 0.85], [0.6, 0.55, 0.5], [0.5, 0.5, 0.45], [0.4, 0.45, 0.3]
    contrast = {"m/both": 1, "m/one": -1, "m/other": -1, "m/none": 1}
    found = judged([claim(contrast=contrast)], both=both, one=one, other=other, none=none)["h"]
    values = [w - x - y + z for w, x, y, z in zip(both, one, other, none, strict=True)]
    assert found.estimate == pytest.approx(np.mean(values))


def test_arms_of_two_experiments_are_paired_by_world():
    curves = {
        "m/a": {world: straight(0.5) for world in range(3)},
        "n/a": {world: straight(0.3 + 0.01 * world, budget=50) for world in range(3)},
    }
    found = judge([claim(contrast={"m/a": 1, "n/a": -1})], curves, {"m": 100, "n": 50})["h"]
    assert found.estimate == pytest.approx(0.19) and found.verdict == HELD


def test_a_speedup_is_the_budget_over_the_tokens_to_the_others_final_accuracy():
    # From 0.2 to 0.6: 0.4 is reached half way, in every resample, as all worlds are alike.
    fast, slow = straight(0.6), straight(0.4)
    assert hypotheses.speedup([(fast, slow)] * 3, 100) == pytest.approx(2.0, rel=0.01)
    assert hypotheses.bootstrap_speedup([(fast, slow)] * 3, 100, 50) == pytest.approx(np.full(50, 2.0), rel=0.01)
    assert hypotheses.speedup([(slow, fast)] * 3, 100) == 0, "more than the budget"
    found = judged([claim(measure="speedup", bound=1.0)], a=[0.6, 0.6, 0.6], b=[0.4, 0.4, 0.4])["h"]
    assert found.verdict == HELD and found.estimate == pytest.approx(2.0, rel=0.01)


def test_two_arms_that_are_alike_have_a_speedup_interval_that_goes_below_one():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.6, 0.05, 12), rng.normal(0.6, 0.05, 12)
    found = judged([claim(measure="speedup", bound=1.0)], a=a, b=b)["h"]
    assert found.low < 1 < found.high and found.verdict != HELD


def test_without_an_effect_few_verdicts_are_held():
    # 400 studies of two equal arms: 5 % two-sided, so about 2.5 % above; a bound of 6 % leaves room for chance.
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        a, b = rng.normal(0.5, 0.05, (2, 12))
        held += judged([claim()], a=a, b=b)["h"].verdict == HELD
    assert held / 400 < 0.06 and math.isfinite(held)
