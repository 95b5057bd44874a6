"""What `r3 run` trains on: given files arrive as they are, raw ones converted, wrong ones with a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import convert
from r3_ext.data import problems as data
from r3_ext.host import hub
from r3_ext.settings import prepare
from r3_ext.settings.compose import compose_config
from r3_ext.tiny import warm_start
from r3_ext.tiny.world import World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRAIN, VAL, MODEL = prepare.TRAIN, prepare.VAL, prepare.MODEL


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Nothing here asks the hub: it is out of reach, and who asks gets that sentence."""
    for name in prepare.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **kwargs: (_ for _ in ()).throw(ConnectionError("no")))
    monkeypatch.setattr(hub, "go_offline_if_unreachable", lambda: False)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """prepared(profile, DATA=..., ...) gives the values of the overrides as a run's config holds them, and what is
    said."""

    def run(profile="gpu_1x80gb", overrides=(), tiny_model=None, build=True, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        said = []
        found = prepare.model_and_data(profile, tmp_path / "cache", tiny_model or {}, said.append, overrides, build)
        config = compose_config([*found, *overrides])
        keys = [item.partition("=")[0] for item in found]
        values = {TRAIN: config.data.train_files, VAL: config.data.val_files}
        values[MODEL] = config.actor_rollout_ref.model.path
        return {key: values[key] for key in keys}, said

    return run


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def raw(path: Path, *names: str) -> Path:
    return write_lines(path, [{"problem": f"What is {name}?", "answer": "1"} for name in names])


def verl_row(problem: str, **changed) -> dict:
    system = {"role": "system", "content": "Be brief."}
    return {
        "prompt": [system, {"role": "user", "content": f"What is {problem}? Answer in a box."}],
        "reward_model": {"style": "rule", "ground_truth": ["5", "5.0"]},
        "data_source": "mine",
        "query_id": f"id of {problem}",
        "level": 3,
    } | changed


def verl_file(path: Path, *problems: str) -> Path:
    table = pa.Table.from_pylist([verl_row(problem) for problem in problems])
    pq.write_table(table.replace_schema_metadata({"kept": "as it was"}), path)
    return path


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


# wrong and strange inputs


def short_file(path: Path) -> Path:
    path.write_bytes(verl_file(path, "a", "b").read_bytes()[:-40])
    return path


def late(path: Path, column: str) -> Path:
    """Two rows, the second of which has a date of the year 37648 in a column."""
    table = pa.Table.from_pylist([verl_row("a"), verl_row("b")] if column == "level" else [{"problem": "a"}] * 2)
    place = table.schema.get_field_index(column)
    dates = pa.array([1, 2**50], pa.timestamp("ms"))
    pq.write_table(table.set_column(place, column, dates) if place >= 0 else table.append_column(column, dates), path)
    return path


def damaged(path: Path) -> Path:
    """The end of the file is whole, and so is the schema there; the first pages are not."""
    content = bytearray(verl_file(path, *map(str, range(5000))).read_bytes())
    content[60:400] = bytes(340)
    path.write_bytes(content)
    return path


def lines(path: Path, *texts: str) -> Path:
    path.write_text("\n".join(texts))
    return path


DEEP = "[" * 900 + "1" + "]" * 900
GOOD = '{"problem": "a", "answer": "1"}'
WRONG = {
    "date in a raw answer": (lambda d: late(d / "a.parquet", "answer"), "a.parquet, row 1: answer cannot be read"),
    "date in a row": (lambda d: late(d / "a.parquet", "level"), "a.parquet, row 1: level cannot be read"),
    "damaged page": (lambda d: damaged(d / "a.parquet"), "a.parquet: damaged .*; copy or make it again"),
    "deep answer": (
        lambda d: lines(d / "a.jsonl", GOOD, f'{{"problem": "a", "answer": {DEEP}}}'),
        "a.jsonl, row 1: answer is nested over 50 deep",
    ),
    "deep column": (
        lambda d: lines(d / "a.jsonl", json.dumps(verl_row("a"))[:-1] + f', "extra": {DEEP}}}'),
        "a.jsonl, row 0: extra is nested over 50 deep",
    ),
    "long number": (
        lambda d: lines(d / "a.jsonl", GOOD, f'{{"problem": "a", "answer": {"7" * 5000}}}'),
        "a.jsonl, line 2: .*4300 digits",
    ),
    "long number in a list": (
        lambda d: lines(d / "a.json", f"[{GOOD},", f'{{"problem": "a", "answer": {"7" * 5000}}}]'),
        "a.json: .*4300 digits",
    ),
    "half a character": (
        lambda d: write_lines(d / "a.jsonl", [{"problem": "a", "answer": "1"}, {"problem": "\ud800", "answer": "1"}]),
        "a.jsonl, row 1: problem holds half a character",
    ),
    "half a character elsewhere": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("a"), verl_row("b", extra_info={"a": ["\ud800"]})]),
        "a.jsonl, row 1: extra_info holds half a character",
    ),
    "half a character in a name": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("a"), verl_row("b") | {"\ud800": 1}]),
        "a.jsonl, row 1: the column .* holds half a character",
    ),
    "long name": (lambda d: "a" * 300, "DATA=aaa.*: File name too long; give another path"),
    "long path": (lambda d: d / ("a" * 300), "DATA=/.*: File name too long; give another path"),
    "no such home": (lambda d: "~nosuchuser/x", "DATA=~nosuchuser/x: there is no such home; give another path"),
    "missing": (lambda d: d / "none.parquet", "no such file or folder"),
    "empty folder": (lambda d: d, "no data file found"),
    "empty file": (lambda d: write_lines(d / "a.parquet", []), "the file is empty"),
    "text called parquet": (lambda d: raw(d / "a.parquet", "a"), "not a readable parquet file"),
    "cut off": (lambda d: short_file(d / "a.parquet"), "not a readable parquet file"),
    "another type": (lambda d: raw(d / "a.csv", "a"), "file type must be one of"),
    "not UTF-8": (lambda d: (d / "a.jsonl").write_bytes(b'{"problem": "\xff"}') and d / "a.jsonl", "not JSON in UTF-8"),
    "not JSON": (lambda d: (d / "a.json").write_text("[{]") and d / "a.json", "not JSON in UTF-8"),
    "deep JSON": (lambda d: (d / "a.json").write_text("[" * 10**5) and d / "a.json", "not JSON in UTF-8"),
    "no object": (lambda d: write_lines(d / "a.jsonl", [5]), "every row must be a JSON object"),
    "no rows": (lambda d: (d / "a.json").write_text("[]") and d / "a.json", "no rows"),
    "no answer": (lambda d: write_lines(d / "a.jsonl", [{"problem": "a"}]), "no answer column; found problem"),
    "prompt alone": (lambda d: write_lines(d / "a.jsonl", [{"prompt": "a"}]), "or give verl's columns prompt, reward"),
    "no usable row": (lambda d: write_lines(d / "a.jsonl", [{"problem": "", "answer": "1"}]), "no rows left"),
    "nested problem": (lambda d: write_lines(d / "a.jsonl", [{"problem": {"a": 1}, "answer": "1"}]), "row 0: problem"),
    "no source": (
        lambda d: write_lines(d / "a.jsonl", [{"prompt": [], "reward_model": {}}]),
        "lacks the column data_source of verl's format",
    ),
    "bad row": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("a")] * 99 + [verl_row("b", prompt=None)] * 2),
        r"a.jsonl, row 99: prompt is None \(1 further row\); a prompt is a list of messages",
    ),
    "huge prompt": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("x" * 6_000_000)]),
        "row 0: prompt has 6,000,035 characters, over 200,000; shorten it, or leave the row out",
    ),
    "mixed columns": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("a", level=1), verl_row("b", level="hard")]),
        "column level holds values of different kinds",
    ),
    "mixed formats": (lambda d: raw(d / "a.jsonl", "a") and verl_file(d / "b.parquet", "b") and d, "two folders"),
    "empty group": (lambda d: write_lines(d / "a.jsonl", [verl_row("a", extra={})]), "parquet cannot hold"),
    "no hub name": (lambda d: "what is this?", "no such file or folder"),
}


