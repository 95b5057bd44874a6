"""`r3 history export` and `import`: that samples survive the way out and in, and what is refused."""

import json
import random
import sqlite3
from contextlib import closing
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.r3.history.command import main
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.store import History, Sample, tokenizer_fingerprint
from tests.ext.histories import BOUNDS, META, error_of, output_of, rows_of, sample, small


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


def change(path, sql, values=()) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


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
