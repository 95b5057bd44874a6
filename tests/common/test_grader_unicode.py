"""Answers and references in Unicode: read as the LaTeX that they mean, and equal to nothing that this is not equal to.

Both tables hold in both directions: what is the reference and what the answer makes no difference.
"""

import time

import pytest

from recipe.common.reward.math.answer_text import MAX_ANSWER_CHARS, normalize
from recipe.common.reward.math.pool import grade
from recipe.common.reward.math.unicode_math import to_latex

EQUAL = r"""
\frac{\sqrt{3}}{2} | √3/2 | √3⁄2 | (√3)/2 | √(3)/2 | ½√3 | √3 ÷ 2 | √3∕2
2\sqrt{3} | 2√3 | 2·√3 | 2 × √3 | 2⋅√3 | 2∙√3 | √12
\sqrt[3]{4} | ∛4 | ³√4 | ∛(4)
\sqrt[4]{x+1} | ∜(x+1) | ⁴√(x+1)
x^2\sqrt{3} | x²√3 | √3·x²
-1+i\sqrt{3} | −1+√3i | -1 + i√3
\sqrt{2+\sqrt{3}} | √(2+√3) | √{2 + √3}
\sqrt[4]{2} | √√2 | √(√2)
\frac{1}{2} | ½ | 1⁄2 | ¹⁄₂ | ¹/₂ | ０．５ | １／２
3\frac{2}{3} | 3⅔ | 3 ⅔ | 3²⁄₃ | \frac{11}{3} | 11⁄3
-\frac{7}{8} | −⅞ | ‑⅞ | –7⁄8
\frac{1}{7} | ⅐ | ⅟7
\sqrt{\frac{1}{2}} | √½ | √(1/2) | √(1⁄2)
3^{\frac{1}{2}} | 3^½ | √3
x^{2}+y^{3} | x² + y³ | y³+x²
2^{n+1} | 2ⁿ⁺¹
10^{-34} | 10⁻³⁴ | 10^{−34}
6.6\times 10^{-34} | 6.6×10⁻³⁴ | 6.6·10⁻³⁴
f^{-1}(x)=x-1 | f⁻¹(x) = x − 1
1021_{4} | 1021₄ | 1021
x_1=2,x_2=3 | x₁ = 2, x₂ = 3
12\pi | 12π | 12𝜋 | π·12
\pi r^2 | πr² | r²π
\frac{3\pi}{2} | 3π/2 | 3π⁄2 | (3/2)π | 1.5π | 3⁄2π | 3⁄2 π | ³⁄₂π
\varphi+1 | φ+1 | ϕ + 1 | \phi+1 | 𝜑+1
2\alpha+\beta | 2α + β | β+2α | 2𝛼+𝛽
[2,\infty) | [2, ∞) | [2,+∞) | x ≥ 2 | 2 ≤ x | x≥2
(-\infty,1)\cup(2,3] | (−∞, 1) ∪ (2, 3] | (2,3]∪(−∞,1) | x ∈ (−∞,1)∪(2,3]
-1 \le x < 2 | −1 ≤ x < 2 | −1 ≦ x < 2 | [−1, 2)
x \neq 3 | x ≠ 3 | x≠3 | x ≠ 3
x \in \mathbb{R} | x ∈ ℝ | ℝ
A\cap B | A ∩ B
\infty | ∞ | +∞
-\infty | −∞ | –∞
\emptyset | ∅ | \varnothing
1\pm\sqrt{2} | 1 ± √2 | 1+√2, 1−√2
90^\circ | 90° | 90º | 90˚ | 90∘ | 90
20^\circ\text{C} | 20℃ | 20 °C
12\text{ cm}^2 | 12 cm² | 12
10\% | １０％ | 10 %
(1,2) | （1，2） | （１，２） | (１, ２)
2,3 | 2、3 | 2，3 | ２；３
1000 | 1 000 | 1,000 | １０００
12 | 𝟏𝟐 | １２ | ١٢
x=5 | 𝑥 = 5 | ｘ＝５ | x＝5 | 5
\lfloor x\rfloor | ⌊x⌋
\text{Yes} | Ｙｅｓ
11:30 | 11：30 | 11∶30
"""

DIFFERENT = r"""
\sqrt{2x} | √2x | √(2)x
x\sqrt{2} | √2x
\sqrt{x^2} | √x² | √x
|x| | √x²
8\sqrt{5} | 2³√5 | 2\sqrt[3]{5} | √40
2\sqrt[3]{5} | 2³√5 | ∛10
\sqrt{2!} | √2!
\sqrt{2\pi} | √2π
\sqrt{3} | ∛3 | √2 | √ | 3√ | 3 | √−3
25 | 5² + 1 | 52 | 2⁵
52 | 5² | 5₂
5^2 | 52 | 5₂ | 5³
x_2 | x² | x2
125 | 12₅ \cdot 1 | 12⁵
12_5 | 12⁵ | 12₇ | 13₅
\frac{1}{2} | ⅓ | 12 | 1 2 | 2⁄1 | ½½ | ½?
3\frac{2}{3} | 2 | 3·⅔ | 3⅓ | 32⁄3
\frac{5^3}{4} | 5³⁄₄
\frac{3}{2\pi} | 3⁄2π | 3⁄2²
5\frac{3}{4} | 5³/4
1300 | 1～300 | 1〜300
13 | ①③ | １，３ | 1、3 | Ⅰ3 | 1٬3
5 | ⑤ | V | Ⅴ | ５．１
x>2 | x ≥ 2 | x≤2 | x ≠ 2 | 2 > x
x\le 2 | x < 2 | x ≥ 2 | 2 ≤ x | x ≰ 2
[2,\infty) | (2, ∞) | (−∞, 2] | [2, −∞)
(0,1)\cup(2,3) | (0,1) ∩ (2,3) | (0,1), (2,3)
\infty | −∞ | 8 | ∞ + 1 | 2∞ | ꝏ
0 | 1/∞ | 5⁄∞ | ∅ | ∞ − ∞ | 2 − ∞
x\neq 3 | x = 3 | 3 | x ≈ 3
6.6\times 10^{-34} | 6.6×10³⁴ | 6.6×10⁻³³
12\pi | 12 | 12π² | 12ᴨ | 12п
6 | 3+3+1 | ²3
-3 | 3 | −2
5\text{ m} | 5 μm | 5 cm | 5 m²
90^\circ | 90′ | 90⁰ | 9°
12 | 21 | 1⃞2 | 1;2
A | Α | А | ∀
x | х | × | χ | ×
c | ϲ | с
5 | ５ or 6 | 5 ∨ 6 | 5 ± 0.1 | 5, ∞
\text{ναι} | ιαν
log cabin | log bacin | cabin log
\text{tan} | \text{nat} | tan x
apple pi | apple ip | \pi
infinity pool | pool infinity | \infty
"""

