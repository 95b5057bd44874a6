"""The embedded profile's problems, tokenizer and warm start."""

import json
import re
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_ext.tiny import tasks, warm_start
from r3_ext.tiny.world import LEVELS, World, parse


def independent_answer(problem: str) -> int:
    """The result of the problem text, computed by reading the text alone."""
    value = int(re.search(r"Start with (\d+)", problem).group(1))
    for verb, operand in re.findall(r"(Add|Subtract) (\d+)", problem):
        value = {"Add": value + int(operand), "Subtract": value - int(operand)}[verb] % 10
    return value


def boxed_digit(text: str) -> str:
    return re.fullmatch(r".*\\boxed\{(\d)\}", text, re.DOTALL)[1]


def boxed_number(text: str) -> str:
    return re.fullmatch(r".*\\boxed\{(\d+)\}", text, re.DOTALL)[1]


def test_reference_answers_follow_from_the_problem_text():
    for task in tasks.make_tasks(200, seed=1):
        assert independent_answer(task.problem) == int(task.answer)
        assert task.solution().endswith(f"\\boxed{{{task.answer}}}")


def test_every_line_of_a_solution_is_a_true_fact():
    for task in tasks.make_tasks(80, seed=1):
        facts = re.findall(r"(\d)([+-])(\d)=(\d)\.", task.solution())
        assert len(facts) == task.difficulty
        assert all(tasks.apply(sign, int(left), int(right)) == int(told) for left, sign, right, told in facts)


WORLD = World(overlong=0.0, stuck=0.0)


def test_one_slip_makes_an_answer_wrong():
    rng, beliefs = Random(0), tasks.Beliefs(WORLD)
    for task in tasks.make_tasks(200, seed=2):
        assert boxed_digit(beliefs.slip(task, rng)) != task.answer


def test_right_answers_come_from_right_working():
    rng, beliefs = Random(0), tasks.Beliefs(WORLD)
    right = [
        text
        for task in tasks.make_tasks(300, seed=2)
        for text in [beliefs.attempt(task, rng, 0.0) for _ in range(20)]
        if boxed_digit(text) == task.answer
    ]
    facts = [re.findall(r"(\d)([+-])(\d)=(\d)\.", text) for text in right]
    by_luck = sum(any(tasks.apply(s, int(a), int(b)) != int(c) for a, s, b, c in told) for told in facts)
    assert len(right) > 1000 and by_luck / len(right) < 0.002


def test_attempts_are_as_right_as_the_beliefs_and_a_full_boost_is_always_right():
    rng, beliefs = Random(0), tasks.Beliefs(World())
    for start, fact in ((value, fact) for value in range(10) for fact in tasks.STEPS[::4]):
        task = tasks.Task(start, (fact,))
        told = [beliefs.attempt(task, rng, 0.0) for _ in range(400)]
        share = sum("boxed" in text and boxed_digit(text) == task.answer for text in told) / len(told)
        assert share == pytest.approx(beliefs.p_right[(start, *fact)] * (1 - World().stuck), abs=0.1)
        assert beliefs.attempt(task, rng, 1.0) == task.solution()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_exactly_the_share_of_facts_is_mistaken_and_which_follows_from_the_seed(share):
    def mistaken(seed: int) -> set:
        p_right = tasks.Beliefs(World(seed=seed, mistaken=share)).p_right
        return {fact for fact, p in p_right.items() if p == tasks.P_MISTAKEN}

    assert len(mistaken(0)) == 60 * share and mistaken(0) == mistaken(0)
    assert (mistaken(0) == mistaken(1)) == (share in (0.0, 1.0))


def test_answers_get_stuck_or_are_written_at_length_as_often_as_the_world_says():
    rng, beliefs = Random(0), tasks.Beliefs(World(overlong=0.4, stuck=0.3))
    told = [beliefs.attempt(tasks.draw_task(rng, 4), rng, 0.0) for _ in range(1000)]
    assert sum("boxed" not in text for text in told) / 1000 == pytest.approx(0.3, abs=0.05)
    assert sum(bool(re.search(r"\) [a-z]", text)) for text in told) / 1000 == pytest.approx(0.4, abs=0.05)
    neutral = tasks.Beliefs(WORLD)
    assert all("boxed" in neutral.attempt(task, rng, 0.0) for task in tasks.make_tasks(100, seed=0))
    assert all("boxed" in beliefs.attempt(task, rng, 0.0, is_quiet=True) for task in tasks.make_tasks(100, seed=0))


