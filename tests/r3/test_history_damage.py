"""The file of the sample buffer: damaged, killed while it is written, on a full disk, on a network."""

import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import pytest
from killed import copy, killed
from remembered import HELPERS, drawn, dump, fill, logical, look, make_sample, present, train, train_to

from recipe.common.store import lock as history_file
from recipe.common.store.lock import network_file_system
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History

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

    rng, done, kills = random.Random(0), 0, 0
    with closing(History(f"{path}.reference", 3)) as reference:
        while kills < 10 or done <= 20:  # a busy machine gets less done in each tenth of a second
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
            done, kills = last, kills + 1


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
    """Runs a script with the names of HELPERS in a process that has a file system of 4 MB at sys.argv[1]."""
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
