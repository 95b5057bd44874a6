# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Finds the final answer of a response, writes it in one normal form and takes it apart. Pure functions of strings.

Only the last `\\boxed{...}` that holds something, after the last `</think>`, is an answer; in a response without
`</think>` (the thinking was cut off, or the model does not think) that of the whole text counts. Where the last box is
not closed there is no answer.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

from recipe.common.reward.math.unicode_math import INVISIBLE, to_latex

MAX_ANSWER_CHARS = 4000
"""A longer answer is wrong. The longest reference answer of DeepScaleR has 1,222 characters."""

# Units that may follow a number without \text{}. Single letters are left out: the m of 5m is a variable.
BARE_UNIT = (
    "mm|cm|km|ft|kg|mph|square|cubic|units?|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|kilo)?met(?:er|re)s?|grams?|"
    "lit(?:er|re)s?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|degrees?|radians?|dollars?|cents?"
)
# Inside \text{} any words are a unit, except these: "5 \text{ million}" is not 5, "5 \text{ or less}" is a statement.
NO_UNIT = (
    "and|or|not?|is|are|if|to|at|than|more|less|least|most|only|for|when|where|wrong|but|base|in|with|all|even|odd|"
    "hundred|thousand|[mbtr]+illion|dozen|squared|cubed|plus|minus|times|over|pi|mod|choose|[ap]|[ap]m|ln|log|sin|cos|tan"
)
AFTER_NUMBER = r"(?:(?<=[0-9})])|(?<=\\pi))"
UNIT_END = r"(?: ?\^ ?\{?[23]\}?)?(?= ?(?:$|[,;.)\]]|\\text))"
UNIT_WORDS = rf"(?![^{{}}]*\b(?:{NO_UNIT})\b) ?(?:[a-zA-Z./]{{2,}}|[mgshlLNJWVKC])(?: [a-zA-Z./]+)* ?"
# Commands written without the backslash, and not among words: pi in `2 pi`, a word in `apple pi`.
FUNCTION = "(?:arc)?(?:sin|cos|tan)|cot|log|ln"
NO_WORD_BEFORE = r"(?<![a-zA-Z\\])(?<![a-zA-Z]\.)(?<![a-zA-Z]{3} )"
NO_WORD_AFTER = r"(?![a-zA-Z])(?! ?(?!and\b)[a-zA-Z]{3})"
ARGUMENT = r"[0-9a-zA-Z]|\\pi(?![a-z])"
TEXT_COMMAND = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox) ?"
# Bounds keep the numbers small; a longer period stays as it is and is compared as text.
REPEATING = (
    r"(?<![0-9.])([0-9]{0,20}(?:,[0-9]{3}){0,5})\.([0-9]{0,20})\\(?:overline|bar) ?(?:\{ ?([0-9]{1,20}) ?\}|([0-9]))"
    r"(?![0-9.\^_!])"
)