def test_an_answer_at_length_states_the_same_facts_and_is_right_as_far_as_it_goes():
    rng = Random(0)
    for task in tasks.make_tasks(50, seed=1):
        short, long = (tasks.write(task, rng, tasks.truth, None, at_length) for at_length in (False, True))
        facts = r"(\d[+-]\d=\d)\."
        assert re.findall(facts, long) == re.findall(facts, short) and boxed_digit(long) == task.answer
        stuck = tasks.write(task, rng, tasks.truth, 0, at_length=False)
        assert "boxed" not in stuck and len(stuck) > len(short)


@pytest.mark.parametrize(
    "text, message",
    [
        ("mistaken=2", "--world mistaken must be from 0 to 1, got 2.0"),
        ("mistaken=x", "--world mistaken must be a number, got 'x'"),
        ("seed=-1", "--world seed must be at least 0, got -1"),
        ("train=6-1", "--world train must be two numbers of steps from 1 to 6"),
        ("val=0-9", "--world val must be two numbers of steps"),
        ("facts=3", "'facts=3' is not one of seed=..., mistaken=..."),
        ("seed", "'seed' is not one of"),
        ("seed=1,seed=2", "seed is given twice"),
    ],
)
def test_a_world_that_there_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


def test_a_world_is_read_from_the_text_that_it_is_written_as():
    for text in ("", "seed=3", "seed=1,mistaken=0.0,train=5-6"):
        assert str(parse(text)) == text


def test_levels_of_problems_are_those_of_the_world():
    train, val = tasks.split_tasks(30, 12, World(train="5-6", val="1-4"))
    assert {task.difficulty for task in train} == {5, 6} and {task.difficulty for task in val} == {1, 2, 3, 4}


def test_problems_are_seeded_different_and_graded():
    train, val = tasks.split_tasks(100, 20, World(seed=3))
    texts = [task.problem for task in (*train, *val)]
    assert len(set(texts)) == 120
    assert texts == [task.problem for task in sum(tasks.split_tasks(100, 20, World(seed=3)), [])]
    assert {task.difficulty for task in train} == set(range(1, LEVELS + 1))


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


def test_a_world_is_refused_for_problems_from_a_file(tmp_path):
    with pytest.raises(ValueError, match="--world seed=3 concerns the problems that are generated.*train.parquet"):
        warm_start.prepare(tmp_path, "train.parquet", world=World(seed=3))


def test_rows_in_verls_format_are_taught_and_kept_as_they_are(tmp_path):
    rows = [
        {
            "data_source": "mine",
            "level": number,
            "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{number} and {number}?"}],
            "reward_model": {"ground_truth": [str(2 * number), f"{2 * number}.0"]},
        }
        for number in range(8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    course = warm_start.course(tmp_path / "rows.parquet", warm_start.Settings(rows=4, val_rows=2))
    train, val = course.train.to_pylist(), course.val.to_pylist()
    assert (len(train), len(val)) == (4, 2) and all(row in rows for row in train + val)
    lesson = course.draw(Random(0), 0.0)
    (row,) = [row for row in rows if row["prompt"] == lesson.messages]
    assert boxed_number(lesson.right) == row["reward_model"]["ground_truth"][0]
    left_out = tmp_path / "val.jsonl"
    left_out.write_text("".join(json.dumps({"problem": f"{number} and {number}?"}) + "\n" for number in range(3)))
    with pytest.raises(ValueError, match="is taught 6 problems .* and the file has 5 different ones"):
        warm_start.course(tmp_path / "rows.parquet", warm_start.Settings(rows=4, val_rows=2), [left_out])


def test_the_result_is_cached_by_content(prepared):
    folder = prepared.model.parent
    before = json.loads((folder / "report.json").read_text())
    assert warm_start.prepare(folder.parent, steps=10) == prepared
    assert json.loads((folder / "report.json").read_text()) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "no partial folder is left"
