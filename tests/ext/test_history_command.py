"""`r3 history`: what it shows, that it only reads, that samples survive the way out and in, and what it refuses."""

import csv
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.r3.history.command import main
from r3_ext.r3.history.query import QUERIES
from recipe.r3.history.codec import COLUMNS, checksum_of
from recipe.r3.history.file import HistoryError, reading
from recipe.r3.history.store import PLAIN, REFLECTION, History, Sample, tokenizer_fingerprint

META = {"tokenizer": "151643 tokens abcdef012345", "model": "/models/tiny", "max_per_outcome": "3", "max_gib": "32.0"}
BOUNDS = ["--max-per-outcome", "99", "--max-gib", "1"]


def sample(query, tokens, correct=False, variant=PLAIN, truncated=False, log_probs=None) -> Sample:
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    return Sample(query, np.array(tokens, dtype="int32"), correct, float(correct), truncated, 0, variant, log_probs)


def small(path, meta=META) -> None:
    """Three steps: `hard` is never solved and is replayed into, `easy` gets better; a checkpoint after each."""
    with closing(History(str(path), max_per_outcome=3)) as history:
        history.restore(0, "all", meta)
        history.add([sample("hard", [1, 2], truncated=True), sample("hard", [3]), sample("easy", [4])], step=1)
        history.pin(1)
        (old,) = history.draw("easy", False, 1, random.Random(0))
        second = [sample("hard", [5], variant=REFLECTION), sample("easy", [6], True), sample("easy", [7])]
        history.add(second, step=2, replays=[(old, PLAIN), (old, PLAIN)])
        history.pin(2)
        history.add([sample("hard", [8]), sample("easy", [9], True), sample("easy", [10], True)], 3, [(old, PLAIN)])
        history.pin(3)


@pytest.fixture
def run(tmp_path):
    small(tmp_path / "run" / "history.sqlite")
    return tmp_path / "run"


def large(path, steps=6, meta=META) -> None:
    """Random steps of three queries with evicted, kept and abandoned samples, with and without log-probs."""
    with closing(History(str(path), max_per_outcome=3)) as history:
        history.restore(0, "all", meta)
        for step in range(1, steps + 1):
            rng = np.random.default_rng(step)
            tokens = [rng.integers(0, 151_643, size=rng.integers(1, 9)) for _ in range(30)]
            history.add([random_sample(rng, ids) for ids in tokens], step)
            if step % 2 == 0:
                history.pin(step)
        history.restore(steps - 2)


def random_sample(rng, tokens) -> Sample:
    query, correct, variant = (
        str(rng.choice(["a", "b", "c"])),
        bool(rng.integers(2)),
        str(rng.choice(["plain", REFLECTION])),
    )
    log_probs = -rng.random(len(tokens)) if rng.integers(2) else None
    return sample(query, tokens, correct, variant, bool(rng.integers(2)), log_probs)


def rows_of(path, sql) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def change(path, sql, values=()) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


