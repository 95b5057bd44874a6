"""Cuts, their scores and what is drawn: by hand, in the limits, under invariances, against slow loops."""

import math
import random

import numpy as np
import pytest

from recipe.common.restart.cuts import DIGIT, ENDS, STOPS, cut_points, random_cut, step_ends
from recipe.rrl.cuts import LADDER, admitted, best_cut, draw_weights, drawn, fixed_cut, steer, steered

TEXTS = ["<end>", "a", ".", "b.\n", "5", " c", "\n\n", "!", "d. ", "</think>"]
END, A, STOP, LINE, FIVE, C, BLANK, CALL, SENTENCE, THOUGHT = range(len(TEXTS))
BITS = step_ends(TEXTS, special=[END, 10_000])
WHOLE = {"room": 0, "max_length": 1_000, "lowest": 0.0, "highest": 1.0}


def cuts(*tokens: int, **settings) -> list[int]:
    return cut_points(np.array(tokens), BITS, **(WHOLE | settings)).tolist()


def random_answer(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, len(TEXTS), size=seed % 40)


# steps


def test_newlines_and_full_stops_end_a_step_and_nothing_else_does():
    assert BITS.tolist() == [0, 0, STOPS, ENDS, DIGIT, 0, ENDS, 0, STOPS, 0]
    assert step_ends(["。", "1.", "\n  ", ".\r\n"], []).tolist() == [STOPS, STOPS | DIGIT, ENDS, ENDS]


def test_a_special_token_never_ends_a_step_whatever_its_text_is():
    assert step_ends(["\n", "\n"], special=[1]).tolist() == [ENDS, 0]


def test_a_cut_lies_behind_the_token_that_ends_a_step_and_never_at_the_end_of_the_answer():
    assert cuts(A, LINE, A, STOP, C, BLANK) == [2, 4]


def test_a_full_stop_before_a_digit_is_within_a_number():
    assert cuts(A, STOP, FIVE, STOP, C) == [4]


def test_a_prefix_holds_a_share_of_the_answer_between_the_lowest_and_the_highest():
    answer = [LINE] * 20
    assert cuts(*answer, lowest=0.05, highest=0.8) == list(range(1, 17))
    assert cuts(*answer, lowest=0.1, highest=0.8) == list(range(2, 17))
    assert cuts(*[LINE] * 30, lowest=0.1, highest=0.1) == [3]  # 0.1 * 30 > 3 in floats


def test_a_prefix_leaves_room_for_the_rest_of_the_answer():
    assert cuts(*[LINE] * 6, room=4, max_length=8) == [1, 2, 3, 4]
    assert cuts(*[LINE] * 6, room=8, max_length=8) == []


def test_no_prefix_holds_a_token_that_it_must_not_hold():
    assert cuts(LINE, LINE, THOUGHT, LINE, A, never=[THOUGHT]) == [1, 2]
    assert cuts(THOUGHT, LINE, A, never=[THOUGHT]) == []


def test_an_empty_answer_one_of_one_token_and_ids_past_the_vocabulary_have_no_cut():
    assert cuts() == cuts(LINE) == cuts(99, 99) == []


def test_a_slow_loop_finds_the_same_cuts():
    for seed in range(200):
        tokens, found = random_answer(seed).tolist(), []
        for t in range(1, len(tokens)):
            last, following = TEXTS[tokens[t - 1]].rstrip(" "), TEXTS[tokens[t]]
            ended = last.endswith("\n") or (last.endswith(".") and not following[0].isdigit())
            short = 0.1 * len(tokens) <= t <= 0.7 * len(tokens) and 25 - t >= 5
            if ended and short and THOUGHT not in tokens[:t]:
                found.append(t)
        settings = {"lowest": 0.1, "highest": 0.7, "room": 5, "max_length": 25, "never": [THOUGHT]}
        assert cuts(*tokens, **settings) == found


# which cut


def test_the_fixture_of_the_note_the_best_cut_before_the_last_part():
    values, points = np.array([0.2, 0.1, 0.6, 0.9, 0.3]), np.array([1, 2])
    assert best_cut(values, points, "gain") == (2, pytest.approx(0.4))
    assert best_cut(values, points, "raw") == (2, pytest.approx(0.6))


