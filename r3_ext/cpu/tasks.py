r"""Arithmetic problems with several steps, for machines that have no training data and no real model.

    Start with 7. a) Add 6. b) Subtract 5. Keep the last digit only. What is the result?     answer 8
    a) 7+6=3. b) 3-5=8.

Difficulty 1 to 6 is the number of steps. Everything is modulo 10, and all problems rest on sixty facts, such as
7+6=3. A small model learns these in minutes and then solves problems that it has not seen. The letters are for it: to
find its place among steps that repeat themselves would be beyond a model of this size.

`Beliefs` says how well which fact is taught: most are known, some are shaky, some are mistaken, always for the same
wrong digit, one or two above the right one. So some problems are solved always, some sometimes and some almost never,
and what the last kind needs can be learned from others with the same facts. No step scales a mistake, so it takes five
of them to cancel: right answers from wrong working would otherwise be rewarded, and hard problems teach wrong facts.
Long working may also ramble on past the response limit.

Rows have the schema of `r3_ext.data`, data source "arithmetic".
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from r3_ext import data

NAME = "arithmetic"
LETTERS = "abcdef"
LEVELS = len(LETTERS)
STEPS = [("+", 2), ("+", 3), ("+", 6), ("-", 1), ("-", 3), ("-", 5)]
P_KNOWN, P_SHAKY, P_MISTAKEN = 0.985, 0.5, 0.002
"""Probability that a fact of each kind is told right in the warm start."""
SHARES = (0.7, 0.05, 0.25)
"""Shares of the three kinds among the facts. Few are shaky: then most groups are all right or all wrong, and that is
where the methods of a study differ."""
P_RAMBLE = {1: 0.01, 2: 0.01, 3: 0.01, 4: 0.05, 5: 0.2, 6: 0.25}
"""Probability of a step to be the start of a ramble, by difficulty. At five and six steps most answers ramble: whole
groups are cut off, and the ranking reward has work to do."""
P_RAMBLE_OFTEN = {level: 0.01 if level <= 2 else 0.125 * min(level - 2, 2) for level in range(1, LEVELS + 1)}
"""The same where hard groups are to hold several truncated members, for the ranking reward."""
RAMBLE = (
    "Wait.|Hmm.|Let me think again.|Maybe not.|Is that so?|Let me check.|That is not clear.|Try another way.|"
    "Start over.|I am not sure.|What if I am wrong?|Go back.|Once more.|No.|It could be more.|It could be less.|"
    "Look at it again.|Slowly now.|So what?|Perhaps.|Still no."
).split("|")
VERBS = {"+": "Add {}.", "-": "Subtract {}."}
_MOST_REPEATS = 200


@dataclass(frozen=True)
class Task:
    start: int
    steps: tuple[tuple[str, int], ...]
    """Operator and operand of each step, e.g. ("+", 6)."""

    @property
    def problem(self) -> str:
        steps = [
            f"{letter}) {VERBS[sign].format(operand)}"
            for letter, (sign, operand) in zip(LETTERS, self.steps, strict=False)
        ]
        return f"Start with {self.start}. {' '.join(steps)} Keep the last digit only. What is the result?"

    @property
    def answer(self) -> str:
        value = self.start
        for operator, operand in self.steps:
            value = apply(operator, value, operand)
        return str(value)

    @property
    def difficulty(self) -> int:
        return len(self.steps)

    def solution(self) -> str:
        """Step-by-step text that ends in the boxed answer; the opening <think> belongs to the chat template."""
        return self.attempt(lambda value, operator, operand: apply(operator, value, operand))

    def attempt(self, tell: Callable[[int, str, int], int | str]) -> str:
        """The same with what `tell(value, operator, operand)` says of each step: a digit, or a text to end with."""
        value, written = self.start, []
        for letter, (operator, operand) in zip(LETTERS, self.steps, strict=False):
            result = tell(value, operator, operand)
            if isinstance(result, str):
                return " ".join([*written, result])
            written.append(f"{letter}) {value}{operator}{operand}={result}.")
            value = result
        return " ".join(written) + boxed(value)


class Beliefs:
    """For each fact, how often it is told right and which wrong digit is told instead."""

    def __init__(self, seed: int = 0, rambling: bool = False):
        self.p_ramble = P_RAMBLE_OFTEN if rambling else P_RAMBLE
        rng = random.Random(f"{NAME}/beliefs/{seed}")
        facts = [(value, operator, operand) for operator, operand in STEPS for value in range(10)]
        kinds = rng.choices((P_KNOWN, P_SHAKY, P_MISTAKEN), weights=SHARES, k=len(facts))
        self.p_right = dict(zip(facts, kinds, strict=True))
        self.mistake = {fact: (apply(fact[1], fact[0], fact[2]) + rng.choice((1, 2))) % 10 for fact in facts}

    def attempt(self, task: Task, rng: random.Random, boost: float, rambles: bool = True) -> str:
        """An answer of somebody with these beliefs; `boost` in [0, 1] of every chance to fail is taken away."""

        def tell(value: int, operator: str, operand: int) -> int | str:
            if rambles and rng.random() < self.p_ramble[task.difficulty] * (1 - boost):
                return ramble(rng)
            fact = value, operator, operand
            is_right = rng.random() < self.p_right[fact] + boost * (1 - self.p_right[fact])
            return apply(operator, value, operand) if is_right else self.mistake[fact]

        return task.attempt(tell)

    def slip(self, task: Task, rng: random.Random) -> str:
        """A wrong answer: one step goes wrong, and the rest follows from it."""
        wrong = rng.randrange(task.difficulty)
        places = iter(range(task.difficulty))
        return task.attempt(
            lambda *fact: self.mistake[fact] if next(places) == wrong else apply(fact[1], fact[0], fact[2])
        )


@dataclass(frozen=True)
class Lesson:
    """A problem with the answers that the model is shown for it."""

    problem: str
    right: str
    wrong: Callable[[random.Random], str]
    attempt: Callable[[random.Random, float], str]
    """A right or wrong answer, in the problem's own shares; the number is the share of failures taken away."""
    prompt: list[dict] | None = None
    """Messages that ask it; None: the problem and `data.INSTRUCTION` in one message."""

    @property
    def messages(self) -> list[dict]:
        return self.prompt or [{"role": "user", "content": self.problem + data.INSTRUCTION}]