FEW_ROWS = ("no usable row", "empty group", "mixed columns")
"""Of these the tiny model says first that it wants more rows."""


@pytest.mark.parametrize(
    "variable, profile", [("DATA", "gpu_1x80gb"), ("VAL_DATA", "gpu_1x80gb"), ("DATA", "embedded")]
)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_is_one_sentence(tmp_path, prepared, case, variable, profile):
    (tmp_path / "d").mkdir()
    make, message = WRONG[case]
    if profile == "embedded" and case in FEW_ROWS:
        message = "the tiny model is taught 192 problems"
    with pytest.raises(ValueError, match=message) as error:
        prepared(profile, build=False, **{variable: make(tmp_path / "d")})
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert not list((tmp_path / "cache").rglob("*.partial")) and not list((tmp_path / "cache").rglob("train.parquet"))


@pytest.mark.parametrize("source", ["./none", "~/none", "/none", "a b", "none.safetensors"])
def test_a_model_that_is_not_there(prepared, source):
    with pytest.raises(ValueError, match="no such folder; name the folder of a model"):
        prepared(MODEL=source, build=False)


@pytest.mark.parametrize("source", ["a" * 300, f"/{'a' * 300}", "~nosuchuser/x"])
def test_a_model_at_an_impossible_place(prepared, source):
    with pytest.raises(ValueError, match="^MODEL=.*: (File name too long|there is no such home); give another path"):
        prepared(MODEL=source, build=False)


