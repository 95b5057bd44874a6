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
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.r3.history.command import main
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History, Sample, tokenizer_fingerprint

META = {"tokenizer": "151643 tokens abcdef012345", "model": "/models/tiny", "max_per_outcome": "3", "max_gib": "32.0"}
BOUNDS = ["--max-per-outcome", "99", "--max-gib", "1"]


def sample(query, tokens, correct=False, variant=PLAIN, truncated=False, log_probs=None) -> Sample:
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    return Sample(query, np.array(tokens, dtype="int32"), correct, float(correct), truncated, 0, variant, log_probs)


def small(path, meta=META) -> None:
    """Three steps: `hard` is never solved and is replayed into, `easy` gets better; a checkpoint after each."""
    with closing(History(str(path), max_per_outcome=3)) as history:
        history.restore(0, meta)
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
        history.restore(0, meta)
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


# export and import


def test_every_column_arrives_in_the_parquet(tmp_path, capsys):
    path, out = tmp_path / "history.sqlite", tmp_path / "out.parquet"
    with closing(History(str(path), 3)) as history:
        history.restore(0, META)
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
        history.restore(0, {"tokenizer": tokenizer_fingerprint(tokenizer)})
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
        for query, variants, k in product("abc", ((PLAIN,), (REFLECTION,), (PLAIN, REFLECTION)), (1, 2, 99)):
            found[query, variants, k] = [
                (s.tokens.tolist(), s.correct, s.score, s.truncated, s.variant, listed(s.log_probs))
                for s in history.draw(query, None, k, random.Random(k), variants)
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
    assert sum(map(len, expected.values())) > 30 and draws(new) == expected
    meta = dict(rows_of(new, "SELECT key, value FROM meta"))
    assert {key: meta.pop(key) for key in META} == META
    assert meta == {}
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
        history.restore(0, META)
        history.add([sample("a", [1])], step=1)
        history.restore(0, META)
    assert rows_of(new, sums) == rows_of(source, sums) and draws(new) == draws(source)


def test_the_newest_samples_survive_tighter_bounds(tmp_path, capsys):
    source, new = tmp_path / "history.sqlite", tmp_path / "new.sqlite"
    with closing(History(str(source), 99)) as history:
        for step in range(1, 6):
            history.add([sample("q", [step])], step)
    assert "2 of 5" in output_of(capsys, "import", new, source, "--max-per-outcome", "2", "--max-gib", "1")
    with closing(History(str(new), 2)) as history:
        assert sorted(s.tokens.tolist() for s in history.draw("q", False, 9, random.Random(0))) == [[4], [5]]


def test_bounds_that_are_not_given_are_those_of_a_run(run, tmp_path, capsys):
    assert "9 of 9" in output_of(capsys, "import", tmp_path / "new.sqlite", run)


def test_what_cannot_be_imported_is_refused_and_leaves_no_file(run, tmp_path, capsys):
    other, out, new = tmp_path / "other.sqlite", tmp_path / "out.parquet", tmp_path / "new.sqlite"
    small(other, {"tokenizer": "2000 tokens 0"})
    output_of(capsys, "export", other, out)
    for source in (out, other):
        assert main(["import", str(new), str(run), str(source), *BOUNDS]) == 2
        assert "is of another tokenizer (2000 tokens 0)" in capsys.readouterr().err and not new.exists()
    assert "named twice" in error_of(capsys, "import", new, run, run / "history.sqlite", *BOUNDS)
    before = (run / "history.sqlite").read_bytes()
    for target in (run, run / "history.sqlite"):
        assert "history.sqlite exists; name a new file" in error_of(capsys, "import", target, other, *BOUNDS)
    assert (run / "history.sqlite").read_bytes() == before
    assert "ending in .sqlite" in error_of(capsys, "import", tmp_path / "nowhere", run, *BOUNDS)
    assert "does not exist" in error_of(capsys, "import", tmp_path / "b.sqlite", tmp_path / "none", *BOUNDS)
    assert not (tmp_path / "b.sqlite").exists()


def test_several_sources_are_put_together(run, tmp_path, capsys):
    new, other, out = tmp_path / "new.sqlite", tmp_path / "other.sqlite", tmp_path / "out.parquet"
    with closing(History(str(other), 3)) as history:
        history.restore(0, META)
        history.add([sample("hard", [50], correct=True)], step=1)
    output_of(capsys, "export", other, out)
    attempts = "SELECT sum(attempts), sum(successes) FROM statistics WHERE query_id = 'hard'"
    [(tried, solved)] = rows_of(run / "history.sqlite", attempts)
    output_of(capsys, "import", new, run, other, out, *BOUNDS)
    assert rows_of(new, attempts) == [(tried + 1, solved + 1)]
    assert rows_of(new, "SELECT count(*) FROM samples") == [(9 + 1,)]


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


BAD_COLUMNS = {
    "query_id": (pa.string(), None),
    "correct": (pa.string(), "often"),
    "score": (pa.float64(), None),
    "tokens": (pa.list_(pa.int64()), [1, 1 << 31]),
    "log_probs": (pa.string(), "[1, 2]"),
}


@pytest.mark.parametrize("column", BAD_COLUMNS)
def test_a_parquet_that_holds_something_else_is_refused_and_nothing_is_imported(column, tmp_path, capsys):
    out, new = tmp_path / "bad.parquet", tmp_path / "new.sqlite"
    kind, value = BAD_COLUMNS[column]
    write(
        out,
        [{**ROW, column: None if kind == pa.string() else ROW[column]}, {**ROW, column: value}],
        {**TYPES, column: kind},
    )
    assert f"{out}: not a parquet of samples: " in error_of(capsys, "import", new, out, *BOUNDS) and not new.exists()
    write(out, [ROW], {name: kind for name, kind in TYPES.items() if name != column})
    assert f"{out}: not a parquet of samples: " in error_of(capsys, "import", new, out, *BOUNDS)


def test_a_response_without_tokens_or_with_too_few_log_probs_is_refused(tmp_path, capsys):
    out, new = tmp_path / "bad.parquet", tmp_path / "new.sqlite"
    for changes, reason in (({"tokens": []}, "has no tokens"), ({"log_probs": [-1.0]}, "1 log-probs for 2 tokens")):
        write(out, [ROW, {**ROW, **changes}])
        assert reason in error_of(capsys, "import", new, out, *BOUNDS) and not new.exists()


def test_a_later_format_and_a_torn_parquet_are_refused(tmp_path, capsys):
    out, new = tmp_path / "bad.parquet", tmp_path / "new.sqlite"
    write(out, [ROW], metadata={"r3.format": "2"})
    assert "format" in error_of(capsys, "import", new, out, *BOUNDS)
    write(out, [ROW])
    out.write_bytes(out.read_bytes()[:-20])
    assert "not a parquet of samples" in error_of(capsys, "import", new, out, *BOUNDS)


def test_other_widths_of_the_same_types_are_fine(tmp_path, capsys):
    kinds = {"query_id": pa.large_string(), "score": pa.float16(), "tokens": pa.large_list(pa.uint64())}
    kinds |= {"log_probs": pa.list_(pa.float16()), "length": pa.int64()}
    write(tmp_path / "good.parquet", [ROW, {**ROW, "tokens": [3, 4], "log_probs": None}], {**TYPES, **kinds})
    text = output_of(capsys, "import", tmp_path / "new.sqlite", tmp_path / "good.parquet", *BOUNDS)
    assert "2 of 2" in text and "does not say which tokenizer" in text
    with closing(History(str(tmp_path / "new.sqlite"), 3)) as history:
        drawn = sorted(history.draw("q", True, 9, random.Random(0)), key=lambda s: -s.tokens[0])
    assert [s.tokens.tolist() for s in drawn] == [[3, 4], [1, 2]]
    assert drawn[0].log_probs is None and drawn[1].log_probs.tolist() == [-1.0, -2.0]


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
