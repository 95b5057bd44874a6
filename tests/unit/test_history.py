"""The sample buffer: what is stored, what is counted, what is drawn, and that a restored buffer is the old one."""

import random
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from recipe.r3.history import PLAIN, REFLECTION, SCHEMA_VERSION, History, Sample

BOTH = (PLAIN, REFLECTION)


@pytest.fixture
def history(tmp_path):
    history = History(str(tmp_path / "history.sqlite"), max_per_outcome=3)
    yield history
    history.close()


def make_sample(tokens, query="q", correct=False, **changes) -> Sample:
    values = {"score": float(correct), "truncated": False, "step": 1, **changes}
    return Sample(query_id=query, tokens=np.array(tokens, dtype="int32"), correct=correct, **values)


def drawn(history, query="q", correct=False, k=99, seed=0, **settings) -> list[list[int]]:
    """Token ids of the drawn samples, in the order of the draw."""
    samples = history.draw(query, correct, k, random.Random(seed), **settings)
    return [sample.tokens.tolist() for sample in samples]


def dump(history) -> dict:
    """Everything that later steps can see: all samples in order, seeded draws of every kind, all rates."""
    state = {"size": history.size()}
    for query in ("a", "b", "c"):
        for variants in ((PLAIN,), (REFLECTION,), BOTH):
            state[query, variants, "rate"] = history.success_rates([query], 1, variants)
            for correct in (False, True):
                for selection in ("uniform", "newest", "shortest"):
                    settings = {"variants": variants, "selection": selection}
                    samples = history.draw(query, correct, 99, random.Random(7), **settings)
                    state[query, variants, correct, selection] = [
                        (s.tokens.tolist(), s.log_probs.tolist(), s.score, s.truncated, s.step) for s in samples
                    ]
    return state


def train(history, step: int) -> None:
    """Add random responses of three queries; few distinct ones, so that some are duplicates and some are evicted."""
    rng = np.random.default_rng(step)
    samples = []
    for _ in range(12):
        tokens = rng.integers(0, 3, size=rng.integers(1, 4))
        samples.append(
            make_sample(
                tokens,
                query=str(rng.choice(["a", "b", "c"])),
                correct=bool(rng.integers(2)),
                truncated=bool(rng.integers(2)),
                step=step,
                variant=str(rng.choice(BOTH)),
                log_probs=rng.normal(size=len(tokens)).astype("float32"),
            )
        )
    history.add(samples, step)


# storing


def test_numbers_of_the_docstring_example(history):
    history.add([make_sample([1], "a"), make_sample([2], "a"), make_sample([3], "a", correct=True)], step=1)
    assert history.success_rates(["a"], min_attempts=3) == {"a": 1 / 3}
    assert drawn(history, "a", correct=True, k=2) == [[3]]


def test_tokens_and_log_probs_come_back_exactly(history):
    tokens = np.array([0, 1, 151_643, 2**31 - 1], dtype="int32")
    log_probs = np.array([-0.0, -1e-38, -123.456, -np.inf], dtype="float32")
    stored = make_sample(tokens, score=1.75, truncated=True, step=9, variant=REFLECTION, log_probs=log_probs)
    history.add([stored], step=9)
    (sample,) = history.draw("q", False, 1, random.Random(0), variants=(REFLECTION,))
    assert sample.tokens.tobytes() == tokens.tobytes() and sample.tokens.dtype == np.int32
    assert sample.log_probs.tobytes() == log_probs.tobytes() and sample.log_probs.dtype == np.float32
    assert (sample.score, sample.truncated, sample.step, sample.variant) == (1.75, True, 9, REFLECTION)


def test_int64_token_ids_and_missing_log_probs_are_fine(history):
    history.add([Sample("q", np.arange(3), correct=True, score=1.0, truncated=False, step=1)], step=1)
    (sample,) = history.draw("q", True, 1, random.Random(0))
    assert sample.tokens.tolist() == [0, 1, 2] and sample.log_probs is None


def test_an_equal_response_is_counted_again_but_stored_once(history):
    history.add([make_sample([1, 2]), make_sample([1, 2]), make_sample([1, 2, 0])], step=1)
    history.add([make_sample([1, 2])], step=2)
    assert drawn(history, selection="shortest") == [[1, 2], [1, 2, 0]]
    assert history.success_rates(["q"], min_attempts=4) == {"q": 0.0}
    assert history.success_rates(["q"], min_attempts=5) == {}


def test_equal_responses_of_another_query_variant_or_outcome_are_stored_too(history):
    samples = [make_sample([1]), make_sample([1], variant=REFLECTION), make_sample([1], correct=True)]
    history.add([*samples, make_sample([1], query="other")], step=1)
    assert history.size() == 4


def test_the_oldest_beyond_the_cap_leave_and_the_statistics_stay(history):
    for step in range(1, 6):
        history.add([make_sample([step]), make_sample([step], correct=True)], step)
    assert drawn(history, selection="newest") == [[5], [4], [3]]
    assert drawn(history, correct=True, selection="newest") == [[5], [4], [3]]
    assert history.size() == 6
    assert history.success_rates(["q"], min_attempts=10) == {"q": 0.5}


def test_the_cap_holds_within_one_step(history):
    history.add([make_sample([token]) for token in range(7)], step=1)
    assert drawn(history, selection="newest") == [[6], [5], [4]]


