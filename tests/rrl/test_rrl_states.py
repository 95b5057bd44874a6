"""What the state buffer holds and draws: by hand, in the limits, under invariances, against a slow buffer of lists.

The file that it lives in, and what can happen to that, is in test_rrl_states_file.py.
"""

import copy
import math
import random
from collections import Counter

import numpy as np
import pytest
from stated import QUERIES, contents, held, ids, make_state, open_buffer, random_states

from recipe.common.store.codec import digest_of
from recipe.rrl.states import FAILED, REFERENCE, RIGHT


@pytest.fixture
def buffer(tmp_path):
    buffer = open_buffer(tmp_path / "states.sqlite")
    yield buffer
    buffer.close()


@pytest.fixture
def roomy(tmp_path):
    buffer = open_buffer(tmp_path / "states.sqlite", max_per_query=99, max_states=99)
    yield buffer
    buffer.close()


# what is stored


def test_a_state_comes_back_as_it_was_given(buffer):
    given = make_state([5, 70_000, 3], "problem", gain=0.25, length=40, step=7, aim=0.5)
    buffer.add([given], 9)
    [state] = buffer.draw(1, random.Random(0), 0.1)
    assert state.tokens.tolist() == [5, 70_000, 3] and state.tokens.dtype == np.int32
    assert (state.query_id, state.origin, state.length, state.step, state.aim) == ("problem", FAILED, 40, 7, 0.5)
    assert (state.value, state.start_value) == (0.45, 0.2)
    assert (state.value_now, state.start_now, state.tries, state.successes) == (None, None, 0, 0)
    [listed] = buffer.candidates()
    assert (listed.id, listed.cut, listed.gain) == (state.id, 3, pytest.approx(0.25))


def test_equal_tokens_of_a_query_are_stored_once_and_those_of_another_query_too(buffer):
    buffer.add([make_state([1, 2]), make_state([1, 2], origin=RIGHT), make_state([1, 2], "other")], 1)
    buffer.add([make_state([1, 2]), make_state([2, 1])], 2)
    assert [(each.query_id, each.origin) for each in buffer.candidates()].count(("q", FAILED)) == 2
    assert buffer.size() == 3
    assert buffer.metrics()["states/refused"] == 1 and buffer.metrics()["states/added"] == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"origin": "best"}, "origin must be one of failed, right, reference, got 'best'"),
        ({"length": 2}, "fewer tokens than the 2 of its answer, got 2"),
        ({"value": None}, "value and start_value must both be given or neither, got None and 0.2"),
        ({"value": math.nan}, "must be finite, got nan"),
        ({"aim": math.inf}, "must be finite, got inf"),
    ],
)
def test_what_cannot_be_a_state_is_refused_and_nothing_of_its_step_is_stored(buffer, changes, message):
    with pytest.raises(ValueError, match=message):
        buffer.add([make_state([1, 3]), make_state([1, 2], **changes)], 1)
    assert buffer.size() == 0


def test_the_start_of_a_problem_is_one_state_with_tries_of_its_own(buffer):
    buffer.add([make_state([], length=5), make_state([], length=7), make_state([1], length=5)], 1)
    assert held(buffer) == [[], [1]]
    assert buffer.ids_of([("q", np.array([]))]) == [ids(buffer)[()]]
    buffer.tried([(ids(buffer)[()], 4, 1)], 2)
    assert sorted((each.cut, each.tries) for each in buffer.candidates()) == [(0, 4), (1, 0)]


def test_the_start_of_a_problem_comes_back_after_its_tries_and_a_state_does_not(buffer):
    both = [make_state([], length=5), make_state([1], length=5)]
    buffer.add(both, 1)
    buffer.tried([(state_id, 16, 0) for state_id in ids(buffer).values()], 2)
    assert held(buffer) == []
    buffer.add(both, 3)
    assert held(buffer) == [[]] and buffer.candidates()[0].tries == 16


