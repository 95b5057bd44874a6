"""The sample buffer: what is stored, bounded, drawn and counted, and that a restored state is the old one.

The file it lives in, and what can happen to that, is in test_history_file.py.
"""

import random
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History, Sample

BOTH = (PLAIN, REFLECTION)
QUERIES = ("a", "b", "c")
PAIR = 14
"""Bytes of a stored response of two small ids, none of them 0, without log-probs."""


@pytest.fixture
def history(tmp_path):
    history = History(str(tmp_path / "history.sqlite"), max_per_outcome=3)
    yield history
    history.close()


@pytest.fixture
def new_history(tmp_path):
    """Makes histories, each in a file of its own, which are closed at the end."""
    made = []

    def make(max_per_outcome: int = 3, **settings) -> History:
        made.append(History(str(tmp_path / f"{len(made)}.sqlite"), max_per_outcome, **settings))
        return made[-1]

    yield make
    for history in made:
        history.close()


def make_sample(tokens, query="q", correct=False, **changes) -> Sample:
    values = {"score": float(correct), "truncated": False, "step": 1, **changes}
    return Sample(query_id=query, tokens=np.array(tokens, dtype="int32"), correct=correct, **values)


def drawn(history, query="q", correct=False, k=99, seed=0, **settings) -> list[list[int]]:
    """Token ids of the drawn samples, in the order of the draw."""
    samples = history.draw(query, correct, k, random.Random(seed), **settings)
    return [sample.tokens.tolist() for sample in samples]


def look(history, sql: str, values=()) -> list[tuple]:
    """The rows of a query, as another program sees them."""
    history.flush()
    with closing(sqlite3.connect(history.path)) as database:
        return database.execute(sql, values).fetchall()


def change(history, sql: str, values=()) -> None:
    """Change the file behind the history's back."""
    history.flush()
    with closing(sqlite3.connect(history.path)) as database, database:
        assert database.execute(sql, values).rowcount != 0


def logical(path: str) -> str:
    """Every row of every table, as SQL."""
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


def contents(sample: Sample) -> tuple:
    log_probs = None if sample.log_probs is None else sample.log_probs.tobytes()
    flags = sample.variant, sample.correct, sample.truncated
    return sample.query_id, sample.tokens.tobytes(), log_probs, *flags, sample.score, sample.step


def dump(history) -> dict:
    """Everything that later steps can see: all samples in order, seeded draws of every kind, all rates."""
    state = {"size": history.size(), "live bytes": history.live_bytes}
    for query in QUERIES:
        for variants in ((PLAIN,), (REFLECTION,), BOTH):
            state[query, variants] = history.success_rates([query], 1, variants)
        for correct in (False, True):
            samples = history.draw(query, correct, 99, random.Random(7), BOTH)
            state[query, correct] = [contents(sample) for sample in samples]
        state[query, "drawn"] = drawn(history, query, None, 3, 7, variants=BOTH)
    columns = "step, query_id, variant, sample_step, times"
    state["replays"] = history._db.execute(f"SELECT {columns} FROM replays ORDER BY {columns}").fetchall()
    return state


def random_step(step: int, samples: int = 12, longest: int = 3) -> list[Sample]:
    """Responses of three queries; short ones are of few tokens, so that some are duplicates and some are evicted."""
    rng = np.random.default_rng(step)
    made = []
    for _ in range(samples):
        tokens = rng.integers(0, 3, size=rng.integers(1, longest + 1))
        made.append(
            make_sample(
                tokens,
                query=str(rng.choice(QUERIES)),
                correct=bool(rng.integers(2)),
                truncated=bool(rng.integers(2)),
                step=step,
                variant=str(rng.choice(BOTH)),
                log_probs=-rng.exponential(size=len(tokens)).astype("float32"),
            )
        )
    return made


def train(history, step: int, **settings) -> None:
    """A step: replay what a seeded draw gives, then add random responses."""
    replayed = [
        (sample, PLAIN) for query in QUERIES for sample in history.draw(query, None, 1, random.Random(step), BOTH)
    ]
    history.add(random_step(step, **settings), step, replayed)


def train_to(history, last: int, pins=(), first: int = 1) -> dict[int, dict]:
    """Train the steps `first` to `last`; returns the dumps after each."""
    states = {}
    for step in range(first, last + 1):
        train(history, step)
        states[step] = dump(history)
        if step in pins:
            history.pin(step)
    return states


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


# bounds


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


def sizes(history) -> tuple[int, int]:
    """Payload bytes of the samples that can be drawn, and of the others, by adding them up."""
    sql = (
        "SELECT evicted IS NULL, length(tokens) + coalesce(length(log_probs), 0) FROM samples JOIN payloads USING (id)"
    )
    rows = look(history, sql)
    return sum(size for live, size in rows if live), sum(size for live, size in rows if not live)


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


def present(history) -> int:
    """The last step that was written."""
    return look(history, "SELECT coalesce(max(step), 0) FROM statistics")[0][0]


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
