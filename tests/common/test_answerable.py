"""A row's own reference, written as its prompt asks, is put to its own grader; what stands for no answer is told."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from recipe.common.reward.answerable import (
    BOXED,
    FORMS,
    MATHEMATICS,
    Asked,
    Asker,
    asked_forms,
    no_answer,
    unmatchable,
    written,
)
from recipe.common.reward.first_rows import check_first_rows
from recipe.common.reward.math.pool import grade
from recipe.common.reward.math.units import units_contradict
from recipe.common.reward.row_graders import asker
from recipe.common.reward.truths import OWN_MANAGER
from recipe.common.reward.wrapped import bare

DAPO = 'End with a line of the form Answer: $Answer (no quotes).\n\nWhat is 1 + 2?\n\nIts own line after "Answer:".'
GSM = 'What is 1 + 2? Think step by step and write the final answer after "####".'
BOX = "What is 1 + 2? Put it in \\boxed{}."


def row(truth, source="mine", prompt=BOX, **more) -> dict:
    messages = [{"role": "user", "content": prompt}]
    return {"data_source": source, "prompt": messages, "reward_model": {"ground_truth": truth}} | more


def why(truth, source="mine", prompt=BOX) -> str | None:
    return asker().why_not(row(truth, source, prompt), prompt)


@pytest.mark.parametrize(
    ("prompt", "forms"),
    [
        (BOX, (BOXED,)),
        (GSM, ("####",)),
        (DAPO, ("Answer:",)),
        ("the answer inside <answer> and </answer>", ("<answer>",)),
        ("Write Answer: \\boxed{$Answer}.", (BOXED, "Answer:")),
        ("What is 1 + 2?", tuple(FORMS)),
        ("#### Problem\nWhat is 1 + 2?\nAnswer:", tuple(FORMS)),  # a heading and a cue ask for no form
    ],
)
def test_the_form_is_the_one_that_the_prompt_asks_for(prompt, forms):
    assert asked_forms(prompt) == forms


def test_an_answer_is_written_in_each_form():
    assert [written("7", form) for form in FORMS] == ["\\boxed{7}", "#### 7", "Answer: 7", "<answer>7</answer>"]
    assert written("50%", BOXED, thinks=True) == "<think>\n</think>\n\\boxed{50%}"


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "proof",
            "Proof.",
            "\\text{proof}",
            "notfound",
            "Not found",
            "N/A",
            "see solution",
            "$\\text{QED}$",
            "?",
            "--",
            "…",
        ),
        *("The series converges.", "The answer is 12.", "略"),
        "The bisector of the angle between the two fixed lines and all of its points",
        "There are 8 boxes of 11 pens, so 8*11=<<8*11=88>>88 pens.\n#### 88",
    ],
)
def test_what_stands_for_no_answer_is_told(reference):
    assert no_answer(reference) and unmatchable(reference) == no_answer(reference)


@pytest.mark.parametrize(
    "reference", "TODO|not provided|see figure|See the figure.|图略|答案略|\\text{omitted}".split("|")
)
def test_what_stands_for_another_place_is_told(reference):
    assert unmatchable(reference) == "stands for no answer"


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        *(("#### 36", "36"), ('["36"]', "36"), ("['36']", "36"), ("Answer: 5", "5"), ("ANSWER : 5", "5")),
        *(("**5**", "5"), ("`5`", "5"), ('"5"', "5"), ("5</s>", "5"), ("5<|im_end|>", "5"), ("答案：5", "5")),
        *(("<answer>36</answer>", "36"), ("The final answer is 5", "5"), ("**Answer: $5$**", "$5$")),
        *(("36 apples", "36"), ("1,200 small marbles.", "1,200")),
    ],
)
def test_what_stands_around_an_answer_is_told(reference, answer):
    """Who is asked gives the answer alone, which such a reference calls wrong."""
    assert bare(reference) == answer
    assert grade(written(answer, BOXED), [reference]) is False
    assert unmatchable(reference) == f"is right with all that it says, and wrong as {answer!r}: give the answer alone"
    assert unmatchable(answer) is None


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "5",
            "$5$",
            "\\boxed{5}",
            "[5]",
            "[1, 2]",
            "x = 5",
            "5 cm",
            "5 million",
            "3 or 4",
            "2 pi",
            "3 xyzw",
            "5 hours",
        ),
        *(
            "(B) 12",
            "B. 12",
            "10 sin x",
            "12 \\text{ apples}",
            "3 even",
            "answer",
            "no solution",
            "A",
            "2x sqrt",
            "50%",
        ),
    ],
)
def test_around_what_is_an_answer_nothing_stands(reference):
    assert bare(reference) == reference and unmatchable(reference) is None


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "0",
            "-3",
            "3,780",
            "\\frac{1}{2}",
            "\\emptyset",
            "∅",
            "∞",
            "\\text{no real solutions}",
            "None",
            "Monday",
            "x",
        ),
        *("\\text{June 20, 2015}", "5 apples and 3 oranges and 2 pears", "(A) The series converges.", "12.", "3.5 cm."),
        "$f(x)=a x+b$, where $b$ is an arbitrary integer, and $a$ is an arbitrary positive integer",
        "\\boxed{12}",
    ],
)
def test_what_can_be_an_answer_stays(reference):
    assert no_answer(reference) is None and unmatchable(reference) is None


def test_a_reference_that_is_broken_is_not_accepted_by_its_own_grader():
    for broken in ("\\frac{k!n!}{(k+n-1)!", "\\frac{1}{2}}", "9" * 5000):
        assert why(broken) == "is not accepted by its own grader"
    assert why(["\\frac{1}{2", "0.5"]) is None, "one accepted answer is enough"


def test_an_equal_reference_needs_no_look_at_units_and_signs():
    samples = [
        "3 m, 3 cm",
        "5 \\text{ cm}^2",
        "3 \\text{ m and } 4 \\text{ cm}",
        "10\\%",
        "\\$3",
        "90^\\circ",
        "20 mi per hr",
    ]
    for sample in samples:
        assert not units_contradict(sample, sample) and grade(f"\\boxed{{{sample}}}", [sample]) is True
    assert grade("\\boxed{ }", [" "]) is False


def test_a_form_that_is_asked_and_not_graded_is_told():
    assert "is right as `\\boxed{x}`, and the prompt asks for Answer:" in why("3", prompt=DAPO)
    assert why("3", prompt=BOX) is why("3", prompt="What is 1 + 2?") is None


def test_verls_rewards_are_asked_in_their_own_form():
    assert why("3", "openai/gsm8k", GSM) is why("3", "math_dapo", DAPO) is why("3", "lighteval/MATH", BOX) is None
    assert "is right as `#### x`, and the prompt asks for \\boxed{}" in why("3", "openai/gsm8k", BOX)
    assert why("3,780", "openai/gsm8k", GSM) == "is not accepted by its own grader", (
        "verl drops the comma of the answer"
    )
    assert "#### 88" in why("8*11=88\n#### 88", "openai/gsm8k", GSM)
    assert why("proof", "numina_olympiads", BOX) == "stands for no answer"
    assert why('{"inputs": ["1"]}', "codecontests", "Write a program.") is None, "nobody knows a right program"
    assert why({"target": ["no answer"]}, "searchR1_nq", "between <answer> and </answer>") is None, "words are answers"


def test_rows_that_are_alike_are_asked_once():
    asked, calls = Asked(), []
    counting = Asker(lambda row: MATHEMATICS.__class__("counting", lambda row, text: bool(calls.append(text)) or True))
    for number in range(1000):
        counting.ask(asked, number, row(str(number % 10)), BOX)
    assert len(calls) == 10 and asked.rows == {"mine": 1000} and not asked.numbers


def test_what_cannot_be_answered_is_counted_and_named():
    asked = Asked()
    for number, truth in enumerate(["1", "proof", "2", "proof", "notfound"]):
        asker().ask(asked, number, row(truth), BOX)
    asker().ask(asked, 5, row("proof", "other"), BOX)
    assert asked.numbers == [1, 3, 4, 5] and asked.hopeless() == ["other"]
    first, other = asked.sentences()
    assert first == "row 1: reward_model.ground_truth 'proof' stands for no answer (2 further rows of data_source mine)"
    assert other.startswith("row 5") and asked.sentences(["other"]) == [other]


def run_config(train, val, **reward):
    manager = {"source": "importlib", "name": "R3RewardManager", "module": {"path": OWN_MANAGER}}
    data = {"train_files": str(train), "val_files": [str(val)], "prompt_key": "prompt"}
    return OmegaConf.create({"data": data, "reward": {"reward_manager": manager} | reward})


def test_a_file_of_which_no_first_row_can_be_answered_ends_main_r3(tmp_path):
    names = "good.parquet", "bad.parquet", "bad.jsonl", "bad.json"
    good, bad, lines, array = (tmp_path / name for name in names)
    pq.write_table(pa.Table.from_pylist([row("3"), *[row("3", prompt=DAPO)] * 9]), good)
    pq.write_table(pa.Table.from_pylist([row("3", prompt=DAPO)] * 100), bad)
    lines.write_text("".join(json.dumps(row("3", prompt=DAPO)) + "\n" for _ in range(3)))
    check_first_rows(run_config(good, tmp_path / "not there.parquet"))
    array.write_text(json.dumps([row("3", prompt=DAPO)] * 3, indent=1))
    for file, number in ((bad, 64), (lines, 3), (array, 3)):
        with pytest.raises(
            ValueError, match=rf"data.val_files: .*{file.name}, row 0: .*none of the first {number} rows"
        ):
            check_first_rows(run_config(good, file))
    check_first_rows(run_config(bad, bad, custom_reward_function={"path": "mine.py", "name": "f"}))
