"""Which states a step's answers leave behind."""

import random

import numpy as np
import pytest

from recipe.common.restart.cuts import ENDS, Cutter
from recipe.rrl.collect import Answer, states_of
from recipe.rrl.config.rrl_config import StatesConfig

CUTS = "value", "random", "start"
STEP, NEVER = 3, 9
"""Tokens: 1 ends a step, 9 is in no state, others are text."""


@pytest.fixture
def cutter():
    ends = np.zeros(10, dtype=np.uint8)
    ends[1] = ENDS
    return Cutter(ends, frozenset({NEVER}), room=4, max_length=16, lowest=0.05, highest=0.8)


def answer(tokens, values=None, right=False, query="q", group="u"):
    return Answer(query, group, np.array(tokens), right, None if values is None else np.array(values, dtype=float))


def kept(answers, cutter, seed=0, aimed=lambda query_id: [], solution=None, **settings):
    config = StatesConfig(**{"admit": 1.0, "floor": 0.0} | settings)
    return states_of(answers, config, cutter, STEP, random.Random(seed), aimed, solution)


LONG = [2, 1, 3, 1, 4, 1, 5, 6, 7, 8]
VALUES = [0.2, 0.9, 0.1, 0.3, 0.6, 0.3, 0.4, 0.9, 0.9, 0.9]


def test_a_failed_answer_is_cut_at_the_end_of_the_step_that_the_critic_values_most(cutter):
    [state] = kept([answer(LONG, VALUES)], cutter)
    assert state.tokens.tolist() == [2, 1, 3, 1] and (state.origin, state.length, state.step) == ("failed", 10, STEP)
    assert (state.value, state.start_value) == (0.6, 0.2)


def test_only_hard_problems_give_states_and_right_answers_of_them_only_where_asked_for(cutter):
    easy = [answer(LONG, VALUES, right=number > 0, group="easy", query="e") for number in range(4)]
    hard = [answer([*LONG, number], [*VALUES, 0.0], right=number == 0, group="hard") for number in range(2, 6)]
    hard.append(answer(LONG, VALUES, right=True, group="hard"))
    assert {state.query_id for state in kept([*easy, *hard], cutter)} == {"q"}
    assert {state.origin for state in kept([*easy, *hard], cutter)} == {"failed"}
    of_right = kept([*easy, *hard], cutter, origin="right")
    assert [state.origin for state in of_right] == ["right"] and of_right[0].length == len(LONG)
    assert {state.origin for state in kept([*easy, *hard], cutter, origin="both")} == {"failed", "right"}


def test_the_floor_and_the_share_bound_what_is_admitted(cutter):
    answers = [answer([*LONG, n], [0.2, *[0.2 + n / 10] * 10], query=str(n), group=str(n)) for n in (2, 3, 4, 5)]
    assert [state.query_id for state in kept(answers, cutter, admit=0.25)] == ["5"]
    assert [state.query_id for state in kept(answers, cutter, floor=0.35)] == ["4", "5"]
    assert kept(answers, cutter, floor=9) == []


def test_random_cuts_take_as_many_states_as_the_share_says_and_need_no_critic(cutter):
    answers = [answer([*LONG, n], query=str(n), group=str(n)) for n in range(2, 7)]
    found = kept(answers, cutter, failed_cut="random", admit=0.4)
    assert len(found) == 2 and all(state.value is None for state in found)
    assert {len(kept(answers, cutter, seed, failed_cut="random")[0].tokens) for seed in range(20)} == {2, 4, 6}


@pytest.mark.parametrize("admit", [0.0, 0.1, 0.2, 0.4, 1.0])
def test_cuts_without_the_critic_are_as_many_as_cuts_by_value_without_a_floor(cutter, admit):
    for number in range(1, 14):
        answers = [answer(LONG, [0.2, *[n / 100] * 9], query=str(n), group=str(n)) for n in range(number)]
        by_value, at_random, at_start = (kept(answers, cutter, admit=admit, floor=-9, failed_cut=cut) for cut in CUTS)
        assert len(by_value) == len(at_random) == len(at_start)


def test_cut_at_the_start_nothing_of_a_failed_answer_is_kept_and_the_same_problems_are_asked_again(cutter):
    answers = [answer([*LONG, n], [0.2, *VALUES], query=str(n), group=str(n)) for n in range(2, 7)]
    at_random, at_start = (kept(answers, cutter, failed_cut=cut, admit=0.4) for cut in ("random", "start"))
    assert [state.query_id for state in at_start] == [state.query_id for state in at_random]
    assert all(not len(state.tokens) and state.value == state.start_value == 0.2 for state in at_start)


def test_a_right_answer_is_cut_where_its_problems_restarts_stand(cutter):
    one = [answer(LONG, VALUES, right=True, group="u"), *[answer(LONG, VALUES) for _ in range(3)]]

    def cut(aimed, **settings):
        [state] = kept(one, cutter, origin="right", aimed=lambda query_id: aimed, **settings)
        return len(state.tokens), state.aim

    assert cut([]) == (4, 0.5), "4 and 6 are as near to a half of 10"
    assert cut([(0.5, 8, 8)]) == (4, 0.375) and cut([(0.5, 8, 0)]) == (6, 0.625)
    assert cut([(0.5, 8, 8)], right_cut="fixed") == (4, None)


def test_answers_in_another_order_leave_the_same_states(cutter):
    answers = [answer([*LONG, n], query=str(n), group=str(n)) for n in range(2, 7)]
    first = kept(answers, cutter, failed_cut="random", admit=0.4)
    again = kept(answers[::-1], cutter, failed_cut="random", admit=0.4)
    assert [s.tokens.tolist() for s in first] == [s.tokens.tolist() for s in again]


def test_there_is_room_for_the_rest_and_no_end_in_a_state(cutter):
    long = [2, 1] * 8
    assert max(len(state.tokens) for state in kept([answer(long, [0.1 * n for n in range(16)])], cutter)) == 12
    assert kept([answer([NEVER, 1, 2, 1, 3], [0.0, 1.0, 1.0, 1.0, 1.0])], cutter) == []


def test_a_hard_problem_gives_a_state_of_its_solution_where_there_is_one(cutter):
    answers = [answer([*LONG, n], [*VALUES, 0.0], query=q, group=q) for q in ("a", "b") for n in (2, 3)]
    answers.append(answer(LONG, VALUES, right=True, query="easy", group="easy"))
    found = kept(answers, cutter, floor=9, solution=lambda query_id: LONG if query_id != "b" else [])
    assert [(state.query_id, state.origin, state.tokens.tolist(), state.value) for state in found] == [
        ("a", "reference", [2, 1, 3, 1], None)
    ]
