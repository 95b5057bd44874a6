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

Answers are cut off for two reasons. Some are written at length, every step with a word before and one after it: of
five or six steps they do not end within the response limit, and are right as far as they go. Some get stuck at a step
and guess at its digit for ever. The first have many possible words at few places, the second a few digits everywhere:
the entropies by which R^3's ranking reward tells one from the other. How many of each there are is the `World`'s.

Rows have the schema of `r3_ext.data.problems`, data source "arithmetic".
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from r3_ext.data import problems as data
from r3_ext.data.write import to_row
from r3_ext.tiny.world import LEVELS, World
from recipe.common.reward.answerable import BOXED, FORMS

NAME = "arithmetic"
BOX = FORMS[BOXED][-1]
"""How an answer is written."""
LETTERS = "abcdef"
STEPS = [("+", 2), ("+", 3), ("+", 6), ("-", 1), ("-", 3), ("-", 5)]
P_KNOWN, P_SHAKY, P_MISTAKEN = 0.985, 0.5, 0.002
"""Probability that a fact of each kind is told right in the warm start."""
SHAKY = 0.1
"""Share of the facts that are told right half of the time. Few: then most groups are all right or all wrong, and that
is where the methods of a study differ."""
BEFORE = (
    "now next then so first look take go write see count start well right okay again from here onward say keep simply "
    "note given plainly calmly step turn today onwards"
).split()
AFTER = (
    "Fine.|Good.|Sure.|Yes.|Done.|True.|Clear.|Nice.|Great.|Easy.|Safe.|Sound.|Solid.|Neat.|Exact.|Proper.|Settled.|"
    "Certain.|Alright.|Correct.|Checked.|Noted.|Kept.|Agreed.|Perfect.|Simple.|Steady.|Tidy.|Whole.|Firm."
).split("|")
"""Words of the answers at length, as many as may be: each place that takes one has an entropy of about 3.4 nats."""
RAMBLE = (
    "Wait.|Hmm.|Let me think again.|Maybe not.|Is that so?|Let me check.|That is not clear.|Try another way.|"
    "Start over.|I am not sure.|What if I am wrong?|Go back.|Once more.|No.|It could be more.|It could be less.|"
    "Look at it again.|Slowly now.|So what?|Perhaps.|Still no."
).split("|")
VERBS = {"+": "Add {}.", "-": "Subtract {}."}
SHORT, CUT_OFF_CHARS = 4, 100
"""Steps of the longest problem whose answers at length fit; where longer ones are cut off, about."""
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
        return self.attempt(truth)

    def attempt(
        self, tell: Callable[[int, str, int], int | str], words: Callable[[], tuple[str, str]] | None = None
    ) -> str:
        """The same with what `tell(value, operator, operand)` says of each step: a digit, or a text to end with.

        words: the word before and that after a step, of an answer at length.
        """
        value, written = self.start, []
        for letter, (operator, operand) in zip(LETTERS, self.steps, strict=False):
            result, fact = tell(value, operator, operand), f"{value}{operator}{operand}="
            before, after = words() if words else ("", "")
            begin = f"{letter}) {before} {fact}" if words else f"{letter}) {fact}"
            if isinstance(result, str):
                return " ".join([*written, begin + result])
            written.append(f"{begin}{result}.{f' {after}' if words else ''}")
            value = result
        return " ".join(written) + final(value)


class Beliefs:
    """For each fact, how often it is told right and which wrong digit is told instead; how answers fail otherwise."""

    def __init__(self, world: World):
        self.world = world
        rng = random.Random(f"{NAME}/beliefs/{world.seed}")
        facts = [(value, operator, operand) for operator, operand in STEPS for value in range(10)]
        # Shares are met exactly: what a share does should not drown in how many facts happened to be drawn.
        mistaken, shaky = round(world.mistaken * len(facts)), round(SHAKY * len(facts))
        drawn = rng.sample(facts, len(facts))
        self.p_right = dict.fromkeys(facts, P_KNOWN)
        self.p_right |= dict.fromkeys(drawn[:mistaken], P_MISTAKEN)
        self.p_right |= dict.fromkeys(drawn[mistaken : mistaken + shaky], P_SHAKY)
        self.mistake = {fact: (apply(fact[1], fact[0], fact[2]) + rng.choice((1, 2))) % 10 for fact in facts}

    def attempt(self, task: Task, rng: random.Random, boost: float, is_quiet: bool = False) -> str:
        """An answer of somebody with these beliefs; `boost` in [0, 1] of every chance to fail is taken away.

        is_quiet: never at length and never stuck.
        """
        chance = 0.0 if is_quiet else 1 - boost

        def tell(*fact) -> int:
            is_right = rng.random() < self.p_right[fact] + boost * (1 - self.p_right[fact])
            return truth(*fact) if is_right else self.mistake[fact]

        stuck_at = rng.randrange(task.difficulty) if rng.random() < self.world.stuck * chance else None
        return write(task, rng, tell, stuck_at, at_length=rng.random() < self.world.overlong * chance)

    def slip(self, task: Task, rng: random.Random) -> str:
        """A wrong answer, short or at length: one step goes wrong, and the rest follows from it."""
        wrong = rng.randrange(task.difficulty)
        places = iter(range(task.difficulty))

        def tell(*fact) -> int:
            return self.mistake[fact] if next(places) == wrong else truth(*fact)

        return write(task, rng, tell, None, self._is_long(rng))

    def endless(self, task: Task, rng: random.Random) -> str:
        """An answer as it is cut off: of many steps and at length, or stuck."""
        if task.difficulty > SHORT and rng.random() < 0.5:
            return write(task, rng, truth, None, at_length=True)[:CUT_OFF_CHARS]
        return write(task, rng, truth, rng.randrange(task.difficulty), self._is_long(rng))

    def _is_long(self, rng: random.Random) -> bool:
        return rng.random() < self.world.overlong


