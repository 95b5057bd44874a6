"""The world of lists to put in order: its problems, what the model is shown, and how `--world` names it."""

import random
from collections import Counter

import pytest

from r3_ext.tiny import sorting, warm_start
from r3_ext.tiny.world import Sorting, World, parse


def test_a_list_its_answer_and_its_working():
    digits = (7, 2, 9, 2, 5)
    assert sorting.problem(digits) == "Sort from low to high: 7 2 9 2 5. Write the digits as one number."
    assert sorting.solution(digits) == "2 2 5 7 9\n</think>\n\\boxed{22579}"
    assert sorting.answer(digits) == "22579"


def test_training_and_validation_have_all_lengths_alike_and_no_list_in_common():
    train, val = sorting.split_lists(60, 30, Sorting(seed=3))
    assert not {*train} & {*val} and len({*train}) == 60 and len({*val}) == 30
    assert Counter(map(len, train)) == dict.fromkeys(range(4, 10), 10)
    assert Counter(map(len, val)) == dict.fromkeys(range(4, 10), 5)
    assert (train, val) == sorting.split_lists(60, 30, Sorting(seed=3))
    assert train != sorting.split_lists(60, 30, Sorting(seed=4))[0]
    short, _ = sorting.split_lists(10, 4, Sorting(train="2-2"))
    assert {*map(len, short)} == {2}


def test_there_are_not_endlessly_many_short_lists():
    with pytest.raises(ValueError, match="number of lists must leave half of those of 2 digits, got 50"):
        sorting.split_lists(50, 1, Sorting(train="2-2"))


def test_the_model_is_shown_half_as_many_lists_of_each_length_and_none_to_validate_on():
    rng, held_out = random.Random(0), {(1, 2), (3, 4)}
    shown = [sorting.draw_shown(rng, held_out) for _ in range(20_000)]
    lengths = Counter(map(len, shown))
    assert not held_out & {*shown}
    for length in range(3, 8):
        assert lengths[length + 1] / lengths[length] == pytest.approx(0.5, abs=0.08)


def test_nothing_but_right_answers_is_shown_and_no_reflection():
    course = warm_start.course(None, warm_start.Settings(world=Sorting(), rows=12, val_rows=6))
    assert course.reflection is None and course.share_of_steps == pytest.approx(1 / 3)
    rng = random.Random(1)
    lesson = course.draw(rng, 0.5)
    assert {lesson.attempt(rng, 0.0) for _ in range(20)} == {lesson.right}
    rows = course.train.to_pylist()
    assert {row["data_source"] for row in rows} == {"sorting"}
    assert all(row["reward_model"]["ground_truth"].isdecimal() for row in rows)


def test_a_world_is_named_by_its_kind():
    assert parse("sorting,seed=3,val=6-9") == Sorting(seed=3, val="6-9")
    assert parse("sorting") == Sorting() and parse("seed=3") == World(seed=3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sorting,mistaken=0", "'mistaken=0' is not one of seed=..., train=..., val=..."),
        ("sorting,train=1-9", "--world train must be two numbers of digits from 2 to 9, such as 2-9, got '1-9'"),
        ("sorting,seed=-1", "--world seed must be at least 0, got -1"),
    ],
)
def test_a_world_of_sorting_that_cannot_be_is_told(text, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(").replace("...", r"\.\.\.")):
        parse(text)