def test_the_earliest_of_equal_cuts_is_taken_and_none_where_there_is_no_cut():
    assert best_cut(np.array([0.0, 0.5, 0.1, 0.5]), np.array([1, 2, 3]), "raw") == (1, 0.5)
    assert best_cut(np.array([0.0, 0.5]), np.array([], dtype=int), "gain") is None


def test_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match="score must be one of gain, raw, got 'best'"):
        best_cut(np.zeros(3), np.array([1]), "best")


def test_a_shift_of_all_values_changes_no_cut_and_no_gain():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values, points = rng.normal(size=9), np.flatnonzero(rng.integers(0, 2, 9)[1:]) + 1
        before, after = best_cut(values, points, "gain"), best_cut(values + 7.0, points, "gain")
        assert (before is None and after is None) or (before[0] == after[0] and before[1] == pytest.approx(after[1]))


def test_the_critics_favourite_is_what_a_slow_loop_finds():
    rng = np.random.default_rng(1)
    for _ in range(50):
        values, points = rng.integers(0, 4, 12) / 4, np.unique(rng.integers(1, 12, 5))
        best = points[0]
        for point in points:
            if values[point] > values[best]:
                best = point
        assert best_cut(values, points, "gain") == (best, values[best] - values[0])


def test_a_random_cut_is_each_of_them_equally_often_and_the_same_with_the_same_seed():
    points, rng = np.array([2, 5, 9]), random.Random(0)
    seen = [random_cut(points, rng) for _ in range(3_000)]
    assert all(abs(seen.count(point) - 1_000) < 100 for point in points)
    again = random.Random(0)
    assert seen == [random_cut(points, again) for _ in range(3_000)]
    assert random_cut(points[:0], rng) is None


def test_a_fixed_cut_is_the_nearest_one_and_the_earlier_of_two():
    points = np.array([2, 4, 9])
    assert [fixed_cut(points, share, 10) for share in (0.0, 0.3, 0.5, 1.0)] == [2, 2, 4, 9]
    assert fixed_cut(points[:0], 0.5, 10) is None


# which states are kept


def test_a_state_must_pass_the_floor_and_be_in_the_highest_share():
    scores = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert admitted(scores, 0.0, 0.25).tolist() == [False, False, False, True, True]
    assert admitted(scores, 0.45, 0.25).tolist() == [False, False, False, False, True]
    assert admitted(scores, 0.6, 1.0).tolist() == [False] * 5
    assert admitted([], 0.0, 0.2).tolist() == []


def test_the_whole_share_admits_by_the_floor_alone_and_equal_scores_stand_or_fall_together():
    scores = np.random.default_rng(0).normal(size=50)
    assert (admitted(scores, 0.1, 1.0) == (scores >= 0.1)).all()
    assert admitted([0.3] * 7, 0.1, 0.2).all() and not admitted([0.3] * 7, 0.4, 0.2).any()


def test_the_order_of_a_step_does_not_decide_who_is_kept():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=31)
    order = rng.permutation(31)
    assert (admitted(scores[order], -1.0, 0.2) == admitted(scores, -1.0, 0.2)[order]).all()


# how long a right prefix is


def test_success_above_one_half_shortens_the_prefix_and_success_below_lengthens_it():
    assert [steer(0.5, right, 8) for right in (8, 5, 4, 3, 0)] == [0.375, 0.375, 0.5, 0.625, 0.625]


def test_few_tries_move_nothing_and_the_ladder_has_two_ends():
    assert steer(0.5, 7, 7) == 0.5 and steer(0.5, 2, 2, enough=2) == 0.375
    assert steer(LADDER[0], 8, 8) == LADDER[0] and steer(LADDER[-1], 0, 8) == LADDER[-1]


def test_a_share_between_two_rungs_is_taken_as_the_nearest():
    assert [steer(share, 4, 8) for share in (0.0, 0.27, 0.1875, 0.99)] == [0.125, 0.25, 0.125, 0.875]


def test_success_is_steered_to_one_half_where_a_longer_prefix_is_an_easier_one():
    rng, share, shares = random.Random(0), 0.875, []
    for _ in range(2_000):
        right = sum(rng.random() < share**2 for _ in range(8))  # one half at 0.71, between the rungs 5/8 and 6/8
        share = steer(share, right, 8)
        shares.append(share)
    assert abs(np.mean([share**2 for share in shares[100:]]) - 0.5) < 0.03
    assert shares.count(0.625) + shares.count(0.75) > 1_200


