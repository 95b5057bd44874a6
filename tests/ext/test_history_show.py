"""`r3 history`: what it shows, that it only reads, and what it leaves behind."""

import csv
import io
import os
import random
import shutil
import subprocess
import sys
from contextlib import closing

import pytest

from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History
from tests.ext.histories import BOUNDS, META, error_of, output_of, rows_of, sample


def lines_of(capsys, *argv) -> list[list[str]]:
    """The words of each line printed."""
    return [line.split() for line in output_of(capsys, *argv).splitlines() if line.split()]


def cells_of(capsys, *argv) -> list[list[str]]:
    return list(csv.reader(io.StringIO(output_of(capsys, *argv))))


# show


def test_the_overview_counts_what_is_in_the_file(run, capsys):
    text = output_of(capsys, "show", run)
    lines = {line[:20].strip(): line[20:].strip() for line in text.splitlines() if line[:20].strip()}
    [(size,)] = rows_of(run / "history.sqlite", "SELECT sum(length(tokens)) FROM payloads")
    assert lines["can be drawn"] == f"9 samples, {size} B" and lines["abandoned"] == "0 samples, 0 B"
    assert lines["per trajectory"] == f"{size / 9:.0f} bytes, {size / 10:.2f} per token"  # 10 tokens in 9 samples
    assert lines["steps"] == "3, 1 to 3" and lines["pinned steps"] == "0, 1, 2, 3"
    assert lines["plain attempts"] == "8: 3 correct (37.5%), 1 truncated"
    assert lines["reflection attempts"] == "1: 0 correct (0.0%), 0 truncated"
    assert lines["queries"] == "2: 50.0% never solved, 0.0% always solved"
    assert lines["replays"] == "3 of 1 samples, mean age 1.3 steps, oldest 2"  # ages 1, 1 and 2
    assert lines["tokenizer"] == META["tokenizer"]


def test_an_empty_history_has_an_overview(tmp_path, capsys):
    History(str(tmp_path / "history.sqlite"), 3).close()
    assert ["can", "be", "drawn", "0", "samples,", "0", "B"] in lines_of(capsys, "show", tmp_path)


def test_the_timeline_of_a_query_has_a_line_per_step(run, capsys):
    lines = lines_of(capsys, "show", run, "--query", "easy")
    assert lines[2:5] == [
        ["1", "0/1", "0.00", "-", "-", "0", "-", "0.00"],
        ["2", "1/2", "0.50", "-", "-", "0", "2,", "age", "1", "1", "0.33"],
        ["3", "2/2", "1.00", "-", "-", "0", "1,", "age", "2", "0.60"],
    ]
    assert lines[7] == ["1", "1", "0", "wrong", "plain", "1", "-", "3", "drawable"]  # replayed three times
    assert len(lines) == 7 + 5
    lines = lines_of(capsys, "show", run, "--query", "hard")
    assert lines[3] == ["2", "-", "-", "0/1", "0.00", "0", "-", "0.00"]


def test_an_unknown_query_is_refused_with_close_matches(run, capsys):
    assert "no query 'haard'; close to it: hard" in error_of(capsys, "show", run, "--query", "haard")
    assert "close to it: easy" in error_of(capsys, "show", run, "--query", "ea")
    assert "none of its 2 is close" in error_of(capsys, "show", run, "--query", "zzzz")


def test_everything_fits_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "history.sqlite"
    with closing(History(str(path), max_per_outcome=99)) as history:
        for step in range(1, 400, 40):
            query = "0123456789abcdef" + "x" * (step % 3)
            drawn = history.draw(query, False, 9, random.Random(0))
            rows = [sample(query, [step, i], log_probs=[-1, -2], variant=(PLAIN, REFLECTION)[i % 2]) for i in range(40)]
            history.add(rows, step, [(old, PLAIN) for old in drawn])
    for name, *rest in [["show"], ["show", "--query", "0123456789abcdefx"]]:
        text = output_of(capsys, name, path, *rest)
        assert text and max(map(len, text.splitlines())) <= 80


