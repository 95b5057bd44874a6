"""What the reward of the training says of the answers of a probe: the recipe's grader, or a function of the user's."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from omegaconf import DictConfig

from r3_ext.evaluate import EvaluationError
from recipe.common.outcome import correct_from
from recipe.common.reward.function import Verdict
from recipe.common.reward.manager import RewardConfig, make_function, question, references
from recipe.common.reward.math.pool import grade

GRADER = "the grader"


@dataclass(frozen=True)
class Judge:
    """Verdicts by problem and text; each pair is asked once."""

    name: str
    ask: Callable[[dict, str], Verdict]
    """Of a row and a text."""
    correct_from: float
    rows: list[dict]
    """In verl's format, by the index of their problem."""
    threads: ThreadPoolExecutor
    asked: dict[tuple[int, str], Verdict] = field(default_factory=dict)

    def verdicts(self, answers: Iterable[tuple[int, str]]) -> list[Verdict]:
        """Of texts with the indices of their problems.

        Raises:
            EvaluationError: there is none for any of them.
        """
        answers = list(answers)
        fresh = [answer for answer in dict.fromkeys(answers) if answer not in self.asked]
        given = self.threads.map(lambda answer: self.ask(self.rows[answer[0]], answer[1]), fresh)
        self.asked.update(zip(fresh, given, strict=True))
        found = [self.asked[answer] for answer in answers]
        if found and all(verdict.error for verdict in found):
            raise EvaluationError(f"{self.name} gave a score for no answer; for the first it {found[0].error}")
        return found

    def is_correct(self, verdict: Verdict) -> bool:
        return verdict.is_correct(self.correct_from)

    def __call__(self, rows: list[dict], references: list[str]) -> list[tuple[None, bool | None]]:
        """As `score.Grader`, for `score.grade_folder`."""
        found = self.verdicts((row["index"], row["response"]) for row in rows)
        return [(None, None if verdict.error else self.is_correct(verdict)) for verdict in found]

    @property
    def failures(self) -> int:
        """Answers without a score, which count as wrong."""
        return sum(verdict.error is not None for verdict in self.asked.values())


@contextmanager
def asking(config: DictConfig, rows: list[dict]) -> Iterator[Judge]:
    """The reward function that the config names, in processes of its own, or else the grader.

    Raises:
        ValueError: the grader is to read a ground truth that is no answer.
    """
    workers = os.cpu_count() or 1
    timeout_s = RewardConfig.from_reward_kwargs(config.reward.get("reward_kwargs")).grader_timeout_s
    function, named = make_function(config, timeout_s, workers), config.reward.get("custom_reward_function")

    def ask_function(row: dict, text: str) -> Verdict:
        # A question and an answer, as verl counts the turns of what R^3 trains on.
        return function(*question({**row, "__num_turns__": 2}, text))

    def ask_grader(row: dict, text: str) -> Verdict:
        verdict = grade(text, references(row), timeout_s, workers)
        return Verdict(float(verdict is True), error=None if verdict is not None else "came to no verdict in time")

    with ThreadPoolExecutor(workers) as threads:
        if function is None:
            for row in rows:
                references(row)
            yield Judge(GRADER, ask_grader, 1.0, rows, threads)
            return
        try:
            yield Judge(f"{named.path}:{named.name}", ask_function, correct_from(config), rows, threads)
        finally:
            function.close()