def test_the_order_of_arrival_changes_nothing(tmp_path):
    found = []
    for seed in range(3):
        with_order = open_buffer(tmp_path / f"{seed}.sqlite")
        for step in range(1, 6):
            states = random_states(step, 12)
            random.Random(seed).shuffle(states)
            with_order.add(states, step)
        draws = [state.tokens.tolist() for state in with_order.draw(4, random.Random(1), 0.1)]
        found.append((contents(with_order), draws, [each.id for each in with_order.candidates()]))
        with_order.close()
    assert found[0] == found[1] == found[2]


# who leaves


def test_the_lowest_gain_of_a_query_and_origin_leaves_first_whatever_its_age(buffer):
    buffer.add([make_state([1], gain=0.5)], 1)
    for step, gain in enumerate((0.1, 0.3, 0.2, 0.4), start=2):
        buffer.add([make_state([step], gain=gain)], step)
    assert held(buffer) == [[1], [3], [5]]
    buffer.add([make_state([9], origin=RIGHT, gain=None), make_state([8], "other", gain=0.0)], 9)
    assert held(buffer) == [[1], [3], [5], [8], [9]]


def test_a_later_value_decides_in_place_of_the_first_one(buffer):
    buffer.add([make_state([1], gain=0.1), make_state([2], gain=0.2), make_state([3], gain=0.3)], 1)
    buffer.revalue([(ids(buffer)[3,], 0.2, 0.2), (ids(buffer)[1,], 0.9, 0.1)], 1)
    buffer.add([make_state([4], gain=0.15)], 2)
    assert held(buffer) == [[1], [2], [4]]


def test_without_values_the_most_tried_leaves_first(buffer):
    buffer.add([make_state([at], origin=RIGHT, gain=None) for at in (1, 2, 3)], 1)
    buffer.tried([(ids(buffer)[2,], 4, 1), (ids(buffer)[1,], 2, 1)], 1)
    buffer.add([make_state([4], origin=RIGHT, gain=None)], 2)
    assert held(buffer) == [[1], [3], [4]]


def test_the_whole_keeps_its_best_by_gain_and_not_by_raw_value(buffer):
    hard = [make_state([1], f"hard{at}", gain=0.3 + at / 100) for at in range(9)]
    easy = make_state([1], "easy", value=0.95, start_value=0.9)
    buffer.add([*hard, easy], 1)
    assert buffer.size() == 9 and "easy" not in {each.query_id for each in buffer.candidates()}


def test_a_mastered_state_leaves_once_it_was_tried_often_enough(roomy):
    roomy.add([make_state([at]) for at in (1, 2, 3)], 1)
    rows = ids(roomy)
    roomy.tried([(rows[1,], 3, 3), (rows[2,], 4, 3), (rows[3,], 4, 2)], 2)
    assert held(roomy) == [[1], [3]]
    roomy.tried([(rows[1,], 1, 0)], 3)
    assert held(roomy) == [[3]]


def test_a_state_that_never_succeeds_leaves_and_one_that_did_once_stays(roomy):
    roomy.add([make_state([at]) for at in (1, 2, 3)], 1)
    rows = ids(roomy)
    for step in range(2, 6):
        roomy.tried([(rows[1,], 4, 0), (rows[2,], 4, int(step == 2)), (rows[3,], 3, 0)], step)
    assert held(roomy) == [[2], [3]]


def test_who_left_by_its_tries_does_not_come_back_and_who_left_over_a_cap_does_with_its_tries(buffer):
    buffer.add([make_state([1], gain=0.9), make_state([2], gain=0.1)], 1)
    rows = ids(buffer)
    buffer.tried([(rows[1,], 4, 4), (rows[2,], 4, 1)], 2)
    buffer.add([make_state([at], gain=0.5) for at in (3, 4, 5)], 3)
    assert held(buffer) == [[3], [4], [5]]
    buffer.add([make_state([1], gain=0.9), make_state([2], gain=0.9)], 4)
    assert buffer.metrics()["states/refused"] == 1
    [again] = [each for each in buffer.candidates() if each.gain > 0.6]
    assert (again.tries, again.successes) == (4, 1) and [2] in held(buffer)


