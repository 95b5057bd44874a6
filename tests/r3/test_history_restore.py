"""The sample buffer: that a restored state is the old one, and what is taken over from another history."""

import random
from contextlib import closing

import pytest
from remembered import PAIR, drawn, dump, look, make_sample, present, sizes, train, train_to

from recipe.common.rows import PLAIN
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History

MAX_PER_OUTCOME = 3
"""Of the fixture `history`."""


# restoring


def test_restore_brings_back_every_pinned_state(history):
    states = {0: dump(history), **train_to(history, 7, pins=range(1, 8))}
    assert states[7]["size"] < 7 * 12 and states[7] != states[6]
    for step in (7, 6, 3, 1, 0):
        history.restore(step)
        assert dump(history) == states[step]


@pytest.mark.parametrize("max_bytes", [1 << 20, 600])
@pytest.mark.parametrize("seed", range(6))
def test_any_pinned_state_comes_back_and_training_on_repeats_what_was(new_history, seed, max_bytes):
    """Random pins and unpins, then jumps to pinned states, older ones too, each with some training after it."""
    history, rng = new_history(max_bytes=max_bytes, seed=seed), random.Random(seed)
    last, states, jumps = 16, {0: dump(history)}, 0
    for step in range(1, last + 1):
        states |= train_to(history, step, first=step)
        if rng.random() < 0.5:
            history.pin(step)
        if rng.random() < 0.2:
            history.unpin(lambda step: step and rng.random() < 0.5)
    while history.pinned() and jumps < 8:
        jumps += 1
        pinned = history.pinned()
        step = rng.choice(pinned[-3:])
        for gone in set(range(step, last)) - set(pinned) - {present(history)}:
            with pytest.raises(HistoryError, match=f"checkpoint is of step {gone}"):
                history.restore(gone)
        for _ in range(rng.randint(1, 2)):
            history.restore(step)
            assert dump(history) == states[step]
        assert history.pinned() == [pin for pin in pinned if pin <= step]
        until = min(last, step + rng.randint(0, 6))
        assert train_to(history, until, range(until, last), step + 1) == {
            later: states[later] for later in range(step + 1, until + 1)
        }
    assert jumps == 8


def test_training_on_after_a_restore_repeats_what_the_uninterrupted_run_did(history):
    states = train_to(history, 9, pins=(3, 6))
    history.restore(3)
    assert train_to(history, 9, first=4) == {step: states[step] for step in range(4, 10)}


def test_restore_survives_reopening(tmp_path):
    path = str(tmp_path / "history.sqlite")
    with closing(History(path, 3)) as history:
        states = train_to(history, 8, pins=(2, 5))
    for step in (8, 5, 2):
        with closing(History(path, 3)) as history:
            history.restore(step)
            assert dump(history) == states[step]
        with closing(History(path, 3)) as history:
            assert dump(history) == states[step]


def test_the_last_step_needs_no_pin(history):
    states = train_to(history, 3)
    history.restore(3)
    assert dump(history) == states[3]


def test_a_step_that_is_not_pinned_is_refused_with_the_steps_that_are(history):
    states = train_to(history, 9, pins=(3, 6))
    with pytest.raises(
        HistoryError, match=r"checkpoint is of step 5, .*can go back to steps \[0, 3, 6\].*start a new run"
    ):
        history.restore(5)
    assert dump(history) == states[9]
    history.unpin(lambda step: step == 3)
    with pytest.raises(HistoryError, match=r"checkpoint is of step 3, .*can go back to steps \[0, 6\]"):
        history.restore(3)


def test_a_step_beyond_the_end_is_refused(history):
    states = train_to(history, 4, pins=(4,))
    with pytest.raises(HistoryError, match="checkpoint is of step 5, .*ends at step 4; put the right file back"):
        history.restore(5)
    assert dump(history) == states[4]


def test_a_pinned_step_without_responses_can_be_restored(history):
    states = train_to(history, 4)
    history.add([], 5)
    history.pin(5)
    history.restore(5)
    assert dump(history) == states[4]


