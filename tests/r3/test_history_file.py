"""The file of the sample buffer: opened by others, of another program or version, hostile."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from remembered import HELPERS, drawn, dump, fill, make_sample

from recipe.r3.history.file import SCHEMA_VERSION, HistoryError, open_for_reading
from recipe.r3.history.store import History


@contextmanager
def python(script: str, *arguments: str):
    """A process that runs the script, with the names of HELPERS; killed at the end."""
    command = [sys.executable, "-c", HELPERS + script, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# opening


def test_a_reopened_file_holds_the_same_state(tmp_path):
    path = str(tmp_path / "some" / "folder" / "history.sqlite")
    states = fill(path)
    with closing(History(path, max_per_outcome=3)) as history:
        assert dump(history) == states[8]


@pytest.mark.parametrize("name", ["with space", "#1?mode=rw", "100%41", "ünï", "-"])
def test_a_name_of_odd_characters_is_read_as_it_was_written(tmp_path, name):
    path = str(tmp_path / name)
    fill(path, steps=1)
    with closing(open_for_reading(path)) as database:
        assert database.execute("SELECT max(step) FROM statistics").fetchone() == (1,)


def test_another_process_sees_whole_steps_only_while_they_are_written(path):
    script = """
from recipe.r3.history.file import open_for_reading
database, seen = open_for_reading(sys.argv[1]), set()
while len(seen) < 6:
    sums = "SELECT count(*), (SELECT sum(attempts) FROM statistics), (SELECT count(*) FROM samples), "
    seen |= set(database.execute(sums + "(SELECT count(*) FROM payloads) FROM statistics"))
assert all(row == (row[0], *[5 * row[0]] * 3) for row in seen), seen
"""
    with closing(History(path, max_per_outcome=10**6)) as history:
        history.add([make_sample([0, i]) for i in range(5)], 1)
        history.flush()
        with python(script, path) as reader:
            step = 1
            while reader.poll() is None:
                step += 1
                history.add([make_sample([step, i]) for i in range(5)], step)
            assert reader.returncode == 0, reader.stderr.read()


def test_a_reader_sees_the_state_before_an_unfinished_step(path):
    with closing(History(path, 3)) as history, closing(open_for_reading(path)) as reader:
        history.add([make_sample([1])], 1)
        history.flush()
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM samples").fetchone() == (1,)
        history.add([make_sample([2])], 2)
        history.flush()
        assert reader.execute("SELECT count(*) FROM samples").fetchone() == (1,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM samples").fetchone() == (2,)


# one trainer per file


@pytest.mark.parametrize("forks", [False, True])
def test_a_second_trainer_is_refused_until_the_first_one_dies_however_it_dies(path, forks):
    """Processes that the owner forked, such as data loader workers, may outlive it."""
    script = f"""
import os, time
history = History(sys.argv[1], 3)
history.add([make_sample([1])], 1)
history.flush()
if {forks} and os.fork() == 0:
    print(os.getpid(), flush=True)
elif not {forks}:
    print(0, flush=True)