def test_restarts_of_a_state_that_left_the_file_are_passed_over(buffer):
    buffer.add([make_state([1])], 1)
    buffer.tried([(99, 4, 4)], 2)
    buffer.revalue([(99, 0.1, 0.1)], 2)
    assert contents(buffer)[0][-2:] == (0, 0)


def test_counts_and_values_that_cannot_be_are_refused(buffer):
    with pytest.raises(ValueError, match="state 1: successes must be from 0 to its 4 tries, got 5"):
        buffer.tried([(1, 4, 5)], 1)
    with pytest.raises(ValueError, match="state 1: values must be finite, got nan and 0.5"):
        buffer.revalue([(1, math.nan, 0.5)], 1)


def test_tries_of_one_step_in_two_parts_add_up(buffer):
    buffer.add([make_state([1])], 1)
    for _ in range(2):
        buffer.tried([(1, 2, 1)], 2)
    [listed] = buffer.candidates()
    assert (listed.tries, listed.successes) == (4, 2)


# who is drawn


def test_candidates_are_those_of_the_queries_and_origins_that_leave_room(roomy):
    roomy.add([make_state([1, 1]), make_state([2], origin=RIGHT), make_state([3, 3, 3], "b", origin=REFERENCE)], 1)
    assert held(roomy, max_cut=2) == [[1, 1], [2]]
    assert held(roomy, origins=(RIGHT, REFERENCE)) == [[2], [3, 3, 3]]
    assert held(roomy, query_ids=["b", "none"]) == [[3, 3, 3]]
    assert held(roomy, query_ids=[]) == held(roomy, origins=()) == []
    assert roomy.draw(5, random.Random(0), 0.1, query_ids=["q"], origins=(RIGHT,))[0].tokens.tolist() == [2]


def test_a_draw_holds_no_two_states_of_a_query(roomy):
    roomy.add([make_state([at], query) for at in range(5) for query in QUERIES], 1)
    for seed in range(20):
        states = roomy.draw(9, random.Random(seed), 0.1)
        assert sorted(state.query_id for state in states) == list(QUERIES)


def test_a_state_is_drawn_by_its_newest_gain_and_its_tries(roomy):
    roomy.add([make_state([1], gain=0.0), make_state([2], gain=0.0), make_state([3], gain=5.0)], 1)
    rows = ids(roomy)
    roomy.revalue([(rows[3,], 0.1, 0.1)], 1)
    roomy.tried([(rows[2,], 8, 4)], 1)
    rng = random.Random(0)
    counts = Counter(roomy.draw(1, rng, 0.1)[0].tokens.tolist()[0] for _ in range(700))
    assert abs(counts[1] - 300) < 60 and abs(counts[2] - 100) < 40 and abs(counts[3] - 300) < 60


def test_an_empty_buffer_draws_nothing_and_measures_nothing(buffer):
    assert buffer.draw(3, random.Random(0), 0.1) == [] and buffer.aimed("q") == []
    counts = {"failed": 0, "right": 0, "reference": 0, "added": 0, "refused": 0, "bytes": 0}
    assert buffer.metrics() == {f"states/{name}": count for name, count in counts.items()}


def test_what_steers_a_query_outlives_its_states_and_leaves_other_cuts_out(roomy):
    roomy.add([make_state([1], aim=0.5), make_state([2])], 1)
    rows = ids(roomy)
    roomy.tried([(rows[1,], 4, 4), (rows[2,], 4, 1)], 2)
    assert held(roomy) == [[2]] and roomy.aimed("q") == [(0.5, 4, 4)]


def test_metrics_are_those_of_what_can_be_drawn(roomy):
    roomy.add([make_state([1, 2, 3], step=2), make_state([4], "b", origin=RIGHT, gain=None, step=4)], 4)
    roomy.tried([(1, 4, 1), (2, 2, 1)], 6)
    found = roomy.metrics()
    assert (found["states/failed"], found["states/right"], found["states/added"]) == (1, 1, 2)
    assert (found["states/age"], found["states/tries"], found["states/success_rate"]) == (
        3.0,
        3.0,
        pytest.approx(1 / 3),
    )
    assert found["states/bytes"] == roomy.live_bytes > 0


