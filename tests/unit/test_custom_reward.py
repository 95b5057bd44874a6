"""A user's own reward function: what it says is taken, and nothing that it cannot mean is believed."""

import math
import time

import numpy as np
import pytest

from recipe.r3.custom_reward import RewardFunction, Verdict, judged, load_function

pytestmark = pytest.mark.slow

FUNCTIONS = """
import os, sys, time

def plain(data_source, solution_str, ground_truth, extra_info):
    return 0.25 * (solution_str == ground_truth) + 0.5 * extra_info["more"]

def graded(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    return {"score": 0.5 + bonus, "acc": solution_str == ground_truth, "data_source": data_source}

def hangs(data_source, solution_str, ground_truth, extra_info):
    while solution_str == "hang":
        time.sleep(0.1)
    return 1.0

def spins(data_source, solution_str, ground_truth, extra_info):
    return 10 ** 10 ** 10 if solution_str == "hang" else 1.0

def raises(data_source, solution_str, ground_truth, extra_info):
    raise KeyError("no such thing")

def exits(data_source, solution_str, ground_truth, extra_info):
    os._exit(3)

def eats(data_source, solution_str, ground_truth, extra_info):
    return len(bytearray(8 << 30))

async def coroutine(data_source, solution_str, ground_truth, extra_info):
    return 1.0

NUMBER = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "it's mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


@pytest.fixture
def function(file):
    made = []

    def make(name: str, timeout_s: float = 20.0, **kwargs) -> RewardFunction:
        made.append(RewardFunction(file, name, kwargs, timeout_s, workers=1))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_number_is_the_score_and_a_dict_may_say_what_is_correct(function):
    plain, graded = function("plain"), function("graded", bonus=0.25)
    assert plain("mine", "7", "7", {"more": 1}) == Verdict(0.75)
    assert plain("mine", "7", "8", {"more": 0}) == Verdict(0.0)
    assert graded("mine", "7", "7", {}) == Verdict(0.75, acc=True)
    assert graded("mine", "6", "7", {}) == Verdict(0.75, acc=False)


@pytest.mark.parametrize(("name", "seconds"), [("hangs", 1.0), ("spins", 1.0)])
def test_one_that_hangs_costs_its_deadline_and_the_next_answer_is_judged(function, name, seconds):
    judge = function(name, timeout_s=seconds)
    judge("mine", "fine", "", {})  # the process is up
    begin = time.monotonic()
    verdict = judge("mine", "hang", "", {})
    assert time.monotonic() - begin < seconds + 5
    assert verdict.score == 0 and "within 1 s" in verdict.error
    assert judge("mine", "fine", "", {}) == Verdict(1.0)


@pytest.mark.parametrize(
    ("name", "told"),
    [("raises", "raised KeyError"), ("exits", "ended its process"), ("eats", "raised MemoryError")],
)
def test_one_that_fails_is_told_and_not_believed(function, name, told):
    judge = function(name)
    for _ in range(2):
        verdict = judge("mine", "7", "7", {})
        assert verdict.score == 0 and verdict.acc is None and told in verdict.error


@pytest.mark.parametrize(
    "result",
    [math.nan, math.inf, -math.inf, "1.0", None, [1.0], {"acc": 1}, {"score": "1"}, {"score": math.nan}, 1j]
    + [{"score": 1.0, "acc": 0.5}, {"score": 1.0, "acc": "yes"}, {"score": 1.0, "acc": [1]}],
)
def test_what_is_no_score_is_none(result):
    verdict = judged(result)
    assert verdict.score == 0 and verdict.acc is None and verdict.error.startswith("returned ")


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (1, Verdict(1.0)),
        (-0.5, Verdict(-0.5)),
        (True, Verdict(1.0)),
        (np.bool_(False), Verdict(0.0)),
        ({"score": np.float32(0.5), "acc": np.bool_(True)}, Verdict(0.5, acc=True)),
        ({"score": 2, "acc": 1.0}, Verdict(2.0, acc=True)),
        ({"score": 0.5, "acc": False, "why": "x"}, Verdict(0.5, acc=False)),
    ],
)
def test_what_is_a_score_is_taken(result, verdict):
    assert judged(result) == verdict


@pytest.mark.parametrize(
    ("name", "told"),
    [("absent", "has no such function"), ("NUMBER", "has no such function"), ("coroutine", "write a plain function")],
)
def test_what_is_no_function_is_refused_by_its_key(file, name, told):
    with pytest.raises(ValueError, match=rf"reward\.custom_reward_function\.name={name}.*{told}"):
        load_function(file, name)


@pytest.mark.parametrize("content", [None, "def f(:", "import not_there"])
def test_a_file_that_cannot_be_loaded_is_refused_by_its_key(tmp_path, content):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"reward\.custom_reward_function\.path=.*mine\.py cannot be loaded"):
        load_function(str(path), "f")


def test_a_module_is_named_as_verl_names_it():
    assert load_function("pkg://math", "sqrt") is math.sqrt
