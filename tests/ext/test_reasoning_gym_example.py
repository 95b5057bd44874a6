"""The example of a reward function: reasoning-gym's marks are taken, and no text of a model breaks or fools it."""

import ast
import importlib
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r3_ext.data import check as rows
from r3_ext.data import problems as data
from r3_ext.settings import prepare
from r3_ext.tiny import warm_start
from recipe.common.reward.function import RewardFunction, Verdict, load_function
from tests.ext.gym_example import FILE, FOLDER, commands

pytestmark = pytest.mark.slow

HARDER = [
    *("calendar_arithmetic", "base_conversion", "decimal_arithmetic", "knights_knaves", "mini_sudoku"),
    *("palindrome_generation", "prime_factorization", "syllogism", "time_intervals", "word_sorting:max_words=6"),
]
"""Further ones, whose scorers grade or read the answer in ways of their own."""


def prepared(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FOLDER / "prepare_data.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def prepare_data():
    """prepare_data(*arguments) as on the command line, in this process: importing reasoning-gym takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        module = importlib.import_module("prepare_data")
        yield lambda *arguments: module.prepare(**vars(module.build_parser().parse_args([*map(str, arguments)])))


@pytest.fixture(scope="module")
def files(tmp_path_factory, prepare_data):
    """The rows of the README's first command, and rows of other tasks."""
    folder = tmp_path_factory.mktemp("data")
    done = prepared("--output-dir", folder / "short")
    assert done.returncode == 0, done.stderr
    prepare_data("--output-dir", folder / "harder", "--tasks", *HARDER, "--train-rows", 40, "--val-rows", 10)
    return folder


def read(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


@pytest.fixture(scope="module")
def all_rows(files):
    return [row for path in sorted(files.rglob("*.parquet")) for row in read(path)]


@pytest.fixture(scope="module")
def score():
    """The function as the recipe loads it."""
    function = load_function(str(FILE), "compute_score")

    def judge(row: dict, response: str) -> dict:
        return function(row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"])

    return judge


@pytest.fixture(scope="module")
def example(score):
    return sys.modules["r3_custom_reward"]


def boxed(answer: str) -> str:
    return f"So.</think>It is \\boxed{{{answer}}}."


def test_the_answer_of_every_row_gets_the_full_mark_and_another_tasks_does_not(all_rows, score):
    tasks = {row["data_source"] for row in all_rows}
    assert len(tasks) == 18
    for row in all_rows:
        truth = row["reward_model"]["ground_truth"]
        assert score(row, boxed(truth)) == {"score": 1.0, "acc": True}
        assert score(row, f"<answer>{truth}</answer>")["acc"] is True
    rng = random.Random(0)
    for row in all_rows:
        other = rng.choice([one for one in all_rows if one["data_source"] != row["data_source"]])
        answer, truth = other["reward_model"]["ground_truth"], row["reward_model"]["ground_truth"]
        if data.normal_form(answer) != data.normal_form(truth):
            assert score(row, boxed(answer))["acc"] is False, (row["data_source"], answer, truth)


def test_graded_marks_are_kept(all_rows, score):
    [row] = [row for row in all_rows if row["reward_model"]["ground_truth"] == "lagelli"]
    assert score(row, boxed("lagelix")) == {"score": pytest.approx(5 / 7), "acc": False}
    assert score(row, boxed("xxxxxxx")) == {"score": 0.0, "acc": False}


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{12}", "12"),
        (r"\boxed{11} no, \boxed{12}", "12"),
        (r"\boxed{x^{2}}", "x^{2}"),
        (r"\boxed{\text{ab c}}", "ab c"),
        (r"\boxed{ 12 }", "12"),
        ("<answer>12</answer>", "12"),
        ("<answer>11</answer> or <answer>\n12\n</answer>", "12"),
        (r"<answer>so \boxed{12}</answer> and not \boxed{13}", "12"),
        (r"\boxed{11}</think>\boxed{12}", "12"),
        ("<answer>1 < 2</answer>", "1 < 2"),
        (r"\boxed{11}</think> I do not know", None),
        (r"\boxed{12", None),
        (r"\boxed{11} and \boxed{12", None),
        (r"<answer>\boxed{12</answer>", None),
        ("<answer>12", None),
        ("12</answer>", None),
        ("", None),
        (r"\boxed{" + "1" * 5000 + "}", None),
        ("<answer>" + "1" * 5000 + "</answer>", None),
    ],
)
def test_where_the_answer_is_read(example, response, answer):
    assert example.answer_of(response) == answer


HOSTILE = [
    *("", " ", "\x00", "\ud800", "\U0001f600" * 100, "None", "null", "nan", "inf", "-inf", "NaN", "1e999999999", "1j"),
    *("9" * 3999, "-" * 3999, "1/0", "0x" + "f" * 3000, "9**9**9", "9^{9^{9^9}}", "100000000!", "1e-400", "(" * 3999),
    *("[" * 3999, "[" * 1000 + "]" * 1000, "{" * 1000 + "}" * 1000, '{"a": ' * 900, ",".join("1" * 1900), "×" * 3000),
    *("__import__('os').system('touch HACKED')", 'exec("raise SystemExit")', "().__class__.__mro__", "lambda: 0"),
    *("open('HACKED', 'w')", "%s%n", "{0.__class__}", "\\" * 3999, "a" * 3999, "1 " * 1900, "\n" * 3999, "２", "½"),
    *("00:00:00", "2024-99-99", "-1 days", "Yes No", "[1, [2, [3]]]", "['a', 'b'", "true", "1_000", "1 + 1", "--5"),
]
"""What stands in a box or between tags."""


def test_no_text_raises_or_leaves_the_range_or_is_run(all_rows, score, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_task = {row["data_source"]: row for row in all_rows}
    marks = Counter()
    for row in of_task.values():
        for text in HOSTILE:
            for response in (boxed(text), f"<answer>{text}</answer>", f"<answer>{text}", f"\\boxed{{{text}", text):
                said = score(row, response)
                assert 0.0 <= said["score"] <= 1.0 and said["acc"] == (said["score"] == 1.0), (row["data_source"], text)
                marks[said["acc"]] += 1
    assert marks == {False: len(of_task) * len(HOSTILE) * 5}
    assert list(tmp_path.iterdir()) == []


def test_a_broken_row_is_told_whatever_the_response_says(all_rows, score):
    good = all_rows[0]
    entry = json.loads(good["extra_info"]["entry"])
    broken = {
        "entry must be": [{"entry": None}, {}, {"entry": "{"}],
        "is not the answer of": [{"entry": "[]"}, {"entry": json.dumps(entry | {"answer": "another"})}],
    }
    for told, infos in broken.items():
        for info in infos:
            with pytest.raises(ValueError, match=told):
                score(good | {"extra_info": info}, "nothing")
    for source in ("reasoning_gym/none", "chain_sum", "deepscaler"):
        with pytest.raises(ValueError, match="a task of reasoning-gym"):
            score(good | {"data_source": source}, "nothing")
    sorting = next(row for row in all_rows if row["data_source"] == "reasoning_gym/word_sorting")
    entry = json.loads(sorting["extra_info"]["entry"])
    other = entry["metadata"] | {"sorted_words": ["other"]}
    for known, told in (({}, "fails on the row's own answer .KeyError"), (other, "gets 0.0, not the full mark")):
        with pytest.raises(ValueError, match=told):
            score(sorting | {"extra_info": {"entry": json.dumps(entry | {"metadata": known})}}, "nothing")
    for task, told in (("countdown", "as a program"), ("complex_arithmetic", "the full mark to nan")):
        with pytest.raises(ValueError, match=told):
            score(good | {"data_source": f"reasoning_gym/{task}"}, "nothing")


def test_every_scorer_that_would_run_an_answer_is_refused(example):
    """Of the files that call eval or sympy's parser, all but those that give it their own text only."""
    package, calls = Path(example.reasoning_gym.__file__).parent, set()
    for file in package.rglob("*.py"):
        if "DATASET_NAME = " not in (source := file.read_text()):
            continue
        tree = ast.parse(source)
        names = [n.value.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "DATASET_NAME"]
        called = {getattr(n.func, "id", getattr(n.func, "attr", "")) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        if names and called & {"eval", "exec", "parse_expr", "sympify"}:
            calls.update(names)
    # They evaluate problems that they made; propositional_logic has a parser of its own.
    own_text = {"basic_arithmetic", "bitwise_arithmetic", "codeio", "number_sorting", "propositional_logic"}
    assert calls == set(example.EXECUTING) | own_text


@pytest.mark.parametrize(
    ("task", "text"), [("coin_flip", "0"), ("complex_arithmetic", "nan"), ("game_of_life_halting", "?")]
)
def test_the_other_scorers_that_are_refused_can_be_fooled(example, task, text):
    """What is refused for nothing is to be allowed again."""
    entries = iter(example.reasoning_gym.create_dataset(task, seed=0, size=20))
    judge = example.reasoning_gym.get_score_answer_fn(task)
    assert sum(judge(text, entry) == 1 for entry in entries if entry["answer"] != text) > 5
    assert example.REFUSED[task].startswith("its scorer gives the full mark to")


def test_it_works_in_the_processes_of_the_recipe(all_rows):
    """With their limit of memory, which the import must leave room in."""
    function = RewardFunction(str(FILE), "compute_score", {}, timeout_s=20, workers=1)
    try:
        for row in all_rows[:3]:
            truth = row["reward_model"]["ground_truth"]
            question = row["data_source"], boxed(truth), truth, row["extra_info"]
            assert function(*question) == Verdict(1.0, acc=True)
        assert function("deepscaler", "", "1", {}).error.startswith("raised ValueError")
    finally:
        function.close()


def test_the_two_files_share_no_question_and_are_fit_for_the_trainer(files):
    for folder in (files / "short", files / "harder"):
        parts = {name: read(folder / f"{name}.parquet") for name in ("train", "val")}
        for name, part in parts.items():
            assert rows.read(folder / f"{name}.parquet").faults == []
            assert {row["extra_info"]["split"] for row in part} == {name}
        keys = [data.overlap_key(row["prompt"][-1]["content"]) for part in parts.values() for row in part]
        assert len(keys) == len(set(keys))
        made = [(row["data_source"], row["extra_info"]["index"]) for part in parts.values() for row in part]
        assert len(made) == len(set(made))
        kept = prepare.unchanged(
            folder / "train.parquet", folder, data.overlap_keys([str(folder / "val.parquet")]), print
        )
        assert kept == folder / "train.parquet", "r3 run would leave rows out"
    assert Counter(row["data_source"] for row in read(files / "short" / "train.parquet")).most_common()[-1][1] == 64


def test_a_seed_gives_the_same_rows_and_validation_does_not_depend_on_the_training_rows(files, prepare_data, tmp_path):
    tables = {}
    for name, *arguments in (("same",), ("fewer", "--train-rows", 20), ("other", "--seed", 1)):
        prepare_data("--output-dir", tmp_path / name, *arguments)
        tables[name] = [pq.read_table(tmp_path / name / f"{part}.parquet") for part in ("train", "val")]
    first = [pq.read_table(files / "short" / f"{part}.parquet") for part in ("train", "val")]
    assert tables["same"][0].equals(first[0]) and tables["same"][1].equals(first[1])
    assert tables["fewer"][0].num_rows == 20 and tables["fewer"][1].equals(first[1])
    questions = [set(map(str, table["prompt"].to_pylist())) for table in (first[0], tables["other"][0])]
    assert len(questions[0] & questions[1]) < len(questions[0]) / 10, "neighbouring seeds must not share questions"


def test_the_tiny_model_can_be_taught_the_rows(files):
    course = warm_start.course(files / "short" / "train.parquet", warm_start.Settings())
    assert (course.train.num_rows, course.val.num_rows) == (128, 64)
    assert len(set(course.train["data_source"].to_pylist())) == 8
    assert json.loads(course.train["extra_info"].to_pylist()[0]["entry"])["question"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tasks", "gcdd"], "reasoning-gym has no task 'gcdd'; the nearest are gcd"),
        (["--tasks", "gcd:max=3"], "'max' is no setting of gcd; it has max_numbers, max_value"),
        (["--tasks", "gcd:max_value=-3"], "cannot make it"),
        (["--tasks", "gcd:max_value=many"], "cannot make it"),
        (["--tasks", "gcd", "lcm", "gcd:max_value=9"], "names gcd twice"),
        (["--tasks", "countdown"], "would run a model's answer as a program"),
        (["--tasks", "boxnet"], "0 usable questions"),
        (["--tasks", "letter_counting:max_words=6", "--train-rows", "50000"], "50,064 needed: the others are equal"),
        (["--train-rows", "0"], "--train-rows must be at least 1, got 0"),
        (["--val-rows", "0"], "--val-rows must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
    ],
)
def test_a_wrong_argument_is_answered_with_a_sentence_and_nothing_is_written(prepare_data, arguments, told, tmp_path):
    with pytest.raises(ValueError) as error:
        prepare_data("--output-dir", tmp_path / "out", *arguments)
    assert told in str(error.value) and list(tmp_path.iterdir()) == []


def test_the_command_ends_with_the_sentence(tmp_path):
    done = prepared("--output-dir", tmp_path / "out", "--tasks", "gcdd")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: --tasks gcdd: reasoning-gym has no")
    assert "Traceback" not in done.stderr


def test_the_commands_of_the_readme_that_prepare_data_work(prepare_data, tmp_path):
    default, harder = commands("python examples/custom_reward/prepare_data.py")
    assert default == []  # the fixture `files` runs it
    at = [harder.index(name) + 1 for name in ("--output-dir", "--train-rows", "--val-rows")]
    assert [harder[i] for i in at] == ["data/harder", "8000", "256"]
    for i, value in zip(at, (str(tmp_path), "70", "7"), strict=True):
        harder[i] = value
    assert prepare_data(*harder)["train"] == 70
