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
"""Expressions that math-verify compares, and what it is not asked.

math-verify alone calls different answers equal: it reads some forms as something else and rounds. It gets single
expressions that it can read, and numbers have to confirm its "equal". Any of this may take any time and memory.
"""

import re
import zlib
from typing import Any

from recipe.common.reward.math.answer_text import depths

MAX_RELATIVE_ERROR = 1e-4
"""Numbers further apart differ, whatever math-verify's six decimals say. The bound of Qwen2.5-Math's evaluator."""

MAX_EXPRESSION_CHARS = 1000
MAX_NESTING = 50
"""Larger expressions are compared as text. Parsing them would only run into the deadline."""

# Forms that math-verify reads as something else: it adds digits side by side, drops \ldots, primes, number bases and
# what follows \approx, takes 1:2:3 for a quotient and a word for a product of letters, and looks for further boxes.
# Of repeating decimals only those are left here that could not be made a fraction.
MISREAD = re.compile(
    r"\.[0-9]*\\(?:overline|bar|dot)|"
    r"[0-9] [0-9]|\\[lcv]?dots|\.[0-9]*\.|:.*:|[0-9}]_|(?<![\\a-zA-Z])(?!sqrt)[a-zA-Z]{4,}|box|approx|[^ !#-&(-~]"
)
# Where infinity is a bound or the whole, and not a number to reckon with as in \frac{1}{\infty}.
INFINITE = r"[+-]?\\infty"
BOUND = re.compile(
    rf"^{INFINITE}$|\\to{INFINITE}|\\(?:sum|prod|i*int)(?:\\limits)?_(?:\{{[^{{}}]*\}}|[0-9a-z])\^\{{?{INFINITE}"
    rf"|\\(?:sum|prod|i*int)(?:\\limits)?_\{{{INFINITE}|(?<=[(\[]){INFINITE}(?=[,;])|(?<=[,;]){INFINITE}(?=[)\]])"
    rf"|^{INFINITE}(?=[<>]|\\[lg]e)|(?:[<>]|\\[lg]e){INFINITE}$"
)
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]+\}")


def same_equation(gold_sides: list[str], pred_sides: list[str]) -> bool:
    """Two equations are equal if one is a constant multiple of the other. math-verify compares real solutions, so that
    all equations without one are equal to it."""
    gold, pred = (_parse(f"{left}-({right})") for left, right in (gold_sides, pred_sides))
    if gold is None or pred is None or not gold.free_symbols or not pred.free_symbols:
        return False
    values = [(_value_at(gold, point), _value_at(pred, point)) for point in range(3)]
    if any(None in pair or 0 in pair for pair in values):
        return False
    ratios = [a / b for a, b in values]
    return all(abs(ratio - ratios[0]) <= 1e-9 * abs(ratios[0]) for ratio in ratios)


def _parse(text: str):
    """The sympy object of an expression, None if math-verify cannot read it or is known to misread it."""
    from math_verify import LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig

    if not 0 < len(text) <= MAX_EXPRESSION_CHARS or MISREAD.search(ENVIRONMENT.sub("", text)):
        return None
    if r"\infty" in BOUND.sub("", text):
        return None
    depth = depths(text)
    if min(depth) < 0 or depth[-1] != 0 or max(depth) > MAX_NESTING:
        return None
    # Units are already gone; math-verify's own rule takes the variables s, t, h, ... for units.
    rules = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last")
    config = LatexExtractionConfig(False, boxed_match_priority=0, normalization_config=rules)
    # first_match: of an unreadable answer, no readable part may be taken.
    untimed: Any = None  # the process is killed from outside; math-verify takes None and does not say so
    found = parse(f"\\boxed{{{text}}}", [config], "no_fallback", "first_match", parsing_timeout=untimed)
    return found[0] if found else None


def symbolic_equal(gold: str, pred: str) -> bool:
    from math_verify import verify

    gold_value, pred_value = _parse(gold), _parse(pred)
    if gold_value is None or pred_value is None:
        return False
    if not verify(gold_value, pred_value, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    return not _differ(gold_value, pred_value)


def _differ(gold, pred) -> bool:
    """Whether numbers tell two expressions apart: exact ones if they are rational, values at two points otherwise."""
    samples = [(_value_at(gold, point), _value_at(pred, point)) for point in range(2)]
    if any(None in pair for pair in samples):
        return False
    exact = (gold - pred).doit()
    if exact.is_Rational and exact != 0:
        return True
    return any(abs(a - b) > MAX_RELATIVE_ERROR * max(abs(a), abs(b)) for a, b in samples)


def _value_at(expression, point: int) -> Any:
    """Complex number that an expression is when each symbol has a value given by its name and the point, or None."""
    from mpmath import mpc, mpf
    from sympy import Expr, Rational

    if not isinstance(expression, Expr):
        return None
    values: dict = {
        symbol: Rational(zlib.crc32(f"{symbol} {point}".encode()) % 4000 + 1000, 1000) * (-1) ** point
        for symbol in expression.free_symbols
    }
    try:
        parts = expression.subs(values).evalf(20).as_real_imag()
        # mpmath's numbers, unlike sympy's, are always comparable, and unlike Python's, reach below 1e-308.
        return mpc(*(mpf(str(part)) for part in parts)) if all(part.is_finite for part in parts) else None
    except (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError):
        return None  # sympy cannot evaluate it: there is nothing to compare
