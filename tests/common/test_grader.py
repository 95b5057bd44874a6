"""The grader: which answers are equal, what hostile answers cost, and what becomes of its processes."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from recipe.common.reward.math.answer_text import final_answer, normalize
from recipe.common.reward.math.pool import GraderWorker, grade

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("R3_TEST_DATA")
DEADLINE_S = 1.0
RESTART_S = 60.0  # a killed worker is replaced in half a second, on a busy machine in many; without a deadline, never


def is_correct(response: str, ground_truth: str, timeout_s: float = 5.0) -> bool:
    return grade(response, [ground_truth], timeout_s) is True


def boxed(answer: str) -> str:
    return f"So the answer is \\boxed{{{answer}}}."


def test_is_correct_grades_the_boxed_answer():
    assert is_correct(boxed("1+x"), "x+1") and not is_correct(boxed("2+x"), "x+1") and not is_correct("x+1", "x+1")


EQUAL = r"""
3/2 | \frac{3}{2} | 1.5 | 1\frac12 | 1 1/2
x=5 | 5 | x = \frac{10}{2} = 5
1021_4 | 1021_{4} | 1021
$x=5$ | 5
3 \text{ cm} | 3 | 3 cm | 3\,\mathrm{cm}
90^\circ | 90 | 90^{\circ} | 90 \text{ degrees}
10\% | 10 | 0.1 | 10\text{ percent}
(1,2) | \left( 1 , 2 \right)
[1,2) | \left[1, 2\right)
2,3 | 3, 2 | \{2,3\} | x=2 \text{ or } x=3
1,000 | 1000 | 1{,}000 | 1\,000 | \$1,\!000.00
B | \text{(B)} | (B) | \textbf{(B)}\ 25
025 | 25
\text{even} | even | \textbf{Even}
1 \pm \sqrt{2} | 1-\sqrt2, 1+\sqrt2
(-\infty,1)\cup(2,3] | (2,3] \cup (-\infty, 1)
(2,3) | 2<x<3
y=2x | 2y = 4x | 2x
f(x)=x+1 | x+1 | f(x)=1+x
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{bmatrix}1&2\\3&4\end{bmatrix}
6.6 \times 10^{-34} | 6.6e-34
12\pi \text{ cm}^2 | 12 \pi
\frac{1}{3} | 0.333333
"""

# What plain math-verify 0.9.0 accepts is marked with a star.
DIFFERENT = r"""
2 | 1, 2, 3 ... all numbers | 1,2,3 | 2 or 3 | 2, 2* | 2 \ldots* | 2 = 3 | \phantom{1}3 |
11 | 5 6* | 1 1 | 11 \text{ million}* | 11 \text{ or less}* | 11m* | x=12=11* | 10+2=11* | 11 \approx 12* | 11'*
12_5 | 12_7* | 13_5 | 7
no | on* | yes
10^{-20} | 10^{-21}* | 0
\frac{2009!+1}{2009!} | \frac{2009!-1}{2009!}*
6.6\times 10^{-34} | 1.0\times 10^{-34}*
x^2-12x+100=0 | x^2-12x+101=0* | 0
1:2:3 | 1:3:2*
c=a | d=a
k=\lfloor\sqrt{n-1}\rfloor | -k=\lfloor\sqrt{n-1}\rfloor
(3,2) | (2,3) | (5,1) | 3
[1,2] | (1,2) | 1,2 | [1,2)
2,3 | 2 | 2,3,4 | 2,2
\pm 8 | 8 | -8
10\% | 1 | 0.01
3\frac12 | \frac32
7:55 \text{ a.m.} | 7:55 \text{ p.m.}*
B | C | (B),(C) | \text{B or C}
\frac{1}{2} | 5 ) \frac{1}{2}* | \text{final answer is } $\frac12$. \text{ I hope}, 3
x>2 | x<2 | x>3 | x \ge 2
\infty | -\infty
"""


def pairs(table: str) -> list[tuple[str, str]]:
    rows = [[cell.strip().removesuffix("*") for cell in line.split(" | ")] for line in table.strip().splitlines()]
    return [(gold, pred) for gold, *preds in rows for pred in preds]


@pytest.mark.parametrize("gold, pred", pairs(EQUAL))
def test_another_form_of_the_reference_is_correct(gold, pred):
    assert is_correct(boxed(pred), gold)


@pytest.mark.parametrize("gold, pred", pairs(DIFFERENT))
def test_another_answer_is_wrong(gold, pred):
    assert not is_correct(boxed(pred), gold)


@pytest.mark.parametrize(
    "response, answer",
    [
        (r"\boxed{1} and then \boxed{x^{2}}.", "x^{2}"),
        (r"<think>\boxed{1}</think> It is \boxed{2}.", "2"),
        (r"<think>It is \boxed{1}</think> It is 1.", None),  # thought, but not answered
        (r"<think>It is \boxed{1}, let me check", "1"),  # no </think>: the whole text counts
        (r"The answer is 1.", None),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),  # an escaped brace closes nothing
        ("", None),
    ],
)
def test_only_the_last_closed_box_after_the_thinking_is_an_answer(response, answer):
    assert final_answer(response) == answer


HOSTILE = [
    r"9^{9^{9^9}}",
    r"100000000!",
    r"2^{2^{36}}",  # eight gigabytes
    r"\int_0^1 x^{x^{x^x}} dx",
    r"(x+y+z+w)^{5000}",
    r"\prod_{n=1}^{10^9} n",
    "(" * 1900 + ")" * 1900,
    "{" * 1900 + "1" + "}" * 1900,
    "9" * 3900,
    "1+" * 1900 + "1",
    r"\frac{1}{1+" * 300 + "1" + "}" * 300,
    "\x005\ud800",
    "a" * 2_000_000,
    "{" * 1_000_000,
    r"\boxed{" * 100_000,
    "\\" * 1_000_000,
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: repr(answer[:20]))
def test_a_hostile_answer_is_wrong_within_the_deadline(answer):
    started = time.monotonic()
    assert not is_correct(boxed(answer), r"\pi", timeout_s=DEADLINE_S)
    assert time.monotonic() - started < DEADLINE_S + RESTART_S


def test_megabytes_without_a_box_cost_nothing():
    started = time.monotonic()
    assert not is_correct("x " * 4_000_000, "1")
    assert time.monotonic() - started < 20


def test_threads_share_the_workers_and_get_their_own_verdicts():
    def ask(n: int) -> bool:
        return is_correct(boxed(f"{n}+x"), f"x+{n + n % 3}")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(60))) == [n % 3 == 0 for n in range(60)]


def test_a_worker_killed_while_idle_costs_nothing_and_while_grading_one_verdict():
    worker = GraderWorker()
    assert worker.grade("1+x", ["x+1"], timeout_s=60)
    worker._process.kill()
    worker._process.wait()
    assert worker.grade("1+x", ["x+1"], timeout_s=60)
    threading.Timer(0.3, worker._process.kill).start()  # as the kernel does when memory runs out
    assert worker.grade(HOSTILE[0], ["2"], timeout_s=60) is None
    assert worker.grade("1+x", ["x+1"], timeout_s=60)
    worker.stop()


PARENT = r"""
import sys, threading, time
from recipe.common.reward.math.pool import grade

