"""The sample buffer: what is stored, counted and drawn.

The file it lives in, and what can happen to that, is in test_history_file.py and test_history_damage.py.
"""

import random
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest
from remembered import BOTH, drawn, dump, logical, look, make_sample, random_step, sizes, train

from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.file import HistoryError

MAX_PER_OUTCOME = 3
"""Of the fixture `history`."""


def change(history, sql: str, values=()) -> None:
    """Change the file behind the history's back."""
    history.flush()
    with closing(sqlite3.connect(history.path)) as database, database:
        assert database.execute(sql, values).rowcount != 0


# storing


def test_numbers_of_the_docstring_example(history):
    history.add([make_sample([1], "a"), make_sample([2], "a"), make_sample([3], "a", correct=True)], step=1)
    assert history.success_rates(["a"], min_attempts=3) == {"a": 1 / 3}
    assert drawn(history, "a", correct=True, k=2) == [[3]]


@pytest.mark.parametrize("largest", [2**16, 151_643, 2**31])
def test_random_responses_come_back(new_history, largest):
    history, rng = new_history(max_per_outcome=99), np.random.default_rng(largest)
    stored, samples = {}, []
    for length in range(1, 60):
        tokens, log_probs = rng.integers(largest, size=length), -rng.exponential(size=length).astype("float32")
        tokens[0] = largest - 1
        stored[tokens.astype("int32").tobytes()] = log_probs
        samples.append(make_sample(tokens, log_probs=log_probs))
    history.add(samples, step=1)
    samples = history.draw("q", False, 99, random.Random(0))
    assert {sample.tokens.tobytes() for sample in samples} == set(stored)
    for sample in samples:
        assert sample.log_probs == pytest.approx(stored[sample.tokens.tobytes()], rel=2**-11, abs=2**-25)
    assert (history.live_bytes, 0) == sizes(history)


@pytest.mark.parametrize("largest, bytes_per_token", [(60_000, 4.6), (151_643, 4.8)])
def test_a_token_with_its_log_prob_costs_less_than_five_bytes(history, largest, bytes_per_token):
    """Random ids compress worst."""
    rng = np.random.default_rng(0)
    log_probs = -rng.standard_exponential(20_000, dtype="float32")
    history.add([make_sample(rng.integers(largest, size=20_000), log_probs=log_probs)], step=1)
    history.flush()
    assert history.live_bytes / 20_000 < bytes_per_token


def test_log_probs_come_back_to_float16_precision_and_all_else_exactly(history):
    log_probs = np.array([-0.0, -1e-9, -123.456, -65_504, -1e6, -np.inf], dtype="float32")
    stored = make_sample(range(6), score=1.75, truncated=True, step=9, variant=REFLECTION, log_probs=log_probs)
    history.add([stored], step=9)
    (sample,) = history.draw("q", False, 1, random.Random(0), variants=(REFLECTION,))
    assert sample.log_probs.tolist() == [0, 0, -123.4375, -65_504, -65_504, -65_504]
    assert sample.log_probs.dtype == np.float32
    assert (sample.score, sample.truncated, sample.step, sample.variant) == (1.75, True, 9, REFLECTION)


@pytest.mark.parametrize(
    "changes",
    [
        {"log_probs": np.zeros(2, dtype="float32")},  # a mean of -0.0
        {"log_probs": np.full(2, np.nan, dtype="float32")},
        {"log_probs": None},
        {"score": -0.0},
        {"score": np.float32(0.1)},
        {"correct": np.False_, "truncated": np.True_},
        {"query": np.str_("q")},
        {"tokens": [], "log_probs": np.zeros(0, dtype="float32")},
        {"tokens": np.array([1, 2**20], dtype="int64")},
    ],
)
def test_odd_but_legal_values_are_not_taken_for_damage(history, changes):
    stored = make_sample(**{"tokens": [1, 2], **changes})
    history.add([stored], step=1)
    (sample,) = history.draw("q", False, 1, random.Random(0))
    assert sample.tokens.tolist() == list(stored.tokens) and sample.score == stored.score
    assert (sample.log_probs is None) == (stored.log_probs is None)


def test_an_equal_response_is_counted_again_but_stored_once(history):
    history.add([make_sample([1, 2]), make_sample([1, 2]), make_sample([1, 2, 0])], step=1)
    history.add([make_sample([1, 2])], step=2)
    assert sorted(drawn(history)) == [[1, 2], [1, 2, 0]]
    assert history.success_rates(["q"], min_attempts=4) == {"q": 0.0}
    assert history.success_rates(["q"], min_attempts=5) == {}
    assert look(history, "SELECT count(*) FROM samples") == look(history, "SELECT count(*) FROM payloads") == [(2,)]


def test_equal_responses_of_another_query_variant_or_outcome_are_stored_too(history):
    samples = [make_sample([1]), make_sample([1], variant=REFLECTION), make_sample([1], correct=True)]
    history.add([*samples, make_sample([1], query="other")], step=1)
    assert history.size() == 4