time.sleep(60)
"""
    with python(script, path) as owner:
        child = int(owner.stdout.readline())
        try:
            for _ in range(2):
                with pytest.raises(HistoryError, match=f"in use by process {owner.pid} on .*; one trainer per file"):
                    History(path, 3)
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            with closing(History(path, 3)) as history:
                assert drawn(history) == [[1]]
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def test_a_closed_history_can_be_opened_again_here(path):
    fill(path, steps=1)
    with closing(History(path, 3)):
        with pytest.raises(HistoryError, match=f"in use by process {os.getpid()}"):
            History(path, 3)
    History(path, 3).close()


# what is not a history


def of_a_newer_version(path):
    fill(path, steps=1)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")


def of_the_version_before(path):
    fill(path, steps=1)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION - 1}")


def of_version_1(path):
    with closing(sqlite3.connect(path)) as database:
        database.executescript("CREATE TABLE samples (id); CREATE TABLE statistics (id); PRAGMA user_version=1")


def of_another_program(path):
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"CREATE TABLE other (id INTEGER); PRAGMA user_version={SCHEMA_VERSION}")


def garbage(path):
    with open(path, "wb") as file:
        file.write(random.Random(0).randbytes(10_000))


def short_garbage(path):
    with open(path, "wb") as file:
        file.write(b"short")


@pytest.mark.parametrize(
    "make, reason",
    [
        (of_a_newer_version, f"has schema version {SCHEMA_VERSION + 1}, this recipe reads version {SCHEMA_VERSION}; "),
        (
            of_the_version_before,
            f"has schema version {SCHEMA_VERSION - 1}, .* version {SCHEMA_VERSION}; .*export.*commit cde174c.*import",
        ),
        (of_version_1, f"has schema version 1, this recipe reads version {SCHEMA_VERSION}; start a new run"),
        (of_another_program, "is not a history; .*set algorithm.r3.history.path to another one"),
        (garbage, "file is not a database; .*algorithm.r3.history.path"),
        (short_garbage, "file is not a database; .*algorithm.r3.history.path"),
    ],
)
def test_what_is_not_a_history_is_refused_and_left_alone(path, make, reason):
    make(path)
    with open(path, "rb") as file:
        before = file.read()
    for function in (lambda path: History(path, 3), open_for_reading, lambda path: History(path, 3)):
        with pytest.raises(HistoryError, match=f"history {path}: {reason}"):
            function(path)
    with open(path, "rb") as file:
        assert file.read() == before
    assert not os.path.exists(f"{path}-wal")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(HistoryError, match="unable to open.*algorithm.r3.history.path"):
        History(str(tmp_path), 3)


def test_an_empty_file_is_a_new_history_which_no_checkpoint_fits(path):
    """A process that was killed while it created the file leaves one."""
    open(path, "w").close()
    with closing(History(path, 3)) as history:
        with pytest.raises(HistoryError, match="checkpoint is of step 3, but the history ends at step 0"):
            history.restore(3)
        history.restore(0)


# the file of somebody else


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER more AFTER INSERT ON samples BEGIN DELETE FROM statistics; END",
        "CREATE TRIGGER sqliteXmore AFTER INSERT ON samples BEGIN DELETE FROM statistics; END",
        "CREATE VIEW more AS SELECT * FROM samples",
        "CREATE TABLE more (id)",
        "CREATE INDEX more ON samples (score)",
        "CREATE VIRTUAL TABLE more USING fts5(text)",
        "ALTER TABLE samples ADD COLUMN more INTEGER",
        "DROP INDEX samples_live",
        "DROP TABLE pins",
        "DROP TABLE payloads; CREATE VIEW payloads AS SELECT 1 AS id, x'0000' AS tokens, NULL AS log_probs",
    ],
)
def test_a_schema_with_more_less_or_other_than_ours_is_refused(path, sql):
    fill(path, steps=1)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)
    for function in (lambda path: History(path, 3), open_for_reading):
        with pytest.raises(HistoryError, match="has other tables, indexes, views or triggers"):
            function(path)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE samples SET entropy = 'x'",
        "UPDATE samples SET step = 'x'",
        "UPDATE samples SET length = 'x'",
        "UPDATE samples SET length = x'00'",
        "UPDATE statistics SET attempts = 'x'",
        "UPDATE replays SET times = 'x'",
        "UPDATE meta SET value = x'00'",
    ],
)
def test_a_value_of_another_type_is_refused(path, sql):
    fill(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema=ON")
        schema = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
        database.execute("UPDATE sqlite_master SET sql = replace(sql, ' STRICT', '') WHERE sql NOT LIKE '%WITHOUT%'")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, 'STRICT, WITHOUT', 'WITHOUT')")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(sql)
        database.execute("PRAGMA writable_schema=ON")
        database.executemany("UPDATE sqlite_master SET sql = ? WHERE name = ?", [(sql, name) for name, sql in schema])
    with pytest.raises(HistoryError, match="table (samples|statistics|replays|meta): "):
        History(path, 3)
