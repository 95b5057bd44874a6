"""The problems of the real small model, and their reward."""

import random

import pytest

from tests.benchmarks import small_problems


def test_no_problem_comes_twice_and_none_of_those_held_out():
    train = small_problems.rows(small_problems.TRAIN, random.Random(1))
    questions = {row["extra_info"]["question"] for row in train}
    val = small_problems.rows(small_problems.VAL, random.Random(2), questions)
    assert len(questions) == small_problems.TRAIN
    assert not questions & {row["extra_info"]["question"] for row in val}
    assert {row["data_source"] for row in train} == {*small_problems.KINDS}


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("sum of two digits", "What is 47 + 85?", 132),
        ("product", "What is 7 * 3?", 21),
        ("larger", "Which number is larger, 47 or 85?", 85),
        ("given away", "Ben has 47 stamps and gives 3 of them away. How many are left?", 44),
    ],
)
def test_the_answer_is_that_of_the_question(kind, question, answer):
    assert small_problems.KINDS[kind](47, 85, 3) == (question, answer)


@pytest.mark.parametrize(
    ("text", "right"),
    [("132", True), ("47 + 85 = 132.", True), ("132, no: 133", False), ("-132", False), ("", False), ("1 32", False)],
)
def test_the_last_number_counts(text, right):
    assert small_problems.compute_score("", text, "132") == {"score": float(right), "acc": right}
