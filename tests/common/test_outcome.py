"""Correct, truncated and graded, whichever reward manager reports it."""

import math

import numpy as np
import pytest
import torch
from tagged import FAILED, PADDING, REPLAYED_RIGHT, RIGHT, WRONG, make_tag

from recipe.common.outcome import Reading, dead_outcome, lower_failed
from recipe.common.rows import PLAIN, REFLECTION, RowTag

OWN = {"acc": 1.0, "length_bonus": 0.75, "truncated": 0.0}
END = 2


def row(info: dict, score: float = 1.0, responses=(5, 6, END), variant: str | None = None) -> dict:
    extra = {"reward_extra_info": info} | ({} if variant is None else {"prompt_variant": variant})
    return {"extra_fields": extra, "rm_scores": torch.tensor([0.0, score]), "responses": torch.tensor(responses)}


def read(info: dict, score: float = 1.0, correct_from: float = 1.0, **changes) -> RowTag:
    return Reading(correct_from, 3, END).tag(row(info, score, **changes), "q")


def test_the_recipes_manager_says_all_of_it():
    right = RowTag(group="q", variant=PLAIN, correct=True, truncated=False, score=1.75, grade=1.0)
    assert read(OWN, 1.75) == right and right.is_fresh
    assert read({**OWN, "acc": 0.0, "truncated": 1.0}, 0.0, variant=REFLECTION) == RowTag(
        group="q", variant=REFLECTION, correct=False, truncated=True, score=0.0, grade=0.0
    )


def test_the_grade_of_a_reward_function_is_without_the_bonus():
    tag = read({**OWN, "score": 2.0, "reward_error": 0.0}, 3.5, correct_from=5.0)
    assert (tag.grade, tag.score, tag.correct) == (2.0, 3.5, True)
    assert not tag.reward_error and read({**OWN, "score": 0.0, "reward_error": 1.0}, 0.0).reward_error


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_ends_the_run(score):
    with pytest.raises(ValueError, match="a response to query q has the score (nan|inf)"):
        read({"acc": score}, score)


@pytest.mark.parametrize(
    ("score", "threshold", "correct"), [(0.5, 1.0, False), (0.5, 0.5, True), (1.0, 1.0, True), (-1, 0.0, False)]
)
def test_what_verls_naive_manager_calls_acc_is_a_number_against_the_threshold(score, threshold, correct):
    tag = read({"acc": score}, score, threshold)  # of a function that returned a number
    assert (tag.correct, tag.grade) == (correct, score)
    tag = read({"score": score, "depth": 3}, score, threshold)  # of one that returned a dict without acc
    assert (tag.correct, tag.grade) == (correct, score)


def test_truth_values_are_taken_whatever_the_threshold():
    assert read({"acc": True}, 0.3, 0.5).correct and not read({"acc": False}, 0.9, 0.5).correct
    for true, false in ((True, False), (1, 0), (1.0, 0.0), (np.True_, np.False_)):
        assert read({"score": 3.0, "acc": true}, 3.0, 5.0).correct
        assert not read({"score": -1.0, "acc": false}, -1.0, -2.0).correct


@pytest.mark.parametrize("info", [{"score": 0.3, "acc": "no"}, {"score": 0.3, "acc": 0.3}, {"acc": "no"}])
def test_a_verdict_that_is_none_is_refused_with_the_query_and_the_way_out(info):
    with pytest.raises(ValueError, match="response to query q has acc=('no'|0.3), .* let it return the score alone"):
        read(info, 0.3)


def test_a_penalty_of_the_managers_is_no_part_of_the_grade():
    for info in ({"acc": 1.0}, {"score": 1.0}, {"score": 1.0, "acc": None}):
        tag = read(info, 0.7)  # dapo's, for being overlong
        assert (tag.correct, tag.grade, tag.score) == (True, 1.0, pytest.approx(0.7))


@pytest.mark.parametrize(
    ("responses", "truncated"), [((5, 6, 7), True), ((5, 6, END), False), ((5, END), False), ((5, 6), False)]
)
def test_truncation_is_measured_where_nobody_reports_it(responses, truncated):
    assert read({"acc": 1}, responses=responses).truncated is truncated


def test_without_limit_or_report_truncation_cannot_be_known():
    with pytest.raises(ValueError, match="reward_extra_info lacks 'truncated', found .'acc'.: use "):
        Reading().tag(row({"acc": 1.0}), "q")


def test_a_group_of_unequal_grades_is_not_dead_and_one_of_equal_ones_is():
    def tags(*grades: float, threshold: float = 1.0) -> list[RowTag]:
        return [read({"acc": grade}, grade, threshold) for grade in grades]

    assert dead_outcome(tags(0.2, 0.5, 0.2)) is None
    assert dead_outcome(tags(0.2, 0.2, 0.2)) is False
    assert dead_outcome(tags(1.0, 1.0)) is True
    assert dead_outcome(tags(0.6, 0.9, threshold=0.5)) is None, "all correct, and better ones to learn from"
    same = [read({"score": 0.5, "acc": acc}, 0.5) for acc in (True, False)]
    assert dead_outcome(same) is None, "what is correct differs, so no side is the opposite one"
    assert dead_outcome([RowTag(correct=True, score=score) for score in (1.9, 1.7)]) is True, "a bonus is no grade"


@pytest.mark.parametrize(
    "tags, outcome",
    [
        ([make_tag(True, score) for score in (1.9, 1.8, 1.7)], True),  # the length bonus differs, the outcome does not
        ([make_tag(False, score) for score in (0.0, 0.5)], False),
        ([make_tag(True, 1.0), make_tag(False, 1.0)], None),  # equal scores, unequal outcomes
        ([WRONG, WRONG, REPLAYED_RIGHT], False),  # a replayed row does not hide that the group was dead
        ([WRONG, PADDING], False),
        ([], None),
        ([FAILED, FAILED], False),
        ([RIGHT, FAILED], None),
        (
            [make_tag(False, 0.2, grade=0.2), FAILED],
            False,
        ),  # its grade is no judgement
    ],
)
def test_a_group_is_dead_by_correctness_of_its_fresh_rows_not_by_score(tags, outcome):
    assert dead_outcome(map(RowTag.from_tag, tags)) is outcome


@pytest.mark.parametrize(
    "judged, score",
    [([-1.0, -2.0], -2.0), ([0.0, 0.0], 0.0), ([1.9, 1.8], 0.0), ([1.0, -1.0], -1.0), ([0.2, 0.5], 0.0), ([], 0.0)],
)
def test_an_answer_without_a_score_earns_no_more_than_one_that_was_judged(judged, score):
    tags = [make_tag(value >= 1.0, value, grade=min(value, 1.0)) for value in judged] + [dict(FAILED), dict(FAILED)]
    lowered = lower_failed(list(map(RowTag.from_tag, tags)))
    assert [tag.score for tag in lowered] == [*judged, score, score]
    assert [tag.grade for tag in lowered[-2:]] == [score, score]