def test_an_evicted_response_can_be_stored_again(history):
    history.add([make_sample([token]) for token in range(4)], step=1)
    history.add([make_sample([0])], step=2)
    assert drawn(history, selection="newest") == [[0], [3], [2]]


def test_a_step_that_fails_halfway_leaves_nothing(history):
    broken = make_sample([2], score=None)
    with pytest.raises(sqlite3.IntegrityError):
        history.add([make_sample([1]), broken], step=1)
    assert history.size() == 0 and history.success_rates(["q"], min_attempts=1) == {}


def test_an_empty_step_is_fine(history):
    history.add([], step=1)
    assert history.size() == 0


# statistics


def test_rates_leave_out_queries_with_few_attempts_and_unknown_ones(history):
    history.add([make_sample([token], "a", correct=token == 0) for token in range(4)], step=1)
    history.add([make_sample([0], "b")], step=1)
    assert history.success_rates(["a", "b", "never seen"], min_attempts=2) == {"a": 0.25}


def test_rates_count_only_the_asked_variants(history):
    history.add([make_sample([1]), make_sample([2], correct=True, variant=REFLECTION)], step=1)
    assert history.success_rates(["q"], 1) == {"q": 0.0}
    assert history.success_rates(["q"], 1, variants=BOTH) == {"q": 0.5}


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


def test_newest_and_shortest_need_no_luck(history):
    history.add([make_sample([1, 1])], step=1)
    history.add([make_sample([2]), make_sample([3, 3, 3])], step=2)
    assert drawn(history, k=2, selection="newest") == [[3, 3, 3], [2]]
    assert drawn(history, k=2, selection="shortest") == [[2], [1, 1]]


def test_samples_over_the_maximum_length_are_passed_over(history):
    history.add([make_sample([1]), make_sample([1, 2]), make_sample([1, 2, 3])], step=1)
    assert sorted(drawn(history, max_length=2)) == [[1], [1, 2]]
    assert drawn(history, k=1, selection="newest", max_length=2) == [[1, 2]]


def test_draw_keeps_to_the_asked_variants(history):
    history.add([make_sample([1]), make_sample([2], variant=REFLECTION)], step=1)
    assert drawn(history) == [[1]] and drawn(history, variants=(REFLECTION,)) == [[2]]
    assert sorted(drawn(history, variants=BOTH)) == [[1], [2]]


# restoring


def test_restore_brings_back_the_state_after_any_earlier_step(history):
    states = {0: dump(history)}
    for step in range(1, 8):
        train(history, step)
        states[step] = dump(history)
    assert states[7]["size"] < 7 * 12 and states[7] != states[6]
    for step in (7, 6, 3, 1, 0):
        history.restore(step)
        assert dump(history) == states[step]


def test_training_on_after_a_restore_repeats_what_the_uninterrupted_run_did(history):
    for step in range(1, 8):
        train(history, step)
    expected = dump(history)
    history.restore(3)
    for step in range(4, 8):
        train(history, step)
    assert dump(history) == expected


def test_restore_counts_the_samples_it_drops(history):
    history.add([make_sample([1])], step=1)
    history.add([make_sample([2]), make_sample([3])], step=2)
    assert [history.restore(step) for step in (5, 1, 1)] == [0, 2, 0]


# the file


def test_a_reopened_file_holds_the_same_state(tmp_path):
    path = str(tmp_path / "some" / "folder" / "history.sqlite")
    history = History(path, max_per_outcome=3)
    for step in range(1, 5):
        train(history, step)
    expected = dump(history)
    history.close()
    history = History(path, max_per_outcome=3)
    assert dump(history) == expected
    history.close()


def test_another_process_reads_while_the_file_is_open_and_written(history):
    history.add([make_sample([1, 2, 3])], step=1)
    history._db.execute("BEGIN IMMEDIATE")  # an unfinished step: the reader sees the state before it
    script = (
        "import random, sys; from recipe.r3.history import History; history = History(sys.argv[1], 3);"
        "print(history.size(), history.draw('q', False, 1, random.Random(0))[0].tokens.tolist())"
    )
    run = subprocess.run([sys.executable, "-c", script, history.path], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "1 [1, 2, 3]"
    history._db.execute("ROLLBACK")
    history.add([make_sample([4])], step=2)
    assert history.size() == 2


def make_database(path, version: int) -> None:
    database = sqlite3.connect(path)
    database.executescript(f"CREATE TABLE other (id INTEGER); PRAGMA user_version={version};")
    database.close()


def test_a_file_of_another_schema_version_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "history.sqlite"
    make_database(path, SCHEMA_VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"history.path: .*schema version {SCHEMA_VERSION + 1}.*move the file away"):
        History(str(path), max_per_outcome=3)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    make_database(path, SCHEMA_VERSION)
    with pytest.raises(ValueError, match="algorithm.r3.history.path: .*is not a usable history"):
        History(str(path), max_per_outcome=3)


@pytest.mark.parametrize("content", [b"not a database, but long enough to have a header of 100 bytes" * 3, b"short"])
def test_a_file_of_garbage_is_refused(tmp_path, content):
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="algorithm.r3.history.path: .*is not a usable history"):
        History(str(path), max_per_outcome=3)
    assert path.read_bytes() == content


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="algorithm.r3.history.path: .*is not a usable history"):
        History(str(tmp_path), max_per_outcome=3)
