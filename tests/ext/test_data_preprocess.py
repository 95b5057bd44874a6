"""Data preparation: what is kept, what is dropped and counted, and what hostile files lead to."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import problems as data
from r3_ext.data import read, write

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("R3_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="R3_TEST_DATA names no folder of data sets (tests/README.md)")


def run(script: str, *arguments) -> str:
    command = [sys.executable, str(ROOT / "examples" / "data_preprocess" / script), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def write_lines(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def clean(*pairs: tuple[str, str], **options) -> tuple[list[data.Problem], Counter]:
    counts = Counter()
    rows = [{"problem": problem, "answer": answer} for problem, answer in pairs]
    return data.clean(data.to_problems(rows, "rows", "deepscaler"), counts, **options), counts


def test_a_row_has_the_schema_verl_reads():
    problem = data.Problem("What is 1+1?", "2", source="aime", index=7)
    assert write.to_row(problem, "deepscaler", "train") == {
        "query_id": data.query_id("What is 1+1?"),
        "data_source": "deepscaler",
        "prompt": [
            {
                "role": "user",
                "content": "What is 1+1? Please reason step by step, and put your final answer within \\boxed{}.",
            }
        ],
        "ability": "math",
        "reward_model": {"style": "boxed", "ground_truth": "2"},
        "extra_info": {"index": 7, "split": "train", "source": "aime"},
    }


def test_query_id_is_sha256_of_the_text_and_ignores_whitespace_only():
    assert data.query_id("What is 1+1?") == "31adf3e245f99d7b"
    assert data.query_id("  What\tis\n1+1? ") == data.query_id("What is 1+1?")
    assert data.query_id("what is 1+1?") != data.query_id("What is 1+1?")


@pytest.mark.parametrize(
    "answers", [("2", "2"), ("\\dfrac12", "0.5"), ("1,234", "1234"), ("025", "$25$"), ("1/2", ".5")]
)
def test_answers_equal_in_normal_form_keep_the_first_row(answers):
    kept, counts = clean(("p", answers[0]), ("p", answers[1]))
    assert [problem.answer for problem in kept] == [answers[0]]
    assert counts["duplicate"] + counts["same_answer_other_form"] == 1


@pytest.mark.parametrize(
    "answers", [("1", "2"), ("(1,234)", "1234"), ("65\\frac45", "\\frac{654}{5}"), ("3 4", "34"), ("A", "a")]
)
def test_answers_that_differ_drop_the_whole_problem(answers):
    kept, counts = clean(("p", answers[0]), ("p", answers[1]), ("p", answers[0]), ("q", "1"))
    assert [problem.text for problem in kept] == ["q"]
    assert counts["conflicting_answers"] == 2 and counts["duplicate"] == 1


def test_the_same_problem_in_other_whitespace_is_a_duplicate():
    kept, counts = clean(("a  b", "1"), ("a\nb", "1"))
    assert [problem.text for problem in kept] == ["a  b"] and counts["duplicate"] == 1


def test_benchmark_copies_are_found_through_punctuation_case_and_unicode():
    exclude = frozenset({data.overlap_key("Find $x$: ДВА, x^2 = 4!")})
    kept, counts = clean(("find x два x^{2}=4", "2"), ("find y", "2"), exclude=exclude)
    assert [problem.text for problem in kept] == ["find y"] and counts["in_benchmark"] == 1


def test_counts_add_up_to_the_rows_read():
    pairs = [
        ("", "1"),
        ("p", ""),
        ("q", "1"),
        ("q", "1"),
        ("q", "1.0"),
        ("r", "1"),
        ("r", "2"),
        ("long" * 9, "1"),
        ("b", "1"),
    ]
    kept, counts = clean(*pairs, max_chars=20, exclude=frozenset({"b"}))
    dropped = {name: number for name, number in counts.items() if name != "read"}
    assert dropped == {
        "empty_problem": 1,
        "empty_answer": 1,
        "duplicate": 1,
        "same_answer_other_form": 1,
        "conflicting_answers": 2,
        "too_long": 1,
        "in_benchmark": 1,
    }
    assert counts["read"] == len(pairs) == sum(dropped.values()) + len(kept)


def test_a_missing_column_is_named_with_what_was_found_and_what_is_accepted():
    with pytest.raises(ValueError, match="x.parquet: no answer column; found id, question; .* answer or final_answer"):
        data.to_problems([{"id": 1, "question": "?"}], "x.parquet", "aime24")
    with pytest.raises(ValueError, match="no problem column"):
        data.to_problems([{"id": 1, "answer": "2"}], "x.parquet", "aime24")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "the file is empty"),
        ("a.parquet", "", "the file is empty"),
        ("a.jsonl", '{"problem": "p", "answer": "1"}\n{"problem": ', "line 2: not a JSON object"),
        ("a.json", "[1, 2]", "must be a JSON object"),
        ("a.csv", "problem,answer\n", "must be one of .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read.read_rows(str(tmp_path / name))


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(tmp_path):
    for source in (str(tmp_path / "none"), "data/none.parquet"):
        with pytest.raises(ValueError, match="no such file"):
            read.read_rows(source)
    with pytest.raises(ValueError, match="no data file found"):
        read.read_rows(str(tmp_path))


def test_numbers_lists_and_missing_answers_become_text():
    answers = [142.0, 0.5, ["$1$", "2"], None, float("nan"), 7]
    problems = data.to_problems([{"question": "q", "final_answer": a} for a in answers], "f", "amc23")
    assert [problem.answer for problem in problems] == ["142", "0.5", "$1$, 2", "", "", "7"]


def test_our_own_files_can_be_read_again(tmp_path):
    problems = [data.Problem("Найди é ∑ 中文 🙂", "½", "aime", 3), data.Problem("q", "2", "other", 4)]
    write.write_rows(tmp_path / "a.parquet", [write.to_row(p, "deepscaler", "train") for p in problems], {"counts": {}})
    rows, origin = read.read_rows(str(tmp_path))  # the report beside it is not data
    again = data.to_problems(rows, "a.parquet", "deepscaler")
    assert [(p.text, p.answer, p.source) for p in again] == [(p.text, p.answer, p.source) for p in problems]
    assert list(origin["files"]) == ["a.parquet"]


def test_rows_are_never_there_without_their_report(tmp_path, monkeypatch):
    """A later start takes rows that are there, and reads the report."""
    row, file = write.to_row(data.Problem("q", "2", "x", 0), "x", "train"), tmp_path / "a.parquet"
    write.write_rows(file, [row], {"n": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UnicodeEncodeError):
        write.write_rows(file, [row | {"data_source": "\ud800"}], {"n": 2})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.setattr(write, "write_text", lambda path, text: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write.write_rows(tmp_path / "b.parquet", [row], {"n": 1})
    assert {path.name for path in tmp_path.iterdir()} == before.keys()


def test_nothing_left_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no rows left"):
        write.write_rows(tmp_path / "a.parquet", [])
    assert list(tmp_path.iterdir()) == []


def make_source(path: Path, count: int, seed: int) -> str:
    rows = [{"problem": f"What is {number}+1?", "answer": str(number + 1)} for number in range(count)]
    random.Random(seed).shuffle(rows)
    return write_lines(path, rows)


def test_split_depends_on_the_seed_and_not_on_the_order_of_the_source(tmp_path):
    ids = {}
    for name, order, seed in (("a", 1, 0), ("b", 2, 0), ("c", 1, 5)):
        source, output = make_source(tmp_path / f"{name}.jsonl", 40, order), tmp_path / name / "train.parquet"
        run("deepscaler.py", "--source", source, "--output", output, "--val-rows", 8, "--max-rows", 20, "--seed", seed)
        ids[name] = [
            pq.read_table(output.with_name(f))["query_id"].to_pylist() for f in ("train.parquet", "val.parquet")
        ]
    assert ids["a"] == ids["b"] != ids["c"]
    train, val = ids["a"]
    assert (len(train), len(val)) == (20, 8) and not set(train) & set(val)


def test_deepscaler_writes_rows_that_verl_can_load_and_a_report(tmp_path):
    bench = write_lines(tmp_path / "bench.jsonl", [{"problem": "WHAT IS 3 + 1"}])
    source = make_source(tmp_path / "source.jsonl", 10, seed=0)
    output = tmp_path / "out" / "train.parquet"
    printed = run("deepscaler.py", "--source", source, "--output", output, "--exclude", bench)
    assert "in_benchmark" in printed
    table = pq.read_table(output)
    assert table.schema.equals(write.SCHEMA) and table.num_rows == 9
    report = json.loads(Path(f"{output}.json").read_text())
    assert report["counts"]["in_benchmark"] == 1 and report["counts"]["train"] == 9
    assert len(report["origin"]["files"]["source.jsonl"]) == 64


def test_more_validation_rows_than_rows_is_an_error(tmp_path):
    source = make_source(tmp_path / "source.jsonl", 4, seed=0)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("deepscaler.py", "--source", source, "--output", tmp_path / "t.parquet", "--val-rows", 4)
    assert "--val-rows must be in [0, 4)" in error.value.stderr


def test_benchmarks_keep_their_order_and_name_a_missing_file(tmp_path):
    table = pa.table({"question": ["q2", "q1"], "answer": [142.0, 3.0]})
    pq.write_table(table, tmp_path / "amc23.parquet")
    run("benchmarks.py", "--folder", tmp_path, "--only", "amc23", "--output-dir", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "amc23.parquet").to_pylist()
    assert [(row["extra_info"]["index"], row["reward_model"]["ground_truth"]) for row in rows] == [(0, "142"), (1, "3")]
    assert {(row["data_source"], row["extra_info"]["split"]) for row in rows} == {("amc23", "test")}
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("benchmarks.py", "--folder", tmp_path, "--only", "minerva", "--output-dir", tmp_path / "out")
    assert "exactly one of minerva.parquet" in error.value.stderr


@needs_data
def test_real_benchmarks_lose_no_problem(tmp_path):
    run("benchmarks.py", "--folder", Path(DATA) / "eval", "--output-dir", tmp_path)
    sizes = {path.stem: pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")}
    assert sizes == {"aime24": 30, "math500": 500, "amc23": 83, "minerva": 272, "olympiadbench": 675}


@needs_data
def test_real_training_set_loses_conflicts_and_the_eight_benchmark_copies(tmp_path):
    source, output = Path(DATA) / "deepscaler_train.parquet", tmp_path / "train.parquet"
    run("deepscaler.py", "--source", source, "--output", output, "--exclude", Path(DATA) / "eval")
    counts = json.loads(Path(f"{output}.json").read_text())["counts"]
    assert counts["read"] == 39304 and counts["in_benchmark"] == 8
    assert counts["read"] == sum(number for name, number in counts.items() if name != "read")
    ids = pq.read_table(output)["query_id"].to_pylist()
    assert len(ids) == len(set(ids)) == counts["train"] > 38000