@pytest.mark.parametrize("max_bytes", [1 << 20, 300])
def test_the_order_of_arrival_leaves_no_trace(new_history, max_bytes):
    histories = [new_history(max_bytes=max_bytes) for _ in range(4)]
    for number, history in enumerate(histories):
        for step in range(1, 5):
            samples = random_step(step, samples=30)
            # Equal responses that differ in the rest, too: which of them is stored must not depend on chance.
            samples += [
                make_sample([1], "a", score=score, truncated=truncated, log_probs=np.array([log_prob], dtype="float32"))
                for score in (0.0, 1.0)
                for truncated in (False, True)
                for log_prob in (-1, -2)
            ]
            random.Random(number).shuffle(samples)
            replayed = [(sample, PLAIN) for sample in history.draw("a", None, 3, random.Random(step))]
            history.add(samples, step, random.Random(number).sample(replayed, len(replayed)))
        history.flush()
    assert len({str(dump(history)) for history in histories}) == 1
    assert len({logical(history.path) for history in histories}) == 1


def test_an_empty_step_is_fine(history):
    history.add([], step=1)
    assert history.size() == 0


def after_flush(history):
    history.flush()


def after_draw(history):
    drawn(history)


def after_pin(history):
    history.pin(2)


def after_add(history):
    history.add([make_sample([5])], step=3)


@pytest.mark.parametrize("then", [after_flush, after_draw, after_pin, after_add])
@pytest.mark.parametrize("bad", [{"score": None}, {"score": float("nan")}, {"query": "\ud800"}, {"log_probs": [-1.0]}])
def test_a_step_that_fails_halfway_leaves_nothing_and_raises_at_the_next_call(history, bad, then):
    history.add([make_sample([1])], step=1)
    history.flush()
    before, live_bytes = logical(history.path), history.live_bytes
    history.add([make_sample([2]), make_sample([3, 4], **bad), make_sample([4])], step=2)
    with pytest.raises((HistoryError, TypeError, ValueError)):
        then(history)
    assert logical(history.path) == before
    assert drawn(history) == [[1]] and history.success_rates(["q"], 1) == {"q": 0.0}
    assert history.live_bytes == live_bytes


def test_a_step_that_fails_after_its_evictions_leaves_nothing(new_history):
    history = new_history(max_bytes=200)
    for step in range(1, 4):
        train(history, step)
        history.pin(step)
    before, bounds = logical(history.path), (history.live_bytes, history.spare_bytes)
    change(history, "CREATE TRIGGER broken AFTER UPDATE ON samples BEGIN SELECT raise(ABORT, 'broken'); END")
    train(history, 4)
    with pytest.raises(HistoryError, match="broken"):
        history.flush()
    change(history, "DROP TRIGGER broken")
    assert logical(history.path) == before and (history.live_bytes, history.spare_bytes) == bounds


