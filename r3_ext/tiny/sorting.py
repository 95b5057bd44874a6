"""Lists of digits to put in order: a world in which nothing is built in about mistakes, reflection or long answers.

    Sort from low to high: 7 2 9 2 5. Write the digits as one number.        answer 22579

The model is shown right answers only. Most of its lists are short, and of each length half as many as of the one
before: short ones it solves, long ones now and then, the longest almost never. So groups are all wrong because their
problem is harder than what the model has seen enough of, and what short lists teach helps with long ones.

Rows have the schema of `r3_ext.data.problems`, data source "sorting".
"""

import random
from collections.abc import Collection

from r3_ext.data import problems as data
from r3_ext.data.write import to_row
from r3_ext.tiny.tasks import Lesson, final
from r3_ext.tiny.world import LONGEST, SHORTEST, Sorting

NAME = "sorting"
LENGTHS = range(SHORTEST, LONGEST + 1)
SHARES = [2.0**-length for length in LENGTHS]
"""Of each length in what the model is shown."""
List = tuple[int, ...]


def problem(digits: List) -> str:
    return f"Sort from low to high: {_written(digits)}. Write the digits as one number."


def answer(digits: List) -> str:
    return "".join(map(str, sorted(digits)))


def solution(digits: List) -> str:
    """Text that ends in the boxed answer; the opening <think> belongs to the chat template."""
    return _written(sorted(digits)) + final(answer(digits))


def _written(digits) -> str:
    return " ".join(map(str, digits))


def lesson(digits: List) -> Lesson:
    def shown(rng: random.Random, boost: float = 0.0) -> str:
        return solution(digits)

    return Lesson(problem(digits), solution(digits), wrong=shown, endless=shown, attempt=shown)


def draw_list(rng: random.Random, length: int) -> List:
    return tuple(rng.randrange(1, 10) for _ in range(length))


def draw_shown(rng: random.Random, held_out: Collection[List]) -> List:
    """A list that the model is shown, not one of those held out."""
    while (digits := draw_list(rng, rng.choices(LENGTHS, SHARES)[0])) in held_out:
        pass
    return digits


def split_lists(rows: int, val_rows: int, world: Sorting) -> tuple[list[List], list[List]]:
    """Training and validation lists, all different, of each length in turn."""
    rng, taken = random.Random(f"{NAME}/{world.seed}"), set()
    parts = [_draw(count, world.levels(split), rng, taken) for split, count in (("train", rows), ("val", val_rows))]
    return parts[0], parts[1]


def _draw(count: int, lengths: range, rng: random.Random, taken: set[List]) -> list[List]:
    found: list[List] = []
    for at in range(count):
        length = lengths[at % len(lengths)]
        known = sum(len(digits) == length for digits in taken)
        if known >= 9**length // 2:
            raise ValueError(f"number of lists must leave half of those of {length} digits, got {count}")
        while (digits := draw_list(rng, length)) in taken:
            pass
        taken.add(digits)
        found.append(digits)
    rng.shuffle(found)
    return found


def to_rows(lists: list[List], split: str) -> list[dict]:
    made = [data.Problem(problem(x), answer(x), f"level{len(x)}", at) for at, x in enumerate(lists)]
    return [to_row(one, NAME, split) for one in made]