def lesson(task: Task, beliefs: Beliefs, rambles: bool = True) -> Lesson:
    return Lesson(
        task.problem,
        task.solution(),
        wrong=lambda rng: beliefs.slip(task, rng),
        attempt=lambda rng, boost: beliefs.attempt(task, rng, boost, rambles),
    )


def ramble(rng: random.Random, sentences: int = 60) -> str:
    """Longer than any response limit of the small model, and without an answer."""
    return " ".join(rng.choices(RAMBLE, k=sentences))


def guess_text(answer: str | int) -> str:
    return f"Quick guess.{boxed(answer)}"


def boxed(answer: str | int) -> str:
    return f"\n</think>\n\\boxed{{{answer}}}"


def apply(operator: str, value: int, operand: int) -> int:
    return {"+": value + operand, "-": value - operand}[operator] % 10


def make_tasks(count: int, seed: int) -> list[Task]:
    """`count` different tasks, levels in turn (1, 2, ..., 6, 1, ...)."""
    rng = random.Random(f"{NAME}/{seed}")
    tasks, repeats = {}, 0
    while len(tasks) < count and repeats < _MOST_REPEATS:
        task = draw_task(rng, level=len(tasks) % LEVELS + 1)
        repeats = repeats + 1 if task.problem in tasks else 0
        tasks.setdefault(task.problem, task)
    if not 0 < len(tasks) == count:
        raise ValueError(
            f"number of tasks must be from 1 to {10 * len(STEPS) * LEVELS}, as level 1 offers no more, got {count}"
        )
    return list(tasks.values())


def draw_task(rng: random.Random, level: int) -> Task:
    return Task(rng.randrange(10), tuple(rng.choice(STEPS) for _ in range(level)))


def split_tasks(rows: int, val_rows: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and validation tasks, all different."""
    tasks = make_tasks(rows + val_rows, seed)
    random.Random(seed).shuffle(tasks)
    return tasks[:rows], tasks[rows:]


def to_rows(tasks: list[Task], split: str) -> list[dict]:
    problems = [data.Problem(t.problem, t.answer, f"level{t.difficulty}", i) for i, t in enumerate(tasks)]
    return [data.to_row(problem, NAME, split) for problem in problems]