# Applied in this order, LAYOUT first.
LAYOUT = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)\\[\[\]()]|\\displaystyle|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])", ""),
        (r"(?<!\\)\\!|\\?\$", ""),
        (r"(?:(?<!\\)\\[,;: ]|\\q?quad|~|\s)+", " "),
    )
]
REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\{([,:])\}", r"\1"),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\\varnothing(?![a-zA-Z])|\\O(?![a-zA-Z])|\u2205|\\\{ ?\\\}", r"\\emptyset "),
        (REPEATING, lambda match: _repeating_decimal(match)),
        (r"\\[dtc]frac", r"\\frac"),
        (rf"\\frac ?({ARGUMENT})", r"\\frac{\1}"),
        (rf"(\\frac ?\{{[^{{}}]*\}}) ?({ARGUMENT})", r"\1{\2}"),
        (r"\\sqrt ?\\pi(?![a-zA-Z])", r"\\sqrt{\\pi}"),
        (rf"\\operatorname ?\{{ ?({FUNCTION}) ?\}}", r"\1 "),
        (rf"{NO_WORD_BEFORE}({FUNCTION})(?= ?(?:[0-9(^_{{\\]|[a-zA-Z](?![a-zA-Z])))", r"\\\1 "),
        (rf"(?i){NO_WORD_BEFORE}pi{NO_WORD_AFTER}", r"\\pi "),
        (rf"(?i){NO_WORD_BEFORE}infinity{NO_WORD_AFTER}", r"\\infty "),
        (r"\\var(phi|epsilon|theta)(?![a-zA-Z])", r"\\\1 "),  # another shape of the letter
        (r"\^ ?\{? ?\\circ ?\}?|\\degrees?|\u00b0", ""),
        (r"\\leqslant|\\leq|<=", r"\\le "),
        (r"\\geqslant|\\geq|>=", r"\\ge "),
        (r"\\neq|!=", r"\\ne "),
        (r"\\?%|\\text ?\{ ?percent ?\}|(?<=[0-9]) ?percent", "%"),
        (rf"{AFTER_NUMBER} ?{TEXT_COMMAND}\{{{UNIT_WORDS}\}}{UNIT_END}", ""),
        (rf"{AFTER_NUMBER} ?(?:{BARE_UNIT})(?: (?:{BARE_UNIT}))*{UNIT_END}", ""),
        (TEXT_COMMAND + r"\{([^{}]*)\}", r" \1 "),
        (r"(?i)(?<=[)\]]) *or *(?=[(\[])", r"\\lor"),  # points that are listed or intervals that are united
        (r"(?i)(?<![a-z\\])(?:and|or)(?![a-z])", ","),
        (r" +", " "),
        (r"([0-9]) ([0-9]+) ?/ ?([0-9]+)", r"\1\\frac{\2}{\3}"),  # math-verify reads 3 1/2 as 2
        # ... and 3/2 \pi as 3/(2 \pi). Not for letters: `65 / 24 e` is an answer that means 65/(24 e).
        (r"(?<![\^_/.0-9}])(?<![\^_/] )([0-9]+) ?/ ?([0-9]+) (?=\\pi(?![a-z]))", r"\\frac{\1}{\2}"),
        (r"([0-9])[eE]([+-]?[0-9]+)(?![0-9_])", r"\1\\times10^{\2}"),
        (r"\\log_ ?([0-9]) ", r"\\log_{\1}"),
        (r"([0-9])\.(?=[/)])", r"\1"),
        (r"(?<![0-9]) | (?![0-9])", ""),  # the space between digits stays: "1 2" is not 12
        (r",+", ","),
        (r"^[a-zA-Z]\\in(?![a-z])", ""),
        (r"^[.,;]+(?![0-9])|[.,;]+$", ""),
    )
]
UNION = re.compile(r"\\(cup|lor)(?![a-z])")
NAME = re.compile(r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\^\{-1\})?(?:\([a-zA-Z,]+\))?")
# Up to five groups: a list of eighteen three-digit numbers is a list.
GROUPED_DIGITS = re.compile(r"-?[1-9][0-9]{0,2}(?:(?:,[0-9]{3}){1,5}|(?: [0-9]{3}){1,5})(?:\.[0-9]+)?")
BOX_START = re.compile(r"\\boxed\s*\{")
MENTION = re.compile(r"\\boxed\s*(?:[`'\").,;:!?]|$)")
BOX_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
BLANK = re.compile(rf"(?:[\s.,;~${{}}\u2026{INVISIBLE}]|\\[,;:! ]|\\(?:q?quad|[lc]?dots|text)(?![a-zA-Z]))*")


def final_answer(response: str) -> str | None:
    """Content of the last box that is not blank, None if it is missing or too long, or a later one is not closed.
    `\\boxed{1} so \\boxed{x^{2}}, as asked in \\boxed{}`: `x^{2}`."""
    text = response.rpartition("</think>")[2]
    start = text.rfind(r"\boxed")
    while start >= 0:
        answer = "" if MENTION.match(text, start) else _boxed(text, start)
        if answer is None or not BLANK.fullmatch(answer):
            return answer
        start = text.rfind(r"\boxed", 0, start)
    return None


