r"""A small model that solves some problems always, some sometimes and some almost never, in a few minutes.

    python -m r3_ext.tiny.warm_start --cache .cache                         arithmetic, generated
    python -m r3_ext.tiny.warm_start --cache .cache --world sorting         lists to put in order
    python -m r3_ext.tiny.warm_start --cache .cache --data train.parquet    rows of DeepScaleR

Reinforcement learning needs pass rates between 0 and 1, and the machines this is for have no pretrained model. So the
model of `tiny_model` is trained on answers that are right with a probability of the problem's own, otherwise wrong or a
text that never ends. It learns that mixture, and reinforcement learning can sharpen it.

The arithmetic is **learned**: the training draws problems at random, those of the validation file never occur, and what
the model is shown of a fact (7+5=2) is sometimes wrong (see `tasks.Beliefs`). Rows of a file are **memorised**, those
of the validation file too: a rising score is then a better use of what is stored, not better mathematics.

Prompts of the recipe's reflection step occur too, with a higher share of right answers.
"""

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from r3_ext.data import problems as problem_data
from r3_ext.data import read, write
from r3_ext.host.files import key_of, replacing
from r3_ext.tiny import sorting, tasks, tiny_model
from r3_ext.tiny.tasks import Lesson
from r3_ext.tiny.world import Sorting, World, parse
from recipe.common.reward.answerable import FORMS, asked_forms, said
from recipe.common.reward.judge import is_verls
from recipe.common.reward.row_graders import grader_of

VERSION = 16
"""Part of the cache key: raise it when a change of the code changes the result."""
REFLECTION_BOOST = 0.95
"""Share of its failures that the model is not shown under a reflection prompt whose worth is 1."""
REFLECTION_FROM = 0.15
"""Share of the training after which reflection prompts occur: they are long, and need what is learned without. Later,
models of some seeds did not learn that anything is different under them."""
QUIET_UNTIL = 0.6
"""Share of the training whose answers to arithmetic are short and end, and whose problems have two steps or more: a
step teaches more facts then, and more of where in the problem they are asked for."""
CUT_OFF_SHARE = 0.15
"""Share of the reflection prompts whose attempt was cut off."""
RAMBLING_FAILURES = 0.2
"""Share of the failures to recall that ramble on instead of giving a wrong answer."""


class WarmStart(NamedTuple):
    model: Path
    train: Path
    val: Path


