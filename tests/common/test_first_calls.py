"""What a reward function's first answer in a fresh process may take, and what it may not."""

import time

import pytest

from recipe.common import process_pool
from recipe.common.process_pool import FIRST_CALL_S, FIRST_CALLS_IN_VAIN, FirstCalls
from recipe.common.reward.function import RewardFunction, Verdict

FUNCTIONS = """
import time

LOADED = []

def lazy(data_source, solution_str, ground_truth, extra_info, load_s):
    if not LOADED:
        time.sleep(load_s)
        LOADED.append(True)
    while solution_str == "hang":
        time.sleep(0.1)
    return float(solution_str == ground_truth)

def by_math_verify(data_source, solution_str, ground_truth, extra_info):
    from verl.utils.reward_score import math_verify
    # Its own limit of 30 s counts the start of its processes too, which a machine that runs tests may exceed.
    return math_verify.compute_score(solution_str, ground_truth, timeout=100)
"""


@pytest.fixture
def make(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    made = []

    def function(name: str, timeout_s: float, **kwargs) -> RewardFunction:
        made.append(RewardFunction(str(tmp_path / "mine.py"), name, kwargs, timeout_s, workers=1))
        return made[-1]

    yield function
    for each in made:
        each.close()


def ask(function: RewardFunction, solution: str) -> tuple[Verdict, float]:
    """The verdict and the seconds it took."""
    begin = time.monotonic()
    return function("mine", solution, "7", {}), time.monotonic() - begin


def test_one_that_loads_longer_than_its_deadline_works_also_after_a_kill(make):
    function = make("lazy", timeout_s=1.0, load_s=2.0)
    for _ in range(2):
        assert ask(function, "7")[0] == Verdict(1.0)
        verdict, took_s = ask(function, "hang")  # the deadline of an answer that is no first one
        assert "within 1 s" in verdict.error and took_s < 1.8


def test_first_answers_that_hang_end_and_soon_cost_their_deadline_alone(make, monkeypatch):
    monkeypatch.setattr(process_pool, "FIRST_CALL_S", 3.0)
    function = make("lazy", timeout_s=0.5, load_s=0.0)
    ask(function, "7")
    seconds = [ask(function, "hang")[1] for _ in range(1 + FIRST_CALLS_IN_VAIN + 2)]
    # Each but the first finds a fresh process. What it takes to start that one is no part of a deadline.
    assert all(took_s > 3.5 for took_s in seconds[1 : 1 + FIRST_CALLS_IN_VAIN])
    assert max(seconds[-2:]) < 3.0
    assert ask(function, "7")[0] == Verdict(1.0)


def test_what_a_first_answer_may_take_follows_from_what_it_took():
    calls = FirstCalls()
    for _ in range(FIRST_CALLS_IN_VAIN):
        assert calls.allowance_s() == FIRST_CALL_S
        calls.note(0.1, came=False)  # ended its process at once
        calls.note(7.0, came=True)
        calls.note(FIRST_CALL_S + 5, came=False)  # killed
    assert calls.allowance_s() == 14.0
    calls.note(70.0, came=True)
    assert calls.allowance_s() == FIRST_CALL_S


@pytest.mark.slow
def test_verls_math_verify_works_with_the_default_deadline(make):
    function = make("by_math_verify", timeout_s=5.0)
    verdicts = [ask(function, answer)[0] for answer in (r"\boxed{7}", r"\boxed{\frac{14}{2}}", r"\boxed{8}")]
    assert verdicts == [Verdict(1.0), Verdict(1.0), Verdict(0.0)]
