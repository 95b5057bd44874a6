"""What a probe asks: a sample of the problems twice as often as a group has answers, then the hard ones with a past
wrong attempt, in the prompts that training would give them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from omegaconf import DictConfig

from r3_ext.data import problems as data
from r3_ext.data import read, write
from r3_ext.data.convert import DEEPSCALER
from r3_ext.evaluate import EvaluationError, plan, score
from r3_ext.evaluate.benchmarks import Benchmark, content_hash
from r3_ext.r3.probe.judge import Judge
from r3_ext.r3.probe.quantities import Plain, Reflected, is_hard
from r3_ext.r3.probe.sooner import all_wrong
from recipe.r3.config.r3_config import NEXT_VISIT, R3Config
from recipe.r3.reflection import build_reflection_messages

NAME = "probe"
"""Of the problems, in the place of a benchmark's."""
PLAIN = "plain"
"""Folder of the answers to plain prompts."""
AHEAD = 2
"""Response limits after which a plain answer is ended: how those that training cuts off go on is what tells whether
the ranking foresees it."""

Messages = list[dict]
Asked = list[tuple[data.Problem, dict]]
"""Problems with their rows in verl's format, as training has them."""


class Chat:
    """The model's tokenizer and chat template, as the rollout worker applies them."""

    def __init__(self, model: Path, trust_remote_code: bool, template: str | None, template_kwargs: dict):
        from transformers import AutoTokenizer  # slow to import

        self.tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
        if template is not None:
            self.tokenizer.chat_template = template
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
    """Every problem of the training data with its row. Raises ValueError with file and row."""
    rows = read.read_rows(source)[0]
    counts = Counter()
    problems = data.clean(data.to_problems(rows, source, NAME), counts)
    if not problems:
        raise ValueError(f"--data {source} has no usable problem, {dict(counts)}")
    as_given = read.is_verl(column for row in rows for column in row)
    return [(p, rows[p.index] if as_given else write.to_row(p, DEEPSCALER, "train")) for p in problems]


