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
"""Do the units of two answers contradict each other? Pure functions of strings.

Answers are compared without their units, which the problem often settles: 5 cm is 5. But 5 cm is not 5 m. A word that
is no known unit (5 students) contradicts nothing. Nothing is converted: 5 m and 500 cm differ as 5 and 500 do.
"""

import re
from itertools import product

from recipe.common.reward.math.answer_text import (
    AFTER_NUMBER,
    BARE_UNIT,
    LAYOUT,
    TEXT_COMMAND,
    members,
    normalize,
    rewrite,
)
from recipe.common.reward.math.unicode_math import to_latex

# A line for each unit: its name and other spellings, without the s of the plural. A spelling that is in two lines may
# mean either.
SPELLINGS = """
mm millimeter millimetre | cm centimeter centimetre | dm decimeter decimetre | m meter metre | km kilometer kilometre
inch inches | foot feet ft | yard yd | mile mi | acre | hectare
mg milligram | g gram | kg kilogram | pound lb | ounce oz | ton tonne
ms millisecond | s sec second | minute min | hour hr h | day | week | month | year yr
degree | radian rad | celsius C degree | fahrenheit F degree | kelvin K
dollar | cent | euro | sterling pound
mL ml milliliter millilitre | L l liter litre | gallon gal
newton N | joule J | watt W | volt V
bit | byte | kB KB kilobyte | MB megabyte | GB gigabyte
"""
MEANINGS: dict[str, set[str]] = {}
for spellings in re.split(r"[|\n]", SPELLINGS):
    for spelling in spellings.split():
        MEANINGS.setdefault(spelling, set()).add(spellings.split()[0])

MAX_WORDS = 8
"""Of a unit. What is longer is none, and would have any number of meanings."""

POWERS = {"square": "2", "sq": "2", "cubic": "3"}
SPOKEN = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\$ ?([0-9](?:[0-9.,]*[0-9])?)", r"\1\\text{dollars}"),
        (r"(?:\^ ?\{? ?\\circ ?\}?|\\degrees?(?![a-z])|\u00b0)(?! ?(?:\\text|\\math|[CF]))", r"\\text{degrees}"),
        (rf"{TEXT_COMMAND}\{{([^{{}}]*)\b(?:and|or)\b([^{{}}]*)\}}", r"\\text{\1},\\text{\2}"),
        (r"(?i)(?<![a-z\\])(?:and|or)(?![a-z])", ","),
    )
]
UNIT = re.compile(
    rf"{AFTER_NUMBER} ?(?:{TEXT_COMMAND}\{{([a-zA-Z./ ]+)\}}|((?:{BARE_UNIT})(?: (?:{BARE_UNIT}))*))"
    r"(?: ?\^ ?\{?([23])\}?)?[ .;]*$"
)


def units_contradict(gold: str, pred: str) -> bool:
    """Whether one answer as it was written has a unit that the other, with another unit, denies. Of several members
    those of the same value are held together: `3 m, 4 cm` and `4 cm, 3 m` agree."""
    gold_units = _quantities(gold)
    if not any(unit for _, unit in gold_units):
        return False
    pred_units = [(normalize(part), unit) for part, unit in _quantities(pred)]
    for part, unit in gold_units:
        value = normalize(part)
        rivals = [other for pred_value, other in pred_units if pred_value == value]
        rivals = rivals or [other for _, other in pred_units if other]
        if unit and rivals and all(other and not unit & other for other in rivals):
            return True
    return False


def _quantities(answer: str) -> list[tuple[str, set[str]]]:
    """Each member of an answer and what its unit may mean: nothing if it has none or an unknown one."""
    text = rewrite(rewrite(to_latex(answer), SPOKEN), LAYOUT)
    matches = [(part, UNIT.search(part)) for part in members(text)[1]]
    return [(part, _meanings(match[1] or match[2], match[3] or "") if match else set()) for part, match in matches]


def _meanings(words: str, power: str) -> set[str]:
    """`feet per sec`: `foot /s`; `sq. cm`, and `cm` with the power 2: `cm2`; `degrees`: degree, celsius, fahrenheit."""
    words = re.sub(r"\bmph\b", "mile per hour", words.replace(".", " "))
    words = re.sub(r"\bdegrees?\s+(?=[a-zA-Z])", "", words)
    factors: list[list[str]] = []
    over = exponent = ""
    tokens = re.findall(r"[a-zA-Z]+|/", words)
    if len(tokens) > MAX_WORDS:
        return set()
    for i, token in enumerate(tokens):
        if token in ("/", "per"):
            over = "/"
        elif token in POWERS:
            exponent = POWERS[token]
        else:
            word = token.lower() if len(token) > 2 else token  # MB is no mb, and L no l
            known = MEANINGS.get(token) or MEANINGS.get(word) or MEANINGS.get(word.removesuffix("s"))
            if not known:
                return set()
            exponent = power if i == len(tokens) - 1 and power else exponent
            factors.append([f"{over}{name}{exponent}" for name in known])
            exponent = ""
    return {" ".join(factor) for factor in product(*factors)} if factors else set()