def error_of(capsys, *argv) -> str:
    """The one line that a refused command prints."""
    assert main([str(arg) for arg in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    return captured.err


def output_of(capsys, *argv) -> str:
    assert main([str(arg) for arg in argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def lines_of(capsys, *argv) -> list[list[str]]:
    """The words of each line printed."""
    return [line.split() for line in output_of(capsys, *argv).splitlines() if line.split()]


def cells_of(capsys, *argv) -> list[list[str]]:
    return list(csv.reader(io.StringIO(output_of(capsys, *argv, "--csv"))))


# show


def test_the_overview_counts_what_is_in_the_file(run, capsys):
    text = output_of(capsys, "show", run)
    lines = {line[:20].strip(): line[20:].strip() for line in text.splitlines() if line[:20].strip()}
    assert lines["can be drawn"] == "9 samples, 20 B" and lines["abandoned"] == "0 samples, 0 B"
    assert lines["per trajectory"] == "2 bytes, 2.00 per token"  # 10 tokens of 2 bytes in 9 samples
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
    commands = [["show"], ["show", "--query", "0123456789abcdefx"], *(["query", name] for name in QUERIES)]
    for name, *rest in [*commands, ["query", "SELECT * FROM samples"]]:
        text = output_of(capsys, name, path, *rest)
        assert text and max(map(len, text.splitlines())) <= 80


def test_control_characters_of_the_file_do_not_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "history.sqlite"
    with closing(History(str(path), 3)) as history:
        history.restore(0, "all", {"model": "[red]x\x1b[2J"})
        history.add([sample("q\x1b[31m\n", [1])], step=1)
    texts = [output_of(capsys, "show", path), output_of(capsys, "query", path, "never-solved")]
    texts += [output_of(capsys, "show", path, "--query", "q\x1b[31m\n")]
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
        assert f"in use by process {holder.pid}" in error_of(capsys, "prune", run, "--abandoned")
        assert "in use by" in error_of(capsys, "import", run, tmp_path / "out.parquet", *BOUNDS)
    finally:
        holder.stdin.close()
        holder.wait(timeout=30)
    assert path.exists()


# query


def test_the_ready_queries_count_right(run, capsys):
    assert cells_of(capsys, "query", run, "never-solved")[1:] == [["hard", "4", "1", "1", "1", "3"]]
    # easy: 0 of 1 in step 1, 2 of 2 in step 3. hard: plain prompts in steps 1 and 3.
    assert cells_of(capsys, "query", run, "pass-rate")[1:] == [
        ["easy", "3", "5", "0.0", "1.0", "1.0"],
        ["hard", "2", "3", "0.0", "0.0", "0.0"],
    ]
    assert cells_of(capsys, "query", run, "replays")[1:] == [
        ["3", "easy", "plain", "wrong", "2", "1"],
        ["2", "easy", "plain", "wrong", "1", "2"],
    ]


def test_a_replayed_sample_that_left_the_file_is_gone(run, capsys):
    change(run / "history.sqlite", "DELETE FROM samples WHERE id IN (SELECT sample_id FROM replays)")
    assert {row[3] for row in cells_of(capsys, "query", run, "replays")[1:]} == {"gone"}


@pytest.mark.parametrize("name", QUERIES)
def test_the_printed_sql_of_a_query_gives_the_same_rows(name, run, capsys):
    sql = output_of(capsys, "query", run, name, "--sql")
    assert cells_of(capsys, "query", run, sql) == cells_of(capsys, "query", run, name)


def test_rows_beyond_the_limit_are_announced(run, capsys):
    assert main(["query", str(run), "SELECT * FROM samples", "--limit", "2", "--csv"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3 and captured.err == "the first 2 rows; --limit N shows more\n"
    assert main(["query", str(run), "SELECT * FROM steps", "--limit", "3"]) == 0
    assert capsys.readouterr().err == ""


def test_a_misspelt_name_is_not_run_as_sql(run, capsys):
    assert "did you mean never-solved?" in error_of(capsys, "query", run, "neversolved")
    assert "pass-rate" in error_of(capsys, "query", run, "???", "--sql")


WRITES = [
    "DELETE FROM samples",
    "UPDATE meta SET value = 'x'",
    "INSERT INTO pins VALUES (9)",
    "CREATE TABLE x (y)",
    "CREATE TEMP TABLE x (y)",
    "DROP TABLE samples",
    "ATTACH DATABASE '{folder}/other.sqlite' AS other",
    "VACUUM INTO '{folder}/other.sqlite'",
    "PRAGMA user_version = 9",
    "PRAGMA writable_schema = 1",
    "BEGIN IMMEDIATE",
    "REINDEX samples",
]


@pytest.mark.parametrize("sql", WRITES)
def test_sql_can_only_read(sql, run, capsys):
    before = (run / "history.sqlite").read_bytes()
    assert "only a SELECT" in error_of(capsys, "query", run, sql.format(folder=run))
    assert (run / "history.sqlite").read_bytes() == before and not (run / "other.sqlite").exists()


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT absent FROM samples", "no such column: absent"),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; DELETE FROM samples", "one statement at a time"),
        ("SELECT load_extension('x')", "only a SELECT"),
    ],
)
def test_broken_sql_is_one_line(sql, reason, run, capsys):
    assert reason in error_of(capsys, "query", run, sql)


# export and import


def test_every_column_arrives_in_the_parquet(tmp_path, capsys):
    path, out = tmp_path / "history.sqlite", tmp_path / "out.parquet"
    with closing(History(str(path), 3)) as history:
        history.restore(0, "all", META)
        stored = sample("q", [0, 151_643], True, REFLECTION, True, [-0.5, -1.5])
        history.add([stored, sample("q", [5]), sample("q", [])], step=7)
    assert "2 samples" in output_of(capsys, "export", path, out)  # the empty response stays behind
    table = pq.read_table(out)
    rows = {row["length"]: row for row in table.to_pylist()}
    assert rows[2] == {
        **{"query_id": "q", "variant": REFLECTION, "correct": True, "truncated": True, "score": 1.0, "length": 2},
        **{"entropy": 1.0, "step": 7, "tokens": [0, 151_643], "log_probs": [-0.5, -1.5], "abandoned": False},
        **{"version": 6, "versions": 1},
    }
    assert rows[1]["log_probs"] is None and rows[1]["entropy"] is None
    metadata = table.schema.metadata
    assert json.loads(metadata[b"r3.meta"]) == META and metadata[b"r3.format"] == b"1"
    assert not list(tmp_path.glob(".*tmp"))


def test_the_filters_of_export_choose_rows(tmp_path, capsys):
    path, out = tmp_path / "history.sqlite", tmp_path / "out.parquet"
    large(path)
    counts = rows_of(path, "SELECT sum(evicted IS NULL), sum(abandoned), count(*) FROM samples")[0]
    assert 0 < counts[1] and counts[0] + counts[1] < counts[2]  # some are kept for checkpoints
    main(["export", str(path), str(out), "--abandoned"])
    table = pq.read_table(out).to_pylist()
    assert len(table) == counts[0] + counts[1] and sum(row["abandoned"] for row in table) == counts[1]
    main(["export", str(path), str(out), "--outcome", "correct", "--variant", "reflection"])
    chosen = [row for row in table if row["correct"] and row["variant"] == REFLECTION and not row["abandoned"]]
    assert pq.read_table(out).to_pylist() == chosen != []


def test_an_export_writes_many_row_groups_in_order(tmp_path, monkeypatch):
    path, out = tmp_path / "history.sqlite", tmp_path / "out.parquet"
    large(path)
    main(["export", str(path), str(out)])
    whole = pq.read_table(out)
    monkeypatch.setattr("r3_ext.r3.history.parquet.ROW_GROUP_TOKENS", 10)
    main(["export", str(path), str(out)])
    assert pq.ParquetFile(out).num_row_groups > 5 and pq.read_table(out).equals(whole)


def test_a_damaged_sample_stops_the_export_and_the_old_output_stays(run, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    out.write_text("old")
    change(run / "history.sqlite", "UPDATE payloads SET tokens = x'FFFF' WHERE id = 4")
    assert "damaged" in error_of(capsys, "export", run, out)
    assert "damaged" in error_of(capsys, "import", tmp_path / "new.sqlite", run, *BOUNDS)
    assert out.read_text() == "old" and not list(tmp_path.glob(".*tmp")) and not (tmp_path / "new.sqlite").exists()
    assert ".parquet" in error_of(capsys, "export", run, run / "history.sqlite")


def test_text_is_what_the_tokenizer_makes_of_the_tokens(tmp_path, capsys):
    tokenizer = make_tokenizer(["[PAD]", "the", "answer", "is", "42", "[EOS]"], tmp_path / "right")
    make_tokenizer(["[PAD]", "answer", "the", "is", "42", "[EOS]"], tmp_path / "wrong")
    path, out = tmp_path / "history.sqlite", tmp_path / "out.parquet"
    with closing(History(str(path), 3)) as history:
        history.restore(0, "all", {"tokenizer": tokenizer_fingerprint(tokenizer)})
        history.add([sample("q", [1, 2, 3, 4, 5], True)], step=1)
    output_of(capsys, "export", path, out, "--tokenizer", tmp_path / "right")
    assert pq.read_table(out)["text"].to_pylist() == ["the answer is 42"]
    assert "another tokenizer" in error_of(capsys, "export", path, out, "--tokenizer", tmp_path / "wrong")
    assert "is not the folder" in error_of(capsys, "export", path, out, "--tokenizer", "no/such")


def make_tokenizer(words, folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[PAD]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[EOS]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    return tokenizer


def draws(path) -> dict:
    """Seeded draws of every kind, without the step, which an import forgets."""
    found = {}
    with closing(History(str(path), 3)) as history:
        for query in "abc":
            for variants in ((PLAIN,), (REFLECTION,), (PLAIN, REFLECTION)):
                for selection in ("uniform", "newest", "shortest"):
                    for k in (1, 2, 99):
                        settings = {"variants": variants, "selection": selection}
                        drawn = history.draw(query, None, k, random.Random(k), **settings)
                        found[query, variants, selection, k] = [
                            (s.tokens.tolist(), s.correct, s.score, s.truncated, s.variant, listed(s.log_probs))
                            for s in drawn
                        ]
    return found


def listed(array) -> list | None:
    return None if array is None else array.tolist()


@pytest.mark.parametrize("by_parquet", [False, True])
def test_an_imported_history_draws_what_its_source_draws(by_parquet, tmp_path, capsys):
    source, new = tmp_path / "history.sqlite", tmp_path / "new.sqlite"
    large(source)
    expected = draws(source)
    if by_parquet:
        output_of(capsys, "export", source, tmp_path / "out.parquet")
    text = output_of(capsys, "import", new, tmp_path / "out.parquet" if by_parquet else source, *BOUNDS)
    assert ("no statistics" in text) == by_parquet
    assert sum(map(len, expected.values())) > 100 and draws(new) == expected
    meta = dict(rows_of(new, "SELECT key, value FROM meta"))
    assert {key: meta.pop(key) for key in META} == META
    assert list(meta.values()) == ([] if by_parquet else [str(source)])
    assert {step for (step,) in rows_of(new, "SELECT step FROM samples")} == {0}


def test_a_response_the_model_was_certain_of_survives(tmp_path, capsys):
    path, new = tmp_path / "history.sqlite", tmp_path / "new.sqlite"
    with closing(History(str(path), 3)) as history:
        history.add([sample("q", [1, 2], log_probs=[0.0, 0.0]), sample("q", [3], log_probs=[-np.inf])], step=1)
    output_of(capsys, "export", path, tmp_path / "out.parquet")
    assert "2 of 2" in output_of(capsys, "import", new, tmp_path / "out.parquet", *BOUNDS)
    assert rows_of(new, "SELECT entropy FROM samples ORDER BY id") == [(0.0,), (65504.0,)]


def test_statistics_come_over_from_a_history_and_training_goes_on(tmp_path, capsys):
    source, new = tmp_path / "history.sqlite", tmp_path / "new.sqlite"
    large(source)
    output_of(capsys, "import", new, source, *BOUNDS)
    sums = "SELECT query_id, variant, sum(attempts), sum(successes), sum(truncated) FROM statistics GROUP BY 1, 2"
    assert rows_of(new, sums) == rows_of(source, sums)
    with closing(History(str(new), 3)) as history:
        history.restore(0, "all", META)
        history.add([sample("a", [1])], step=1)
        history.restore(0, "all", META)
    assert rows_of(new, sums) == rows_of(source, sums) and draws(new) == draws(source)


def sums_of(path) -> list[tuple]:
    return rows_of(path, "SELECT query_id, variant, attempts, successes, truncated FROM statistics")


def test_attempts_cannot_be_imported_twice(run, tmp_path, capsys):
    """Not the same file, not a copy of it, not when its run has gone on since, not by way of another history."""
    new, copied, between = tmp_path / "new.sqlite", tmp_path / "copy.sqlite", tmp_path / "between.sqlite"
    shutil.copy(run / "history.sqlite", copied)
    for target in (new, between):
        output_of(capsys, "import", target, run, *BOUNDS)
    before = sums_of(new)
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        history.add([sample("hard", [99])], step=4)
    for source in (run, copied, between):
        message = error_of(capsys, "import", new, source, *BOUNDS)
        assert f"{source}" in message and "would count twice; import into a new file" in message
        assert sums_of(new) == before
    output_of(capsys, "import", tmp_path / "newer.sqlite", run, *BOUNDS)


def test_attempts_of_another_run_and_samples_alone_can_be_added(run, tmp_path, capsys):
    new, other, out = tmp_path / "new.sqlite", tmp_path / "other.sqlite", tmp_path / "out.parquet"
    with closing(History(str(other), 3)) as history:
        history.restore(0, "all", META)
        history.add([sample("hard", [50], correct=True)], step=1)
    output_of(capsys, "import", new, run, *BOUNDS)
    output_of(capsys, "import", new, other, *BOUNDS)
    attempts = "SELECT sum(attempts), sum(successes) FROM statistics WHERE query_id = 'hard'"
    (both,) = rows_of(new, attempts)
    (((first, solved),),) = [rows_of(run / "history.sqlite", attempts)]
    assert both == (first + 1, solved + 1)
    output_of(capsys, "export", new, out)
    output_of(capsys, "import", new, out, *BOUNDS)
    output_of(capsys, "import", new, out, *BOUNDS)
    assert rows_of(new, attempts) == [both]
    samples_only = tmp_path / "samples.sqlite"
    output_of(capsys, "import", samples_only, out, *BOUNDS)
    output_of(capsys, "import", samples_only, run, *BOUNDS)
    assert rows_of(samples_only, attempts) == [(first, solved)]


def test_the_newest_samples_survive_tighter_bounds(tmp_path, capsys):
    source, new = tmp_path / "history.sqlite", tmp_path / "new.sqlite"
    with closing(History(str(source), 99)) as history:
        for step in range(1, 6):
            history.add([sample("q", [step])], step)
    assert "2 of 5" in output_of(capsys, "import", new, source, "--max-per-outcome", "2", "--max-gib", "1")
    with closing(History(str(new), 2)) as history:
        assert [s.tokens.tolist() for s in history.draw("q", False, 9, random.Random(0), selection="newest")] == [
            [5],
            [4],
        ]


def test_bounds_that_are_not_given_are_those_of_a_run(run, tmp_path, capsys):
    assert "9 of 9" in output_of(capsys, "import", tmp_path / "new.sqlite", run)


def test_what_cannot_be_imported_is_refused_and_changes_nothing(run, tmp_path, capsys):
    other, out, new = tmp_path / "other.sqlite", tmp_path / "out.parquet", tmp_path / "new.sqlite"
    small(other, {"tokenizer": "2000 tokens 0"})
    output_of(capsys, "export", other, out)
    output_of(capsys, "import", new, run, *BOUNDS)
    before = rows_of(new, "SELECT * FROM samples")
    for source in (out, other):
        assert "is of another tokenizer (2000 tokens 0)" in error_of(capsys, "import", new, source, *BOUNDS)
    assert "is the history to import into" in error_of(capsys, "import", new, new, *BOUNDS)
    (tmp_path / "folder").mkdir()
    new.rename(tmp_path / "folder" / "history.sqlite")
    new = tmp_path / "folder"
    assert "is the history to import into" in error_of(capsys, "import", new, new, *BOUNDS)
    assert rows_of(new / "history.sqlite", "SELECT * FROM samples") == before
    assert "3 steps of its own" in error_of(capsys, "import", run, new, *BOUNDS)
    assert "ending in .sqlite" in error_of(capsys, "import", tmp_path / "nowhere", run, *BOUNDS)
    assert "does not exist" in error_of(capsys, "import", tmp_path / "b.sqlite", tmp_path / "none", *BOUNDS)
    assert not (tmp_path / "b.sqlite").exists()


ROW = {
    **{"query_id": "q", "variant": PLAIN, "correct": True, "truncated": False, "score": 1.0, "length": 2},
    **{"tokens": [1, 2], "log_probs": [-1.0, -2.0]},
}
TYPES = {
    **{"query_id": pa.string(), "variant": pa.string(), "correct": pa.bool_(), "truncated": pa.bool_()},
    **{
        "score": pa.float64(),
        "length": pa.int32(),
        "tokens": pa.list_(pa.int64()),
        "log_probs": pa.list_(pa.float32()),
    },
}


def write(path, rows, types=TYPES, metadata=None) -> None:
    arrays = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    pq.write_table(pa.table(arrays).replace_schema_metadata(metadata), path)


HOSTILE_VALUES = [
    *(("query_id", None), ("query_id", ""), ("variant", "sideways"), ("variant", None), ("correct", None)),
    *(("query_id", "x" * 1025), ("query_id", "é" * 513), ("score", 1e300), ("score", -1e300)),
    *(("truncated", None), ("score", float("nan")), ("score", float("inf")), ("score", None), ("length", 3)),
    *(("length", None), ("tokens", None), ("tokens", [1, None]), ("tokens", [-1, 2]), ("tokens", [1, 2**31])),
    *(("log_probs", [-1.0]), ("log_probs", [-1.0, float("nan")]), ("log_probs", [-1.0, None]), ("log_probs", [5.0, 0])),
]


@pytest.mark.parametrize(("column", "value"), HOSTILE_VALUES)
def test_a_hostile_value_is_named_and_nothing_is_imported(column, value, run, tmp_path, capsys):
    out, new = tmp_path / "bad.parquet", tmp_path / "new.sqlite"
    good = [{**ROW, "tokens": [7, index]} for index in range(300)]
    write(out, [*good, {**ROW, column: value}])
    message = error_of(capsys, "import", new, out, *BOUNDS)
    assert f"{out}: column {column}, row 300: " in message and not new.exists()
    small(new)
    change(new, "DELETE FROM steps")
    before = rows_of(new, "SELECT * FROM samples")
    error_of(capsys, "import", new, out, *BOUNDS)
    assert rows_of(new, "SELECT * FROM samples") == before


@pytest.mark.parametrize("score", [0.0, -1.0])
def test_a_correct_answer_without_a_reward_is_refused(score, tmp_path, capsys):
    write(tmp_path / "bad.parquet", [ROW, {**ROW, "score": score}])
    message = error_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "bad.parquet", *BOUNDS)
    assert f"column correct, row 1: is true with a score of {score}" in message


def test_an_empty_token_list_is_refused(tmp_path, capsys):
    write(tmp_path / "bad.parquet", [{**ROW, "tokens": [], "log_probs": [], "length": 0}])
    message = error_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "bad.parquet", *BOUNDS)
    assert "column tokens, row 0" in message


@pytest.mark.parametrize("column", TYPES)
def test_a_missing_column_is_named(column, tmp_path, capsys):
    write(tmp_path / "bad.parquet", [ROW], {name: kind for name, kind in TYPES.items() if name != column})
    message = error_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "bad.parquet", *BOUNDS)
    assert f"column {column} is there 0 times" in message


HOSTILE_TYPES = [
    *(("query_id", pa.binary(), b"q"), ("score", pa.string(), "1.0"), ("correct", pa.int64(), 1)),
    *(("tokens", pa.list_(pa.string()), ["1"]), ("tokens", pa.string(), "[1, 2]"), ("tokens", pa.int64(), 1)),
    *(("log_probs", pa.list_(pa.int32()), [1, 2]), ("length", pa.float64(), 2.0)),
]


@pytest.mark.parametrize(("column", "kind", "value"), HOSTILE_TYPES)
def test_a_column_of_another_type_is_named(column, kind, value, tmp_path, capsys):
    write(tmp_path / "bad.parquet", [{**ROW, column: value}], {**TYPES, column: kind})
    message = error_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "bad.parquet", *BOUNDS)
    assert f"column {column} must hold" in message


def test_a_column_that_is_there_twice_a_later_format_and_broken_metadata_are_refused(tmp_path, capsys):
    out, new = tmp_path / "bad.parquet", tmp_path / "new.sqlite"
    arrays = [pa.array([ROW[name]], kind) for name, kind in TYPES.items()]
    pq.write_table(pa.table([*arrays, arrays[0]], names=[*TYPES, "query_id"]), out)
    assert "column query_id is there 2 times" in error_of(capsys, "import", new, out, *BOUNDS)
    write(out, [ROW], metadata={"r3.format": "2"})
    assert "format" in error_of(capsys, "import", new, out, *BOUNDS)
    for meta in ("[]", '{"tokenizer": 1}', "{"):
        write(out, [ROW], metadata={"r3.meta": meta})
        assert str(out) in error_of(capsys, "import", new, out, *BOUNDS)
    write(out, [ROW])
    out.write_bytes(out.read_bytes()[:-20])
    assert "not a readable parquet" in error_of(capsys, "import", new, out, *BOUNDS)


def test_text_that_is_not_utf8_is_refused(tmp_path, capsys):
    out = tmp_path / "bad.parquet"
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], "int32").tobytes()), pa.py_buffer(b"\xff"))
    arrays = {name: pa.array([ROW[name]], kind) for name, kind in TYPES.items()}
    pq.write_table(pa.table({**arrays, "query_id": broken}), out)
    assert "column query_id, row 0" in error_of(capsys, "import", tmp_path / "new.sqlite", out, *BOUNDS)


