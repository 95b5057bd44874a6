"""The sample buffer: what leaves it when it is full, and what stays for a checkpoint."""

import random

import pytest
from remembered import BOTH, PAIR, QUERIES, drawn, look, make_sample, sizes, train

from recipe.common.rows import PLAIN, REFLECTION

MAX_PER_OUTCOME = 3
"""Of the fixture `history`."""


def test_the_oldest_beyond_the_cap_leave_and_the_statistics_stay(history):
    for step in range(1, 6):
        history.add([make_sample([step]), make_sample([step], correct=True)], step)
    assert sorted(drawn(history)) == sorted(drawn(history, correct=True)) == [[3], [4], [5]]
    assert history.size() == 6
    assert history.success_rates(["q"], min_attempts=10) == {"q": 0.5}


def test_the_cap_holds_within_one_step(history):
    history.add([make_sample([token]) for token in range(7)], step=1)
    assert len(drawn(history)) == 3


def test_an_evicted_response_can_be_stored_again(history):
    for step in range(1, 5):
        history.add([make_sample([step])], step)
    history.add([make_sample([1])], step=5)
    assert sorted(drawn(history)) == [[1], [3], [4]]


@pytest.mark.parametrize("max_bytes", [0, 100, 300, 700])
def test_no_step_leaves_more_live_bytes_or_spare_bytes_than_allowed(new_history, max_bytes):
    history = new_history(max_bytes=max_bytes)
    given_up = False
    for step in range(1, 18):
        train(history, step)
        live, spare = sizes(history)
        assert (live, spare) == (history.live_bytes, history.spare_bytes)
        assert live <= max_bytes and spare <= max_bytes
        history.pin(step)
        pinned = history.pinned()
        assert pinned[-1] == step and pinned == list(range(pinned[0], step + 1))
        given_up = given_up or pinned[0] > 0
    assert given_up or max_bytes == 0  # where nothing is ever stored, nothing is spare


def fill(history) -> dict:
    """Three steps of responses of equal size; returns the tokens that are left of each query and outcome."""
    for step in range(1, 4):
        made = [make_sample([step, i], q, i % 2 == 0, step=step) for q in QUERIES for i in range(1, 11)]
        history.add(made, step)
    return {(q, c): sorted(drawn(history, q, c)) for q in QUERIES for c in (False, True)}


def test_equal_seeds_evict_alike_and_others_do_not(new_history):
    survivors = [fill(new_history(99, max_bytes=40 * PAIR, seed=seed)) for seed in (1, 1, 2, 3)]
    assert survivors[0] == survivors[1]
    assert survivors[0] != survivors[2] != survivors[3] != survivors[0]
    assert all(0 < sum(map(len, left.values())) <= 40 for left in survivors)
    for left in survivors:  # a lottery: neither the oldest nor the newest of a query and outcome all leave
        assert {step for tokens in left.values() for step, _ in tokens} == {1, 2, 3}


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_of_a_query_and_outcome_stays_while_something_else_can_go(new_history, seed):
    history = new_history(99, max_bytes=14 * PAIR, seed=seed)  # room for 14 responses of 6 queries and outcomes
    for step in range(1, 20):
        buckets = [(q, c) for q in QUERIES for c in (False, True)]
        present = random.Random(f"{seed} {step}").sample(buckets, 4)
        history.add([make_sample([step, i], q, c) for q, c in present for i in (1, 2, 3)], step)
        for query, correct in present:
            assert step in {sample.step for sample in history.draw(query, correct, 99, random.Random(0))}
    assert all(drawn(history, q, c) for q in QUERIES for c in (False, True))


def test_the_newest_go_too_when_nothing_else_is_left(new_history):
    history = new_history(99, max_bytes=4 * PAIR)
    left = fill(history)
    assert sum(map(len, left.values())) == 3 and max(map(len, left.values())) == 1  # down to 0.9 of the bytes


def test_rates_do_not_know_of_eviction(new_history):
    bounded, unbounded = new_history(1, max_bytes=150), new_history(10**6)
    for step in range(1, 10):
        train(bounded, step)
        train(unbounded, step)
    assert bounded.size() < unbounded.size()
    for variants in ((PLAIN,), (REFLECTION,), BOTH):
        assert bounded.success_rates(QUERIES, 1, variants) == unbounded.success_rates(QUERIES, 1, variants)


def test_evicted_samples_that_no_pin_needs_are_deleted(new_history):
    history = new_history(max_bytes=500)
    for step in range(1, 20):
        train(history, step)
        assert look(history, "SELECT count(*) FROM payloads") == look(history, "SELECT count(*) FROM samples")
        assert look(history, "SELECT count(*) FROM samples") == [(history.size(),)]


def test_unpinning_deletes_what_only_that_pin_needed(history):
    for step in range(1, 10):
        train(history, step)
        history.pin(step)
    assert history.spare_bytes > 0
    history.unpin(lambda step: step < 9)
    assert history.pinned() == [9]
    assert look(history, "SELECT count(*) FROM payloads") == [(history.size(),)]
    assert history.spare_bytes == 0


def needed(born: int, evicted: int, pins: list[int]) -> bool:
    return any(born <= pin < evicted for pin in pins)


@pytest.mark.parametrize("seed", range(3))
def test_the_file_holds_just_the_samples_that_a_pin_needs(new_history, seed):
    history, rng = new_history(), random.Random(seed)
    kept = 0
    for step in range(1, 20):
        train(history, step)
        if rng.random() < 0.5:
            history.pin(step)
        if rng.random() < 0.4:
            chosen = set(rng.sample(history.pinned(), len(history.pinned()) // 2))
            history.unpin(chosen.__contains__)
        rows = look(history, "SELECT step, evicted FROM samples WHERE evicted IS NOT NULL")
        kept += len(rows)
        assert all(needed(*row, history.pinned()) for row in rows)
    assert kept > 0