@pytest.mark.parametrize("build", [True, False])
def test_a_cache_that_links_to_itself(tmp_path, prepared, build):
    (tmp_path / "cache").symlink_to("cache")
    with pytest.raises(ValueError, match="^--cache=.*: Too many levels of symbolic links; give another path"):
        prepared("embedded", build=build)


STRANGE = [
    "=",
    ",",
    "'",
    '"',
    "(",
    "{",
    "}",
    "[1]",
    "~",
    "#",
    "é",
    " ",
    "${oc.env:HOME}",
    "*",
    "?",
    "::",
    "\\",
    "\\'",
    "!",
]


@pytest.mark.parametrize("strange", STRANGE)
def test_paths_of_any_kind_reach_verls_dataset_as_they_are(tmp_path, prepared, strange):
    """As a file that holds the rows of the given one under a name that is taken literally by all who read it."""
    folder = tmp_path / f"a{strange}b"
    folder.mkdir()
    train, val = verl_file(folder / "t.parquet", "a", "b"), verl_file(folder / f"{strange}v.parquet", "v")
    values, _ = prepared("embedded", DATA=train, VAL_DATA=val, MODEL=folder)
    for key, given in ((TRAIN, train), (VAL, val), (MODEL, folder)):
        assert os.path.samefile(values[key], given)
        assert not prepare.READ_AS_PATTERN.search(values[key])
    assert Path(values[VAL]).suffix == ".parquet"


def test_a_cache_with_such_a_name_is_refused_where_a_link_would_be_needed(tmp_path):
    with pytest.raises(ValueError, match="the cache must not hold .* set --cache"):
        prepare.override(TRAIN, [tmp_path / "a[1].parquet"], tmp_path / "c[1]")


def test_a_relative_path_becomes_absolute_and_a_link_keeps_its_name(tmp_path, prepared, monkeypatch):
    """The hub's own cache links `train.parquet` to a file without suffix, which verl would not take."""
    verl_file(tmp_path / "v.parquet", "v")
    (tmp_path / "blob").write_bytes(verl_file(tmp_path / "t.parquet", "a").read_bytes())
    (tmp_path / "t.parquet").unlink()
    (tmp_path / "t.parquet").symlink_to("blob")
    monkeypatch.chdir(tmp_path)
    assert prepared(DATA="t.parquet", VAL_DATA="v.parquet")[0][TRAIN] == str(tmp_path / "t.parquet")


def test_counts_of_a_conversion_are_said():
    counts = {"read": 9, "empty_answer": 2, "train": 6, "in_benchmark": 1, "duplicate": 0}
    assert data.say_counts(counts) == "9 rows read, left out: 2 empty answer, 1 in benchmark"