def test_other_widths_of_the_same_types_are_fine(tmp_path, capsys):
    kinds = {"query_id": pa.large_string(), "score": pa.float16(), "tokens": pa.large_list(pa.uint64())}
    kinds |= {"log_probs": pa.list_(pa.float16()), "length": pa.int64()}
    write(tmp_path / "good.parquet", [ROW, {**ROW, "tokens": [3, 4], "log_probs": None}], {**TYPES, **kinds})
    text = output_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "good.parquet", *BOUNDS)
    assert "2 of 2" in text and "does not say which tokenizer" in text
    with closing(History(str(tmp_path / "new.sqlite"), 3)) as history:
        drawn = history.draw("q", True, 9, random.Random(0), selection="newest")
    assert [s.tokens.tolist() for s in drawn] == [[3, 4], [1, 2]]
    assert drawn[0].log_probs is None and drawn[1].log_probs.tolist() == [-1.0, -2.0]


def test_a_history_with_forged_rows_is_refused(run, tmp_path, capsys):
    path, new = run / "history.sqlite", tmp_path / "new.sqlite"
    ((tokens,),) = rows_of(path, "SELECT tokens FROM payloads WHERE id = 1")
    (old,) = rows_of(path, f"SELECT {COLUMNS} FROM samples WHERE id = 1")
    for column, place, value in (("variant", 1, "sideways"), ("query_id", 0, ""), ("score", 4, float("inf"))):
        forged = [*old[:place], value, *old[place + 1 :]]
        sql = f"UPDATE samples SET {column} = ?, checksum = ? WHERE id = 1"
        change(path, sql, (value, checksum_of(tuple(forged), tokens, None)))
        forged_message = error_of(capsys, "import", new, path, *BOUNDS)
        assert f"column {column}, sample 1" in forged_message
        change(path, sql, (old[place], checksum_of(old, tokens, None)))
    change(path, "UPDATE statistics SET successes = 9 WHERE query_id = 'easy' AND step = 1")
    assert "do not add up" in error_of(capsys, "import", new, path, *BOUNDS)
    change(path, "UPDATE steps SET successes = 9 WHERE step = 1")
    assert "impossible statistics" in error_of(capsys, "import", new, path, *BOUNDS)
    assert not new.exists()


