"""The file of the sample buffer: opened by others, damaged, hostile, killed while it is written, on a full disk."""

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress

import pytest
from test_history import drawn, dump, logical, look, make_sample, present, train, train_to

from recipe.r3.history import file as history_file
from recipe.r3.history.file import SCHEMA_VERSION, HistoryError, network_file_system, open_for_reading
from recipe.r3.history.store import History

HELPERS = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\nfrom test_history import *\n"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "history.sqlite")


@contextmanager
def python(script: str, *arguments: str):
    """A process that runs the script, with the names of test_history; killed at the end."""
    command = [sys.executable, "-c", HELPERS + script, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def killed(work, path: str, delay: float) -> list[int]:
    """What `work(path, report)` reports in a process that gets SIGKILL `delay` seconds after its first report."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=work, args=(path, sender.send))
    process.start()
    sender.close()
    reports = [receiver.recv()]
    time.sleep(delay)
    process.kill()
    process.join()
    with suppress(EOFError):
        while True:
            reports.append(receiver.recv())
    return reports


def fill(path: str, steps: int = 8, pins=(2, 5)) -> dict[int, dict]:
    """A history with some steps; returns the dumps after each."""
    with closing(History(path, 3)) as history:
        history.restore(0, {"tokenizer": "t1", "model": "m1"})
        return train_to(history, steps, pins)


def copy(source: str, target: str) -> None:
    """Put the file and its log, without the shared memory, as after a crash of the machine."""
    for end in ("", "-wal", "-shm"):
        if os.path.exists(target + end):
            os.remove(target + end)
    for end in ("", "-wal"):
        if os.path.exists(source + end):
            shutil.copy(source + end, target + end)


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


# damage


def test_a_flipped_byte_of_a_stored_response_is_told_when_it_is_drawn(path):
    with closing(History(path, 3)) as history:
        history.add([make_sample(range(500)), make_sample([7], "other")], 1)
        [(tokens,)] = look(history, "SELECT tokens FROM payloads ORDER BY length(tokens) DESC LIMIT 1")
    with open(path, "rb") as file:
        data = file.read()
    assert data.count(tokens) == 1
    for place in range(data.index(tokens), data.index(tokens) + len(tokens), 97):
        with open(path, "wb") as file:
            file.write(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with closing(History(path, 3)) as history:
            with pytest.raises(HistoryError, match=r"sample \d of query q is damaged"):
                drawn(history)
            assert drawn(history, "other") == [[7]]


@pytest.mark.parametrize("table", ["samples", "statistics", "replays"])
def test_a_broken_table_is_told_when_the_file_is_opened(path, table):
    fill(path)
    with closing(sqlite3.connect(path)) as database:
        [(size,)] = database.execute("PRAGMA page_size")
        [(root,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    with open(path, "r+b") as file:
        file.seek(size * (root - 1) + size // 2)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(HistoryError, match="(malformed|table .*); the file is damaged.*put a copy back"):
        History(path, 3)


def test_a_truncated_file_never_passes_for_the_checkpoint(path):
    expected = fill(path)[8]
    with open(path, "rb") as file:
        data = file.read()
    told = 0
    for length in (0, 1, 99, 100, 4095, 16384, len(data) // 2, len(data) - 16384, len(data) - 1):
        with open(path, "wb") as file:
            file.write(data[:length])
        try:
            with closing(History(path, 3)) as history:
                history.restore(8)
                assert dump(history) == expected  # what was cut off was free
        except HistoryError:
            told += 1
    assert told >= 8


def test_a_flipped_byte_in_the_log_of_a_killed_process_never_passes_for_the_checkpoint(path):
    def write(path, report):
        history = History(path, 3)
        train_to(history, 8, pins=(2, 5, 8))
        report(8)
        time.sleep(60)

    killed(write, path, 0)
    with closing(History(f"{path}.reference", 3)) as reference:
        expected = train_to(reference, 8, pins=(2, 5, 8))[8]
    rng, counts = random.Random(0), Counter()
    with open(f"{path}-wal", "rb") as file:
        data = file.read()
    for _ in range(40):
        place = rng.randrange(len(data))
        copy(path, f"{path}.damaged")
        with open(f"{path}.damaged-wal", "wb") as file:
            file.write(data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :])
        try:
            with closing(History(f"{path}.damaged", 3)) as history:
                history.restore(8)
                assert dump(history) == expected, f"silent change by damage at {place}"
                counts["same"] += 1
        except HistoryError as error:
            assert "checkpoint is of step 8, but the history ends at step" in str(error)
            counts["refused"] += 1
    assert counts["refused"] > 20
    copy(path, f"{path}.damaged")
    with closing(History(f"{path}.damaged", 3)) as history:  # undamaged
        history.restore(8)
        assert dump(history) == expected


# kill -9


def test_killed_at_any_moment_the_file_holds_every_reported_step_whole(path):
    def write_on(path, report):
        history = History(path, 3)
        for step in itertools.count(present(history) + 1):
            train_and_pin(history, step)
            history.flush()
            report(step)

    def train_and_pin(history, step):
        train(history, step, samples=40, longest=300)
        if step % 3 == 0:
            history.pin(step)

    rng, done = random.Random(0), 0
    with closing(History(f"{path}.reference", 3)) as reference:
        for _ in range(10):
            reported = killed(write_on, path, rng.uniform(0, 0.1))
            with closing(History(path, 3)) as history:  # checks the content, too
                last = present(history)
                assert last - reported[-1] in (0, 1)
                for step in range(done + 1, last + 1):
                    train_and_pin(reference, step)
                for each in (history, reference):
                    each.restore(last)  # pins it
                assert logical(path) == logical(f"{path}.reference")
                assert dump(history) == dump(reference)
            done = last
    assert done > 20


# disks


def test_a_full_disk_is_told_and_earlier_steps_stay(path):
    with closing(History(path, 3)) as history:
        states = train_to(history, 3, pins=(2, 3))
        [(pages,)] = history._db.execute("PRAGMA page_count")
        history._db.execute(f"PRAGMA max_page_count={pages + 20}")
        train(history, 4, samples=100, longest=5000)
        with pytest.raises(HistoryError, match="disk is full; nothing of this step was stored; free space and start"):
            history.pin(4)
        assert dump(history) == states[3]
    with closing(History(path, 3)) as history:
        history.restore(3)
        assert dump(history) == states[3]
        train(history, 4, samples=100, longest=5000)
        history.restore(2)
        assert dump(history) == states[2]


MOUNT = 'mount -t tmpfs -o size=4m none "$1"'


@pytest.fixture
def small_disk(tmp_path):
    """Runs a script with the names of test_history in a process that has a file system of 4 MB at sys.argv[1]."""
    own = ["unshare", "-rm", "sh", "-c"]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    probe = subprocess.run([*own, MOUNT, "sh", str(tmp_path)], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mounts of our own: {probe.stderr.strip()}")

    def run(script: str) -> None:
        command = [*own, f'{MOUNT} && exec "$2" -c "$3" "$1"', "sh", str(tmp_path), sys.executable, HELPERS + script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    return run


def test_a_file_system_that_is_full_is_told_and_earlier_steps_stay(small_disk):
    small_disk(
        """
path, ballast = sys.argv[1] + "/history.sqlite", sys.argv[1] + "/ballast"
with open(ballast, "wb") as file:
    file.write(bytes(1_000_000))
history, states = History(path, 99), {}
with pytest.raises(HistoryError, match="(disk is full|disk I/O error); .*free space and start the run again"):
    for step in range(1, 1000):
        train(history, step, samples=4, longest=50)
        states[step] = dump(history)
        history.pin(step)
last = present(history)
assert last > 3, last
assert dump(history) == states[last]
history.close()
try:
    History(path, 99).close()  # no matter whether it opens on the full disk
except HistoryError:
    pass
os.remove(ballast)
with closing(History(path, 99)) as history:
    for step in (last, last - 1, last - 2):
        history.restore(step)
        assert dump(history) == states[step]
    train(history, last - 1, samples=4, longest=50)
    assert dump(history) == states[last - 1]
""".replace("path, ballast", "import os\npath, ballast", 1)
    )


def test_a_folder_that_is_read_only_is_told(small_disk):
    small_disk("""
import subprocess
path = sys.argv[1] + "/history.sqlite"
History(path, 3).close()
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
for name in ("history.sqlite", "new.sqlite", "new folder/new.sqlite"):
    with pytest.raises(HistoryError, match="Read-only.*; the folder must be writable; set algorithm.r3.history.path"):
        History(f"{sys.argv[1]}/{name}", 3)
""")


MOUNTS = r"""
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
/dev/sda1 /home ext4 rw 0 0
server:/home /home/shared nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/shared/fast ext4 rw 0 0
server:/x /home/shared\040files nfs rw 0 0
mds@tcp:/scratch /scratch lustre rw,flock 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
gcs /mnt/bucket fuse rw 0 0
/dev/sdc1 /mnt/over ext4 rw 0 0
server:/y /mnt/over nfs rw 0 0
server:/z /mnt/one.sqlite nfs rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/history.sqlite", None),
        ("/home/me/history.sqlite", None),
        ("/home/shared/run/history.sqlite", "nfs4"),
        ("/home/shared/fast/history.sqlite", None),
        ("/home/shared/faster/history.sqlite", "nfs4"),
        ("/home/shared files/history.sqlite", "nfs"),
        ("/home/shared2/history.sqlite", None),
        ("/scratch/history.sqlite", "lustre"),
        ("/mnt/ssh/history.sqlite", "fuse.sshfs"),
        ("/mnt/bucket/history.sqlite", "fuse"),
        ("/mnt/over/history.sqlite", "nfs"),
        ("/mnt/one.sqlite", "nfs"),
        ("/mnt/one.sqlite2", None),
        ("/dev/shm/history.sqlite", None),
        ("/home/shared/fast/../history.sqlite", "nfs4"),
    ],
)
def test_the_innermost_mount_decides_whether_the_file_system_is_a_network_one(path, kind):
    assert network_file_system(path, MOUNTS.strip()) == kind


def test_this_machines_own_mounts_can_be_read():
    assert network_file_system("/proc/self/status") is None


def test_a_network_file_system_gets_no_shared_memory_and_no_other_reader(path, monkeypatch):
    monkeypatch.setattr(history_file, "network_file_system", lambda path: "nfs4")
    with closing(History(path, 3)) as history:
        assert history.exclusive
        states = train_to(history, 4, pins=(2, 4))
        assert os.path.exists(f"{path}-wal") and not os.path.exists(f"{path}-shm")
        with closing(sqlite3.connect(path, timeout=0.1)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("SELECT count(*) FROM samples")
        copy(path, f"{path}.crashed")
    for name in (path, f"{path}.crashed"):
        with closing(History(name, 3)) as history:
            history.restore(2)
            assert dump(history) == states[2] and not os.path.exists(f"{name}-shm")


def test_elsewhere_others_may_read(path):
    with closing(History(path, 3)) as history:
        assert not history.exclusive
        train(history, 1)
        assert look(history, "SELECT count(DISTINCT step) FROM statistics") == [(1,)]
