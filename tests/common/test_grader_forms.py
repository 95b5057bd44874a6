"""Forms of an answer that text and math-verify mistake: named values, units, unions, infinity, periods, clock times.

Both tables hold in both directions: what is the reference and what the answer makes no difference.
"""

import pytest

from recipe.common.reward.math.answer_text import MAX_ANSWER_CHARS
from recipe.common.reward.math.pool import grade

pytestmark = pytest.mark.slow

EQUAL = r"""
x=2,y=3 | (2,3) | 2, 3 | (x,y)=(2,3) | (y,x)=(3,2) | y=3 \text{ and } x=2 | \{x=2,y=3\} | x=2, 3
x=2,y=3 | 3=y, 2=x | (x=2, y=3)
m = 9,n = 6 | 9, 6 | (9,6) | (m, n) = (9, 6) | n=6, m=\frac{18}{2} | 6, m=9
x=1,y=2,z=3 | (1,2,3) | x=1,2,3 | z=3,1,2
x_1=2,x_2=3 | 2,3 | 3,2 | \{3,2\} | (2,3) | x_2=3,x_1=2 | x_{1}=2,x_{2}=3
x=2,x=3 | 3,2 | \{2,3\} | x=3 \text{ or } x=2
(a, n) = (a, 1) | (a,1) | n=1, a=a
(m, n) = (4, 2) | (4,2) | m=4,n=2
f(x) = x \text{ or } f(x) = -x | f(x)=-x, f(x)=x | -x, x
5\text{ m} | 5 | 5\mathrm{~m} | 5 \text{ meters} | 5 \text{ metres.} | 5\text{ students}
12\text{ cm}^2 | 12 | 12 square cm | 12 \text{ sq. cm} | 12\,\mathrm{cm}^{2} | 12 cm^2
10 \text{ feet/s} | 10 \text{ ft/sec} | 10 \text{ feet per second}
60 mph | 60 \text{ miles per hour} | 60 \text{ mi/h}
90^\circ | 90 \text{ degrees} | 90
20^\circ\text{C} | 20^\circ | 20 \text{ degrees Celsius} | 20 \text{ degrees}
\$1,\!000 | 1000 \text{ dollars} | \$1000.00 | 1000
3\text{ m},4\text{ cm} | 4 \text{ cm}, 3 \text{ m} | 3, 4
7 minutes and 5 seconds | 7 \text{ minutes and } 5 \text{ seconds}
[0,1]\cup[2,3] | [2,3] \cup [0,1] | [0,1] \text{ or } [2,3] | x \in [0,1]\cup[2,3]
[0,1]\cup[2,3] | 0\le x\le 1 \text{ or } 2 \le x \le 3
(1,2),(2,1) | (2,1),(1,2) | (1,2) \text{ or } (2,1) | \{(1,2),(2,1)\} | (1,2);(2,1)
\{1\}\cup\{2\} | 1,2 | \{1,2\}
\sum_{n=0}^{\infty} \frac{1}{2^n} | 2 | \sum_{n=0}^\infty \frac{1}{2^n} | \lim_{x\to\infty} \frac{2x}{x+1}
(2,\infty) | 2<x<\infty | x>2 | (2,+\infty)
3/2 \pi | \frac{3\pi}{2} | \frac32\pi | 3\pi/2 | 1.5\pi | 3 / 2 \, \pi
3/2\pi | \frac{3}{2\pi}
1-65 / 24 e | 1-\frac{65}{24e}
\varnothing | \emptyset | \left\{\right\} | \{ \} | \O
0.\overline{3} | \frac13 | 1/3 | 0.\bar{3} | 0.\bar3 | 0.\overline{33} | .\overline{3} | 0.333333
0.1\overline{6} | \frac16
67.\overline{3} | \frac{202}{3} | 67\frac13 | 67.3\overline{3}
-446.\overline{2} | -\frac{4018}{9} + \frac29 | -446.2\overline{2}
16.\overline{6}\% | \frac{50}{3} | \frac{1}{6} | 16\frac{2}{3}\%
1,000.\overline{3} | \frac{3001}{3}
0.\overline{9} | 1
11:30 | 11{:}30 | 11 : 30 | 11\colon30
B. 12 | B | 12 | (B) 12
[1,2,3] | 1,2,3 | (1,2,3) | \{1,2,3\}
\sqrt\pi | \sqrt{\pi} | \sqrt \pi
12 | 3•4 | 3·4
3–4 | 3-4 | $3–4$
no | No | NO
red | Red
"""