# prune


def test_prune_drops_what_it_is_told_and_nothing_else(tmp_path, capsys):
    path = tmp_path / "history.sqlite"
    large(path, steps=8)
    expected, size = draws(path), path.stat().st_size
    output_of(capsys, "prune", path)
    assert draws(path) == expected and rows_of(path, "SELECT sum(abandoned) > 0 FROM samples") == [(1,)]
    text = output_of(capsys, "prune", path, "--abandoned", "--keep-checkpoints", "1")
    assert "freed" in text and draws(path) == expected and path.stat().st_size <= size
    assert rows_of(path, "SELECT step FROM pins") == [(0,), (6,)]
    assert rows_of(path, "SELECT count(*) FROM samples WHERE evicted IS NOT NULL") == [(0,)]


def test_a_kept_checkpoint_can_still_be_restored(tmp_path, capsys):
    path = tmp_path / "history.sqlite"
    states = {}
    for pruned in (False, True):
        large(path, steps=8)
        if pruned:
            output_of(capsys, "prune", path, "--abandoned", "--keep-checkpoints", "2")
        with closing(History(str(path), 3)) as history:
            assert history.pinned() == ([0, 4, 6] if pruned else [0, 2, 4, 6])
            history.restore(4)
        states[pruned] = draws(path)
        for file in tmp_path.iterdir():
            file.unlink()
    assert states[True] == states[False]


