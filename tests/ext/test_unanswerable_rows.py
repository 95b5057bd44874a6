"""DATA and VAL_DATA as people have them: what can be converted is, what cannot be answered right is left out or refused
with row and reason; folders that are not one set of rows are told."""

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from r3_ext.data import problems as data
from r3_ext.data import read
from r3_ext.doctor import data_files
from r3_ext.settings import prepare
from recipe.common.reward.truths import OWN_MANAGER

TRAIN, VAL = prepare.TRAIN, prepare.VAL
DAPO = "End with a line of the form Answer: $Answer (no quotes).\n\nWhat is {}?"


def verl_row(asked: str, truth, source: str = "mine", form: str = "What is {}? Put it in \\boxed{{}}.") -> dict:
    prompt = [{"role": "user", "content": form.format(asked)}]
    return {"data_source": source, "prompt": prompt, "reward_model": {"ground_truth": truth}} | {
        "extra_info": {"index": 0}
    }


def parquet(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """The rows of DATA and VAL_DATA as a run on GPUs would have them, and what was said."""

    def run(**given) -> tuple[dict[str, list[dict]], str]:
        for name in prepare.VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, str(value))
        told = []
        chosen = prepare.model_and_data("gpu_1x24gb", tmp_path / "cache", {}, told.append, build=False)
        paths = dict(item.split("=", 1) for item in chosen)
        files = {key: [path.strip("'") for path in value.strip("[]").split(",")] for key, value in paths.items()}
        found = {
            key: [row for path in group for row in pq.read_table(path).to_pylist()] for key, group in files.items()
        }
        return found, "\n".join(told)

    return run


def truths(rows: list[dict]) -> list[str]:
    return [row["reward_model"]["ground_truth"] for row in rows]


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("60*63=<<60*63=3780>>3,780 pens.\n#### 3,780", "3780"),
        ("Twice.\n#### -1,234,567.5 ", "-1234567.5"),
        ("#### 7", "7"),
        ("So half.\n####\\frac{1}{2}\n", "\\frac{1}{2}"),
        ("A list.\n#### 1,2,3", "1,2,3"),
        ("#### Step 1\nAdd them: 7", "#### Step 1\nAdd them: 7"),  # a heading
        ("7", "7"),
    ],
)
def test_a_worked_solution_becomes_its_final_answer(answer, final):
    assert data.final_answer(answer) == final


def test_gsm8k_as_the_hub_has_it_can_be_answered(prepared, tmp_path):
    rows = [
        {"question": f"{n} boxes of 60?", "answer": f"{n}*60=<<{n}*60={n * 60}>>\n#### {n * 60:,}"}
        for n in range(1, 65)
    ]
    found, told = prepared(DATA=parquet(tmp_path / "gsm.parquet", rows))
    assert sorted(map(int, truths(found[TRAIN]))) == [60 * n for n in range(1, 65)] and "64 rows read" in told


