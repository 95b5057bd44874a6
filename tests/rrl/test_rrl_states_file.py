"""The file of the state buffer: killed while it is written, taken back, damaged, of another kind, in use."""

import itertools
import random
import sqlite3
import time
from contextlib import closing

import pytest
from killed import copy, killed
from stated import QUERIES, contents, dump, held, ids, make_state, open_buffer, train, train_to

from recipe.rrl.state_file import STATES
from recipe.rrl.states import StatesError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "states.sqlite")


def train_and_pin(buffer, step: int) -> None:
    train(buffer, step)
    if step % 3 == 0:
        buffer.pin(step)


# checkpoints


def test_a_reopened_file_holds_the_same_and_draws_the_same(path):
    with closing(open_buffer(path)) as buffer:
        dumps = train_to(buffer, 8)
    with closing(open_buffer(path)) as buffer:
        assert dump(buffer) == dumps[8]


@pytest.mark.parametrize("step", [0, 2, 5, 8])
def test_a_checkpoint_brings_states_tries_and_values_of_its_step_back(path, step):
    with closing(open_buffer(path, max_states=99)) as buffer:
        dumps = {0: dump(buffer)} | train_to(buffer, 9, pins=(2, 5, 8))
        told = buffer.restore(step)
        assert dump(buffer) == dumps[step] and told[-1].endswith(f"restored to step {step}")
        if step == 5:
            assert train_to(buffer, 9, first=6) == {later: dumps[later] for later in range(6, 10)}


def test_values_are_kept_for_checkpoints_only(path):
    with closing(open_buffer(path)) as buffer:
        buffer.add([make_state([1])], 1)
        for step in range(1, 10):
            buffer.revalue([(1, step / 10, 0.1)], step)
            if step in (3, 6):
                buffer.pin(step)
        steps = "SELECT step FROM revalued ORDER BY step"
        buffer.flush()
        assert buffer._db.execute(steps).fetchall() == [(3,), (6,), (9,)]
        buffer.unpin(lambda step: step == 3)
        assert buffer._db.execute(steps).fetchall() == [(6,), (9,)]
        buffer.restore(6)
        assert buffer.candidates()[0].value_now == 0.6


def test_a_state_that_leaves_the_file_takes_its_values_along(path):
    with closing(open_buffer(path)) as buffer:
        buffer.add([make_state([1])], 1)
        buffer.revalue([(1, 0.5, 0.1)], 1)
        buffer.tried([(1, 4, 4)], 1)
        buffer.flush()
        for table in ("states", "payloads", "revalued"):
            assert buffer._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_states_kept_for_checkpoints_are_bounded_and_the_newest_checkpoint_is_kept(path):
    with closing(open_buffer(path, max_states=4)) as buffer:
        for step in range(1, 30):
            buffer.add([make_state([step, at], gain=step / 10) for at in range(4)], step)
            buffer.pin(step)
            buffer.flush()
            [(spare,)] = buffer._db.execute("SELECT count(*) FROM states WHERE evicted IS NOT NULL")
            assert spare <= 4
        before = contents(buffer)
        assert len(buffer.pinned()) < 4
        buffer.restore(buffer.pinned()[-1])
        assert contents(buffer) == before


def test_a_checkpoint_that_the_file_does_not_hold_is_told(path):
    with closing(open_buffer(path)) as buffer:
        train_to(buffer, 4, pins=(2,))
        for step, state in ((9, "ends at step 4"), (3, r"can go back to steps \[0, 2\]")):
            message = f"checkpoint is of step {step}, but the state buffer {state}; .*another algorithm.rrl.states.path"
            with pytest.raises(StatesError, match=message):
                buffer.restore(step)