assert grade(r"\boxed{x+1}", ["1+x"], num_workers=1)
question = ("\\boxed{%s}" % sys.argv[1], ["2"], 2.0, 1)
threading.Thread(target=grade, args=question, daemon=True).start()
time.sleep(0.3)
print("ready", flush=True)
time.sleep(60)
"""

FORKING = r"""
import os
from recipe.common.reward.math.pool import grade

assert grade(r"\boxed{x+1}", ["1+x"], num_workers=1)
child = os.fork()
right = grade(r"\boxed{x+2}", ["2+x"], num_workers=1)
if child == 0:
    os._exit(0 if right else 1)
assert right and os.waitpid(child, 0)[1] == 0
"""


def run_script(script: str, *args: str) -> subprocess.Popen:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script, *args], stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("answer", ["1+x", HOSTILE[0]], ids=["idle", "busy"])
def test_no_worker_outlives_a_killed_parent(answer):
    with run_script(PARENT, answer) as parent:
        assert parent.stdout.readline() == "ready\n"
        workers = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
        assert len(workers) == 1
        assert psutil.wait_procs(workers, timeout=10)[1] == []  # still alive


def test_a_forked_child_gets_its_own_worker():
    with run_script(FORKING) as process:
        assert process.communicate(timeout=60)[1] == "" and process.returncode == 0


def test_a_grader_that_cannot_start_raises_and_names_the_way_out(tmp_path, monkeypatch, capfd):
    (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"did not start in 3 attempts.*pip install math-verify==0\.9\.0"):
        GraderWorker().grade("1+x", ["x+1"], DEADLINE_S)
    assert "ImportError: not here" in capfd.readouterr().err


@pytest.fixture(scope="module")
def reference_answers() -> list[str]:
    if not DATA:
        pytest.skip("R3_TEST_DATA names no folder of data sets (tests/README.md)")
    import pandas as pd

    return pd.read_parquet(Path(DATA) / "deepscaler_train.parquet", columns=["answer"])["answer"].tolist()


def test_each_reference_answer_of_deepscaler_is_correct_when_boxed(reference_answers):
    wrong = [answer for answer in set(reference_answers) if grade(boxed(answer), [answer]) is not True]
    assert len(wrong) <= 2, wrong  # two answers have an unclosed brace


def test_reformatted_reference_answers_are_correct(reference_answers):
    sample = random.Random(0).sample(sorted(set(reference_answers)), 150)
    forms = [re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"(\1/\2)", answer).replace("+", " + ") for answer in sample]
    wrong = [pair for pair in zip(sample, forms, strict=True) if not is_correct(boxed(f"${pair[1]}$."), pair[0])]
    assert len(wrong) <= 2, wrong


def test_different_reference_answers_are_not_accepted_for_each_other(reference_answers):
    rng = random.Random(1)
    hard = sorted({answer for answer in reference_answers if re.search(r"[\\^,(=]", answer)})
    sample = [(rng.choice(hard), rng.choice(hard)) for _ in range(150)]
    different = [(gold, pred) for gold, pred in sample if normalize(gold) != normalize(pred)]
    accepted = [pair for pair in different if is_correct(boxed(pair[1]), pair[0], timeout_s=DEADLINE_S)]
    assert accepted == []
