"""Damaged and foreign files of `r3 eval`: each is refused with its row and what is wrong there."""

import json

import pyarrow.parquet as pq
import pytest

from r3_ext.evaluate import EvaluationError, benchmarks, command, compare, plan, score
from tests.ext.evaluated import scored, write_jsonl

CONTRACT = {"data_source": "d", "prompt": [{"role": "user", "content": "p"}], "reward_model": {"ground_truth": "1"}}
GOOD = {"problem": "p", "answer": "1", "responses": ["x"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "response_tokens": -5}, "row 1: response_tokens must be whole numbers from 0 .*got -5"),
        ({**GOOD, "response_tokens": [2**31]}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": 1.5}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": "5"}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": {"a": 1}}, "row 1: response_tokens must be"),
        ({**GOOD, "response_tokens": True}, "row 1: response_tokens must be"),
        ({**GOOD, "responses": ["\ud800"]}, "row 1: responses holds half a character"),
        ({**GOOD, "problem": "\ud800"}, "row 1: problem holds half a character"),
        ({**GOOD, "answer": None}, "row 1: answer must not be empty"),
        (5, "every row must be a JSON object"),
    ],
)
def test_a_broken_row_is_named(row, message, tmp_path, capsys):
    file = write_jsonl(tmp_path / "in.jsonl", [{**GOOD, "problem": "whole"}, row])
    with pytest.raises(EvaluationError, match=f"{file}.*{message}"):
        score.read_responses(file)
    assert command.main(["score", str(file)]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "in.jsonl.eval").exists()


@pytest.mark.parametrize(
    "change",
    [
        *({"prompt": value} for value in (None, [], "p", [5], [{"role": "user"}])),
        *({"reward_model": value} for value in (None, {}, "1")),
        *({"data_source": None}, {"extra_info": [1]}),
    ],
)
def test_a_broken_row_in_verls_format_is_named(change, tmp_path):
    file = write_jsonl(tmp_path / "in.jsonl", [{**CONTRACT, "response": "x"}, {**CONTRACT, "response": "x", **change}])
    with pytest.raises(EvaluationError, match=f"{file}, row 1: {next(iter(change))}"):
        score.read_responses(file)
    write_jsonl(file, [{**CONTRACT, "response": "x", "response_tokens": 7.0}])
    assert score.read_responses(file)[2][0]["response_tokens"] == 7


def test_a_row_that_accepts_several_answers_is_named_for_one_alone_is_graded_against(tmp_path):
    same, several = ({"ground_truth": truth} for truth in (["1/2", "0.5"], ["1", "2"]))
    file = write_jsonl(tmp_path / "in.jsonl", [{**CONTRACT, "response": "x", "reward_model": same}])
    assert score.read_responses(file)[1][0]["answer"] == "1/2"
    assert benchmarks.load(f"own={file}", tmp_path).problems[0].answer == "1/2"
    write_jsonl(file, [{**CONTRACT, "response": "x"}, {**CONTRACT, "response": "x", "reward_model": several}])
    message = f"{file}, row 1: any of the answers .*1.*2.* leave one"
    with pytest.raises(EvaluationError, match=message):
        score.read_responses(file)
    with pytest.raises(EvaluationError, match=message):
        benchmarks.load(f"own={file}", tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"problem": ' * 100_000, "[1, ", "\xff"])
def test_a_file_that_is_no_json_is_refused(content, tmp_path):
    (tmp_path / "in.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(EvaluationError, match=f"^{tmp_path / 'in.json'}"):
        score.read_responses(tmp_path / "in.json")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("response_tokens", -5, "row 17: response_tokens must be 0 or more, got -5"),
        ("index", -1, "row 17: index must be 0 or more"),
        ("correct", None, "row 17: correct is null"),
        ("query_id", "other", "row 17: is there twice, or another row gives its problem another query_id"),
        ("sample", 0, "row 17: is there twice"),
    ],
)
def test_a_broken_row_of_the_scores_is_named(column, value, message, tmp_path, capsys):
    folder = scored(tmp_path / "a", {"p": 1, "q": 2})
    rows = pq.read_table(folder / "scores.parquet").to_pylist()
    rows[17][column] = value
    plan.write_table(folder / "scores.parquet", rows, score.SCORE)
    assert command.main(["compare", str(folder), str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"{folder / 'scores.parquet'}, {message}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("response_tokens", -5, "row 17: response_tokens must be"),
        ("response", None, "row 17: sample must be a number and response a text"),
        ("index", 9, "row 17: the plan has no problem 9 of benchmark mine"),
        ("query_id", "other", "row 17: is of query 'other'"),
    ],
)
def test_a_broken_row_of_the_answers_is_named(column, value, message, tmp_path):
    folder = scored(tmp_path / "a", {"p": 1, "q": 2})
    part = plan.parts(folder)[0]
    rows = pq.read_table(part).to_pylist()
    rows[17][column] = value
    plan.write_table(part, rows, plan.GENERATION)
    with pytest.raises(EvaluationError, match=message):
        score.grade_folder(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", None), ("model", {"path": 5}), ("benchmarks", {}), ("benchmarks", {"mine": 5}), ("sampling", {"n": -1})],
)
def test_a_broken_plan_is_refused(key, value, tmp_path):
    folder = scored(tmp_path / "a", {"p": 1}, n=2)
    content = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**content, key: value}))
    with pytest.raises(EvaluationError, match=f"plan.json: {key} is not that of a plan"):
        compare.compare(folder, folder)
    (folder / "plan.json").write_text('{"model": ' * 100_000)
    with pytest.raises(EvaluationError, match="is damaged"):
        compare.compare(folder, folder)
