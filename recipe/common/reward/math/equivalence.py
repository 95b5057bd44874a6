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
"""Are two normalized answers equal? Cheap rules first, math-verify for what is left; and the loop of a worker process.

math-verify alone calls different answers equal (9^{-20} and 8^{-20}, `5 6` and 11, 12_5 and 12_7, `no` and `on`). It is
therefore asked about single expressions only, and numbers have to confirm its "equal". Lists, tuples, intervals,
equations, percentages, number bases and words are compared here.

Symbolic work on model output can take any time and memory: `equivalent` is only for worker processes.
"""

import logging
import re
from fractions import Fraction
from multiprocessing.connection import Connection

from recipe.common.process_pool import questions
from recipe.common.reward.math.answer_text import NAME, members, split
from recipe.common.reward.math.symbolic import same_equation, symbolic_equal

EXACT = re.compile(r"([+-]?)(?:\\frac\{([+-]?[0-9]+)\}\{([0-9]+)\}|([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:/([0-9]+))?)")
BASED = re.compile(r"([0-9]+)(?:_\{?\(?([0-9]+)\)?\}?)?")
CHOICE = re.compile(r"(?:\(([A-J])\)|([A-J])[.)](?=.))([0-9]|[^(),+*/^=].+)?")
NUMERIC = re.compile(r"(?:[0-9 .+\-*/^(){}!]|\\(?:frac|sqrt|cdot|times|pi|binom))+")
RELATION = re.compile(r"[<>]|\\(?:le(?!ft)|ge|in(?![ft]))")


def quick_verdict(gold: str, pred: str) -> bool | None:
    """Verdict without symbolic work, None if it needs some."""
    if gold == pred or not gold or not pred:
        return gold == pred != ""
    if "–" in gold + pred:  # a range of numbers
        return gold.replace("–", "-") == pred.replace("–", "-")
    gold_value, pred_value = _exact(gold), _exact(pred)
    if gold_value is not None and pred_value is not None:
        # 0.333333 against 1/3 is left to math-verify's rounding.
        return True if gold_value == pred_value else (None if "." in gold + pred else False)
    gold_based, pred_based = BASED.fullmatch(gold), BASED.fullmatch(pred)
    if gold_based and pred_based:
        # The base may be in the problem only, and so missing on one side.
        same_base = None in (gold_based[2], pred_based[2]) or gold_based[2] == pred_based[2]
        return same_base and gold_based[1] == pred_based[1]
    if gold.isalpha() and pred.isalpha():
        return len(gold) > 1 and gold.casefold() == pred.casefold() and not _are_letters(gold, pred)
    gold_forms, pred_forms = _choice_forms(gold), _choice_forms(pred)
    if gold_forms == pred_forms or (len(gold_forms) + len(pred_forms) < 4 and gold_forms & pred_forms):
        return True
    return None


def _are_letters(gold: str, pred: str) -> bool:
    """Whether words that differ in case alone may be variables or points, as AB and ab, and not Yes and yes."""
    return len(gold) < 4 and {gold.isupper(), pred.isupper()} == {True, False} and gold.casefold() not in ("no", "yes")


def _exact(text: str) -> Fraction | None:
    match = EXACT.fullmatch(text) if len(text) < 200 else None
    if match is None or not int(match[3] or match[5] or 1):
        return None
    return Fraction(match[1] + "1") * Fraction(match[2] or match[4]) / int(match[3] or match[5] or 1)


def _choice_forms(text: str) -> set[str]:
    """What an answer to a multiple-choice problem may be written as. `(B)12`: B and 12; `(B)`: B."""
    match = CHOICE.fullmatch(text)
    return {form for form in match.groups() if form} if match else {text}


def equivalent(gold: str, pred: str) -> bool:
    """Whether two normalized answers are equal. May take any amount of time and memory."""
    verdict = quick_verdict(gold, pred)
    if verdict is not None:
        return verdict
    gold_kind, gold_items = members(gold)
    pred_kind, pred_items = members(pred)
    if len(gold_items) == len(pred_items) == 1:
        return _same_value(gold_items[0], pred_items[0])
    if 1 in (len(gold_items), len(pred_items)):
        # One value never equals several, but 2 < x < 3 may stand for (2, 3).
        return bool(RELATION.search(gold) or RELATION.search(pred)) and symbolic_equal(gold, pred)
    return _kinds_agree(gold_kind, pred_kind) and _same_members(gold_kind, gold_items, pred_kind, pred_items)