DIFFERENT = r"""
3–4 | -1 | 3
AB | ab | BA
ABC | abc
B. 12 | C | 13 | C. 12
[1,2,3] | [1,2] | [1,3,2]
x=2,y=3 | (3,2) | 3,2 | \{2,3\} | \{3,2\} | x=3,y=2 | (x,y)=(3,2) | (y,x)=(2,3) | a=2,b=3
x=2,y=3 | [2,3] | y=2, 3 | x=2,y=3,z=4 | 2
m = 9,n = 6 | (6,9) | 6, 9 | n=9, m=6 | (n,m)=(9,6) | 9 | 9, 6, 3
x=1,y=2,z=3 | (1,3,2) | x=1,3,2 | 3,2,1
x_1=2,x_2=3 | (3,2) | x_1=3,x_2=2
(a, n) = (a, 1) | (1,a)
(m, n) = (4, 2) | (2,4) | (n,m)=(4,2) | 4
(2,3) | x=3,y=2 | (x,y)=(3,2) | (x,y,z)=(2,3)
5\text{ m} | 5\text{ cm} | 5 cm | 5 \text{ m}^2 | 5 \text{ square meters} | 5 \text{ m/s}
5\text{ m} | 5 feet | 5\text{ mm} | 500\text{ cm} | 5m
12\text{ cm}^2 | 12 cm | 12 cm^3 | 12\text{ m}^2
60 mph | 60 \text{ km/h} | 60 \text{ miles}
90^\circ | 90 \text{ radians} | 90 \text{ minutes}
20 \text{ degrees Celsius} | 20\text{ degrees Fahrenheit} | 20\mathrm{K}
\$5 | 5 \text{ cents} | \$6
1,000 \text{ m} | 1000 \text{ cm}
\frac{1}{2}\text{ m} | 0.5\text{ cm}
12\pi\text{ cm} | 12\pi\text{ m}
3\text{ m},4\text{ cm} | 3 \text{ cm}, 4 \text{ m}
(3\text{ m},4\text{ m}) | (3\text{ cm},4\text{ cm})
[0,1]\cup[2,3] | [0,1],[2,3] | [0,1];[2,3] | ([0,1],[2,3]) | \{[0,1],[2,3]\} | [0,1]\cup(2,3] | [0,1]
[0,1]\cup[2,3]\cup[4,5] | [0,1]\cup[2,3],[4,5]
(1,2),(2,1) | (1,2)\cup(2,1)
0 | \frac{1}{\infty} | 1/\infty | 2^{-\infty} | \infty^{-1} | \frac{5}{\infty}+0 | -\frac{1}{\infty}
0 | \frac{1}{x_1^{\infty}} | \infty-\infty
\infty | -\infty | \infty+1 | 2\infty | \frac10
3/2 \pi | \frac{3}{2\pi} | \frac{2\pi}{3} | 3\pi | 3/2
\varnothing | 0 | \{\varnothing\} | \{0\} | \phi
0.\overline{3} | 0.3 | 0.33 | 0.\overline{34} | 0.3\overline{4} | 3 | \overline{3} | 0.\overline{3}\overline{4}
67.\overline{3} | 67.3 | 67 | 201 | 67.\overline{31}
11:30 | 11{:}31 | 11,30 | 1130 | 11{:}30{:}00
"""

HOSTILE = [
    r"0.\overline{" + "3" * 3900 + "}",
    "1" * 3900 + r".\overline{3}",
    r"0.\overline{3}" * 280,
    r"0.\overline{" * 300 + "3" + "}" * 300,
    ",111" * 900 + r".\overline{3}",
    r"5\text{" + "pound " * 600 + "}",  # of two meanings each
    r"5\text{" + "m/" * 1900 + "s}",
    r"5\text{ cm}, " * 290,
    r"\$5" * 1300,
    r"5^\circ" * 500,
    r"\{" * 990 + r"\}" * 990,
    r"[0,1]\cup" * 400 + "[0,1]",
    "(1,2) or " * 400 + "(1,2)",
    ",".join(f"x_{i}={i}" for i in range(400)),
    "(" * 700 + "1" + ",1)" * 700,
    r"(x,y)=(1,2)=" * 300,
    r"\sum_{" * 600,
    r"\frac{1}{" * 300 + r"\infty" + "}" * 300,
    r"\varnothing" * 350,
    "3/2 \\pi " * 400,
    "11{:}" * 700,
]


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(" | ")] for line in table.strip().splitlines()]


def verdict(gold: str, pred: str, timeout_s: float = 5.0) -> bool | None:
    return grade(f"So it is \\boxed{{{pred}}}.", [gold], timeout_s)


@pytest.mark.parametrize("answer, form", [(row[0], form) for row in rows(EQUAL) for form in row[1:]])
def test_two_forms_of_one_answer_are_equal(answer, form):
    # SymPy took five seconds for the infinite sum on a busy machine.
    given = {"timeout_s": 30.0} if "sum" in answer + form else {}
    assert verdict(answer, form, **given) is True and verdict(form, answer, **given) is True


@pytest.mark.parametrize("answer, other", [(row[0], other) for row in rows(DIFFERENT) for other in row[1:]])
def test_answers_that_look_alike_are_not_equal(answer, other):
    assert verdict(answer, other) is False and verdict(other, answer) is False


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: repr(answer[:20]))
def test_a_hostile_form_gets_a_verdict(answer):
    # Not None: it neither runs into the deadline nor ends the worker.
    assert len(answer) <= MAX_ANSWER_CHARS
    for gold in (r"5\text{ cm}, 3\text{ m}", "x=5,y=3", r"\frac{1}{3}"):
        assert verdict(gold, answer) is False
        assert verdict(answer, gold) is False


def test_each_reference_has_a_unit_of_its_own():
    assert grade(r"\boxed{5\text{ cm}}", [r"5\text{ m}", "6"]) is False
    assert grade(r"\boxed{5\text{ cm}}", [r"5\text{ m}", r"5\text{ cm}"]) is True