def _boxed(text: str, start: int) -> str | None:
    """Content of the box at `start`, None if it is not closed, or too long."""
    box = BOX_START.match(text, start)
    if box is None:
        return None
    depth = 1
    for token in BOX_TOKEN.finditer(text, box.end(), box.end() + MAX_ANSWER_CHARS + 1):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return text[box.end() : token.start()]
    return None


def normalize(answer: str) -> str:
    """Drops what does not change an answer. `$x = \\dfrac12 \\text{ cm}$.`: `x=\\frac{1}{2}`; `1{,}000`: `1000`."""
    text = rewrite(to_latex(answer), LAYOUT + REWRITES)
    if text.startswith("{") and _one_pair(text):
        text = text[1:-1]
    if GROUPED_DIGITS.fullmatch(text):
        text = text.replace(",", "").replace(" ", "")
    return text


def rewrite(text: str, rules: Sequence[tuple[re.Pattern, str | Callable[[re.Match], str]]]) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def members(text: str) -> tuple[str, list[str]]:
    """Kind and members. `[1,2)`: `[)`, 1, 2; `\\{1,2\\}`: `{}`, 1, 2; `1,2`, `1\\cup2`: no kind, 1, 2; `\\pm2`: 2, -2.
    `(x,y)=(1,2)`: `()`, x=1, y=2. Intervals and points: `,` is a list of them, `\\cup` their union, `or` either."""
    sides = split(text, "=")
    if len(sides) == 2 and all(map(_in_brackets, sides)):
        names, values = map(_in_brackets, sides)
        if len(names) == len(values) and all(map(NAME.fullmatch, names)):
            return "()", [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    found = _in_brackets(text)
    if found:
        kind = text[0] + text[-1]
        return "()" if kind == "[]" and len(found) > 2 else kind, found  # [1,2,3] is no interval
    kind = ""
    if text.startswith(r"\{") and text.endswith(r"\}") and _one_pair(text[1:]) and text != r"\{\emptyset\}":
        kind, text = "{}", text[2:-2]
    parts = split(UNION.sub(";", text))
    if any(map(_in_brackets, parts)):
        open_at = depths(text)
        united = any(match[1] == "cup" and open_at[match.start()] == 0 for match in UNION.finditer(text))
        kind = r"\cup" * united + "," * (len(split(text)) > 1)
    found = []
    for member in parts:
        signs = ("+", "-") if member.count(r"\pm") == 1 and r"\mp" not in member else ("",)
        found += [member.replace(r"\pm", sign).removeprefix("+") for sign in signs]
    return kind, found


def split(text: str, separators: str = ",;") -> list[str]:
    """Parts between separators that are inside no brackets. `(1,2),3`: `(1,2)` and `3`."""
    cuts = [i for i, depth in enumerate(depths(text)) if depth == 0 and text[i] in separators]
    return [text[a:b] for a, b in zip([0] + [i + 1 for i in cuts], cuts + [len(text)], strict=True)]


def depths(text: str) -> list[int]:
    """How many brackets are open after each character. An interval may be [1,2), so one kind closes another."""
    return list(accumulate((character in "([{") - (character in ")]}") for character in text))


def _in_brackets(text: str) -> list[str]:
    """Members of a tuple or an interval; none of anything else."""
    parts = split(text[1:-1]) if text[:1] in ("(", "[") and _one_pair(text) else []
    return parts if len(parts) > 1 else []


def _repeating_decimal(match: re.Match) -> str:
    """The fraction that a repeating decimal is. `0.1\\overline{6}`: `\\frac{1}{6}`."""
    whole, head, period = match[1].replace(",", ""), match[2], match[3] or match[4]
    value = Fraction(int(whole + head + period) - int(whole + head or "0"), 10 ** len(head) * (10 ** len(period) - 1))
    return str(value) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _one_pair(text: str) -> bool:
    """Whether the bracket opened first is closed last."""
    return text[-1] in ")]}" and 0 not in depths(text)[:-1]
