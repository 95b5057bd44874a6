"""`r3 probe` without a model: what all-wrong groups find when they are asked again sooner, and by which prompt."""

import dataclasses
import math

import numpy as np
import pytest

from r3_ext.r3.probe import command, quantities, report, sooner
from r3_ext.r3.probe.quantities import Plain, Reflected
from r3_ext.settings.compose import compose_config
from tests.ext.probed import configured, plain_of, random_answers, reflected_of, report_of


def measure(plain: Plain, reflected: Reflected, **settings) -> dict:
    found = sooner.measure(plain, reflected, 0, configured(**settings), 16)
    return {name.removeprefix("sooner/"): figure for name, figure in found.items()}


def answers(all_wrong: int, by_reflection: int, plainly: int, easy: int = 0) -> tuple[Plain, Reflected]:
    """Groups of two, 10 tokens an answer: of those that are all wrong so many are rescued by each way."""
    groups = [[0, 0, place < plainly, 0] for place in range(all_wrong)] + [[1, 0, 1, 0]] * easy
    asked = [1] * all_wrong + [0] * easy
    right = [place < by_reflection for place in range(len(groups))]
    return plain_of(groups), reflected_of(asked, right, [20 * a for a in asked])


def judged(*counts: int, when: str = "at_once") -> sooner.Sooner:
    plain, reflected = answers(*counts)
    return sooner.judge(sooner.measure(plain, reflected, 0, configured(), 16), counts[0], 2, when)