def test_a_checkpoint_of_a_run_without_states_is_gone_on_from_with_those_of_before(path):
    with closing(open_buffer(path)) as buffer:
        assert buffer.restore(9, may_skip=True)[0].startswith("goes on as after step 0: the checkpoint is of step 9")
        assert buffer.restore(9)[0].endswith("restored to step 9"), "it can be gone back to"
        train_to(buffer, 12, first=10, pins=(12,))
        held = contents(buffer)
        assert buffer.restore(20, may_skip=True)[0].startswith("goes on as after step 12")
        assert contents(buffer) == held
        with pytest.raises(StatesError, match="checkpoint is of step 5"):
            buffer.restore(5, may_skip=True)


def test_tokens_of_another_tokenizer_are_refused_and_another_model_is_told(path):
    with closing(open_buffer(path)) as buffer:
        buffer.restore(0, {"tokenizer": "t1", "model": "m1"})
        assert buffer.restore(0, {"tokenizer": "t1", "model": "m2"})[0] == "model changed from m1 to m2"
        with pytest.raises(StatesError, match="tokenizer .t1. than the model's .t2.; .*algorithm.rrl.states.path"):
            buffer.restore(0, {"tokenizer": "t2"})


# kill -9


def test_killed_at_any_moment_every_reported_checkpoint_comes_back_and_training_goes_on_from_it(path):
    def write_on(path, report):
        buffer = open_buffer(path)
        last = buffer.pinned()[-1]
        buffer.restore(last)
        report(last)
        for step in itertools.count(last + 1):
            train_and_pin(buffer, step)
            if step % 3 == 0:
                report(step)

    rng, done = random.Random(0), 0
    with closing(open_buffer(f"{path}.reference")) as reference:
        for _ in range(10):
            reported = killed(write_on, path, rng.uniform(0, 0.3))
            with closing(open_buffer(path)) as buffer:
                last = buffer.pinned()[-1]
                assert last - reported[-1] in (0, 3)  # a checkpoint may have been written, and not yet reported
                for step in range(done + 1, last + 1):
                    train_and_pin(reference, step)
                buffer.restore(last)
                assert dump(buffer) == dump(reference)
            done = last
    assert done > 20


def test_half_a_step_is_taken_back_with_its_checkpoint(path):
    def write(path, report):
        buffer = open_buffer(path)
        train_to(buffer, 4, pins=(4,))
        buffer.tried([(each.id, 99, 99) for each in buffer.candidates()], 5)
        buffer.flush()
        report(5)
        time.sleep(60)

    killed(write, path, 0)
    with closing(open_buffer(f"{path}.reference")) as reference, closing(open_buffer(path)) as buffer:
        expected = train_to(reference, 4, pins=(4,))[4]
        assert buffer.size() == 0
        buffer.restore(4)
        assert dump(buffer) == expected


# damage