def test_no_checkpoints_at_all_only_when_asked(run, capsys):
    output_of(capsys, "prune", run, "--keep-checkpoints", "0")
    assert rows_of(run / "history.sqlite", "SELECT * FROM pins") == []
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        history.restore(3)  # the last step


def test_damaged_samples_go_and_the_others_stay(run, capsys):
    path = run / "history.sqlite"
    change(path, "UPDATE payloads SET tokens = x'FFFF' WHERE id = 4")
    change(path, "DELETE FROM payloads WHERE id = 5")
    assert "2 damaged samples deleted" in output_of(capsys, "prune", run, "--damaged")
    assert rows_of(path, "SELECT count(*) FROM samples") == [(7,)]
    assert "0 damaged samples deleted" in output_of(capsys, "prune", run, "--damaged")


# the command


def test_a_path_without_a_history_is_refused_and_not_created(tmp_path, capsys):
    (tmp_path / "text").write_text("no history, but long enough to hold a header of a hundred bytes" * 3)
    for command in (["show"], ["query", "replays"], ["export", "x.parquet"], ["prune"]):
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
        ["query", "x", "replays", "--limit", "0"],
        ["prune", "x", "--keep-checkpoints", "-1"],
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
    pipe = subprocess.run(f"{' '.join(command)} query {run} '{sql}' --csv | head -1", shell=True, **settings)
    assert pipe.returncode == 0 and pipe.stderr == "" and pipe.stdout.startswith("id\n")