def test_the_groups_that_are_asked_sooner_are_all_wrong_with_one_score():
    plain = plain_of([[0, 0, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    plain = dataclasses.replace(plain, score_PA=np.where(plain.correct_PA, 1.0, [[0, 0, 0, 0]] * 3 + [[0, 0.5, 0, 0]]))
    assert sooner.all_wrong(plain).tolist() == [True, False, False, False]
    assert sooner.has_no_signal(plain).tolist() == [True, False, True, False]


@pytest.mark.parametrize("seed", range(3))
def test_every_all_wrong_group_is_hard_at_the_next_visit_too(seed):
    plain, _ = random_answers(seed, problems=100)
    hard_P = quantities.is_hard(plain.correct_PA[:, : plain.n], 0.01)
    assert not (sooner.all_wrong(plain) & ~hard_P).any()


def test_figures_by_hand():
    # n = 2, 10 tokens an answer. Of 4 first groups 2 are all wrong, 1 all right. Asked again the first finds 2 of 2 by
    # reflection for 30 tokens and none plainly, the second 1 of 2 by either, for 50 and 20 tokens.
    plain = plain_of([[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    found = measure(plain, reflected_of([1, 1, 0, 0], [2, 1, 0, 0], [30, 50, 0, 0]))
    values = {name: value for name, (value, _, _) in found.items()}
    expected = {"all_wrong": 2 / 4, "no_signal": 3 / 4, "reflection/2": 2 / 2, "plain/2": 1 / 2}
    expected |= {"reflection/2/tokens": 80 / 2, "plain/2/tokens": 40 / 1}
    # One answer finds 1 and 1/2 on average, for half the tokens.
    expected |= {"reflection/1": 1.5 / 2, "reflection/1/tokens": 40 / 1.5}
    expected |= {"reflection/reach": 2 / 4, "reflection/no_signal": 1 / 4}
    expected |= {"plain/reach": 1 / 4, "plain/no_signal": 2 / 4}
    expected |= {"by_one_way": 1 / 2, "per_token": (2 / 80) / (2 / 80 + 1 / 40)}
    assert values == pytest.approx(expected)


def test_a_step_asks_no_more_than_its_share_of_all_wrong_groups():
    plain, reflected = plain_of([[0] * 4] * 8), reflected_of([1] * 8, [1] * 8, [10] * 8)
    found = measure(plain, reflected, reflection={"max_fraction": 0.25})
    assert (found["reflection/reach"][0], found["reflection/no_signal"][0]) == pytest.approx((0.25, 0.75))
    assert found["reflection/2"][0] == 1


def test_what_replay_may_not_draw_rescues_no_group():
    plain, reflected = plain_of([[0] * 4] * 8), reflected_of([1] * 8, [2] * 8, [10] * 8)
    found = measure(plain, dataclasses.replace(reflected, drawable_P=np.zeros(8)))
    assert found["reflection/2"][0] == 0 and math.isnan(found["reflection/2/tokens"][0])


def test_groups_that_are_not_all_wrong_count_for_no_way():
    # Hard at a threshold of 0.5, but mixed: asked at the next visit, never sooner.
    found = measure(plain_of([[0, 1, 1, 1], [1, 1, 1, 1]]), reflected_of([1, 0], [2, 0], [10, 0]))
    assert math.isnan(found["reflection/2"][0]) and found["reflection/reach"][0] == 0


@pytest.mark.parametrize("seed", range(3))
def test_every_figure_lies_in_its_interval_and_fewer_answers_find_less(seed):
    found = measure(*random_answers(seed, problems=60))
    assert all(low - 1e-9 <= value <= high + 1e-9 for value, low, high in found.values())
    assert found["reflection/4"][0] >= found["reflection/2"][0] >= found["reflection/1"][0]


@pytest.mark.parametrize(
    ("counts", "verdict", "ask"),
    [
        ((60, 40, 10), "on", "reflection"),
        ((60, 4, 16), "unclear", "plain"),
        # What plain answers find is no reason to ask by reflection.
        ((60, 0, 40, 40), "off", None),
        ((60, 20, 16), "on", "adaptive"),
        # Seven that one way alone rescues say little of which finds more.
        ((60, 7, 0, 10), "unclear", "adaptive"),
        ((60, 1, 4, 68), "off", None),
        ((60, 4, 4, 68), "unclear", "adaptive"),
        ((7, 7, 0, 9), "unclear", "adaptive"),
        ((60, 1, 0, 68), "off", None),
        ((0, 0, 0, 128), "off", None),
        ((128, 0, 0), "off", None),
    ],
)
def test_the_rule(counts, verdict, ask):
    found = judged(*counts)
    assert (found.verdict, found.ask) == (verdict, ask)


def test_where_nothing_is_found_it_is_said_what_to_switch_off():
    assert "switch off algorithm.r3.reflection.enable" in judged(128, 0, 0).reasons[-1]
    assert "leave reflection.when as it is" in judged(128, 0, 0, when="next_visit").reasons[-1]
    assert "the first epoch asks none of them" in judged(60, 40, 10, when="next_visit").reasons[-1]


def test_the_reasons_name_both_ways_what_fewer_answers_find_and_the_groups_without_signal():
    _, reflection, plainly, fewer, without = judged(60, 40, 0).reasons
    assert reflection.startswith("by reflection 67 % (") and "for 30 generated tokens each (26 to " in reflection
    assert plainly.startswith("plainly 0 % (") and plainly.endswith("of them get a right answer")
    assert fewer == "fewer answers by reflection than 2: with 1 33 %, for 30 each"
    assert without.startswith("without signal 100 % (94 to 100) of the first groups") and "plainly 100 %" in without


def test_asked_sooner_reflection_is_switched_by_what_either_way_finds():
    # Plainly 30 of 60 groups are rescued, by reflection 8: worth asking, and not by reflection.
    later, at_once = (report_of(*answers(60, 8, 30, 140), when=when) for when in ("next_visit", "at_once"))
    assert later["sooner"]["ask"] == at_once["sooner"]["ask"] == "plain"
    assert "algorithm.r3.reflection.enable=False" in later["overrides"] and later["r3"] == "unclear"
    ask = ["algorithm.r3.reflection.ask=plain"]
    assert [line for line in at_once["overrides"] if ".reflection." in line] == ask and at_once["r3"] == "unclear"
    compose_config(["+profile=embedded", "+method=r3", "algorithm.r3.reflection.when=at_once", *at_once["overrides"]])
    assert any(line.startswith("sooner:     UNCLEAR, reflection.ask=plain: 30 %") for line in report.text(at_once))
    assert any("--method grpo_extra" in line for line in report.text(at_once))


def test_where_nothing_is_found_sooner_reflection_is_switched_off():
    found = report_of(*answers(128, 0, 0), when="at_once")
    assert "algorithm.r3.reflection.enable=False" in found["overrides"]
    assert not any("reflection.ask" in line for line in [*found["overrides"], *report.text(found)])


def test_sooner_a_group_may_have_fewer_answers_than_the_next_visit_needs_attempts(monkeypatch):
    for name in ("MODEL", "DATA", "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    line = "--profile embedded --samples 2 algorithm.r3.reflection.rounds=2".split()
    config = command.settle(command.parse([*line, "algorithm.r3.reflection.when=next_visit"]))
    with pytest.raises(ValueError, match="no problem is hard after one epoch"):
        command.checked(config)
    config = command.settle(command.parse([*line, "algorithm.r3.reflection.when=at_once"]))
    assert command.checked(config).reflection.when == "at_once"