def test_restarts_that_aimed_elsewhere_do_not_move_a_query():
    seven_of_eight = [(0.5, 4, 4), (0.5, 4, 3)]
    assert steered([], 0.5) == 0.5
    assert steered(seven_of_eight, 0.5) == 0.375
    assert steered([*seven_of_eight, (0.625, 99, 0), (0.375, 4, 1)], 0.5) == 0.375
    assert steered([*seven_of_eight, (0.375, 4, 1), (0.375, 4, 1)], 0.5) == 0.5


def test_a_restart_counts_for_one_move_only():
    assert steered([(0.5, 16, 16)] * 9, 0.5) == 0.375
    assert steered([(share, 8, 8) for share in (0.5, 0.375, 0.25, 0.125, 0.125)], 0.5) == 0.125


# which states are drawn


def test_half_the_draws_for_four_times_the_turns_already_taken():
    assert draw_weights([0.1, 0.1], [0, 3], 0.1) == pytest.approx([2 / 3, 1 / 3])
    assert draw_weights([0.1, 0.0], [5, 5], 0.1) == pytest.approx([math.e / (1 + math.e), 1 / (1 + math.e)])
    assert draw_weights([], [], 0.1).tolist() == []


def test_gains_of_any_size_give_finite_weights_that_depend_on_differences_alone():
    gains, tries = np.array([0.0, 0.3, 0.5]), np.array([0, 1, 7])
    expected = draw_weights(gains, tries, 0.1)
    for shift in (-1e5, 1e5):
        assert draw_weights(gains + shift, tries, 0.1) == pytest.approx(expected, rel=1e-6)
    assert draw_weights([-1e9, 1e9], [0, 0], 1e-3).tolist() == [0.0, 1.0]


def test_an_infinite_temperature_leaves_the_tries_alone_to_decide():
    assert draw_weights([0.0, 9.0, -9.0], [0, 0, 0], math.inf) == pytest.approx([1 / 3] * 3)


def test_a_slow_loop_finds_the_same_weights():
    rng = np.random.default_rng(3)
    gains, tries = rng.normal(size=20), rng.integers(0, 9, 20)
    raw = [math.exp(gain / 0.3) / math.sqrt(1 + count) for gain, count in zip(gains, tries, strict=True)]
    assert draw_weights(gains, tries, 0.3) == pytest.approx([weight / sum(raw) for weight in raw])


def test_no_two_states_of_a_query_are_drawn_and_never_more_than_there_are_queries():
    queries = ["a", "b", "a", "c", "b"]
    for seed in range(50):
        chosen = drawn(queries, [0.1] * 5, [0] * 5, 9, random.Random(seed), 0.1)
        assert sorted(queries[at] for at in chosen) == ["a", "b", "c"]
    assert drawn([], [], [], 3, random.Random(0), 0.1) == []
    assert drawn(queries, [0.1] * 5, [0] * 5, 0, random.Random(0), 0.1) == []


def test_states_are_drawn_as_often_as_their_weights_say():
    gains, tries, rng = [0.0, 0.1, 0.2], [0, 0, 3], random.Random(0)
    first = [drawn(["a", "b", "c"], gains, tries, 1, rng, 0.1)[0] for _ in range(5_000)]
    for at, weight in enumerate(draw_weights(gains, tries, 0.1)):
        assert abs(first.count(at) / 5_000 - weight) < 0.03


def test_a_state_that_weighs_next_to_nothing_is_drawn_when_it_alone_is_left():
    assert drawn(["a", "b"], [0.0, 1e6], [0, 0], 2, random.Random(0), 1e-3) == [1, 0]


def test_the_same_seed_draws_the_same_states():
    rng = np.random.default_rng(4)
    queries, gains, tries = rng.integers(0, 9, 40).tolist(), rng.normal(size=40), rng.integers(0, 5, 40)
    once, again = (drawn(queries, gains, tries, 5, random.Random(7), 0.5) for _ in range(2))
    assert once == again and len(once) == 5