def test_the_readme_shows_the_ready_queries_as_they_are():
    readme = (Path(__file__).resolve().parents[2] / "recipe" / "r3" / "README.md").read_text()
    for name, sql in QUERIES.items():
        assert "\n".join(f"    {line}" for line in sql.splitlines()) in readme, name


# what reading leaves behind


READING = [
    *(["show"], ["show", "--query", "easy"], ["check"], ["query", "replays"], ["query", "SELECT * FROM samples"]),
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
    script = "import os, sys; sys.path[:0] = sys.argv[2:]\nfrom test_history_command import *\n"
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


@pytest.mark.parametrize("with_lock", [False, True])
def test_a_copied_log_is_read_and_stays_alone(with_lock, run, tmp_path, capsys):
    killed_in_training(run / "history.sqlite")
    copied = tmp_path / "copied"
    copied.mkdir()
    for end in ("", "-wal", *([".lock"] if with_lock else [])):
        shutil.copy(run / f"history.sqlite{end}", copied / f"history.sqlite{end}")
    before = names_and_bytes(copied)
    all_read(copied, tmp_path, capsys)
    assert "4, 1 to 4" in output_of(capsys, "show", copied) and names_and_bytes(copied) == before


def test_a_running_trainer_keeps_its_files_and_its_newest_step_is_seen(run, tmp_path, capsys):
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        for step in (4, 5):
            history.add([sample("easy", [step])], step)
            history.flush()
            all_read(run, tmp_path, capsys)
            assert f"{step}, 1 to {step}" in output_of(capsys, "show", run)
            assert {"history.sqlite-wal", "history.sqlite-shm"} <= set(os.listdir(run))
    assert sorted(os.listdir(run)) == ["history.sqlite", "history.sqlite.lock"]


def test_a_run_that_begins_while_the_file_is_read_is_told(run, capsys):
    path = str(run / "history.sqlite")
    with pytest.raises(HistoryError, match="a run began to write it while it was read; run the command again"):
        with reading(path) as db, closing(History(path, 3)) as history:
            history.add([sample("easy", [4])], 4)
            history.flush()
            history._db.execute("PRAGMA wal_checkpoint(FULL)")
            db.execute("SELECT count(*) FROM steps").fetchone()


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


@pytest.mark.parametrize("column", ["truncated", "score", "checksum"])
def test_a_changed_column_that_no_index_has_is_told_wherever_it_is_printed(column, run, capsys):
    change(run / "history.sqlite", f"UPDATE samples SET {column} = {column} + 1 WHERE id = 4")
    for argv in (["show", run, "--query", "easy"], ["check", run], ["query", run, "SELECT * FROM samples"]):
        assert "sample 4 of query" in (message := error_of(capsys, *argv)) and "prune --damaged" in message
    assert "1 damaged samples deleted" in output_of(capsys, "prune", run, "--damaged")
    assert "8 samples" in output_of(capsys, "check", run)


def test_a_changed_payload_is_told_where_payloads_are_read(run, capsys):
    change(run / "history.sqlite", "UPDATE payloads SET tokens = x'FFFF' WHERE id = 4")
    for argv in (["check", run], ["query", run, "SELECT sum(length(tokens)) FROM payloads"]):
        assert "sample 4 of query" in error_of(capsys, *argv)
    output_of(capsys, "query", run, "SELECT count(*) FROM samples")


@pytest.mark.parametrize("table", ["statistics", "steps"])
@pytest.mark.parametrize("command", [["show"], ["check"], ["query", "pass-rate"], ["export", "out.parquet"], ["prune"]])
def test_sums_that_do_not_add_up_are_told_by_every_command(table, command, run, tmp_path, capsys):
    change(run / "history.sqlite", f"UPDATE {table} SET attempts = attempts + 1 WHERE step = 2")
    rest = [tmp_path / word if word == "out.parquet" else word for word in command[1:]]
    assert "the statistics of step 2 do not add up; the file is damaged" in error_of(capsys, command[0], run, *rest)


def test_what_sqlite_keeps_for_itself_is_not_shown(run, capsys):
    assert "prohibited" in error_of(capsys, "query", run, "SELECT seq FROM sqlite_sequence")
    assert "CREATE TABLE pins" in output_of(capsys, "query", run, "SELECT sql FROM sqlite_master", "--csv")


def test_a_query_without_an_end_is_ended(run, capsys):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    message = error_of(capsys, "query", run, endless, "--seconds", "1")
    assert "no row came for 1 s; ask for less, or wait longer with --seconds N" in message


def test_an_id_of_megabytes_is_refused_when_it_is_stored_and_when_it_is_read(run, capsys):
    long = "x" * 5_000_000
    with closing(History(str(run / "history.sqlite"), 3)) as history:
        for samples, unfinished in (([sample(long, [1])], []), ([], [(long, PLAIN)])):
            history.add(samples, 4, unfinished=unfinished)
            with pytest.raises(
                HistoryError, match="query id xxxxxxxxxxxxxxxxxxxx... has 5,000,000 bytes, 1,024 at most"
            ):
                history.flush()
        history.add([sample("x" * 1024, [1])], 4)
    output_of(capsys, "show", run)
    for table in ("replays", "statistics", "samples"):
        change(run / "history.sqlite", f"UPDATE OR IGNORE {table} SET query_id = ? WHERE step = 3", (long,))
        message = error_of(capsys, "query", run, "never-solved")
        assert f"table {table}: a query id of 5,000,000 bytes" in message and len(message) < 1_000


def test_a_long_value_is_cut_in_a_table_and_whole_in_csv(run, capsys):
    sql = "SELECT replace(hex(zeroblob(50000)), '0', 'x') AS v"
    assert "(100,000 characters)" in (text := output_of(capsys, "query", run, sql)) and len(text) < 3_000
    assert len(cells_of(capsys, "query", run, sql)[1][0]) == 100_000


@pytest.mark.parametrize(
    ("meta", "largest"),
    [
        ({"tokenizer": "640 tokens abcdef012345"}, 649),
        ({"tokenizer": "640 tokens abcdef012345", "model": "{model}"}, 699),
        ({"model": "{model}"}, 699),
        ({"model": "/no/such/model"}, (1 << 24) - 1),
        ({}, (1 << 24) - 1),
    ],
)
def test_ids_outside_of_the_vocabulary_are_refused(meta, largest, tmp_path, capsys):
    """The model's vocabulary decides; without its folder the tokenizer's and a 64th, which models add."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 700}')
    meta = {key: value.format(model=tmp_path / "model") for key, value in meta.items()}
    bad, good, new = tmp_path / "bad.parquet", tmp_path / "good.parquet", tmp_path / "new.sqlite"
    write(bad, [ROW, {**ROW, "tokens": [1, largest + 1]}], metadata={"r3.meta": json.dumps(meta)})
    message = error_of(capsys, "import", new, bad, *BOUNDS)
    assert f"column tokens, row 1: must be ids of the vocabulary, 0 to {largest:,}" in message and not new.exists()
    write(good, [ROW, {**ROW, "tokens": [1, largest]}], metadata={"r3.meta": json.dumps(meta)})
    assert "2 of 2" in output_of(capsys, "import", new, good, *BOUNDS)


@pytest.mark.parametrize("meta", ["[" * 50_000, '{"a": ' * 10_000, json.dumps({"a": "x" * 70_000})])
def test_metadata_that_is_nested_deeply_or_long_is_refused(meta, tmp_path, capsys):
    write(tmp_path / "bad.parquet", [ROW], metadata={"r3.meta": meta})
    message = error_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "bad.parquet", *BOUNDS)
    assert "the metadata r3.meta" in message and not (tmp_path / "new.sqlite").exists()
