"""What `r3 run` trains on: wrong files end with a sentence, strange names and places do no harm."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import problems as data
from r3_ext.settings import prepare
from tests.ext.given import MODEL, TRAIN, VAL, raw, verl_file, verl_row, write_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_hub")]


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
    "picture": (
        lambda d: write_lines(d / "a.jsonl", [verl_row("a", images=[]), verl_row("b", images=["x"])]),
        "a.jsonl has images in row 1, and the recipes train on text alone",
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