def sample(problems: Asked, count: int, seed: int, chat: Chat, limit: int) -> Asked:
    """At most `count` of the problems whose prompts have at most `limit` tokens, drawn by the seed."""
    drawn = random.Random(f"{seed}/{NAME}").sample(problems, len(problems))
    found = []
    for problem, row in drawn:
        if len(found) == count:
            break
        if len(chat.prompt(row["prompt"])) <= limit:
            found.append((problem, row))
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
    judge: Judge

    @property
    def limit(self) -> int:
        """Of a response of the training, in tokens."""
        return self.config.data.max_response_length

    @property
    def n(self) -> int:
        return self.config.actor_rollout_ref.rollout.n

    @property
    def plain_folder(self) -> Path:
        return self.folder / PLAIN

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
        prompts = {(NAME, index): self.chat.prompt(row["prompt"]) for index, (_, row) in enumerate(self.asked)}
        content, rows = plan.make_plan(self.model, [benchmark], sampling), plan.problem_rows([benchmark], None)
        plan.begin(self.plain_folder, content, rows, prompts)
        self.answer(self.plain_folder, len(rows) * sampling.n)
        scores = score.read_scores(self.plain_folder)[NAME]
        return plain_answers(scores, self.limit, *self._within_limit(scores))

    @cached_property
    def _plain_texts(self) -> dict[tuple[int, int], str]:
        return answer_texts(self.plain_folder)

    def _within_limit(self, scores: score.Scores) -> tuple[np.ndarray, np.ndarray]:
        """Of the plain answers as far as training would let them go: right, score; (R,) each."""
        pairs, ends = zip(scores.problem_R, scores.sample_R, strict=True), []
        for pair, tokens in zip(pairs, scores.tokens_R, strict=True):
            text = self._plain_texts[pair]
            if tokens > self.limit:
                text = self.chat.text(self.chat.token_ids(text, self.limit))
            ends.append((pair[0], text))
        found = self.judge.verdicts(ends)
        return np.array([*map(self.judge.is_correct, found)]), np.array([verdict.score for verdict in found])

    def ask_with_reflection(self, plain: Plain) -> Reflected:
        """The hard problems, as the second epoch would; where all-wrong groups are asked sooner, these."""
        settings = self.r3.reflection
        sooner = settings.when != NEXT_VISIT
        hard_P = all_wrong(plain) if sooner else is_hard(plain.correct_PA[:, : plain.n], settings.threshold)
        prompts = self._reflection_prompts(plain, np.flatnonzero(hard_P).tolist())
        if not prompts:
            return Reflected(hard_P, np.zeros_like(hard_P), *np.zeros((3, len(hard_P))))
        rows = [row for row in plan.read_problems(self.plain_folder) if row["index"] in prompts]
        benchmark = self._benchmark([self.asked[row["index"]][0] for row in rows])
        sampling = self.sampling(self.n, self.limit)
        own = {(NAME, index): token_ids for index, token_ids in prompts.items()}
        with plan.only_writer(self.reflection_folder):
            plan.begin(self.reflection_folder, plan.make_plan(self.model, [benchmark], sampling), rows, own)
            self.answer(self.reflection_folder, len(rows) * sampling.n)
        scores = score.read_scores(self.reflection_folder)[NAME]
        return reflected_answers(scores, self._drawable(scores), hard_P, sorted(prompts))

    def _drawable(self, scores: score.Scores) -> np.ndarray:
        """(R,) the right answers under reflection that replay may draw into groups of the plain prompt."""
        replay, texts = self.r3.replay, answer_texts(self.reflection_folder)
        if replay.outcome == "wrong":
            return np.zeros_like(scores.correct_R)
        # texts have the order of scores: by problem and sample.
        return scores.correct_R & np.array([not replay.speaks_of_attempt(texts[key]) for key in sorted(texts)])

    def _benchmark(self, problems: list[data.Problem]) -> Benchmark:
        return Benchmark(NAME, self.source, content_hash(problems), problems)

    def _reflection_prompts(self, plain: Plain, hard: list[int]) -> dict[int, list[int]]:
        """By problem, where it fits its budget: with one of the wrong first n answers as the attempt."""
        settings, texts = self.r3.reflection, self._plain_texts
        prompts = {}
        for index in hard:
            problem, row = self.asked[index]
            wrong = np.flatnonzero(~plain.correct_PA[index, : plain.n]).tolist()
            chosen = random.Random(f"{self.seed}/{NAME}/{problem.query_id}").choice(wrong)
            made = build_reflection_messages(
                row["prompt"],
                self.chat.token_ids(texts[index, chosen], self.limit),
                settings.template_cut_off if plain.cut_PA[index, chosen] else settings.template,
                self.config.data.max_prompt_length,
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


def plain_answers(scores: score.Scores, limit: int, right_R: np.ndarray, score_R: np.ndarray) -> Plain:
    """The answers as training at this limit would have them; right and score are those of the text up to there."""
    columns = right_R, scores.tokens_R > limit, np.minimum(scores.tokens_R, limit), score_R
    return Plain(*(column.reshape(len(scores.query_ids), -1) for column in columns))


def reflected_answers(scores: score.Scores, drawable_R: np.ndarray, hard_P: np.ndarray, asked: list[int]) -> Reflected:
    """The graded answers to the reflection prompts of the problems `asked`, in their order."""
    sums_3P = np.zeros((3, len(hard_P)))
    sums_3P[:, asked] = [scores.sums(values_R) for values_R in (scores.correct_R, drawable_R, scores.tokens_R)]
    return Reflected(hard_P, np.isin(np.arange(len(hard_P)), asked), *sums_3P)


def answer_texts(folder: Path) -> dict[tuple[int, int], str]:
    """By problem and sample."""
    return {
        (row["index"], row["sample"]): row["response"] for row in answer_rows(folder, ["index", "sample", "response"])
    }


def answer_rows(folder: Path, columns: list[str]) -> Iterator[dict]:
    for part in plan.parts(folder):
        with plan.readable(part):
            yield from pq.read_table(part, columns=columns).to_pylist()
