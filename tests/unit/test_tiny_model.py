"""The embedded profile's problems, tokenizer and warm start."""

import json
import re
from random import Random

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_ext.cpu import tasks, warm_start


def independent_answer(problem: str) -> int:
    """The result of the problem text, computed by reading the text alone."""
    value = int(re.search(r"Start with (\d+)", problem).group(1))
    for verb, operand in re.findall(r"(Add|Subtract|Multiply by) (\d+)", problem):
        value = {"Add": value + int(operand), "Subtract": value - int(operand)}.get(verb, value * int(operand))
    return value


def test_reference_answers_follow_from_the_problem_text():
    for task in tasks.make_tasks(200, seed=1):
        assert independent_answer(task.problem) == int(task.answer)
        assert task.solution().endswith(f"\\boxed{{{task.answer}}}")


def test_wrong_answers_are_wrong_and_rambles_have_none():
    rng = Random(0)
    for task in tasks.make_tasks(100, seed=2):
        for text in (task.slip(rng), task.guess(rng)):
            assert re.findall(r"\\boxed\{(-?\d+)\}", text)[-1] != task.answer
    assert "boxed" not in tasks.ramble(rng)


def test_problems_are_seeded_different_and_graded():
    train, val = tasks.split_tasks(100, 20, seed=3)
    texts = [task.problem for task in (*train, *val)]
    assert len(set(texts)) == 120
    assert texts == [task.problem for task in sum(tasks.split_tasks(100, 20, seed=3), [])]
    assert {task.difficulty for task in train} == {1, 2, 3, 4, 5}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return warm_start.prepare(tmp_path_factory.mktemp("cache"), steps=10)


def test_the_model_is_a_small_qwen2_that_transformers_loads(prepared):
    model = AutoModelForCausalLM.from_pretrained(prepared.model)
    assert model.config.model_type == "qwen2" and 0.5e6 < model.num_parameters() < 3e6


def test_the_tokenizer_takes_any_text_and_has_a_chat_template(prepared):
    tokenizer = AutoTokenizer.from_pretrained(prepared.model)
    text = "求 x²: \\frac{1}{2} = 0.5 \U0001f600"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    chat = [{"role": "user", "content": "1+1?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert "1+1?" in prompt and tokenizer.eos_token_id is not None and tokenizer.pad_token_id is not None


def test_the_result_is_cached_by_content(prepared):
    folder = prepared.model.parent
    before = json.loads((folder / "report.json").read_text())
    assert warm_start.prepare(folder.parent, steps=10) == prepared
    assert json.loads((folder / "report.json").read_text()) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "no partial folder is left"