def test_control_characters_of_the_file_do_not_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "history.sqlite"
    with closing(History(str(path), 3)) as history:
        history.restore(0, {"model": "[red]x\x1b[2J"})
        history.add([sample("q\x1b[31m\n", [1])], step=1)
    texts = [output_of(capsys, "show", path), output_of(capsys, "show", path, "--query", "q\x1b[31m\n")]
    assert not any("\x1b" in text for text in texts) and "[red]x [2J" in texts[0]


HOLD = """
import sys
from recipe.r3.history.store import History
history = History(sys.argv[1], 3)
history._db.execute("BEGIN IMMEDIATE")
history._db.execute("DELETE FROM statistics")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_running_trainer_is_read_but_not_disturbed(run, tmp_path, capsys):
    path = run / "history.sqlite"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert ["1", "0/1", "0.00", "-", "-", "0", "-", "0.00"] in lines_of(capsys, "show", run, "--query", "easy")
        assert cells_of(capsys, "query", run, "SELECT count(*) FROM statistics") == [["count(*)"], ["6"]]
        assert "9 samples" in output_of(capsys, "export", run, tmp_path / "out.parquet")
        assert "9 of 9" in output_of(capsys, "import", tmp_path / "new.sqlite", run, *BOUNDS)
    finally:
        holder.stdin.close()
        holder.wait(timeout=30)
    assert path.exists()


# query

WRITES = ["DELETE FROM samples", "INSERT INTO pins VALUES (9)", "DROP TABLE samples", "PRAGMA user_version = 9"]


@pytest.mark.parametrize("sql", WRITES)
def test_sql_can_only_read(sql, run, capsys):
    before = (run / "history.sqlite").read_bytes()
    assert "readonly database" in error_of(capsys, "query", run, sql)
    assert (run / "history.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT absent FROM samples", "no such column: absent"),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; DELETE FROM samples", "one statement at a time"),
    ],
)
def test_broken_sql_is_one_line(sql, reason, run, capsys):
    assert reason in error_of(capsys, "query", run, sql)


# the command


def test_a_path_without_a_history_is_refused_and_not_created(tmp_path, capsys):
    (tmp_path / "text").write_text("no history, but long enough to hold a header of a hundred bytes" * 3)
    for command in (["show"], ["query", "SELECT 1"], ["export", "x.parquet"]):
        argv = [command[0], tmp_path / "none.sqlite", *command[1:]]
        assert "none.sqlite does not exist" in error_of(capsys, *argv)
        assert "history.sqlite does not exist" in error_of(capsys, argv[0], tmp_path, *argv[2:])
        assert str(tmp_path / "text") in error_of(capsys, argv[0], tmp_path / "text", *argv[2:])
    assert [path.name for path in tmp_path.iterdir() if path.name != "text.lock"] == ["text"]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["show"],
        ["query", "x"],
        ["import", "x.sqlite", "y", "--max-gib", "nan"],
        ["import", "x.sqlite", "y", "--max-per-outcome", "0"],
        ["export", "x", "y.parquet", "--outcome", "half"],
    ],
)
def test_bad_arguments_are_one_line(argv, capsys):
    assert "--help" in error_of(capsys, *argv)


def test_the_installed_command_works_and_fails_as_a_program(run):
    command = [sys.executable, "-m", "r3_ext.cli", "history"]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": os.getcwd()}
    settings = {"capture_output": True, "text": True, "timeout": 60, "env": environment}
    shown = subprocess.run([*command, "show", str(run)], **settings)
    assert shown.returncode == 0 and "can be drawn" in shown.stdout and shown.stderr == ""
    failed = subprocess.run([*command, "show", str(run), "--query", "?"], **settings)
    assert failed.returncode == 2 and failed.stderr.startswith("error: ") and "Traceback" not in failed.stderr
    helped = subprocess.run([*command, "--help"], **settings)
    assert helped.returncode == 0 and all(name in helped.stdout for name in ("show", "query", "export", "import"))
    assert max(map(len, helped.stdout.splitlines())) <= 80
    sql = "SELECT a.id FROM samples a, samples b, samples c, samples d, samples e"
    pipe = subprocess.run(f"{' '.join(command)} query {run} '{sql}' | head -1", shell=True, **settings)
    assert pipe.returncode == 0 and pipe.stderr == "" and pipe.stdout.startswith("id\n")


# what reading leaves behind

READING = [
    *(["show"], ["show", "--query", "easy"], ["query", "SELECT * FROM samples"]),
    ["export", "out.parquet"],
]


def all_read(path, outside, capsys) -> None:
    for command, *rest in READING:
        output_of(capsys, command, path, *(outside / word if word == "out.parquet" else word for word in rest))


def names_and_bytes(folder) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_reading_leaves_the_folder_as_it_was(run, tmp_path, capsys):
    (run / "history.sqlite.lock").unlink()
    before = names_and_bytes(run)
    all_read(run, tmp_path, capsys)
    output_of(capsys, "import", tmp_path / "new.sqlite", run, *BOUNDS)
    assert list(before) == ["history.sqlite"] and names_and_bytes(run) == before


def killed_in_training(path) -> None:
    """A fourth step that is in the log alone, whose writer was killed."""
    script = "import os, sys; sys.path[:0] = sys.argv[2:]\nfrom histories import *\n"
    script += "history = History(sys.argv[1], 3)\nhistory.add([sample('easy', [11])], 4)\nhistory.flush()\nos._exit(9)"
    done = subprocess.run([sys.executable, "-c", script, str(path), os.path.dirname(__file__), os.getcwd()], timeout=60)
    assert done.returncode == 9


def test_the_log_of_a_killed_run_is_read_and_stays(run, tmp_path, capsys):
    path = run / "history.sqlite"
    killed_in_training(path)
    log, names = (run / "history.sqlite-wal").read_bytes(), sorted(os.listdir(run))
    assert log and "history.sqlite-shm" in names
    all_read(run, tmp_path, capsys)
    assert "4, 1 to 4" in output_of(capsys, "show", run)
    assert (run / "history.sqlite-wal").read_bytes() == log and sorted(os.listdir(run)) == names


def test_a_running_trainer_keeps_its_files_and_its_newest_step_is_seen(run, tmp_path, capsys):
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        for step in (4, 5):
            history.add([sample("easy", [step])], step)
            history.flush()
            all_read(run, tmp_path, capsys)
            assert f"{step}, 1 to {step}" in output_of(capsys, "show", run)
            assert {"history.sqlite-wal", "history.sqlite-shm"} <= set(os.listdir(run))
    assert sorted(os.listdir(run)) == ["history.sqlite", "history.sqlite.lock"]


def test_a_folder_that_is_read_only_is_read(run, tmp_path, capsys):
    """In a process with a file system of its own: who may do anything may write into a read-only folder, too."""
    killed = tmp_path / "killed"
    shutil.copytree(run, killed)
    killed_in_training(killed / "history.sqlite")
    script = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && cd "$2" && exec "$3" -m r3_ext.cli "$4" "$5" "$1"'
    )
    for folder, steps in ((run, "3, 1 to 3"), (killed, "4, 1 to 4")):
        before = names_and_bytes(folder)
        command = ["unshare", "-rm", "sh", "-c", script, "sh", str(folder), os.getcwd(), sys.executable]
        command += ["history", "show"]
        if shutil.which("unshare") is None:
            pytest.skip("no unshare")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "unshare" in done.stderr or "mount" in done.stderr:
            pytest.skip(f"no mounts of our own: {done.stderr.strip()}")
        assert done.returncode == 0 and steps in done.stdout, done.stderr
        assert names_and_bytes(folder) == before


# damage and hostile content


def test_an_id_of_megabytes_is_refused_when_it_is_stored(run):
    long = "x" * 5_000_000
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        for samples, unfinished in (([sample(long, [1])], []), ([], [(long, PLAIN)])):
            history.add(samples, 4, unfinished=unfinished)
            with pytest.raises(
                HistoryError, match="query id xxxxxxxxxxxxxxxxxxxx... has 5,000,000 bytes, 1,024 at most"
            ):
                history.flush()
        history.add([sample("x" * 1024, [1])], 4)
