"""What the reward of the training says of the answers of a probe (recipe/common/reward/judge.py)."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from omegaconf import DictConfig

from r3_ext.evaluate import EvaluationError
from r3_ext.host.hardware import core_count
from recipe.common.reward import judge as judging
from recipe.common.reward.function import Verdict
from recipe.common.reward.manager import RewardConfig

NAMES = {judging.GRADER: "the grader", judging.VERL: "verl's reward"}


@dataclass(frozen=True)
class Judge:
    """Verdicts by problem and text; each pair is asked once."""

    name: str
    judges: judging.Judges
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
        given = self.threads.map(lambda answer: self.ask(*answer), fresh)
        self.asked.update(zip(fresh, given, strict=True))
        found = [self.asked[answer] for answer in answers]
        if found and all(verdict.error for verdict in found):
            raise EvaluationError(f"{self.name} gave a score for no answer; for the first it {found[0].error}")
        return found

    def ask(self, index: int, text: str) -> Verdict:
        # A question and an answer, as verl counts the turns of what R^3 trains on.
        return self.judges({**self.rows[index], "__num_turns__": 2}, text)

    def is_correct(self, verdict: Verdict) -> bool:
        return self.judges.is_correct(verdict)

    def __call__(self, rows: list[dict], references: list[str]) -> list[tuple[None, bool | None]]:
        """As `judging.Grader`, for `score.grade_folder`."""
        found = self.verdicts((row["index"], row["response"]) for row in rows)
        return [(None, None if verdict.error else self.is_correct(verdict)) for verdict in found]

    @property
    def failures(self) -> int:
        """Answers without a score, which count as wrong."""
        return sum(verdict.error is not None for verdict in self.asked.values())


@contextmanager
def asking(config: DictConfig, rows: list[dict]) -> Iterator[Judge]:
    """Whoever judges the rows in a training with this config, in processes of its own.

    Raises:
        ValueError: the grader is to read a ground truth that is no answer; verl's reward cannot judge here.
    """
    workers = core_count()
    timeout_s = RewardConfig.from_reward_kwargs(config.reward.get("reward_kwargs")).grader_timeout_s
    asked = [judging.judge_of(row, config) for row in rows]
    for fault in judging.source_faults(rows, config):
        raise ValueError(fault)
    for row, judge in zip(rows, asked, strict=True):
        if judge == judging.GRADER:
            judging.references(row)
    judges = judging.Judges(config, timeout_s, workers)
    name = judging.own_function(config) or " and ".join(NAMES[judge] for judge in sorted({*asked}))
    try:
        with ThreadPoolExecutor(workers) as threads:
            yield Judge(name, judges, rows, threads)
    finally:
        judges.close()
