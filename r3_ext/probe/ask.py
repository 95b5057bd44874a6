"""What a probe asks: a sample of the problems twice as often as a group has answers, then the hard ones with a past
wrong attempt, in the prompts that training would give them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from omegaconf import DictConfig

from r3_ext import data
from r3_ext.evaluate import EvaluationError, plan, score
from r3_ext.evaluate.benchmarks import Benchmark, content_hash
from r3_ext.probe.quantities import Plain, Reflected, is_hard
from recipe.r3.r3_config import R3Config
from recipe.r3.reflection import build_reflection_messages

NAME = "probe"
"""Of the problems, in the place of a benchmark's."""
AHEAD = 2
"""Response limits after which a plain answer is ended: how those that training cuts off go on is what tells whether
the ranking foresees it."""

Messages = list[dict]
Asked = list[tuple[data.Problem, Messages]]


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

    def token_ids(self, text: str, limit: int) -> list[int]:
        """Token ids of an answer up to the limit."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"][:limit]

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


def read_problems(source: str) -> Asked:
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


def sample(problems: Asked, count: int, seed: int, chat: Chat, limit: int) -> Asked:
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


@dataclass(frozen=True)
class Questions:
    """The two rounds of a probe, each in a folder like that of `r3 eval`."""

    folder: Path
    config: DictConfig
    r3: R3Config
    model: dict
    """Path and fingerprint."""
    source: str
    asked: Asked
    chat: Chat
    seed: int
    answer: Callable[[Path, int], None]
    """Generates what is missing of so many answers of a folder, and grades them."""

    @property
    def limit(self) -> int:
        """Of a response of the training, in tokens."""
        return self.config.data.max_response_length

    @property
    def n(self) -> int:
        return self.config.actor_rollout_ref.rollout.n

    @property
    def plain_folder(self) -> Path:
        return self.folder / "plain"

    @property
    def reflection_folder(self) -> Path:
        return self.folder / "reflection"

    def sampling(self, n: int, longest: int) -> plan.Sampling:
        rollout = self.config.actor_rollout_ref.rollout
        return plan.Sampling(n, longest, rollout.temperature, rollout.top_p, self.seed, None)

    def ask_plainly(self) -> Plain:
        """Every problem, as two epochs would."""
        benchmark = self._benchmark([problem for problem, _ in self.asked])
        sampling = self.sampling(2 * self.n, AHEAD * self.limit)
        prompts = {(NAME, index): self.chat.prompt(messages) for index, (_, messages) in enumerate(self.asked)}
        content, rows = plan.make_plan(self.model, [benchmark], sampling), plan.problem_rows([benchmark], None)
        plan.begin(self.plain_folder, content, rows, prompts)
        self.answer(self.plain_folder, len(rows) * sampling.n)
        return plain_answers(score.read_scores(self.plain_folder)[NAME], self.limit)

    def ask_with_reflection(self, plain: Plain) -> Reflected:
        """The hard problems, as the second epoch would."""
        hard_P = is_hard(plain.correct_PA[:, : plain.n], self.r3.reflection.threshold)
        prompts = self._reflection_prompts(plain, np.flatnonzero(hard_P).tolist())
        if not prompts:
            return Reflected(hard_P, np.zeros_like(hard_P), np.zeros(len(hard_P)), np.zeros(len(hard_P)))
        rows = [row for row in plan.read_problems(self.plain_folder) if row["index"] in prompts]
        benchmark = self._benchmark([self.asked[row["index"]][0] for row in rows])
        sampling = self.sampling(self.n, self.limit)
        own = {(NAME, index): token_ids for index, token_ids in prompts.items()}
        with plan.only_writer(self.reflection_folder):
            plan.begin(self.reflection_folder, plan.make_plan(self.model, [benchmark], sampling), rows, own)
            self.answer(self.reflection_folder, len(rows) * sampling.n)
        return reflected_answers(score.read_scores(self.reflection_folder)[NAME], hard_P, sorted(prompts))

    def _benchmark(self, problems: list[data.Problem]) -> Benchmark:
        return Benchmark(NAME, self.source, content_hash(problems), problems)

    def _reflection_prompts(self, plain: Plain, hard: list[int]) -> dict[int, list[int]]:
        """By problem, where it fits its budget: with an attempt of the first n answers, as after an epoch."""
        settings, texts = self.r3.reflection, answer_texts(self.plain_folder)
        prompts = {}
        for index in hard:
            problem, messages = self.asked[index]
            wrong = np.flatnonzero(~plain.correct_PA[index, : plain.n]).tolist()
            chosen = random.Random(f"{self.seed}/{NAME}/{problem.query_id}").choice(wrong)
            made = build_reflection_messages(
                messages,
                self.chat.token_ids(texts[index, chosen], self.limit),
                settings.template_cut_off if plain.cut_PA[index, chosen] else settings.template,
                settings.cut,
                settings.budget(self.config.data.max_prompt_length),
                lambda candidate: len(self.chat.prompt(candidate)),
                self.chat.text,
            )
            if made is not None:
                prompts[index] = self.chat.prompt(made)
        return prompts

    def tokens(self) -> dict[str, dict[str, int]]:
        """What each round cost: generated tokens, and those of the prompts, once for each answer."""
        rounds = {}
        for folder in (self.plain_folder, self.reflection_folder):
            rows = list(answer_rows(folder, ["response_tokens", "prompt_tokens"]))
            if rows:
                counts = {"generated": "response_tokens", "prompts": "prompt_tokens"}
                rounds[folder.name] = {name: sum(row[column] for row in rows) for name, column in counts.items()}
        return rounds


def plain_answers(scores: score.Scores, limit: int) -> Plain:
    """The graded answers, as training at this limit would have them."""
    shape = len(scores.query_ids), -1
    tokens_PA, correct_PA = scores.tokens_R.reshape(shape), scores.correct_R.reshape(shape)
    cut_PA = tokens_PA > limit
    return Plain(correct_PA & ~cut_PA, cut_PA, np.minimum(tokens_PA, limit))


def reflected_answers(scores: score.Scores, hard_P: np.ndarray, asked: list[int]) -> Reflected:
    """The graded answers to the reflection prompts of the problems `asked`, in their order."""
    right_P, tokens_P = np.zeros(len(hard_P)), np.zeros(len(hard_P))
    right_P[asked] = scores.sums(scores.correct_R & (scores.truncated_R == 0))
    tokens_P[asked] = scores.sums(scores.tokens_R)
    return Reflected(hard_P, np.isin(np.arange(len(hard_P)), asked), right_P, tokens_P)


def answer_texts(folder: Path) -> dict[tuple[int, int], str]:
    """By problem and sample."""
    return {
        (row["index"], row["sample"]): row["response"] for row in answer_rows(folder, ["index", "sample", "response"])
    }


def answer_rows(folder: Path, columns: list[str]) -> Iterator[dict]:
    for part in plan.parts(folder):
        with plan.readable(part):
            yield from pq.read_table(part, columns=columns).to_pylist()
