"""What a probe asks: a sample of the problems twice as often as a group has answers, then the hard ones with a past
wrong attempt, in the prompts that training would give them."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from r3_ext import data
from r3_ext.evaluate import EvaluationError, plan, score
from r3_ext.evaluate.benchmarks import Benchmark, content_hash
from r3_ext.probe.quantities import Plain, Reflected, is_hard
from recipe.r3.r3_config import ReflectionConfig
from recipe.r3.reflection import build_reflection_messages

NAME = "probe"
"""Of the problems, in the place of a benchmark's."""
AHEAD = 2
"""Response limits after which a plain answer is ended: how those that training cuts off go on is what tells whether
the ranking foresees it."""

Messages = list[dict]


@dataclass(frozen=True)
class Limits:
    """Of a prompt and of a response, in tokens."""

    prompt: int
    response: int


class Chat:
    """The model's tokenizer and chat template, as the rollout worker applies them."""

    def __init__(self, model: Path, trust_remote_code: bool, template_kwargs: dict):
        from transformers import AutoTokenizer  # slow to import

        self.tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        if self.tokenizer.chat_template is None:
            raise EvaluationError(f"the tokenizer in {model} has no chat template; put a chat_template.jinja there")
        self.template_kwargs = template_kwargs

    def prompt(self, messages: Messages) -> list[int]:
        template = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **self.template_kwargs}
        return list(self.tokenizer.apply_chat_template(messages, **template))

    def attempt(self, text: str, limit: int) -> list[int]:
        """Token ids of an answer up to the limit."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"][:limit]

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


def read_problems(source: str) -> list[tuple[data.Problem, Messages]]:
    """Every problem of the training data with its prompt. Raises ValueError with file and row."""
    rows = data.read_rows(source)[0]
    counts = Counter()
    problems = data.clean(data.to_problems(rows, source, NAME), counts)
    if not problems:
        raise ValueError(f"--data {source} has no usable problem, {dict(counts)}")
    as_given = data.is_verl(column for row in rows for column in row)
    return [(p, rows[p.index]["prompt"] if as_given else plain_messages(p)) for p in problems]


def plain_messages(problem: data.Problem) -> Messages:
    return [{"role": "user", "content": problem.text + data.INSTRUCTION}]


def sample(
    problems: list[tuple[data.Problem, Messages]], count: int, seed: int, chat: Chat, limit: int
) -> list[tuple[data.Problem, Messages]]:
    """At most `count` of the problems whose prompts have at most `limit` tokens, drawn by the seed."""
    drawn = random.Random(f"{seed}/{NAME}").sample(problems, len(problems))
    found = []
    for problem, messages in drawn:
        if len(found) == count:
            break
        if len(chat.prompt(messages)) <= limit:
            found.append((problem, messages))
    if not found:
        raise ValueError(f"every prompt is longer than data.max_prompt_length={limit}; raise it")
    return found


def begin_plain(
    folder: Path, model: dict, source: str, asked: list[tuple[data.Problem, Messages]], chat: Chat, drawn: plan.Sampling
) -> int:
    """Write what is asked; returns the number of answers."""
    problems = [problem for problem, _ in asked]
    benchmark = Benchmark(NAME, source, content_hash(problems), problems)
    prompts = {(NAME, index): chat.prompt(messages) for index, (_, messages) in enumerate(asked)}
    plan.begin(folder, plan.make_plan(model, [benchmark], drawn), plan.problem_rows([benchmark], None), prompts)
    return len(problems) * drawn.n


def plain_answers(folder: Path, limit: int) -> Plain:
    """The graded answers, as training at this limit would have them."""
    scores = score.read_scores(folder)[NAME]
    shape = len(scores.query_ids), -1
    tokens_PA, correct_PA = scores.tokens_R.reshape(shape), scores.correct_R.reshape(shape)
    cut_PA = tokens_PA > limit
    return Plain(correct_PA & ~cut_PA, cut_PA, np.minimum(tokens_PA, limit))


def reflection_prompts(
    folder: Path, asked: list[tuple[data.Problem, Messages]], plain: Plain, settings: ReflectionConfig, chat: Chat,
    limits: Limits, seed: int
) -> tuple[np.ndarray, dict[int, list[int]]]:  # fmt: skip
    """(P,) who is hard, and by problem the reflection prompt of each hard one that fits its budget.

    Hard, and the attempt, are settled by the first n answers, as after an epoch.
    """
    first_PN = plain.correct_PA[:, : plain.n]
    hard_P = is_hard(first_PN, settings.threshold)
    attempts = _texts(folder)
    prompts = {}
    for index in np.flatnonzero(hard_P).tolist():
        problem, messages = asked[index]
        wrong = np.flatnonzero(~first_PN[index]).tolist()
        chosen = random.Random(f"{seed}/{NAME}/{problem.query_id}").choice(wrong)
        template = settings.template_cut_off if plain.cut_PA[index, chosen] else settings.template
        made = build_reflection_messages(
            messages,
            chat.attempt(attempts[index, chosen], limits.response),
            template,
            settings.cut,
            settings.budget(limits.prompt),
            lambda candidate: len(chat.prompt(candidate)),
            chat.text,
        )
        if made is not None:
            prompts[index] = chat.prompt(made)
    return hard_P, prompts


def _texts(folder: Path) -> dict[tuple[int, int], str]:
    """Answers by problem and sample."""
    columns = ["index", "sample", "response"]
    return {(row["index"], row["sample"]): row["response"] for row in _rows(folder, columns)}


def _rows(folder: Path, columns: list[str]) -> Iterator[dict]:
    for part in plan.parts(folder):
        with plan.readable(part):
            yield from pq.read_table(part, columns=columns).to_pylist()


def tokens(folder: Path) -> dict[str, int]:
    """What the answers of a folder cost: generated tokens, and those of the prompts, once for each answer."""
    found = list(_rows(folder, ["response_tokens", "prompt_tokens"]))
    return {name: sum(row[f"{kind}_tokens"] for row in found) for name, kind in
            {"generated": "response", "prompts": "prompt"}.items()}  # fmt: skip


def begin_reflection(
    folder: Path, model: dict, plain_folder: Path, prompts: dict[int, list[int]], drawn: plan.Sampling
) -> int:
    """Write which hard problems are asked again, under their numbers; returns the number of answers."""
    rows = [row for row in plan.read_problems(plain_folder) if row["index"] in prompts]
    problems = [data.Problem(row["problem"], row["answer"], NAME, row["index"]) for row in rows]
    benchmark = Benchmark(NAME, str(plain_folder), content_hash(problems), problems)
    own = {(NAME, index): ids for index, ids in prompts.items()}
    plan.begin(folder, plan.make_plan(model, [benchmark], drawn), rows, own)
    return len(rows) * drawn.n


def reflected_answers(folder: Path, hard_P: np.ndarray, prompts: dict[int, list[int]]) -> Reflected:
    """The graded answers to reflection prompts; `folder` is read where there is a prompt."""
    right_P, tokens_P = np.zeros(len(hard_P)), np.zeros(len(hard_P))
    asked = sorted(prompts)
    if asked:
        scores = score.read_scores(folder)[NAME]
        right_P[asked] = scores.sums(scores.correct_R & (scores.truncated_R == 0))
        tokens_P[asked] = scores.sums(scores.tokens_R)
    return Reflected(hard_P, np.isin(np.arange(len(hard_P)), asked), right_P, tokens_P)
