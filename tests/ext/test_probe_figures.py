"""`r3 probe` without a model: figures by hand, invariances, the rule of the verdicts."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from r3_ext.r3.probe import ask, quantities, verdicts
from r3_ext.r3.probe.quantities import Plain, Reflected
from tests.ext.probed import measure, plain_of, random_answers, reflected_of

PARTS = "correct_PA", "cut_PA", "tokens_PA", "score_PA"
NAMES = "hard_P", "asked_P", "right_P", "drawable_P", "tokens_P"
YES, NO = [0.2, 0.06, 0.3], [0.01, 0.0, 0.04]


def answers_of(right: int, cut: int, n: int) -> list[tuple[bool, float, bool]]:
    """2n answers; those that are cut off are wrong."""
    return [(True, 1.0, False)] * right + [(False, 0.0, True)] * cut + [(False, 0.0, False)] * (2 * n - right - cut)


# figures


def test_wilson_by_hand():
    # z = 1.959964: 1 of 10 is the textbook's 0.0179 to 0.4042; 0 of 10 ends at z^2 / (10 + z^2).
    assert quantities.wilson(0.1, 10) == pytest.approx([0.1, 0.01788, 0.40415], abs=1e-5)
    assert quantities.wilson(0.0, 10) == pytest.approx([0, 0, 3.841459 / 13.841459], abs=1e-6)
    assert quantities.wilson(1.0, 10)[1:] == pytest.approx([10 / 13.841459, 1], abs=1e-6)


def test_groups_by_hand():
    # n = 2 of R W(cut) W(cut) W: the pairs are 3 with R, mixed, and 3 without, one of which has both that are cut off.
    # Each of these 3 leaves R to the other half.
    found = quantities.group_of(answers_of(right=1, cut=2, n=2), n=2)
    assert found == pytest.approx(
        {"mixed": 1 / 2, "all_right": 0, "all_wrong": 1 / 2, "rankable": 1 / 6, "drawn_right": 1 / 2, "drawn_wrong": 0}
    )
    never, always = (quantities.group_of(answers_of(*counts, n=2), 2) for counts in ((0, 4), (4, 0)))
    assert (never["all_wrong"], never["rankable"], never["drawn_right"]) == (1, 1, 0)
    assert (always["all_right"], always["drawn_wrong"], always["mixed"]) == (1, 0, 0)


def graded(seed: int, n: int) -> list[tuple[bool, float, bool]]:
    """Answers with three scores; the function calls some of them right itself, and some of those are cut off."""
    rng = np.random.default_rng(seed)
    columns = rng.random(2 * n) < 0.4, rng.choice([0, 0, 0.5, 1], 2 * n), rng.random(2 * n) < 0.5
    return list(zip(*(column.tolist() for column in columns), strict=True))


COUNTS = [(0, 0), (0, 6), (1, 3), (2, 1), (3, 3), (5, 1), (6, 0)]


@pytest.mark.parametrize("answers", [answers_of(*counts, n=3) for counts in COUNTS] + [graded(k, 3) for k in range(9)])
def test_groups_equal_a_count_of_all_splits(answers):
    n = 3
    counts = dict.fromkeys(quantities.group_of(answers, n), 0)
    splits = list(itertools.combinations(range(2 * n), n))
    for chosen in splits:
        group = [answers[k] for k in chosen]
        history = [answers[k][0] for k in range(2 * n) if k not in chosen]
        dead = len({answer[:2] for answer in group}) == 1
        all_wrong = dead and not group[0][0]
        counts["mixed"] += not dead
        counts["all_right"] += dead and not all_wrong
        counts["all_wrong"] += all_wrong
        counts["rankable"] += all_wrong and sum(cut for _, _, cut in group) >= 2
        counts["drawn_right"] += all_wrong and any(history)
        counts["drawn_wrong"] += dead and not all_wrong and not all(history)
    expected = {name: count / len(splits) for name, count in counts.items()}
    assert quantities.group_of(answers, n) == pytest.approx(expected)


def test_the_figures_of_groups_are_unbiased():
    # p = 0.3, n = 2: all wrong 0.7^2; with a right one in the other two 0.7^2 (1 - 0.7^2).
    found = [quantities.group_of(answers_of(right, 0, 2), 2) for right in range(5)]
    chances = [math.comb(4, right) * 0.3**right * 0.7 ** (4 - right) for right in range(5)]
    mean = {name: sum(p * each[name] for p, each in zip(chances, found, strict=True)) for name in found[0]}
    assert (mean["all_wrong"], mean["drawn_right"]) == pytest.approx((0.49, 0.49 * 0.51))
    assert (mean["all_right"], mean["drawn_wrong"]) == pytest.approx((0.09, 0.09 * 0.91))


def test_hard_is_below_the_threshold_and_not_at_it():
    correct = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]], bool)
    assert quantities.is_hard(correct, 0.25).tolist() == [True, False, False]
    assert quantities.is_hard(correct, 0.5).tolist() == [True, True, False]


def test_tokens_in_mixed_groups_by_hand():
    # Groups: mixed with 3 tokens, dead with 7, dead with 10, mixed with 30.
    plain = plain_of([[1, 0, 0, 0], [1, 1, 1, 0]], tokens=[[1, 2, 3, 4], [5, 5, 10, 20]])
    assert quantities.token_share(plain, seed=0)[0] == pytest.approx(33 / 50)
    # Unequal scores of wrong answers teach, too.
    graded_plain = dataclasses.replace(plain, score_PA=np.array([[1.0, 0, 0, 0.5], [1, 1, 1, 0]]))
    assert quantities.token_share(graded_plain, seed=0)[0] == pytest.approx(40 / 50)


def test_reflection_at_equal_tokens_by_hand():
    # Two of four problems were asked, n = 2. Reflection: 2 and 0 right, 10 tokens each. Asked again: 0 and 1 right with
    # 20 tokens each, so it gets 1 answer per problem for the 10 tokens: right in half of the second problem's.
    plain = plain_of([[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], tokens=10)
    found = quantities.reflection(plain, reflected_of([1, 1, 0, 0], [2, 0, 0, 0], [10, 10, 0, 0]), seed=0)
    values = {name: value for name, (value, _, _) in found.items()}
    # One answer under reflection takes 5 tokens; asked again 1 of 4 answers was right, which took 10 each.
    expected = {"right": 2 / 4, "right_again": 1 / 8, "solved": 1 / 2, "solved_again": 1 / 4, "gain": 1 / 4}
    assert values == pytest.approx(expected | {"reach": 1 / 8})
    # With twice the tokens for reflection, it is reflection that is asked once per problem.
    found = quantities.reflection(plain, reflected_of([1, 1, 0, 0], [1, 0, 0, 0], [40, 40, 0, 0]), seed=0)
    assert (found["solved"][0], found["solved_again"][0]) == pytest.approx((1 / 4, 1 / 2))


def test_between_whole_answers_the_curve_is_linear():
    # 15 tokens against 20: asking again gets 1.5 of its 2 answers, between 1/2 for one and 1 for two.
    plain = plain_of([[0, 0, 1, 0]], tokens=10)
    found = quantities.reflection(plain, reflected_of([1], [0], [15]), seed=0)
    assert found["solved_again"][0] == pytest.approx(0.75)


def test_reflection_that_changes_nothing_gains_nothing():
    plain, _ = random_answers(3, problems=200)
    hard_P = quantities.is_hard(plain.correct_PA[:, :4], 0.25)
    again_P, tokens_P = plain.correct_PA[:, 4:].sum(1) * hard_P, plain.tokens_PA[:, 4:].sum(1) * hard_P
    found = quantities.reflection(plain, Reflected(hard_P, hard_P, again_P, again_P, tokens_P), seed=0)
    assert found["gain"] == [0, 0, 0] == [*found["reach"][:2], 0] and found["solved"] == found["solved_again"]


def test_an_answer_counts_as_its_text_up_to_the_limit_does():
    scores = type("Scores", (), {"query_ids": ["a"], "tokens_R": np.array([5.0, 9, 8, 8])})
    scores.correct_R = np.array([False, False, True, False])  # of the whole text
    plain = ask.plain_answers(scores, 8, np.array([True, True, False, False]), np.array([1.0, 0.9, 0.2, 0]))
    assert plain.correct_PA.tolist() == [[True, True, False, False]] and plain.tokens_PA.tolist() == [[5, 8, 8, 8]]
    assert plain.score_PA.tolist() == [[1, 0.9, 0.2, 0]] and plain.cut_PA.tolist() == [[False, True, False, False]]


def test_an_epoch_asks_no_more_hard_problems_than_its_steps_may():
    # 16 of 32 problems are hard, 8 of them are solved under reflection only: a quarter of all. A quarter of a batch may
    # be asked, half of what there is.
    half = [1] * 16 + [0] * 16
    plain = plain_of([[1 - hard] * 4 for hard in half])
    reflected = reflected_of(half, [1] * 8 + [0] * 24, [10] * 32)
    everything, capped = measure(plain, reflected), measure(plain, reflected, reflection={"max_fraction": 0.25})
    assert (everything["reflection/reach"][0], capped["reflection/reach"][0]) == pytest.approx((0.25, 0.125))
    assert (everything["opened"][0], capped["opened"][0]) == pytest.approx((0.25, 0.125))
    assert capped["reflection/gain"] == everything["reflection/gain"]


def test_few_problems_without_a_case_do_not_rule_reflection_out():
    plain, reflected = plain_of([[0] * 8] * 12), reflected_of([1] * 12, [0] * 12, [10] * 12)
    assert verdicts.judge(measure(plain, reflected), 12, None)["reflection"].verdict == "unclear"
    plain, reflected = plain_of([[0] * 8] * 128), reflected_of([1] * 128, [0] * 128, [10] * 128)
    assert verdicts.judge(measure(plain, reflected), 128, None)["reflection"].verdict == "off"


def test_the_figures_are_those_of_the_settings():
    plain, reflected = plain_of([[1, 0, 0, 0], [1, 1, 1, 0]] * 20), reflected_of([0] * 40, [0] * 40, [0] * 40)
    both = measure(plain, reflected, replay={"outcome": "both"})
    assert both["drawn"][0] == pytest.approx(both["drawn_right"][0] + both["drawn_wrong"][0])
    only = {name: measure(plain, reflected, replay={"outcome": name})["drawn"][0] for name in ("correct", "wrong")}
    assert only == pytest.approx({"correct": both["drawn_right"][0], "wrong": both["drawn_wrong"][0]})
    assert both["rankable"][0] == 0


def test_replay_cannot_draw_what_reflection_found_into_a_group_of_unequal_scores():
    plain, reflected = plain_of([[0] * 4, [0] * 4]), reflected_of([1, 1], [1, 1], [9, 9])
    plain = dataclasses.replace(plain, score_PA=np.array([[0.0] * 4, [0, 0, 0.5, 0.5]]))
    all_wrong_P = quantities.groups(plain)["all_wrong"]
    assert quantities.opened(plain, reflected, all_wrong_P).tolist() == pytest.approx([1, 1 / 3])


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_problems_counts_for_no_value(seed):
    plain, reflected = random_answers(seed)
    order = np.random.default_rng(seed).permutation(len(plain.correct_PA))
    other = Plain(*(getattr(plain, name)[order] for name in PARTS))
    theirs = Reflected(*(getattr(reflected, name)[order] for name in NAMES))
    ours, shuffled = measure(plain, reflected), measure(other, theirs)
    assert {k: v[0] for k, v in ours.items()} == pytest.approx({k: v[0] for k, v in shuffled.items()})


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_answers_counts_for_no_figure_of_groups(seed):
    plain, _ = random_answers(seed)
    order = np.random.default_rng(seed).permutation(plain.correct_PA.shape[1])
    other = Plain(*(getattr(plain, name)[:, order] for name in PARTS))
    ours, theirs = quantities.groups(plain), quantities.groups(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("seed", range(5))
def test_every_share_is_one_and_lies_in_its_interval(seed):
    plain, reflected = random_answers(seed)
    figures = measure(plain, reflected, seed)
    for name, (value, low, high) in figures.items():
        assert low - 1e-9 <= value <= high + 1e-9, name
        assert (-1 if name.endswith(("gain", "reach")) else 0) <= low and (high <= 1 or "right_again" in name), name
    total = sum(figures[name][0] for name in ("mixed", "all_right", "all_wrong"))
    assert total == pytest.approx(1)
    assert figures["rankable"][0] <= figures["all_wrong"][0] + 1e-12
    assert figures["drawn"][0] <= 1 - figures["mixed"][0] + 1e-12


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("tokens", [0, 64])
def test_answers_that_are_all_alike_or_empty_give_figures_and_verdicts(right, tokens):
    plain = plain_of([[right] * 8] * 10, [[1 - right] * 8] * 10, tokens=max(tokens, 1))
    reflected = reflected_of([1 - right] * 10, [0] * 10, [tokens * (1 - right)] * 10)
    figures = measure(plain, reflected)
    found = verdicts.judge(figures, int(reflected.asked_P.sum()), None)
    assert figures["drawn"][0] == 0 and figures["reflection/reach"][0] == 0
    assert set(found) == set(verdicts.MECHANISMS)


# verdicts


def test_a_verdict_is_where_the_whole_interval_lies():
    assert [verdicts.by_reach(reach) for reach in ([0.1, 0.06, 0.15], [0.02, 0.01, 0.04], [0.1, 0.04, 0.15])] == [
        "on",
        "off",
        "unclear",
    ]
    assert verdicts.by_reach([0.1, verdicts.MATTERS, 0.2]) == "on"
    assert verdicts.by_reach([0.0, 0.0, verdicts.MATTERS]) == "unclear"


def figures_of(**changes) -> dict:
    names = "hard drawn drawn_right drawn_wrong drawn_with_reflection opened rankable".split()
    named = {**dict.fromkeys(names, YES), **{f"reflection/{name}": YES for name in ("solved", "solved_again", "gain")}}
    return (
        named
        | {"reflection/reach": YES, "mixed": NO}
        | {name.replace("__", "/"): value for name, value in changes.items()}
    )


def foresight(low: float, high: float, problems: int = 20) -> dict:
    return {"auc": [(low + high) / 2, low, high], "problems": problems, "pairs": 100}


@pytest.mark.parametrize(
    ("changes", "asked", "seen", "expected"),
    [
        ({}, 20, foresight(0.6, 0.8), "on on on"),
        ({"rankable": NO}, 20, foresight(0.6, 0.8), "on on off"),
        ({}, 20, foresight(0.3, 0.54), "on on off"),
        ({}, 20, foresight(0.45, 0.7), "on on unclear"),
        ({}, 20, foresight(0.6, 0.8, problems=verdicts.LEAST - 1), "on on unclear"),
        ({}, 20, None, "on on unclear"),
        ({"rankable": [0.1, 0.04, 0.2]}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"reflection__reach": NO, "drawn": NO}, 20, None, "off off unclear"),
        # Without reflection all that is drawn came in mixed groups; with it, all but what it opened.
        ({"reflection__reach": NO, "drawn": YES, "drawn_with_reflection": NO}, 20, None, "unclear off unclear"),
        ({"opened": NO}, 20, None, "unclear on unclear"),
        ({"opened": [0.1, 0.04, 0.2]}, 20, None, "unclear on unclear"),
        # As many mixed groups teach GRPO the same as the ranked ones.
        ({"mixed": YES}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"mixed": [0.03, 0.01, 0.06]}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"mixed": [0.03, 0.01, 0.05]}, 20, foresight(0.51, 0.8), "on on on"),
        # Whether replay has something to draw depends on reflection, where that is unclear.
        ({"reflection__reach": [0.1, 0.04, 0.2], "drawn": NO}, 20, None, "unclear unclear unclear"),
        (
            {"reflection__reach": [0.1, 0.04, 0.2], "drawn": NO, "drawn_with_reflection": NO},
            20,
            None,
            "off unclear unclear",
        ),
        ({}, verdicts.LEAST, foresight(verdicts.CHANCE, 0.8), "on on unclear"),
        # What reflection finds is drawn by replay, where reflection is on.
        ({"drawn": NO}, 20, None, "on on unclear"),
        ({"hard": NO}, verdicts.LEAST - 1, None, "unclear off unclear"),
        ({"hard": YES}, verdicts.LEAST - 1, None, "unclear unclear unclear"),
    ],
)
def test_the_rule(changes, asked, seen, expected):
    found = verdicts.judge(figures_of(**changes), asked, seen)
    assert " ".join(found[name].verdict for name in verdicts.MECHANISMS) == expected


def test_the_overrides_are_those_of_what_is_decided_and_compose():
    found = verdicts.judge(figures_of(rankable=NO, opened=NO), 20, None)
    assert verdicts.overrides(found) == ["algorithm.r3.reflection.enable=True", "algorithm.r3.ranking.enable=False"]
    from r3_ext.settings.compose import compose_config

    config = compose_config(["+profile=embedded", "+method=r3", *verdicts.overrides(found)])
    assert (config.algorithm.r3.reflection.enable, config.algorithm.r3.ranking.enable) == (True, False)


@pytest.mark.parametrize(
    ("found", "expected"),
    [("on off off", "on"), ("off off off", "off"), ("off unclear off", "unclear"), ("unclear on off", "on")],
)
def test_r3_is_worth_it_where_a_part_is(found, expected):
    judged = [verdicts.Verdict(verdict, []) for verdict in found.split()]
    assert verdicts.overall(dict(zip(verdicts.MECHANISMS, judged, strict=True))) == expected