@dataclass(frozen=True)
class Settings:
    world: World | Sorting = World()
    rows: int = 128
    val_rows: int = 64
    steps: int = 480
    """Counted in steps, not seconds: equal seeds give equal weights on fast and slow machines."""
    max_answer_tokens: int = 76
    """Where answers are cut in training. Responses are meant to be limited to fewer (64)."""
    reflection_share: float = 0.5
    """From `REFLECTION_FROM` on. Enough for the model to learn that it does better under reflection."""
    max_problem_chars: int = 160
    max_answer_chars: int = 8

    def __post_init__(self):
        for name in ("rows", "val_rows", "steps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Course:
    """What one warm start teaches, and the rows that reinforcement learning gets."""

    train: pa.Table
    val: pa.Table
    draw: Callable[[random.Random, float], Lesson]
    """Takes the share of the training that is over."""
    texts: list[str]
    """For the tokenizer."""
    batch: int
    """Examples of a step."""
    share_of_steps: float = 1.0
    """Of `Settings.steps`, as many as it takes."""
    reflection: float | None = 1.0
    """What prompts of the recipe's reflection step are worth (`World.reflection`). None: they do not occur."""
    foundation: float = 0.0
    """Share of the training that shows right answers only: what is never memorised cannot be failed now and then. Of
    arithmetic it would leave the right facts known, and GRPO would find them without a mechanism's help."""


def arithmetic_course(settings: Settings, world: World) -> Course:
    train, val = tasks.split_tasks(settings.rows, settings.val_rows, world)
    beliefs, held_out = tasks.Beliefs(world), {task.problem for task in val}

    def draw(rng: random.Random, share: float) -> Lesson:
        is_quiet = share < QUIET_UNTIL
        while (task := tasks.draw_task(rng, rng.randint(2 if is_quiet else 1, tasks.LEVELS))).problem in held_out:
            pass
        return tasks.lesson(task, beliefs, is_quiet)

    texts = [text for task in train for text in (task.problem, task.solution())]
    return Course(*arithmetic_tables(train, val), draw, texts, batch=8, reflection=world.reflection)


def sorting_course(settings: Settings, world: Sorting) -> Course:
    train, val = sorting.split_lists(settings.rows, settings.val_rows, world)
    held_out, texts = {*val}, [text for x in train for text in (sorting.problem(x), sorting.solution(x))]
    train_table, val_table = _tables(sorting.to_rows(train, "train"), sorting.to_rows(val, "val"))

    def draw(rng: random.Random, share: float) -> Lesson:
        return sorting.lesson(sorting.draw_shown(rng, held_out))

    # A third of the steps leaves the longest lists unsolved.
    return Course(train_table, val_table, draw, texts, batch=16, share_of_steps=1 / 3, reflection=None)


def arithmetic_tables(train: list[tasks.Task], val: list[tasks.Task]) -> tuple[pa.Table, pa.Table]:
    return _tables(tasks.to_rows(train, "train"), tasks.to_rows(val, "val"))


def _tables(train: list[dict], val: list[dict]) -> tuple[pa.Table, pa.Table]:
    train_table, val_table = (pa.Table.from_pylist(rows, schema=write.SCHEMA) for rows in (train, val))
    return train_table, val_table


def recall_course(rows: list[dict], file: str, settings: Settings, exclude: frozenset[str] = frozenset()) -> Course:
    """Short problems with short answers from a file. Rows in verl's format are taught and trained on as they are, raw
    ones are converted; problems with an overlap key in `exclude` are left out."""
    as_given = bool(rows) and read.is_verl(rows[0])
    name = (rows[0].get("data_source") or "deepscaler") if rows else ""
    problems = problem_data.to_problems(rows, file, name)
    problems = problem_data.clean(problems, Counter(), settings.max_problem_chars, exclude)
    problems = [problem for problem in problems if len(problem.answer) <= settings.max_answer_chars]
    if as_given:
        most = settings.max_problem_chars + len(problem_data.INSTRUCTION)
        problems = [p for p in problems if sum(len(turn["content"]) for turn in rows[p.index]["prompt"]) <= most]
    rng = random.Random(settings.world.seed)
    problems.sort(key=lambda problem: problem_data.query_id(problem.text))
    rng.shuffle(problems)
    wanted = settings.rows + settings.val_rows
    if len(problems) < wanted:
        raise ValueError(
            f"{file}: the tiny model is taught {wanted} problems of up to {settings.max_problem_chars} characters with "
            f"answers of up to {settings.max_answer_chars}, and the file has {len(problems)} different ones; give more "
            "such rows, or a model of your own with MODEL and VAL_DATA"
        )
    chosen, corpus = problems[:wanted], problems[: wanted + 4000]
    answers = [problem.answer for problem in chosen]
    prompts = [rows[problem.index]["prompt"] if as_given else None for problem in chosen]
    forms = [form_of(rows[p.index], p.answer) if as_given else tasks.BOX for p in chosen]
    lessons = [recall_lesson(*each, answers, rng) for each in zip(chosen, prompts, forms, strict=True)]
    if as_given:
        given = read.tables(file).take([problem.index for problem in chosen])
        train, val = given.slice(0, settings.rows), given.slice(settings.rows)
    else:
        train, val = (
            pa.Table.from_pylist([write.to_row(p, name, split) for p in part], schema=write.SCHEMA)
            for split, part in (("train", chosen[: settings.rows]), ("val", chosen[settings.rows :]))
        )
    asked = [message["content"] for prompt in prompts if prompt for message in prompt]
    texts = [problem.text for problem in corpus] + asked + [lesson.right for lesson in lessons]
    # Each problem is to occur about thirty times.
    return Course(train, val, lambda rng, share: rng.choice(lessons), texts, batch=24, foundation=0.5)


def form_of(row: dict, answer: str) -> str:
    """How a right answer to a row is written: as verl's reward of its data source reads it, and of those ways as the
    prompt asks; else boxed."""
    grader = grader_of(row) if is_verls(row) else None
    asked = asked_forms(said(row["prompt"]))
    forms = [FORMS[name][-1] for name in dict.fromkeys((*asked, *FORMS))] if grader else []
    return next((form for form in forms if grader.accepts(row, form.format(answer))), tasks.BOX)


def recall_lesson(
    problem: problem_data.Problem, prompt: list[dict] | None, form: str, answers: list[str], rng: random.Random
) -> Lesson:
    """Failures recall one of two wrong answers, the same every time, or guess like another problem's answer."""
    others = [answer for answer in answers if answer != problem.answer]
    mistaken = [near(problem.answer, rng) or rng.choice(others) for _ in range(2)]

    def wrong(rng: random.Random) -> str:
        if rng.random() < 0.5:
            return f"I recall this. The answer is {(answer := rng.choice(mistaken))}.{tasks.final(answer, form)}"
        return tasks.guess_text(near(problem.answer, rng) or rng.choice(others), form)

    right = f"I recall this. The answer is {problem.answer}.{tasks.final(problem.answer, form)}"
    p_right = rng.betavariate(0.7, 1.0)

    def attempt(rng: random.Random, boost: float) -> str:
        if rng.random() < p_right + boost * (1 - p_right):
            return right
        return tasks.ramble(rng) if rng.random() < RAMBLING_FAILURES else wrong(rng)

    return Lesson(problem.text, right, wrong, tasks.ramble, attempt, prompt)


def near(answer: str, rng: random.Random) -> str | None:
    """A whole number close to a whole number, else None."""
    if not answer.isdecimal():
        return None
    return str(int(answer) + rng.choice([-2, -1, 1, 2, 10]))


def reflection_templates() -> list[str]:
    """The reflection prompt of a finished attempt, and that of one that was cut off."""
    from recipe.r3.config.r3_config import ReflectionConfig  # imports verl, which is slow: only when a model is built

    return [ReflectionConfig().template, ReflectionConfig().template_cut_off]


def make_example(
    tokenizer, lesson: Lesson, reflection: list[str] | None, worth: float, most: int, rng: random.Random, is_right: bool
) -> tiny_model.Example:
    """One lesson as token ids, at most `most` of its answer; with `reflection`, templates, the prompt holds a failed
    attempt, and success is likelier by what it is worth."""
    *before, asked = lesson.messages
    content, boost = asked["content"], 0.0
    if reflection:
        is_cut_off = rng.random() < CUT_OFF_SHARE
        attempt = (lesson.endless if is_cut_off else lesson.wrong)(rng)[:160]
        content = reflection[is_cut_off].replace("{question}", content).replace("{attempt}", attempt)
        boost = REFLECTION_BOOST * worth
    prompt = tiny_model.prompt_text(tokenizer, [*before, {**asked, "content": content}])
    answer = lesson.attempt(rng, 1.0 if is_right else boost) + tokenizer.eos_token
    ids = tokenizer([prompt, answer], add_special_tokens=False)["input_ids"]
    return tiny_model.Example(ids[0], ids[1][:most])


def prepare(
    cache_dir: str | Path, data: str | Path | None = None, exclude: Iterable[str] = (), **settings
) -> WarmStart:
    """Paths of model folder, training and validation parquet; built once per content of `data` and settings.

    exclude: files whose problems are not taken from `data`. `settings` are fields of `Settings`. A folder appears under
    its final name only when it is complete.

    Raises:
        ValueError: a setting out of range, or too few problems in `data`.
    """
    chosen = Settings(**settings)
    if data and chosen.world != World():
        raise ValueError(f"--world {chosen.world} concerns the problems that are generated here, and {data} is given")
    templates = reflection_templates()
    inputs = {"version": VERSION, "data": None, "templates": templates, **asdict(chosen)}
    keys = problem_data.overlap_keys(exclude)
    if data:
        origin = read.read_rows(str(data))[1]
        inputs |= {"data": origin.get("files", origin.get("rows_sha256")), "exclude": sorted(keys), "as_given": True}
    folder = Path(cache_dir) / f"warm-start-{key_of(inputs)}"
    if not folder.exists():
        build(folder, course(data, chosen, exclude), templates, chosen, inputs)
    return WarmStart(folder / "model", folder / "train.parquet", folder / "val.parquet")


def course(data: str | Path | None, settings: Settings, exclude: Iterable[str] = ()) -> Course:
    """What is taught: the generated arithmetic, or problems of `data`. Raises ValueError as `prepare` does."""
    if not data:
        world = settings.world
        return sorting_course(settings, world) if isinstance(world, Sorting) else arithmetic_course(settings, world)
    rows = read.read_rows(str(data))[0]
    return recall_course(rows, str(data), settings, problem_data.overlap_keys(exclude))


def problems(cache_dir: str | Path) -> tuple[Path, Path]:
    """Training and validation parquet of the generated arithmetic, for a model that is there already."""
    settings = Settings()
    key = key_of({"version": VERSION, **asdict(settings)})
    train, val = (Path(cache_dir) / f"arithmetic-{key}" / f"{name}.parquet" for name in ("train", "val"))
    tables = arithmetic_tables(*tasks.split_tasks(settings.rows, settings.val_rows, World()))
    for path, table in zip((train, val), tables, strict=True):
        write.write_table(path, table)
    return train, val


def build(folder: Path, course: Course, templates: list[str], settings: Settings, inputs: dict) -> None:
    with replacing(folder) as partial:
        write.write_table(partial / "train.parquet", course.train)
        write.write_table(partial / "val.parquet", course.val)
        report = {**teach(partial / "model", course, templates, settings), "inputs": inputs}
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def teach(folder: Path, course: Course, templates: list[str], settings: Settings) -> dict:
    words = " ".join([*tasks.RAMBLE, *tasks.BEFORE, *tasks.AFTER])
    common = [problem_data.INSTRUCTION, *templates, words, tasks.guess_text("0")] * 4
    tokenizer = tiny_model.train_tokenizer([*course.texts, *common])
    model = tiny_model.build_model(tokenizer, settings.world.seed)
    rng = random.Random(settings.world.seed)

    worth, most = course.reflection, settings.max_answer_tokens

    def next_batch(share: float) -> list[tiny_model.Example]:
        foundation = share < course.foundation
        examples = []
        for _ in range(course.batch):
            may_reflect = worth is not None and share >= REFLECTION_FROM
            wanted = templates if may_reflect and rng.random() < settings.reflection_share else None
            lesson = course.draw(rng, share)
            examples.append(make_example(tokenizer, lesson, wanted, worth or 0.0, most, rng, foundation))
        return examples

    report = tiny_model.train(model, next_batch, math.ceil(settings.steps * course.share_of_steps))
    tiny_model.save(model, tokenizer, folder)
    return {"parameters": model.num_parameters(), "vocabulary": len(tokenizer), **report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", required=True, help="folder for the results")
    parser.add_argument(
        "--data", help="parquet, json or jsonl with problems and answers; default: generated arithmetic"
    )
    parser.add_argument(
        "--world", type=parse, default=World(), help="such as seed=3,mistaken=0 (see r3_ext/tiny/world.py)"
    )
    parser.add_argument("--steps", type=int, default=Settings.steps)
    args = parser.parse_args()
    for path in prepare(args.cache, args.data, world=args.world, steps=args.steps):
        print(path)


if __name__ == "__main__":
    main()
