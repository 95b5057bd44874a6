"""`r3 eval` without a model: scores of known answers, comparison, the challenging subset."""

import json
from math import comb

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from r3_ext.data import problems as data
from r3_ext.evaluate import EvaluationError, benchmarks, command, compare, hard, plan, results, score
from tests.ext.evaluated import GOLDEN, scored, write_jsonl

# scores


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("golden") / "out"
    assert command.main(["score", str(GOLDEN), "--out", str(folder)]) == 0
    return {"folder": folder, **json.loads((folder / "results.json").read_text())}


def test_answers_of_the_golden_file_score_as_by_hand(golden):
    # Right: 2 of 4 (42, 42.0), 3 of 4 (1/2 in three forms), 0 of 4, 4 of 4.
    expected = {
        "pass@1": (2 / 4 + 3 / 4 + 0 + 1) / 4,
        "pass@2": ((1 - 1 / comb(4, 2)) + 1 + 0 + 1) / 4,
        "pass@3": 3 / 4,
        "pass@4": 3 / 4,
        # 42, 42.0 and 41 are three answers with a vote each, two of them right; 1/2 twice beats 0.5 and 2.
        "maj@n": (2 / 3 + 1 + 0 + 1) / 4,
        "strict": (1 / 4 + 2 / 4 + 0 + 1) / 4,
        "no_answer": 2 / 16,
        "tokens/all": 490 / 16,
        "tokens/correct": 80 / 9,
        "tokens/wrong": 410 / 7,
    }
    metrics = golden["benchmarks"]["released"]["metrics"]
    assert {name: triple[0] for name, triple in metrics.items()} == pytest.approx(expected)
    assert all(low <= value <= high for value, low, high in metrics.values())
    assert golden["benchmarks"]["released"]["answers"] == 16


def test_the_disagreements_with_the_string_match_are_listed(golden):
    lines = [json.loads(line) for line in (golden["folder"] / "disagreements.jsonl").read_text().splitlines()]
    assert [(line["reference"], line["answer"], line["grader"], line["answers"]) for line in lines] == [
        ("42", "42.0", True, 1),
        (r"\frac{1}{2}", "0.5", True, 1),
    ]


def test_the_tables_show_the_figures_in_any_width(golden):
    text = results.markdown(golden)
    assert "| Pass@1 | 56.2 (" in text and "| tokens, correct | 9 (" in text and golden["model"]["fingerprint"] in text
    assert len(results.tables(golden, 20).renderables) == len(results.tables(golden, 200).renderables) == 2


