"""Answers of an evaluation are judged as a training on the same rows judges them."""

import json

import pytest

from r3_ext.data import problems as data
from r3_ext.data import write
from r3_ext.evaluate import EvaluationError, benchmarks, judging, score


def verl_row(name: str, truth, question: str, responses: list[str], **info) -> dict:
    prompt = [{"role": "user", "content": question}]
    row = {"data_source": name, "prompt": prompt, "reward_model": {"ground_truth": truth}, "extra_info": info}
    return row | {"responses": responses}


def scored(tmp_path, rows: list[dict]) -> score.Scores:
    file, folder = tmp_path / "answers.jsonl", tmp_path / "scored"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score.write_responses(folder, *score.read_responses(file))
    score.grade_folder(folder)
    [scores] = score.read_scores(folder).values()
    return scores


def test_each_problem_of_a_file_has_its_own_judge(tmp_path):
    rows = [
        verl_row("openai/gsm8k", "7", "3 + 4? The answer after ####.", ["#### 7", r"\boxed{7}"]),
        verl_row("math_dapo", "34", "30 + 4?", ["Answer: 34", "Answer: 35"]),
        verl_row("searchR1_nq", {"target": ["Beijing", "Peking"]}, "Capital?", ["<answer>Peking</answer>", "Peking"]),
        verl_row("mine", "0.5", "1 / 2?", [r"\boxed{\frac12}", "#### 0.5"]),
        verl_row("aime24", "025", "5 * 5?", [r"\boxed{25}", "Answer: 25"])
        | {"reward_model": {"style": "boxed", "ground_truth": "025"}},
    ]
    found = scored(tmp_path, rows)
    assert found.correct_R.tolist() == [True, False] * 5
    assert found.answers == ["7", "7", "34", "35", "Peking", None, r"\frac{1}{2}", None, "25", None]


def test_what_a_response_answers_is_found_in_each_form():
    found = [judging.answer_of(text) for text in ("#### 3,780", "<answer> x </answer>", r"\boxed{5}", "5")]
    assert found == ["3,780", "x", "5", None]
    assert judging.answer_of("5", "[INVALID]") is None and judging.answer_of("5", "6") == "6"


def test_a_reward_that_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("recipe.common.reward.judge.verls_reward", lambda source: "No module named 'x'")
    with pytest.raises(EvaluationError, match="data_source=openai/gsm8k: verl's reward of it cannot be loaded"):
        scored(tmp_path, [verl_row("openai/gsm8k", "7", "3 + 4?", ["#### 7"])])


def test_hard_problems_keep_their_judge_and_benchmarks_their_hash():
    row = verl_row("openai/gsm8k", "7", "3 + 4?", [])
    [problem] = data.to_problems([row], "f", "f")
    again = write.to_row(problem, "hard_f", "test")
    assert again["data_source"] == "openai/gsm8k"
    assert data.to_problems([again], "f", "f") == [problem]
    plain = data.Problem("3 + 4?", "7", "f", 0)
    assert benchmarks.content_hash([problem]) != benchmarks.content_hash([plain])
    assert write.to_row(plain, "hard_f", "test")["data_source"] == "hard_f"