def test_add_returns_before_the_write_and_the_next_add_waits_for_it(history):
    with closing(sqlite3.connect(history.path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")  # the write lock: no step can be written meanwhile
        history.add([make_sample([1])], step=1)
        assert other.execute("SELECT count(*) FROM samples").fetchone() == (0,)
        second = threading.Thread(target=history.add, args=([make_sample([2])], 2))
        second.start()
        second.join(timeout=0.3)
        assert second.is_alive()
        other.execute("ROLLBACK")
        second.join(timeout=10)
        assert not second.is_alive()
    assert sorted(drawn(history)) == [[1], [2]]
    assert look(history, "SELECT step, attempts FROM statistics") == [(1, 1), (2, 1)]


def test_readers_wait_for_the_write_and_the_wait_is_measured(history):
    with closing(sqlite3.connect(history.path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.add([make_sample([1])], step=1)
        release = threading.Timer(0.3, other.rollback)
        release.start()
        assert drawn(history) == [[1]]
        release.join()
    assert 0.1 < history.wait_seconds < 10 and history.write_seconds > 0


# statistics


def test_rates_leave_out_queries_with_few_attempts_and_unknown_ones(history):
    history.add([make_sample([token], "a", correct=token == 0) for token in range(4)], step=1)
    history.add([make_sample([0], "b")], step=1)
    assert history.success_rates(["a", "b", "never seen"], min_attempts=2) == {"a": 0.25}


def test_rates_count_only_the_asked_variants(history):
    history.add([make_sample([1]), make_sample([2], correct=True, variant=REFLECTION)], step=1)
    assert history.success_rates(["q"], 1) == {"q": 0.0}
    assert history.success_rates(["q"], 1, variants=BOTH) == {"q": 0.5}


def test_rates_of_the_newest_rounds_count_whole_steps_that_asked_the_query(history):
    for step, right in ((1, 0), (2, 0), (5, 1), (7, 2)):
        history.add([make_sample([token], correct=token < right) for token in range(2)], step)
    history.add([make_sample([1], "b")], step=8)
    history.add([make_sample([1], variant=REFLECTION)], step=9)
    rates = {rounds: history.success_rates(["q"], 1, rounds=rounds)["q"] for rounds in (1, 2, 3, 4, 9, None)}
    assert rates == pytest.approx({1: 1, 2: 3 / 4, 3: 3 / 6, 4: 3 / 8, 9: 3 / 8, None: 3 / 8})
    assert history.success_rates(["q"], 3, rounds=1) == {}
    assert history.success_rates(["q"], 1, BOTH, rounds=1) == {"q": 0.0}


# drawing


def test_draw_is_without_replacement_and_stops_at_what_is_stored(history):
    history.add([make_sample([token]) for token in range(3)], step=1)
    for seed in range(20):
        assert sorted(drawn(history, k=3, seed=seed)) == [[0], [1], [2]]
    assert len(drawn(history, k=2)) == 2 and drawn(history, correct=True) == []
    assert drawn(history, query="unknown") == []


def test_draw_depends_on_the_generator_alone(history):
    history.add([make_sample([token]) for token in range(3)], step=1)
    random.seed(1)
    first = [drawn(history, k=2, seed=seed) for seed in range(20)]
    random.seed(2)
    assert [drawn(history, k=2, seed=seed) for seed in range(20)] == first
    assert len({str(draw) for draw in first}) > 1


def test_uniform_draw_reaches_every_sample_about_equally_often(history):
    history.add([make_sample([token]) for token in range(3)], step=1)
    rng = random.Random(0)
    tokens = [int(history.draw("q", False, 1, rng)[0].tokens[0]) for _ in range(600)]
    assert all(150 < tokens.count(token) < 250 for token in range(3))  # 200 expected, standard deviation 11.5


def test_entropy_is_the_mean_over_the_tokens(new_history):
    history = new_history(max_per_outcome=9)
    history.add([make_sample([1], log_probs=np.array([-1.5], dtype="float32"))], step=1)
    history.add([make_sample([2] * 4, log_probs=np.array([-1, -1, -1, -2], dtype="float32"))], step=2)
    assert look(history, "SELECT entropy FROM samples ORDER BY id") == [(1.5,), (1.25,)]


def test_samples_over_the_maximum_length_are_passed_over(history):
    for step in (1, 2, 3):
        history.add([make_sample([1] * step)], step)
    assert sorted(drawn(history, max_length=2)) == [[1], [1, 1]]
    assert drawn(history, max_length=0) == []


def test_samples_before_the_minimum_step_are_passed_over(history):
    for step in (1, 2, 3):
        history.add([make_sample([step])], step)
    assert sorted(drawn(history, min_version=1)) == [[2], [3]]
    assert drawn(history, min_version=3) == []


def test_any_outcome_is_drawn_when_none_is_asked_for(history):
    history.add([make_sample([1]), make_sample([2], correct=True)], step=1)
    assert sorted(drawn(history, correct=None)) == [[1], [2]]
    assert {drawn(history, correct=None, k=1, seed=seed)[0][0] for seed in range(20)} == {1, 2}


def test_draw_keeps_to_the_asked_variants(history):
    history.add([make_sample([1]), make_sample([2], variant=REFLECTION)], step=1)
    assert drawn(history) == [[1]] and drawn(history, variants=(REFLECTION,)) == [[2]]
    assert sorted(drawn(history, variants=BOTH)) == [[1], [2]]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE payloads SET tokens = x'0900' WHERE id = 1",
        "UPDATE payloads SET tokens = x'010000' WHERE id = 1",
        "UPDATE payloads SET log_probs = x'0000' WHERE id = 1",
        "UPDATE payloads SET log_probs = NULL WHERE id = 1",
        "DELETE FROM payloads WHERE id = 1",
        "UPDATE samples SET score = 0.5 WHERE id = 1",
        "UPDATE samples SET truncated = 1 WHERE id = 1",
        "UPDATE samples SET entropy = NULL WHERE id = 1",
        "UPDATE samples SET step = 0 WHERE id = 1",
        "UPDATE samples SET length = 2 WHERE id = 1",
        "UPDATE samples SET checksum = checksum + 1 WHERE id = 1",
    ],
)
def test_a_damaged_sample_is_named_and_can_be_deleted(history, damage):
    history.add([make_sample([1], log_probs=np.array([-1], dtype="float32"))], step=1)
    history.add([make_sample([2], "other")], step=1)
    change(history, damage)
    with pytest.raises(
        HistoryError,
        match="history.sqlite: sample 1 of query q is damaged; put a copy .*DELETE FROM samples WHERE id = 1",
    ):
        drawn(history)
    assert drawn(history, "other") == [[2]]
    change(history, "DELETE FROM samples WHERE id = 1")
    assert drawn(history) == [] and drawn(history, "other") == [[2]] and history.size() == 1
