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
    return judge(claims, curves, {"m": 100}, {arm: tuple(cells) for arm, cells in curves.items()})


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


def test_worlds_that_are_not_planned_or_lack_an_arm_at_its_budget_are_left_out():
    curves = {
        "m/a": {world: straight(0.5 + 0.01 * world) for world in range(6)},
        "m/b": {world: straight(0.4, budget=100 if world else 99) for world in range(5)},
    }
    planned = {"m/a": (0, 1, 2, 3), "m/b": (0, 1, 2, 3)}
    assert hypotheses.worlds_of(claim(), curves, {"m": 100}, planned) == [1, 2, 3]
    found = judge([claim()], curves, {"m": 100}, planned)["h"]
    assert (found.worlds, found.planned) == (3, 4)
    del curves["m/b"][3]
    assert judge([claim()], curves, {"m": 100}, planned)["h"] is None, "two worlds have no interval"


def test_an_arm_can_be_read_at_a_budget_of_its_own():
    # From 0.2 to 0.6 in 100 tokens: 0.4 at 50. Against an end of 0.35, 0.36, 0.37: 0.05, 0.04, 0.03.
    half = claim(contrast={"m/a@50": 1, "m/b": -1})
    found = judged([half], a=[0.6, 0.6, 0.6], b=[0.35, 0.36, 0.37])["h"]
    assert found.estimate == pytest.approx(0.04) and found.low == pytest.approx(0.04 - 4.302653 * 0.01 / math.sqrt(3))


def test_a_verdict_beyond_its_bound_is_never_called_not_held():
    # 0.01 to 0.04, smaller than what matters; the first of its family fails, so it cannot be held.
    b = [0.3, 0.4, 0.5, 0.6]
    small, failing = np.add(b, [0.024, 0.026, 0.025, 0.0255]), np.add(b, [0.1, -0.1, 0.1, -0.1])
    claims = [claim("small", {"m/s": 1, "m/b": -1}), claim("failing", {"m/f": 1, "m/b": -1})]
    assert judged(claims, s=small, b=b, f=failing)["small"].verdict == HELD
    worse = np.add(b, [-0.0001, -0.00011, -0.00012, -0.00011])  # its p-value is smaller, and its sign is wrong
    claims = [claims[0], claim("worse", {"m/w": 1, "m/b": -1})]
    found = judged(claims, s=small, b=b, w=worse)
    assert found["worse"].verdict == NOT_HELD and found["small"].verdict == HELD


def test_worlds_that_are_all_alike_decide_nothing():
    assert judged([claim()], a=[1.0, 1.0, 1.0], b=[1.0, 1.0, 1.0])["h"].verdict == UNDECIDED
    assert judged([claim(claim="below", bound=0.1)], a=[1.0] * 3, b=[1.0] * 3)["h"].verdict == UNDECIDED
    # 0.3 in each, but for the last binary digit.
    rounded = judged([claim()], a=[0.4, 0.5, 0.9], b=[0.1, 0.2, 0.6])["h"]
    assert rounded.verdict == UNDECIDED and rounded.p == 1.0 and rounded.estimate == pytest.approx(0.3)


def test_the_order_of_worlds_and_a_constant_in_both_arms_change_nothing():
    a, b = np.array([0.5, 0.7, 0.6, 0.9]), np.array([0.4, 0.5, 0.55, 0.6])
    found = judged([claim()], a=a, b=b)["h"]
    for other in (judged([claim()], a=a[::-1], b=b[::-1])["h"], judged([claim()], a=a - 0.1, b=b - 0.1)["h"]):
        assert other.estimate == pytest.approx(found.estimate) and other.p == pytest.approx(found.p)


def test_an_interaction_is_the_difference_of_differences_in_each_world():
    both, one, other, none = [0.9, 0.8, 0.85], [0.6, 0.55, 0.5], [0.5, 0.5, 0.45], [0.4, 0.45, 0.35]
    contrast = {"m/both": 1, "m/one": -1, "m/other": -1, "m/none": 1}
    found = judged([claim(contrast=contrast)], both=both, one=one, other=other, none=none)["h"]
    expected = stats.ttest_rel(np.add(both, none), np.add(one, other))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_arms_of_two_experiments_are_paired_by_world():
    a, b = [0.9, 0.5, 0.7], [0.8, 0.3, 0.55]
    curves = {
        "m/a": {world: straight(end) for world, end in enumerate(a)},
        "n/a": {world: straight(end, budget=50) for world, end in reversed(list(enumerate(b)))},
    }
    planned = {"m/a": (0, 1, 2), "n/a": (0, 1, 2)}
    found = judge([claim(contrast={"m/a": 1, "n/a": -1})], curves, {"m": 100, "n": 50}, planned)["h"]
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue)


@pytest.mark.parametrize("members", [1, 4])
def test_without_an_effect_the_share_of_families_with_a_verdict_held_is_that_of_the_level(members):
    # 2,000 families of equal arms: a two-sided 5 % is 2.5 % above, for the family as a whole at most; 3 sd are 1 %.
    rng = np.random.default_rng(0)
    claims = [claim(str(number), {f"m/{number}": 1, "m/b": -1}) for number in range(members)]
    held = 0
    for _ in range(2000):
        arms = {str(number): rng.normal(0.5, 0.05, 12) for number in range(members)}
        held += any(found.verdict == HELD for found in judged(claims, b=rng.normal(0.5, 0.05, 12), **arms).values())
    assert held / 2000 < 0.036 and (members > 1 or held / 2000 > 0.014)
