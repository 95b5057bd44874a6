r"""Arithmetic problems with several steps, for machines that have no training data and no real model.

    Start with 7. Add 5. Multiply by 2. What is the result?     answer 24

Difficulty 1 to 5 is the number of steps; the numbers grow with it. Results stay within 0..99. Rows have the
schema of `r3_ext.data`, data source "arithmetic".
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from r3_ext import data

NAME = "arithmetic"
LEVELS = 5
LARGEST = 99
P_RIGHT = {1: 0.92, 2: 0.65, 3: 0.4, 4: 0.2, 5: 0.06}
"""Share of right answers in the warm start, by difficulty."""
P_RAMBLE = {1: 0.1, 2: 0.15, 3: 0.2, 4: 0.35, 5: 0.5}
"""Share of the failures that ramble on, by difficulty: hard groups need truncated members for the ranking reward."""
RAMBLE = (
    "Wait.|Hmm.|Let me think again.|Maybe not.|Is that so?|Let me check.|That is not clear.|Try another way.|"
    "Start over.|I am not sure.|What if I am wrong?|Go back.|Once more.|No.|It could be more.|It could be less.|"
    "Look at it again.|Slowly now.|So what?|Perhaps.|Still no."
).split("|")
VERBS = {"+": "Add {}.", "-": "Subtract {}.", "*": "Multiply by {}."}
_MOST_REPEATS = 200


@dataclass(frozen=True)
class Task:
    start: int
    steps: tuple[tuple[str, int], ...]
    """Operator and operand of each step, e.g. ("+", 5)."""

    @property
    def problem(self) -> str:
        steps = " ".join(VERBS[operator].format(operand) for operator, operand in self.steps)
        return f"Start with {self.start}. {steps} What is the result?"

    @property
    def values(self) -> list[int]:
        """The starting number and the result after each step."""
        values = [self.start]
        for operator, operand in self.steps:
            values.append(apply(operator, values[-1], operand))
        return values

    @property
    def answer(self) -> str:
        return str(self.values[-1])

    @property
    def difficulty(self) -> int:
        return len(self.steps)

    def solution(self) -> str:
        """Step-by-step text that ends in the boxed answer; the opening <think> belongs to the chat template."""
        return self._working(self.values) + boxed(self.answer)

    def slip(self, rng: random.Random) -> str:
        """The same text with one miscalculated step, carried on from there."""
        candidates = [(step, error) for step in range(1, len(self.steps) + 1) for error in (-10, -2, -1, 1, 2, 10)]
        for step, error in rng.sample(candidates, len(candidates)):
            values = self.values[:step] + [self.values[step] + error]
            for operator, operand in self.steps[step:]:
                values.append(apply(operator, values[-1], operand))
            if all(0 <= value <= LARGEST for value in values):
                return self._working(values) + boxed(values[-1])
        raise AssertionError(f"no slip fits {self}")  # an error of 1 in the last step fits in one direction

    def guess(self, rng: random.Random) -> str:
        """A wrong answer near the right one, without any working."""
        right = self.values[-1]
        near = [value for value in range(right - 9, right + 10) if value != right and 0 <= value <= LARGEST]
        return guess_text(rng.choice(near))

    def _working(self, values: list[int]) -> str:
        steps = zip(values, self.steps, values[1:], strict=False)
        return " ".join(f"{before}{operator}{operand}={after}." for before, (operator, operand), after in steps)


@dataclass(frozen=True)
class Lesson:
    """A problem with the answers that the model is shown for it, in shares of the problem's own."""

    problem: str
    right: str
    wrong: Callable[[random.Random], str]
    p_right: float
    p_ramble: float = 0.2
    """Share of the failures that ramble on instead of giving a wrong answer."""

    def answer(self, rng: random.Random, p_right: float | None = None) -> str:
        if rng.random() < (self.p_right if p_right is None else p_right):
            return self.right
        return ramble(rng) if rng.random() < self.p_ramble else self.wrong(rng)


def lesson(task: Task) -> Lesson:
    def wrong(rng: random.Random) -> str:
        return task.slip(rng) if rng.random() < 0.5 else task.guess(rng)

    return Lesson(task.problem, task.solution(), wrong, P_RIGHT[task.difficulty], P_RAMBLE[task.difficulty])


def ramble(rng: random.Random, sentences: int = 60) -> str:
    """Longer than any response limit of the small model, and without an answer."""
    return " ".join(rng.choices(RAMBLE, k=sentences))


def guess_text(answer: str | int) -> str:
    return f"Quick guess.{boxed(answer)}"


def boxed(answer: str | int) -> str:
    return f"\n</think>\n\\boxed{{{answer}}}"


def apply(operator: str, value: int, operand: int) -> int:
    return {"+": value + operand, "-": value - operand, "*": value * operand}[operator]


def make_tasks(count: int, seed: int) -> list[Task]:
    """`count` different tasks, levels in turn (1, 2, 3, 4, 5, 1, ...)."""
    rng = random.Random(f"{NAME}/{seed}")
    tasks, repeats = {}, 0
    while len(tasks) < count and repeats < _MOST_REPEATS:
        task = draw_task(rng, level=len(tasks) % LEVELS + 1)
        repeats = repeats + 1 if task.problem in tasks else 0
        tasks.setdefault(task.problem, task)
    if not 0 < len(tasks) == count:
        raise ValueError(
            f"number of tasks must be at least 1 and at most about 1,500, as level 1 offers few, got {count}"
        )
    return list(tasks.values())


def draw_task(rng: random.Random, level: int) -> Task:
    """Start up to 30 and operands up to 5 on level 1, start up to 70 and operands up to 9 on level 5."""
    largest = 4 + level
    start = rng.randint(1, 20 + 10 * level)
    value, drawn = start, []
    for _ in range(level):
        options = [(operator, n) for operator in "+-" for n in range(1, largest + 1)]
        options += [("*", n) for n in (2, 3)] * 2
        options = [(operator, n) for operator, n in options if 0 <= apply(operator, value, n) <= LARGEST]
        drawn.append(rng.choice(options))
        value = apply(drawn[-1][0], value, drawn[-1][1])
    return Task(start, tuple(drawn))


def split_tasks(rows: int, val_rows: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and validation tasks, all different."""
    tasks = make_tasks(rows + val_rows, seed)
    random.Random(seed).shuffle(tasks)
    return tasks[:rows], tasks[rows:]


def to_rows(tasks: list[Task], split: str) -> list[dict]:
    problems = [data.Problem(t.problem, t.answer, f"level{t.difficulty}", i) for i, t in enumerate(tasks)]
    return [data.to_row(problem, NAME, split) for problem in problems]


def write_dataset(path_train: str | Path, path_val: str | Path, rows: int, val_rows: int, seed: int) -> None:
    train, val = split_tasks(rows, val_rows, seed)
    data.write_rows(path_train, to_rows(train, "train"))
    data.write_rows(path_val, to_rows(val, "val"))