def _kinds_agree(gold: str, pred: str) -> bool:
    """A list may be in any brackets but those of an interval. A union of intervals is no list of intervals, but
    conditions on x, with `or` or a comma between them, may stand for it."""
    kinds = {gold, pred}
    return gold == pred or kinds <= {"", "{}", ",", "()"} or (r"\cup" in kinds and bool(kinds & {"", "{}"}))


def _same_members(gold_kind: str, gold_items: list[str], pred_kind: str, pred_items: list[str]) -> bool:
    gold_names, pred_names = _names(gold_items), _names(pred_items)
    ordered = gold_kind[:1] in ("(", "[")
    if gold_names:
        pred_items = _arranged(gold_names, pred_items)
    elif pred_names:
        gold_items = _arranged(pred_names, gold_items)
    names, kind, others = (gold_names, pred_kind, pred_items) if gold_names else (pred_names, gold_kind, gold_items)
    if names and not all("=" in item for item in others):
        # x=2, y=3 is the pair (2,3) and no other. x_1=2, x_2=3 may be two solutions, numbered at will.
        named_at_will = kind != "()" and len({name.partition("_")[0] for name in names}) == 1
        if kind == "{}" and not named_at_will:
            return False
        ordered = ordered or not named_at_will
    return _same_items(gold_items, pred_items, ordered)


def _names(items: list[str]) -> list[str]:
    """Of x=2, y=3: x and y. None of items without a name or with one for several."""
    sides = [split(item, "=") for item in items]
    names = [side[0] for side in sides if len(side) > 1 and NAME.fullmatch(side[0])]
    return names if len(set(names)) == len(items) else []


def _arranged(names: list[str], items: list[str]) -> list[str]:
    """Items in the order of the names; those without a name, in their own order, take the places that are left."""
    named = {split(item, "=")[0]: item for item in items if "=" in item}
    if len(items) != len(names) or len(named) != sum("=" in item for item in items):
        return items
    others = iter([item for item in items if "=" not in item or split(item, "=")[0] not in names])
    return [named.get(name) or next(others) for name in names]


def _same_items(gold_items: list[str], pred_items: list[str], ordered: bool) -> bool:
    if len(gold_items) != len(pred_items):
        return False
    if ordered:
        return all(map(equivalent, gold_items, pred_items))
    unmatched = list(pred_items)
    for gold in gold_items:
        match = next((pred for pred in unmatched if equivalent(gold, pred)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return True


def _same_value(gold: str, pred: str) -> bool:
    if gold.endswith("%") or pred.endswith("%"):
        return _same_percentage(gold, pred)
    gold_sides, pred_sides = split(gold, "="), split(pred, "=")
    if len(gold_sides) == len(pred_sides) == 1:
        return symbolic_equal(gold, pred)
    if len(gold_sides) == 2 and len(pred_sides) == 1 and NAME.fullmatch(gold_sides[0]):
        gold_sides = gold_sides[1:]
    elif 2 == len(gold_sides) <= len(pred_sides) and gold_sides[0] == pred_sides[0]:
        gold_sides, pred_sides = gold_sides[1:], pred_sides[1:]
    if len(gold_sides) == 1:
        # Of x = 10/4 = 2.5 every number is a claim: x = 2 = 5 is not 5.
        claims = [side for side in pred_sides[:-1] if NUMERIC.fullmatch(side)] + [pred_sides[-1]]
        return all(equivalent(gold_sides[0], claim) for claim in claims)
    return len(gold_sides) == len(pred_sides) == 2 and same_equation(gold_sides, pred_sides)


def _same_percentage(gold: str, pred: str) -> bool:
    """10% equals 10%, 10 (the problem may ask for per cent) and 0.1."""
    plain = [text.rstrip("%") for text in (gold, pred)]
    as_fraction = [f"({text.rstrip('%')})/100" if text.endswith("%") else text for text in (gold, pred)]
    return equivalent(*plain) or equivalent(*as_fraction)


def serve(pipe: int, parent_pid: int) -> None:
    """Answers (prediction, references) from a pipe with b"1" or b"0" until the parent is gone."""
    connection = Connection(pipe)
    logging.disable(logging.CRITICAL)
    # A missing or broken package must end the process before it says ready; and the first call is the slowest.
    equivalent("0.5", r"\sin\frac{\pi}{6}")
    for (pred, golds), reply in questions(connection, parent_pid):
        correct = any(equivalent(gold, pred) for gold in golds)
        reply(b"1" if correct else b"0")