# a slow buffer of lists


class SlowBuffer:
    """The rules as they are told, on lists, with a copy of everything for each checkpoint."""

    def __init__(self):
        self.states, self.tries, self.pins = [], {}, {}

    def gain(self, state):
        now, start = state["now"] or (state["value"], state["start"])
        return 0.0 if now is None else now - start

    def counts(self, state):
        return self.tries.get((state["query"], state["tokens"]), (0, 0))

    def is_done(self, state):
        tries, right = self.counts(state)
        return (tries >= 4 and right / tries >= 0.75) or (tries >= 16 and right == 0)

    def rank(self, state):
        digest = digest_of(np.array(state["tokens"], dtype="<i4"), 0)
        return -self.gain(state), self.counts(state)[0], digest, state["query"]

    def add(self, states):
        for state in states:
            new = {"query": state.query_id, "tokens": tuple(state.tokens.tolist()), "origin": state.origin}
            new |= {"value": state.value, "start": state.start_value, "now": None}
            same = [old for old in self.states if (old["query"], old["tokens"]) == (new["query"], new["tokens"])]
            if not same and not self.is_done(new):
                self.states.append(new)
        self.states.sort(key=self.rank)
        room = Counter()
        for state in list(self.states):
            room[state["query"], state["origin"]] += 1
            if room[state["query"], state["origin"]] > 3:
                self.states.remove(state)
        self.states = self.states[:9]

    def tried(self, key, tries, right):
        before = self.tries.get(key, (0, 0))
        self.tries[key] = before[0] + tries, before[1] + right
        self.states = [state for state in self.states if not self.is_done(state)]

    def seen(self):
        return sorted(
            (state["query"], state["tokens"], state["origin"], pytest.approx(self.gain(state)), *self.counts(state))
            for state in self.states
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_buffer_of_lists_holds_the_same_after_steps_checkpoints_and_ways_back(tmp_path, seed):
    buffer, slow, rng, step = open_buffer(tmp_path / "states.sqlite"), SlowBuffer(), random.Random(seed), 0
    slow.pins[0] = copy.deepcopy((slow.states, slow.tries))
    for _ in range(40):
        step += 1
        listed = buffer.load(buffer.candidates())
        for state in rng.sample(listed, min(2, len(listed))):
            right = rng.choice((0, 0, 2, 4))
            buffer.tried([(state.id, 4, right)], step)
            slow.tried((state.query_id, tuple(state.tokens.tolist())), 4, right)
        for state in rng.sample(listed, min(3, len(listed))):
            now = rng.random(), rng.random() / 2
            buffer.revalue([(state.id, *now)], step)
            for other in slow.states:
                if (other["query"], other["tokens"]) == (state.query_id, tuple(state.tokens.tolist())):
                    other["now"] = now
        states = {(s.query_id, s.tokens.tobytes()): s for s in random_states(1_000 * seed + step)}.values()
        buffer.add(states, step)
        slow.add(states)
        chance = rng.random()
        if chance < 0.3:
            buffer.pin(step)
            slow.pins[step] = copy.deepcopy((slow.states, slow.tries))
        elif chance < 0.4 and slow.pins:
            gone = rng.choice(list(slow.pins))
            buffer.unpin(lambda pinned, gone=gone: pinned == gone)
            del slow.pins[gone]
        elif chance < 0.55 and buffer.pinned():  # perhaps none: evicted states have a bound, too
            step = rng.choice(buffer.pinned())
            buffer.restore(step)
            slow.states, slow.tries = copy.deepcopy(slow.pins[step])
            slow.pins = {pinned: kept for pinned, kept in slow.pins.items() if pinned <= step}
        found = [
            (s.query_id, tuple(s.tokens.tolist()), s.origin, listed.gain, s.tries, s.successes)
            for listed in buffer.candidates()
            for s in buffer.load([listed])
        ]
        assert sorted(found) == slow.seen()
    buffer.close()