INVISIBLE = {
    ("12", "1\u200b2"): True,
    ("12", "12\u200e"): True,  # a left-to-right mark
    ("12", "\u200f12\ufeff"): True,
    ("x=12", "\u2066x = 12\u2069"): True,
    ("1000", "1\u202f000"): True,  # a narrow space between thousands
    ("1000", "1\u00a0000"): True,
    ("5", "5\u202fcm"): True,
    ("-5", "\u20115"): True,  # a hyphen that breaks no line
    ("6", "2\u20623"): True,  # times, which is not seen
    (r"f(x)=x", "f\u2061(x) = x"): True,
    (r"3\frac{1}{2}", "3\u2064½"): True,
    ("x \\ne 3", "x =\u0338 3"): True,
    ("12", "2\u20621"): False,
    ("23", "2\u20623"): False,
    ("12", "\u202e21\u202c"): False,  # is seen as 12
    ("21", "\u202e12\u202c"): False,
    ("21", "\u202e21\u202c"): False,
    ("5", "5\u0338"): False,
    ("5", "5\u20dd"): False,
    ("5", "\U000e0035"): False,
    ("5", "5\u200b,\u200b6"): False,
}

HOSTILE = [
    "√" * 3900,
    "√(" * 1300 + ")" * 1300,
    "√(" * 45 + "2" + ")" * 45 + "+1" * 1800,
    "½" * 3900,
    "1⁄" * 1900 + "2",
    "²" * 3900,
    "x²" * 1900,
    "2³√" * 1300,
    "π" * 3900,
    "απ" * 1900,
    "∞" * 3900,
    "\u200b" * 3900,
    "5" + "\u0301" * 3900,
    "≤" * 3900,
    "∪".join(["[0, 1]"] * 480),
    "ﷺ" * 3900,
    "\U0001d7d9" * 3900,
    "\u202e" * 3900,
]


def rows(table: str) -> list[list[str]]:
    return [[cell.strip(" ") for cell in line.split(" | ")] for line in table.strip().splitlines()]


def verdict(gold: str, pred: str) -> bool | None:
    return grade(f"So it is \\boxed{{{pred}}}.", [gold])


@pytest.mark.slow
@pytest.mark.parametrize("answer, form", [(row[0], form) for row in rows(EQUAL) for form in row[1:]])
def test_unicode_means_what_its_latex_means(answer, form):
    assert verdict(answer, form) is True and verdict(form, answer) is True


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for row in rows(EQUAL + DIFFERENT) for form in row if not form.isascii()])
def test_an_answer_equals_itself_in_unicode(form):
    assert verdict(form, form) is True


@pytest.mark.slow
@pytest.mark.parametrize("answer, other", [(row[0], other) for row in rows(DIFFERENT) for other in row[1:]])
def test_unicode_that_looks_alike_is_not_equal(answer, other):
    assert verdict(answer, other) is False and verdict(other, answer) is False


@pytest.mark.slow
@pytest.mark.parametrize("answer, other", INVISIBLE, ids=ascii)
def test_what_is_not_seen_changes_no_answer_and_turns_none(answer, other):
    assert verdict(answer, other) is verdict(other, answer) is INVISIBLE[answer, other]


@pytest.mark.slow
@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:4]))
def test_hostile_unicode_gets_a_verdict_in_time(answer):
    assert len(answer) <= MAX_ANSWER_CHARS
    started = time.monotonic()
    normalize(answer)  # is no work of a process that could be killed
    assert time.monotonic() - started < 1
    for gold in (r"\frac{\sqrt{3}}{2}", r"(-\infty,1)\cup[2,3]", r"12\text{ cm}^2"):
        assert verdict(gold, answer) is False


def test_ascii_stays_as_it_is():
    text = "".join(map(chr, range(128)))
    assert to_latex(text) is text


@pytest.mark.parametrize(
    "text, latex",
    [
        ("2√3", r"2\sqrt{3}"),
        ("³√4", r"\sqrt[3]{4}"),
        ("10⁻³", "10^{-3}"),
        ("x₁₂", "x_{12}"),
        ("3½", r"3\frac{1}{2}"),
        ("1⁄2", r"\frac{1}{2}"),
        ("²⁄₃", r"\frac{2}{3}"),
        ("3^½", r"3^{\frac{1}{2}}"),
        ("１２", "12"),
        ("√2x", "√2x"),
        ("①", "①"),
    ],
)
def test_the_latex_of_some_texts(text, latex):
    assert to_latex(text) == latex
