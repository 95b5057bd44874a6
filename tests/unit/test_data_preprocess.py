"""DeepScaleR and benchmark rows become verl parquet: stable ids, counted drops, clear errors."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r3_ext import data

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("R3_SHARED_DATA", ROOT.parent / "shared" / "data"))
SCRIPT = ROOT / "examples" / "data_preprocess" / "deepscaler.py"


def write(folder: Path, rows: list[dict], name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


def problem(text: str, answer: str) -> dict:
    return {"problem": text, "answer": answer}


def convert(source: Path, folder: Path, *options: str, ok: bool = True) -> tuple[list[dict], str]:
    command = [sys.executable, SCRIPT, "--source", source, "--output", folder / "train.parquet", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode == 0) is ok, done.stderr
    return (pq.read_table(folder / "train.parquet").to_pylist() if ok else []), done.stdout + done.stderr


def test_rows_have_the_columns_that_the_recipe_reads(tmp_path):
    [row], _ = convert(write(tmp_path, [problem("1+1?", "2")]), tmp_path)
    assert row["query_id"] == data.query_id("1+1?") and len(row["query_id"]) == 16
    assert row["prompt"] == [{"role": "user", "content": "1+1?" + data.INSTRUCTION}]
    assert row["reward_model"]["ground_truth"] == "2" and row["data_source"] == "deepscaler"


def test_ids_survive_reordering_and_spacing():
    assert data.query_id("find  x\n if x=1") == data.query_id("find x if x=1") != data.query_id("find x if x=2")


def test_the_shuffle_is_seeded_and_does_not_depend_on_the_order_of_the_file(tmp_path):
    rows = [problem(f"{i}+1?", str(i + 1)) for i in range(30)]
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    ids = [
        [row["query_id"] for row in convert(write(folder, order), folder, "--seed", seed)[0]]
        for folder, order, seed in zip(folders, (rows, rows[::-1], rows), "770", strict=True)
    ]
    assert ids[0] == ids[1] != ids[2] and set(ids[0]) == set(ids[2])


def test_duplicates_and_conflicts_are_counted_and_settled():
    rows = [
        *(problem("same", "1/2"), problem("same", "1/2")),
        *(problem("forms", "\\frac{1}{2}"), problem("forms", "0.5")),
        *(problem("conflict", "3"), problem("conflict", "4")),
        *(problem("", "1"), problem("no answer", ""), problem("fine", "5")),
    ]
    counts = Counter()
    kept = data.clean(data.to_problems(rows, "rows", "test"), counts)
    assert [p.text for p in kept] == ["same", "forms", "fine"]
    dropped = sum(count for name, count in counts.items() if name != "read")
    assert counts["read"] == len(rows) == len(kept) + dropped


def test_problems_of_a_benchmark_are_excluded_whatever_their_spacing(tmp_path):
    bench = write(tmp_path, [problem("Find $x$ , if $x=1$.", "1")], "bench.jsonl")
    source = write(tmp_path, [problem("find $x$, if $x = 1$", "1"), problem("other", "2")])
    rows, _ = convert(source, tmp_path, "--exclude", str(bench))
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question_text": "1+1?", "answer": "2"}', "no problem column; found answer, question_text"),
        ("", "is empty"),
        ('{"problem": "1+1?"', "line 1: not a JSON object"),
        ('{"problem": "", "answer": "2"}', ""),
    ],
)
def test_unusable_files_end_with_a_message_that_names_them(tmp_path, content, message):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    _, output = convert(file, tmp_path, ok=False)
    assert message in output


def test_unicode_goes_through(tmp_path):
    [row], _ = convert(write(tmp_path, [problem("求 x，其中 x²=4", "±2")]), tmp_path)
    assert "x²=4" in row["prompt"][0]["content"] and row["reward_model"]["ground_truth"] == "±2"


def test_the_whole_of_deepscaler(tmp_path):
    source = SHARED / "deepscaler_train.parquet"
    if not source.exists():
        pytest.skip(f"{source} is not here")
    rows, _ = convert(source, tmp_path, "--val-rows", "100")
    assert len(rows) > 38_000 and len({row["query_id"] for row in rows}) == len(rows)
    held_out = pq.read_table(tmp_path / "val.parquet").column("query_id").to_pylist()
    assert len(held_out) == 100 and not {row["query_id"] for row in rows} & set(held_out)