def test_a_flipped_byte_of_stored_tokens_is_told_when_the_state_is_drawn_and_the_way_out_works(path):
    with closing(open_buffer(path)) as buffer:
        buffer.add([make_state(range(400)), make_state([7], "other")], 1)
        damaged = ids(buffer)[tuple(range(400))]
        [(tokens,)] = buffer._db.execute("SELECT tokens FROM payloads WHERE id = ?", (damaged,))
    with open(path, "rb") as file:
        data = file.read()
    assert data.count(tokens) == 1
    for place in range(data.index(tokens), data.index(tokens) + len(tokens), 97):
        with open(path, "wb") as file:
            file.write(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with closing(open_buffer(path)) as buffer:
            with pytest.raises(StatesError, match=rf"state {damaged} of query q is damaged; .*WHERE id = {damaged}"):
                buffer.draw(9, random.Random(0), 0.1)
            assert held(buffer, query_ids=["other"]) == [[7]]
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DELETE FROM states WHERE id = {damaged}")
        database.commit()
    with closing(open_buffer(path)) as buffer:
        assert held(buffer) == [[7]]


@pytest.mark.parametrize("column", ["query_id", "origin", "cut", "length", "step", "aim", "value", "start_value"])
def test_a_changed_column_of_a_state_is_told_when_it_is_drawn(path, column):
    with closing(open_buffer(path)) as buffer:
        buffer.add([make_state([1, 2, 3], aim=0.5)], 1)
        buffer.flush()
        changed = "'x'" if column in ("query_id", "origin") else f"{column} + 1"
        buffer._db.execute(f"UPDATE states SET {column} = {changed}")
        with pytest.raises(StatesError, match="state 1 of query . is damaged"):
            buffer.load(buffer.candidates(origins=("failed", "x")))


@pytest.mark.parametrize("table", ["states", "attempts", "revalued", "steps"])
def test_a_broken_table_is_told_when_the_file_is_opened(path, table):
    with closing(open_buffer(path)) as buffer:
        train_to(buffer, 8)
    with closing(sqlite3.connect(path)) as database:
        [(size,)] = database.execute("PRAGMA page_size")
        [(root,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    with open(path, "r+b") as file:
        file.seek(size * (root - 1) + size // 2)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(StatesError, match="(malformed|table .*); the file is damaged or not a state buffer"):
        open_buffer(path)


def test_a_full_disk_is_told_and_earlier_steps_stay(path):
    with closing(open_buffer(path)) as buffer:
        dumps = train_to(buffer, 3)
        [(pages,)] = buffer._db.execute("PRAGMA page_count")
        buffer._db.execute(f"PRAGMA max_page_count={pages + 5}")
        rng = random.Random(0)
        buffer.add([make_state([rng.randrange(10**5) for _ in range(9_999)], str(at)) for at in range(9)], 4)
        with pytest.raises(StatesError, match="disk is full; nothing of this step was stored; free space and start"):
            buffer.pin(4)
        assert dump(buffer) == dumps[3]


# other files, other programs


def test_the_file_of_another_program_is_refused(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE states (id INTEGER)")
    with pytest.raises(StatesError, match="is not a state buffer; move the file away or set algorithm.rrl.states.path"):
        open_buffer(path)


@pytest.mark.parametrize(
    "sql, message",
    [
        (
            "PRAGMA user_version = 99",
            "has schema version 99, this recipe reads version 1; start a new run with another",
        ),
        ("CREATE TRIGGER t AFTER INSERT ON pins BEGIN DELETE FROM states; END", "has other tables, indexes, views or"),
        ("DROP VIEW live", "has other tables, indexes, views or triggers than a state buffer"),
    ],
)
def test_another_schema_is_refused(path, sql, message):
    open_buffer(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(sql)
    with pytest.raises(StatesError, match=message):
        open_buffer(path)


def test_a_second_trainer_is_refused_with_the_key_of_the_file(path):
    with closing(open_buffer(path)):
        with pytest.raises(
            StatesError, match="in use by process .*set algorithm.rrl.states.path to a file of this run"
        ):
            open_buffer(path)


def test_another_program_reads_the_states_while_a_run_writes_them(path):
    with closing(open_buffer(path)) as buffer:
        train_to(buffer, 4)
        with closing(STATES.open_for_reading(path)) as reader:
            seen = reader.execute("SELECT query_id, origin, cut, tries, gain FROM live ORDER BY query_id, digest")
            listed = buffer.candidates()
            assert seen.fetchall() == [(e.query_id, e.origin, e.cut, e.tries, e.gain) for e in listed]
        copy(path, f"{path}.crashed")
        expected = dump(buffer)
    with closing(open_buffer(f"{path}.crashed")) as crashed:
        assert dump(crashed) == expected


def test_a_query_id_that_is_too_long_is_refused(path):
    with closing(open_buffer(path)) as buffer:
        with pytest.raises(
            StatesError, match="has 1,025 bytes, 1,024 at most; shorten the column query_id of the data"
        ):
            buffer.add([make_state([1], "x" * 1_025)], 1)
        buffer.add([make_state([1], QUERIES[0] * 1_024)], 1)
        assert buffer.size() == 1
