"""What `r3 run` trains on: given files arrive as they are, raw ones converted."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r3_ext.data import convert
from r3_ext.host import hub
from r3_ext.tiny import warm_start
from r3_ext.tiny.world import World
from tests.ext.given import MODEL, TRAIN, VAL, raw, verl_file, verl_row, write_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_hub")]

ROOT = Path(__file__).resolve().parents[2]


def problems_of(path: str) -> set[str]:
    prompts = pq.read_table(path)["prompt"].to_pylist()
    return {prompt[-1]["content"].split("?")[0].removeprefix("What is ") for prompt in prompts}


def test_the_cache_keeps_training_sets_of_several_sources_apart(tmp_path, prepared):
    first, second = raw(tmp_path / "a.jsonl", "a", "b"), raw(tmp_path / "b.jsonl", "c")
    val = raw(tmp_path / "val.jsonl", "v")

    def trained_on(source) -> set[str]:
        return problems_of(prepared(DATA=source, VAL_DATA=val)[0][TRAIN])

    assert trained_on(first) == {"a", "b"} and trained_on(second) == {"c"} and trained_on(first) == {"a", "b"}
    raw(tmp_path / "a.jsonl", "d")
    assert trained_on(first) == {"d"}, "a changed file is another source"
    assert not list((tmp_path / "cache").glob("deepscaler*")), "the name of DeepScaleR's own"


def test_problems_of_benchmarks_and_validation_are_left_out_of_training(tmp_path, prepared):
    benchmark = raw(tmp_path / "aime.jsonl", "a benchmark problem")
    convert.benchmark("aime24", str(benchmark), tmp_path / "cache" / "benchmarks" / "aime24.parquet")
    source = raw(tmp_path / "a.jsonl", "new", "A Benchmark  problem", "validated")
    values, said = prepared(DATA=source)
    assert problems_of(values[TRAIN]) == {"new", "validated"} and "1 in benchmark" in said[-1]
    assert problems_of(values[VAL]) == {"a benchmark problem"}, "AIME 2024 is here, the hub is not asked"
    values, _ = prepared(DATA=source, VAL_DATA=raw(tmp_path / "val.jsonl", "validated"))
    assert problems_of(values[TRAIN]) == {"new"} and problems_of(values[VAL]) == {"validated"}


def test_a_file_in_verls_format_is_trained_on_itself(tmp_path, prepared):
    train, val = verl_file(tmp_path / "a.parquet", "a", "b"), verl_file(tmp_path / "v.parquet", "v")
    before = train.read_bytes(), val.read_bytes()
    assert prepared(DATA=train, VAL_DATA=val) == ({VAL: str(val), TRAIN: str(train)}, [])
    assert (train.read_bytes(), val.read_bytes()) == before


def test_a_folder_of_such_files_is_trained_on_as_they_are(tmp_path, prepared):
    (tmp_path / "d").mkdir()
    files = [verl_file(tmp_path / "d" / f"{name}.parquet", name) for name in "ab"]
    values, _ = prepared(
        DATA=tmp_path / "d",
        VAL_DATA=files[0].rename(tmp_path / "v.parquet").rename(files[0]) and raw(tmp_path / "v.jsonl", "v"),
    )
    assert values[TRAIN] == [str(file) for file in files]


def test_rows_of_benchmarks_go_and_all_others_stay_as_they_were(tmp_path, prepared):
    """Found although the file has instructions of its own behind each problem."""
    train = verl_file(tmp_path / "a.parquet", "a", "the validated", "b")
    values, said = prepared(DATA=train, VAL_DATA=raw(tmp_path / "v.jsonl", "THE  validated"))
    assert said[-1] == f"{train}: 1 of 3 rows left out, as they are also in a benchmark or in VAL_DATA"
    kept, given = pq.read_table(values[TRAIN]), pq.read_table(train)
    assert kept.equals(given.take([0, 2])) and kept.schema.equals(given.schema, check_metadata=True)
    with pytest.raises(ValueError, match="a.parquet: every row is also in a benchmark"):
        prepared(
            DATA=verl_file(tmp_path / "a.parquet", *["the validated"] * 2),
            VAL_DATA=raw(tmp_path / "v.jsonl", "the validated? Answer in a box"),
        )


def test_json_in_verls_format_keeps_texts_that_look_like_dates(tmp_path, prepared):
    rows = [verl_row(name, day="2024-01-01T00:00:00") for name in "ab"]
    values, _ = prepared(DATA=write_lines(tmp_path / "a.jsonl", rows), VAL_DATA=verl_file(tmp_path / "v.parquet", "v"))
    assert pq.read_table(values[TRAIN]).to_pylist() == rows


@pytest.mark.parametrize("profile", ["gpu_1x80gb", "embedded"])
def test_files_named_by_overrides_need_no_hub_and_nothing_is_built(tmp_path, prepared, profile):
    train, val = verl_file(tmp_path / "a.parquet", "a"), verl_file(tmp_path / "v.parquet", "v")
    overrides = [f"{TRAIN}={train}", f"++{VAL}={val}", f"{MODEL}={tmp_path}"]
    assert prepared(profile, overrides) == ({}, []) and not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match=f"DATA={train} and the override {TRAIN}=... name the same thing"):
        prepared(profile, overrides, DATA=train)


def test_a_hub_out_of_reach_is_one_sentence_with_the_way_out(prepared, tmp_path):
    with pytest.raises(
        ValueError, match="aime_2024: not in the local cache, and the .* hub cannot be reached.* VAL_DATA"
    ):
        prepared()
    with pytest.raises(ValueError, match="aime_2024: .*cannot be reached.*VAL_DATA"):
        prepared(DATA=raw(tmp_path / "a.jsonl", "a"))
    with pytest.raises(ValueError, match="some/data: not in the local cache"):
        prepared(DATA="some/data")
    assert prepared(DATA=tmp_path / "a.jsonl", build=False)[0].keys() == {TRAIN}, "the doctor fetches nothing"


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://no.such.host.invalid"], ids=["refused", "no such name"]
)
def test_no_waiting_for_a_hub_that_is_out_of_reach(endpoint, tmp_path):
    """In a process of its own: what is known of the hub is known for good. Retries would take 20 s a request."""
    code = "from r3_ext.data import read; read.load_from_hub('nobody/nothing')"
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env.pop("HF_HUB_OFFLINE", None)
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert last == f"ValueError: nobody/nothing: {hub.OUT_OF_REACH}; pass a local file instead"
    assert "Retry" not in result.stderr


# the embedded profile


def test_an_own_model_is_trained_on_the_generated_problems(prepared, tmp_path):
    values, _ = prepared("embedded", MODEL=tmp_path)
    assert values[MODEL] == str(tmp_path)
    assert [pq.read_table(values[key]).num_rows for key in (TRAIN, VAL)] == [128, 64]
    assert not list((tmp_path / "cache").glob("warm-start-*")), "no tiny model is built"


def test_an_own_model_is_trained_on_own_files(prepared, tmp_path):
    train, val = verl_file(tmp_path / "a.parquet", "a"), verl_file(tmp_path / "v.parquet", "v")
    assert prepared("embedded", DATA=train, VAL_DATA=val, MODEL=tmp_path)[0] == {
        VAL: str(val),
        MODEL: str(tmp_path),
        TRAIN: str(train),
    }


def test_an_own_model_with_own_problems_needs_own_validation(prepared, tmp_path):
    with pytest.raises(ValueError, match="needs a file to validate on: set VAL_DATA"):
        prepared("embedded", DATA=verl_file(tmp_path / "a.parquet", "a"), MODEL=tmp_path)


def test_a_tiny_model_is_validated_on_own_problems(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "teach", lambda folder, *rest: folder.mkdir() or {})
    values, _ = prepared("embedded", VAL_DATA=raw(tmp_path / "v.jsonl", "v"))
    assert problems_of(values[VAL]) == {"v"} and pq.read_table(values[TRAIN]).num_rows == 128
    assert Path(values[MODEL]).is_dir()
    train = verl_file(tmp_path / "a.parquet", *map(str, range(193)), "v")
    values, _ = prepared("embedded", DATA=train)
    assert problems_of(values[VAL]) == {"v"} and len(problems_of(values[TRAIN]) - {"v"}) == 128


@pytest.mark.parametrize(
    "tiny_model, variables, message",
    [
        ({"steps": 0}, {}, "--warm-start-steps must be at least 1, got 0"),
        ({"steps": 9}, {"MODEL": "."}, "--warm-start-steps and --world concern the tiny model"),
        ({"world": World(seed=1)}, {"MODEL": "."}, "--warm-start-steps and --world concern the tiny model"),
    ],
)
def test_settings_of_the_tiny_model(prepared, tiny_model, variables, message):
    with pytest.raises(ValueError, match=message):
        prepared("embedded", tiny_model=tiny_model, **variables)
