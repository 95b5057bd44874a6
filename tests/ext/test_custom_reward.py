"""A user's own reward function: what it says is taken, and nothing that it cannot mean is believed."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from omegaconf import OmegaConf

from recipe.common.config.reward_rules import check_function
from recipe.common.reward.function import RewardFunction, Verdict, function_file, judged, load_function
from recipe.common.reward.judge import function_kwargs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

FUNCTIONS = """
import gc, os, subprocess, sys, threading, time
from multiprocessing.connection import Connection
import numpy as np

KEPT = []

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

def forks(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "fork" and os.fork() == 0:
        time.sleep(0.2)
        return 1.0
    return 0.25

def pipe():
    return next(each for each in gc.get_objects() if isinstance(each, Connection))

def tells_again(data_source, solution_str, ground_truth, extra_info):
    pipe().send_bytes(KEPT[0]) if KEPT else KEPT.append((1).to_bytes(8, "big") + b'1{"score": 9.0}')
    return 0.25

def begins(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "begin":
        os.write(pipe().fileno(), (255).to_bytes(4, "big"))
    return 1.0

def holds(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "hold":
        def later():
            time.sleep(0.3)
            pow(7, 10**8)  # one call in C, which lets no other thread of the process run
        threading.Thread(target=later, daemon=True).start()
    return 1.0

def starts(data_source, solution_str, ground_truth, extra_info):
    sleep = subprocess.Popen(["sleep", "600"])
    with open(ground_truth, "w") as file:
        file.write(str(sleep.pid))
    if solution_str == "wait":
        sleep.wait()
    return 1.0

def leaks(data_source, solution_str, ground_truth, extra_info):
    KEPT.append(np.empty(5 << 28, np.uint8))
    return 1.0

def weighs(data_source, solution_str, ground_truth, extra_info, weights):
    return weights[0] if weights["most"] == float("inf") else -1.0

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
    judge("mine", "fine", "", {})  # the process is up, and may take no longer
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


def test_the_answer_of_a_fork_is_nobodys(function):
    judge = function("forks")
    assert judge("mine", "fork", "", {}) == Verdict(0.25)
    time.sleep(0.5)  # the fork has come back
    assert [judge("mine", "plain", "", {}) for _ in range(3)] == [Verdict(0.25)] * 3


def test_an_answer_to_an_earlier_question_is_passed_over(function):
    judge = function("tells_again")
    assert [judge("mine", "", "", {}) for _ in range(3)] == [Verdict(0.25)] * 3


def test_the_deadline_covers_a_question_that_is_not_received(function):
    judge = function("holds", timeout_s=1.0)
    assert judge("mine", "hold", "", {}) == Verdict(1.0)
    time.sleep(0.8)  # from now on it receives nothing, and this is more than fits into the pipe
    assert "within 1 s" in judge("mine", "x" * 2_000_000, "", {}).error
    assert judge("mine", "fine", "", {}) == Verdict(1.0)


def test_the_deadline_covers_an_answer_that_does_not_end(function):
    judge = function("begins", timeout_s=1.0)
    judge("mine", "fine", "", {})  # the process is up, and may take no longer
    assert "within 1 s" in judge("mine", "begin", "", {}).error
    assert judge("mine", "fine", "", {}) == Verdict(1.0)


def is_gone(pid: int) -> bool:
    """Within ten seconds."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_what_a_function_starts_goes_with_its_process(function, tmp_path):
    pid, judge = tmp_path / "pid", function("starts", timeout_s=1.0)
    judge("mine", "", str(pid), {})
    assert "within 1 s" in judge("mine", "wait", str(pid), {}).error
    assert is_gone(int(pid.read_text()))
    assert judge("mine", "", str(pid), {}) == Verdict(1.0)
    judge.close()
    assert is_gone(int(pid.read_text()))


PARENT = """
import sys, threading, time
from recipe.common.reward.function import RewardFunction

judge = RewardFunction(sys.argv[1], "starts", {}, 60.0, 1)
threading.Thread(target=judge, args=("mine", sys.argv[2], sys.argv[3], {}), daemon=True).start()
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["wait", "idle"])
def test_what_a_function_starts_goes_with_a_killed_parent(file, state, tmp_path):
    pid = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", PARENT, file, state, str(pid)], cwd=ROOT) as parent:
        while not (pid.exists() and pid.read_text()):
            assert parent.poll() is None
            time.sleep(0.1)
        workers = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
        assert len(workers) == 1 and all(is_gone(each) for each in (workers[0].pid, int(pid.read_text())))


def test_memory_that_is_never_given_back_costs_one_answer_and_not_all_later_ones(function):
    judge = function("leaks")
    told = [judge("mine", "", "", {}).error for _ in range(4)]
    assert told[0] is told[2] is None and "MemoryError" in told[1] and "MemoryError" in told[3]


def test_the_further_arguments_arrive_as_they_are(function):
    assert function("weighs", weights={0: 0.5, "most": math.inf})("mine", "", "", {}) == Verdict(0.5)
    config = OmegaConf.create({"most": 2.5, "named": {"path": "f", "reward_kwargs": {"weights": {0: "${most}"}}}})
    assert function_kwargs(config.named) == {"weights": {0: 2.5}}


@pytest.mark.parametrize(
    "result",
    [math.nan, math.inf, -math.inf, "1.0", None, [1.0], {"acc": 1}, {"score": "1"}, {"score": math.nan}, 1j, -2e18]
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


@pytest.mark.parametrize("content", [None, "def f(:", "import not_there", "not_there", "raise OSError('a\\nb')"])
def test_a_file_that_cannot_be_loaded_is_refused_by_its_key(tmp_path, content):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"reward\.custom_reward_function\.path=.*mine\.py cannot be loaded"):
        load_function(str(path), "f")


def test_a_module_is_named_as_verl_names_it():
    assert load_function("pkg://math", "sqrt") is math.sqrt
    assert load_function("pkg://importlib/machinery", "PathFinder").__name__ == "PathFinder"


def test_a_file_is_named_as_verl_names_it_or_from_home(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (f"file://{tmp_path}/mine.py", "~/mine.py"):
        assert load_function(path, "plain").__name__ == "plain"


def test_the_file_of_a_module_is_found_without_an_import(tmp_path, monkeypatch):
    package = tmp_path / "pool_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise ImportError")
    (package / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    for path in ("pkg://pool_package.inner.mine", "pkg://pool_package/inner/mine"):
        assert function_file(path) == str(package / "mine.py")
    assert function_file("pkg://pool_package.inner") == str(package / "__init__.py")
    assert function_file("pkg://recipe.common.modes") == str(ROOT / "recipe" / "common" / "modes.py")
    assert function_file("pkg://pool_package.none.mine") is function_file("pkg://not_there") is None


FOUR = "def compute_score(data_source, solution_str, ground_truth, extra_info"
R3 = {"source": "importlib", "name": "R3RewardManager"}
NAIVE = {"source": "register", "name": "naive"}
OWN = {"source": "importlib", "name": "Mine"}


def check(tmp_path, content: str, manager: dict, **named) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    function = {"path": str(path), "name": "compute_score"} | named
    check_function(OmegaConf.create({"reward": {"reward_manager": manager, "custom_reward_function": function}}))


@pytest.mark.parametrize(
    ("content", "manager", "named"),
    [
        (f"{FOUR}): pass", R3, {}),
        (f"{FOUR}, strict): pass", R3, {"reward_kwargs": {"strict": True}}),
        ("def compute_score(**kwargs): pass", NAIVE, {"reward_kwargs": {"extra_info": 1}}),
        ("compute_score = dict  # says nothing of what it takes", R3, {}),
        (f"async {FOUR}): pass", NAIVE, {}),
        ("async def compute_score(): pass", OWN, {}),
    ],
)
def test_a_function_that_can_be_asked_passes(tmp_path, content, manager, named):
    check(tmp_path, content, manager, **named)


@pytest.mark.parametrize(
    ("content", "manager", "named", "told"),
    [
        ("def compute_score(solution_str): pass", R3, {}, "name=compute_score takes .*unexpected.*'data_source'"),
        ("def compute_score(solution_str): pass", NAIVE, {}, "name=compute_score takes .*unexpected.*'data_source'"),
        (f"{FOUR}, strict): pass", R3, {}, "name=.*missing a required argument: 'strict'"),
        (f"{FOUR}): pass", R3, {"reward_kwargs": {"strict": 1}}, r"name=.*given .*reward_kwargs\.strict: "),
        (f"{FOUR}): pass", R3, {"reward_kwargs": None}, "reward_kwargs must be a group of settings, got None"),
        (f"{FOUR}): pass", R3, {"kwargs": {}}, "kwargs is unknown, expected one of: path, name, reward_kwargs"),
        (f"{FOUR}): pass", R3, {"path": None, "nmae": "f"}, "nmae is unknown, expected one of: path"),
        (f"async {FOUR}): pass", R3, {}, "name=compute_score is a coroutine; write a plain function"),
        ("not_there", R3, {}, "path=.*mine.py cannot be loaded: NameError"),
        ("raise RuntimeError('two\\nlines')", OWN, {}, "path=.*mine.py cannot be loaded: RuntimeError: two lines"),
        ("raise SystemExit(0)", R3, {}, "path=.*mine.py ended its process while it was loaded: it said nothing"),
        ("raise SystemExit('bye')", OWN, {}, "path=.*mine.py ended its process while it was loaded: bye"),
    ],
)
def test_a_function_that_cannot_be_asked_is_refused_by_its_key(tmp_path, content, manager, named, told):
    with pytest.raises(ValueError, match=rf"^reward\.custom_reward_function\.{told}"):
        check(tmp_path, content, manager, **named)