def write(
    task: Task, rng: random.Random, tell: Callable[[int, str, int], int], stuck_at: int | None, at_length: bool
) -> str:
    """An answer in a manner: stuck at a step, counted from 0, or at length."""
    places = iter(range(task.difficulty))

    def tell_or_guess(*fact) -> int | str:
        return guesses(truth(*fact), rng) if next(places) == stuck_at else tell(*fact)

    return task.attempt(tell_or_guess, (lambda: (rng.choice(BEFORE), rng.choice(AFTER))) if at_length else None)


def truth(value: int, operator: str, operand: int) -> int:
    return apply(operator, value, operand)


@dataclass(frozen=True)
class Lesson:
    """A problem with the answers that the model is shown for it."""

    problem: str
    right: str
    wrong: Callable[[random.Random], str]
    endless: Callable[[random.Random], str]
    """An attempt as it is cut off at the response limit."""
    attempt: Callable[[random.Random, float], str]
    """A right or wrong answer, in the problem's own shares; the number is the share of failures taken away."""
    prompt: list[dict] | None = None
    """Messages that ask it; None: the problem and `data.INSTRUCTION` in one message."""

    @property
    def messages(self) -> list[dict]:
        return self.prompt or [{"role": "user", "content": self.problem + data.INSTRUCTION}]


def lesson(task: Task, beliefs: Beliefs, is_quiet: bool = False) -> Lesson:
    return Lesson(
        task.problem,
        task.solution(),
        wrong=lambda rng: beliefs.slip(task, rng),
        endless=lambda rng: beliefs.endless(task, rng),
        attempt=lambda rng, boost: beliefs.attempt(task, rng, boost, is_quiet),
    )


def guesses(digit: int, rng: random.Random, count: int = 60) -> str:
    """Guesses at a digit, the two above it among them, without end."""
    return "".join(f"{(digit + rng.randrange(3)) % 10}?" for _ in range(count))


def ramble(rng: random.Random, sentences: int = 60) -> str:
    """Longer than any response limit of the small model, and without an answer."""
    return " ".join(rng.choices(RAMBLE, k=sentences))


def guess_text(answer: str | int, form: str = BOX) -> str:
    return f"Quick guess.{final(answer, form)}"


def final(answer: str | int, form: str = BOX) -> str:
    """The end of an answer; form: with {} for what is answered."""
    return f"\n</think>\n{form.format(answer)}"


def apply(operator: str, value: int, operand: int) -> int:
    return {"+": value + operand, "-": value - operand}[operator] % 10


def make_tasks(count: int, seed: int, levels: range = range(1, LEVELS + 1), taken: Collection[str] = ()) -> list[Task]:
    """`count` different tasks without the problems of `taken`, levels in turn (1, 2, ..., 6, 1, ...), shuffled."""
    rng = random.Random(f"{NAME}/{seed}/{len(taken)}")
    tasks, repeats = {}, 0
    while len(tasks) < count and repeats < _MOST_REPEATS:
        task = draw_task(rng, level=levels[len(tasks) % len(levels)])
        is_known = task.problem in tasks or task.problem in taken
        repeats = repeats + 1 if is_known else 0
        if not is_known:
            tasks[task.problem] = task
    if not 0 < len(tasks) == count:
        raise ValueError(f"number of tasks must be from 1 to {len(tasks)}, as level 1 offers no more, got {count}")
    tasks = list(tasks.values())
    rng.shuffle(tasks)
    return tasks


def draw_task(rng: random.Random, level: int) -> Task:
    return Task(rng.randrange(10), tuple(rng.choice(STEPS) for _ in range(level)))


def split_tasks(rows: int, val_rows: int, world: World) -> tuple[list[Task], list[Task]]:
    """Training and validation tasks, all different."""
    train = make_tasks(rows, world.seed, world.levels("train"))
    return train, make_tasks(val_rows, world.seed, world.levels("val"), taken={task.problem for task in train})


def to_rows(tasks: list[Task], split: str) -> list[dict]:
    problems = [data.Problem(t.problem, t.answer, f"level{t.difficulty}", i) for i, t in enumerate(tasks)]
    return [to_row(problem, NAME, split) for problem in problems]