def test_scoring_again_gives_the_same_and_one_text_per_row_does_as_well(golden, tmp_path):
    assert command.main(["score", str(golden["folder"])]) == 0
    assert json.loads((golden["folder"] / "results.json").read_text())["benchmarks"] == golden["benchmarks"]
    rows = [
        {"question": row["problem"], "answer": row["answer"], "response": text, "response_tokens": tokens}
        for row in map(json.loads, GOLDEN.read_text().splitlines())
        for text, tokens in zip(row["responses"], row["response_tokens"], strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "released.parquet")
    assert command.main(["score", str(tmp_path / "released.parquet")]) == 0
    again = json.loads((tmp_path / "released.parquet.eval" / "results.json").read_text())
    assert again["benchmarks"] == golden["benchmarks"]


def test_every_answer_is_graded_like_a_training_answer(tmp_path):
    """The verdicts that are shared between like answers are those of the reward's own function."""
    from recipe.common.reward.math.pool import grade

    responses = [r"\boxed{\frac{2}{4}}", r"\boxed{\frac{2}{4}}", r"\boxed{0.5}", "x", r"\boxed{1/3}", r"\boxed{0.5"]
    row = {"problem": "p", "answer": "1/2", "responses": responses}
    score.write_responses(tmp_path, *score.read_responses(write_jsonl(tmp_path / "in.jsonl", [row])))
    score.grade_folder(tmp_path)
    found = score.read_scores(tmp_path)["in"]
    assert found.correct_R.tolist() == [grade(response, ["1/2"]) is True for response in responses]
    assert found.correct_R.tolist()[:3] == [True] * 3 and np.isnan(found.tokens_R).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "p", "answer": "1"}], "row 0: responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": []}], "responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": [None]}], "responses must be a list of texts"),
        ([{"problem": "p", "answer": "1", "responses": ["x"], "response_tokens": [1, 2]}], "one number per response"),
        (
            [{"problem": "p", "answer": a, "responses": ["x"]} for a in "12"],
            "rows 0 and 1: one problem with the answers",
        ),
        ([{"problem": "", "answer": "1", "responses": ["x"]}], "must not be empty"),
        ([{"text": "p"}], "no problem column"),
    ],
)
def test_answers_of_others_in_another_form_are_refused(rows, message, tmp_path, capsys):
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    assert command.main(["score", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: ") and not (tmp_path / "out").exists()
    with pytest.raises(EvaluationError, match=message):
        score.read_responses(file)


def test_missing_doubled_and_damaged_answers_are_refused(tmp_path):
    scored(tmp_path, {"p": 1, "q": 2})
    part = plan.parts(tmp_path)[0]
    table = pq.read_table(part)
    (tmp_path / "generations" / "000-00001.parquet").write_bytes(part.read_bytes())
    with pytest.raises(EvaluationError, match="some answers twice"):
        score.grade_folder(tmp_path)
    (tmp_path / "generations" / "000-00001.parquet").unlink()
    pq.write_table(table.slice(1), part)
    with pytest.raises(EvaluationError, match="31 of 32 answers"):
        score.grade_folder(tmp_path)
    part.write_bytes(b"PAR1 torn")
    with pytest.raises(EvaluationError, match="is damaged .* the same command generates its answers again"):
        score.grade_folder(tmp_path)


def test_ragged_answers_give_pass_at_k_up_to_the_smallest_number():
    ragged = score.Scores(
        query_ids=["p", "q"],
        problem_R=np.array([0, 0, 0, 1, 1]),
        sample_R=np.array([0, 1, 2, 0, 1]),
        correct_R=np.array([True, False, False, False, True]),
        strict_R=np.zeros(5, bool),
        timeout_R=np.zeros(5, bool),
        answers=["1", "2", "2", None, "1"],
        tokens_R=np.array([10.0, 20, 30, 40, 50]),
        truncated_R=np.array([0.0, 0, 1, 1, 0]),
    )
    found = {name: values.sum() / counts.sum() for name, (values, counts) in results.quantities(ragged).items()}
    assert found["pass@1"] == pytest.approx((1 / 3 + 1 / 2) / 2) and "pass@3" not in found
    assert found["pass@2"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["maj@n"] == pytest.approx((0 + 1) / 2), "no answer outvoted an answer"
    assert found["tokens/all"] == 30 and found["truncated"] == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_the_macro_average_counts_amc_once_and_resamples_each_benchmark():
    measured = {
        name: {"pass@1": (value, np.array([value - 0.1, value + 0.3]))}
        for name, value in (("amc23", 0.6), ("amc23_40", 0.9), ("aime24", 0.2))
    }
    over, means = results.macro(measured)
    assert over == ["amc23", "aime24"] and means["pass@1"][0] == pytest.approx(0.4)
    assert means["pass@1"][1] == pytest.approx([0.3, 0.7])
    assert results.macro({"amc23_40": measured["amc23_40"]})[0] == ["amc23_40"]


# comparison


def test_a_comparison_is_paired(tmp_path):
    """B solves one answer more of every problem: the difference is certain, however much the problems differ."""
    a = scored(tmp_path / "a", {f"p{i}": i for i in range(15)})
    b = scored(tmp_path / "b", {f"p{i}": i + 1 for i in range(15)}, tokens=lambda k: 60)
    metrics = compare.compare(a, b)["benchmarks"]["mine"]["metrics"]
    assert metrics["pass@1/change"] == pytest.approx([1 / 16] * 3)
    assert metrics["pass@1/a"][0] == pytest.approx(7 / 16) and metrics["pass@1/a"][1] < 6 / 16
    assert metrics["tokens/all/change"] == [-40, -40, -40]
    back = compare.compare(b, a)["benchmarks"]["mine"]["metrics"]
    assert back["pass@1/change"] == pytest.approx([-1 / 16] * 3)
    itself = compare.compare(a, a)
    assert itself["benchmarks"]["mine"]["metrics"]["pass@1/change"] == [0, 0, 0] and compare.notes(itself) == []


def test_a_comparison_of_different_things_is_refused_or_noted(tmp_path, capsys):
    a = scored(tmp_path / "a", {"p": 1, "q": 2})
    with pytest.raises(EvaluationError, match="benchmark mine is not the same in both: sha256 [0-9a-f]{64} in "):
        compare.compare(a, scored(tmp_path / "b", {"p": 1, "q": 2}, extra="?"))
    with pytest.raises(EvaluationError, match="no benchmark in common: mine and other"):
        compare.compare(a, scored(tmp_path / "c", {"p": 1, "r": 2}, name="other"))
    with pytest.raises(EvaluationError, match="is not a folder of `r3 eval`"):
        compare.compare(a, tmp_path)
    fewer = scored(tmp_path / "d", {"p": 1, "q": 2}, n=4)
    assert command.main(["compare", str(a), str(fewer), "--out", str(tmp_path / "out")]) == 0
    assert "note: the settings differ: n 16 and 4" in capsys.readouterr().out
    assert "| mine | 2 |" in (tmp_path / "out" / "compare.md").read_text()


def test_two_files_of_the_same_problems_compare_whatever_their_names_and_order(tmp_path, capsys):
    """p is solved by both, q by the second alone; the second file has the rows the other way round."""
    rows = [{"problem": text, "answer": "1", "responses": [r"\boxed{1}"]} for text in "pq"]
    first = write_jsonl(tmp_path / "base.jsonl", [rows[0], {**rows[1], "responses": [r"\boxed{2}"]}])
    second = write_jsonl(tmp_path / "trained.jsonl", [{**rows[1], "answer": "1.0"}, rows[0]])
    assert command.main(["score", str(first)]) == 0
    assert command.main(["compare", str(first), str(second)]) == 2
    assert f"is not scored yet; run `r3 eval score {second}` first" in capsys.readouterr().err
    assert command.main(["score", str(second)]) == 0
    found = compare.compare(first, second)
    metrics = found["benchmarks"]["base"]["metrics"]
    assert [metrics[f"pass@1/{side}"][0] for side in ("a", "b", "change")] == [0.5, 1.0, 0.5]
    assert metrics["pass@1/change"][1:] == [0.0, 1.0], "q changes and p does not"
    assert compare.notes(found) == ["base of A and trained of B hold the same problems"]
    write_jsonl(second, rows[:1])
    with pytest.raises(EvaluationError, match="was changed since it was scored"):
        compare.compare(first, second)


def test_one_file_at_two_limits_is_refused_whatever_its_names(tmp_path):
    a = scored(tmp_path / "a", {"p": 1, "q": 2})
    b = scored(tmp_path / "b", {"p": 1, "q": 2}, name="other")
    rows = plan.read_problems(b)
    plan.write_table(b / "problems.parquet", rows[:1], plan.PROBLEM)
    plan.write_table(b / "scores.parquet", pq.read_table(b / "scores.parquet").to_pylist()[:16], score.SCORE)
    with pytest.raises(
        EvaluationError, match="benchmark mine and other: 2 problems in .*, 1 in .*; use the same --limit"
    ):
        compare.compare(a, b)


# the challenging subset


def test_the_subset_is_what_the_base_solved_at_most_once_in_its_first_16_answers(tmp_path):
    # The right answers come last: of 32 answers with 17 right ones, one is among the first 16.
    base = scored(tmp_path / "base", {"never": 0, "late": 16, "once": 17, "twice": 18, "always": 32}, n=32)
    found = hard.hard(base, [])
    wanted = [data.query_id(text) for text in ("never", "late", "once")]
    assert found["subset"]["benchmarks"]["mine"]["query_ids"] == wanted
    assert found["subset"]["benchmarks"]["mine"]["of"] == 5
    part = found["runs"][0]["benchmarks"]["mine"]
    assert list(part["pass_at_k"]) == ["1", "2", "4", "8", "16", "32"] and part["problems"] == 3
    assert part["pass_at_k"]["1"][0] == pytest.approx((0 + 16 + 17) / 32 / 3)
    assert part["pass_at_k"]["32"][0] == pytest.approx(2 / 3)


def test_answers_longer_than_the_limit_count_as_failed(tmp_path):
    """16 answers, the k-th of 1000 x k tokens, right ones last: within 4,096 tokens the first four right, if any."""
    successes = {"hard": 1, "none": 0}
    run = scored(tmp_path / "run", {"hard": 16, "none": 4}, tokens=lambda k: 1000 * (k + 1) if k < 8 else 8192)
    base = scored(tmp_path / "base", successes)
    part = hard.hard(base, [run])["runs"][1]["benchmarks"]["mine"]
    assert {limit: triple[0] for limit, triple in part["pass_at_16_by_limit"].items()} == {"4096": 0.5, "8192": 1.0}
    assert part["pass_at_16_by_limit"]["8192"] == part["pass_at_k"]["16"]


def test_the_command_writes_the_report_and_files_to_evaluate_the_subset_on(tmp_path, capsys):
    base = scored(tmp_path / "base", {"easy": 9, "hard": 0, "harder": 1})
    assert command.main(["hard", "--base", str(base)]) == 0
    printed = capsys.readouterr().out
    assert "mine, 2 of 3" in printed and f"hard_mine={base / 'hard' / 'hard_mine.parquet'}" in printed
    benchmark = benchmarks.load(f"hard_mine={base / 'hard' / 'hard_mine.parquet'}", tmp_path)
    assert [p.text for p in benchmark.problems] == ["hard", "harder"]
    # A run on that file alone answers the subset, under its own name of the benchmark.
    run = scored(tmp_path / "run", {"hard": 2, "harder": 256}, n=256, name="hard_mine")
    found = hard.hard(base, [run])
    assert list(found["runs"][1]["benchmarks"]["mine"]["pass_at_k"]) == [str(1 << power) for power in range(9)]
    written = json.loads((base / "hard" / "hard.json").read_text())
    assert written["runs"] == found["runs"][:1]


def test_a_base_or_run_that_cannot_answer_is_refused(tmp_path):
    few = scored(tmp_path / "few", {"p": 0}, n=4)
    with pytest.raises(EvaluationError, match="--base needs 16 answers per problem, got 4"):
        hard.hard(few, [])
    solved = scored(tmp_path / "solved", {"p": 16})
    with pytest.raises(EvaluationError, match="no problem was solved at most 1 time"):
        hard.hard(solved, [])
    base = scored(tmp_path / "base", {"p": 0})
    with pytest.raises(EvaluationError, match="has not answered all problems of the subset"):
        hard.hard(base, [scored(tmp_path / "other", {"q": 0})])