def test_abandoned_samples_stay_in_the_file_and_are_never_drawn(new_history):
    history = new_history(max_per_outcome=99)
    history.add([make_sample([1])], step=1)
    history.pin(1)
    history.add([make_sample([2]), make_sample([3])], step=2)
    told = history.restore(1)
    assert told[-1] == "1 samples, 2 abandoned ones, restored to step 1"
    assert drawn(history) == [[1]]
    assert look(history, "SELECT count(*) FROM payloads") == [(3,)]
    assert look(history, "SELECT step FROM samples WHERE abandoned") == [(2,), (2,)]
    history.add([make_sample([2])], step=2)  # the same response again is a sample of its own
    assert sorted(drawn(history)) == [[1], [2]]


def test_abandoned_samples_stay_so_through_any_number_of_restores(history):
    states = {0: dump(history), **train_to(history, 4, pins=(2, 4))}
    for step in (2, 2, 0, 0):
        history.restore(step)
        assert dump(history) == states[step]
    assert look(history, "SELECT count(*) FROM samples WHERE NOT abandoned") == [(0,)]


def test_abandoned_samples_go_before_a_pin_is_given_up(new_history):
    history = new_history(99, max_bytes=20 * PAIR)
    history.add([make_sample([1, 1])], step=1)
    history.pin(1)
    for branch in range(2, 9):
        history.add([make_sample([branch, i]) for i in range(1, 10)], step=2)
        history.restore(1)
    history.add([make_sample([1, 2])], step=2)
    assert (
        sizes(history) == (2 * PAIR, history.spare_bytes)
        and history.spare_bytes <= 20 * PAIR
        and history.pinned() == [0, 1]
    )
    history.restore(1)
    assert drawn(history) == [[1, 1]]


def test_another_tokenizer_refuses_the_samples_and_names_the_way_out(history):
    identity = {"tokenizer": "t1", "model": "m1", "max_per_outcome": "3"}
    history.restore(0, identity)
    states = train_to(history, 3, pins=(3,))
    with pytest.raises(HistoryError, match=r"another tokenizer \(t1\) than the model's \(t2\); start a new run"):
        history.restore(3, {**identity, "tokenizer": "t2"})
    assert dump(history) == states[3]
    history.restore(3, identity)


def test_another_model_or_capacity_is_told(history):
    identity = {"tokenizer": "t1", "model": "m1", "max_per_outcome": "3"}
    assert len(history.restore(0, identity)) == len(history.restore(0, identity)) == 1
    told = history.restore(0, {**identity, "model": "m2", "max_per_outcome": "5"})
    assert told[:2] == ["max_per_outcome changed from 3 to 5", "model changed from m1 to m2"]


def test_replays_are_restored_too(history):
    history.add([make_sample([1])], step=1)
    (sample,) = history.draw("q", False, 1, random.Random(0))
    history.add([], 2, [(sample, PLAIN)])
    history.pin(2)
    history.add([make_sample([9], "other")], 3, [(sample, PLAIN)])
    history.restore(2)
    assert look(history, "SELECT step, query_id, times FROM replays") == [(2, "q", 1)]


def test_lower_bounds_are_kept_after_the_next_step(tmp_path):
    path = str(tmp_path / "history.sqlite")
    with closing(History(path, 9)) as history:
        states = train_to(history, 6, pins=(6,))
        assert history.live_bytes > 300
    with closing(History(path, 9, max_bytes=300)) as history:
        history.restore(6)
        train(history, 7)
        assert sizes(history) == (history.live_bytes, history.spare_bytes)
        assert history.live_bytes <= 300 < history.spare_bytes  # the newest checkpoint is never given up
        history.restore(6)
        assert dump(history) == states[6]


# taking over another history


def test_absorbed_samples_and_counts_are_of_step_zero(history):
    history.absorb([make_sample([1], step=7)], [("q", PLAIN, 4, 1, 0)])
    assert history.draw("q", False, 1, random.Random(0))[0].step == 0
    assert history.success_rates(["q"], 4) == {"q": 0.25}
    expected = drawn(history)
    history.add([make_sample([2])], step=1)
    history.restore(0)
    assert drawn(history) == expected and history.success_rates(["q"], 4) == {"q": 0.25}
    history.add([make_sample([2])], step=1)
    with pytest.raises(HistoryError, match="has 1 steps of its own"):
        history.absorb([make_sample([3])], [])


def test_absorbing_is_all_or_none(history):
    def breaks_off():
        yield from (make_sample([token], f"query {token}") for token in range(2000))
        raise HistoryError("the other file is damaged")

    with pytest.raises(HistoryError, match="the other file is damaged"):
        history.absorb(breaks_off(), [])
    assert history.size() == 0 == history.live_bytes