def test_raw_answers_that_nobody_can_give_are_left_out_and_named(prepared, tmp_path):
    answers = [
        "12",
        "proof",
        "notfound",
        "The series converges.",
        "13",
        "The bisector of the angle between two fixed lines",
    ]
    rows = [{"problem": f"Problem {n}", "answer": answer} for n, answer in enumerate(answers)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    for _ in range(2):  # a prepared file is spoken of as well
        found, told = prepared(DATA=file)
        assert sorted(truths(found[TRAIN])) == ["12", "13"] and "4 unmatchable answer" in told
        assert "row 1: 'proof' stands for no answer" in told
    file.write_text(json.dumps(rows[1]))
    with pytest.raises(ValueError, match="no rows left of 1 rows read, left out: 1 unmatchable .*row 0: 'proof'"):
        prepared(DATA=file)


def test_verls_rows_that_cannot_be_answered_are_left_out_of_the_data_and_named(prepared, tmp_path):
    rows = [verl_row("1+1", "2"), verl_row("shown", "proof"), verl_row("2+2", "4"), verl_row("broken", "\\frac{1}{2")]
    file = parquet(tmp_path / "rows.parquet", rows)
    found, told = prepared(DATA=file, VAL_DATA=parquet(tmp_path / "val.parquet", [verl_row("3+3", "6"), *rows[1:2]]))
    assert truths(found[TRAIN]) == ["2", "4"] and truths(found[VAL]) == ["6"]
    assert f"{file}: 2 of 4 rows left out" in told and "row 1: reward_model.ground_truth 'proof' stands for no" in told
    assert "row 3" in told and "is not accepted by its own grader" in told


def test_a_form_that_is_not_graded_is_refused_with_what_is_graded(prepared, tmp_path):
    rows = [verl_row("1+1", "2"), *(verl_row(f"{n}+{n}", str(2 * n), "sums", DAPO) for n in range(9))]
    with pytest.raises(
        ValueError, match=r"row 1: .*is right as `.boxed.x.`, and the prompt asks for Answer: \(8 further"
    ):
        prepared(DATA=parquet(tmp_path / "rows.parquet", rows))
    known = [row | {"data_source": "math_dapo"} for row in rows[1:]]
    found, _ = prepared(DATA=parquet(tmp_path / "known.parquet", known))
    assert len(found[TRAIN]) == 9, "verl's reward of this source reads Answer:"


def doctor(*rows, key: str = "train_files", tmp_path: Path, **reward) -> list[tuple[str, str, str]]:
    file = parquet(tmp_path / "named.parquet", list(rows))
    manager = {"source": "importlib", "module": {"path": OWN_MANAGER}}
    config = OmegaConf.create({"data": {"prompt_key": "prompt"}, "reward": {"reward_manager": manager} | reward})
    config.algorithm = {"adv_estimator": "grpo"}
    found = data_files.file_findings(config, f"data.{key}", str(file))
    return [(finding.level, finding.found, finding.advice) for finding in found]


def test_a_named_file_is_not_changed_but_told(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "is_r3", lambda config: False)
    some = doctor(verl_row("1+1", "2"), verl_row("shown", "proof"), verl_row("shown too", "proof"), tmp_path=tmp_path)
    [(level, found, advice)] = [finding for finding in some if "ground_truth" in finding[1]]
    assert level == "warn" and "row 1" in found and "1 further row" in found and "give the file as DATA" in advice
    every = doctor(verl_row("shown", "proof"), verl_row("shown too", "proof"), tmp_path=tmp_path)
    assert [level for level, found, _ in every if "ground_truth" in found] == ["fail"]
    mine = {"path": "mine.py", "name": "compute_score"}
    own = doctor(verl_row("shown", "proof"), tmp_path=tmp_path, custom_reward_function=mine)
    assert not any("ground_truth" in found for _, found, _ in own), "a function of one's own knows what it reads"


def test_copies_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "is_r3", lambda config: False)
    found = doctor(*[verl_row("1+1", "2")] * 5000, verl_row("2+2", "4"), tmp_path=tmp_path)
    assert ("warn", "named.parquet: 5,001 rows, 2 problems") in [finding[:2] for finding in found]
    val = doctor(*[verl_row("1+1", "2")] * 32, key="val_files", tmp_path=tmp_path)
    assert ("ok", "named.parquet: 32 rows, 1 problem") in [finding[:2] for finding in val]
    assert not any(level == "warn" and "copies" in advice for level, _, advice in val), "more answers of one problem"


@pytest.mark.parametrize(
    ("first", "second"),
    [("train.parquet", "test.parquet"), ("train-00000-of-00002.parquet", "validation-00000-of-00001.parquet")],
)
def test_a_folder_with_several_splits_is_refused(tmp_path, prepared, first, second):
    for name in (first, second):
        parquet(tmp_path / "set" / name, [verl_row(name, "2")])
    with pytest.raises(ValueError, match="holds files of several splits: .*name one file, or a folder with one split"):
        prepared(DATA=tmp_path / "set")
    (tmp_path / "set" / second).rename(tmp_path / "set" / "train-00001-of-00002.parquet")
    assert len(read.local_files(str(tmp_path / "set"))) == 2


def test_no_split_is_read_into_other_names(tmp_path):
    for name in ("train.parquet", "latest.parquet", "train_test_mixed.parquet", "level3.parquet"):
        parquet(tmp_path / name, [verl_row(name, "2")])
    assert len(read.local_files(str(tmp_path))) == 4


def test_what_save_to_disk_wrote_is_read(tmp_path, prepared):
    rows = [verl_row(f"{n}+{n}", str(2 * n)) for n in range(40)]
    saved = datasets.Dataset.from_list(rows)
    saved.save_to_disk(tmp_path / "one", num_shards=2)
    (tmp_path / "one" / "cache-1234.arrow").write_bytes(b"of map(), and no rows of the set")
    found, _ = prepared(DATA=tmp_path / "one")
    assert truths(found[TRAIN]) == [str(2 * n) for n in range(40)]
    raw = datasets.Dataset.from_list([{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(40)])
    raw.save_to_disk(tmp_path / "raw")
    assert len(prepared(DATA=tmp_path / "raw")[0][TRAIN]) == 40
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "two")
    with pytest.raises(ValueError, match="holds the splits test, train; name one of their folders"):
        prepared(DATA=tmp_path / "two")
    assert len(read.read_rows(str(tmp_path / "two" / "train"))[0]) == 40
