"""Who judges the answers of an evaluation: whoever does in a training on the same rows.

That is the grader, but for rows in verl's format whose `data_source` verl has a reward for.
"""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from omegaconf import OmegaConf

from r3_ext.evaluate import EvaluationError
from recipe.common.reward.function import Verdict
from recipe.common.reward.judge import PROGRAMS_S, RUN_PROGRAMS, TIMEOUT_S, Judges, verls_faults
from recipe.common.reward.math.answer_text import final_answer
from recipe.common.reward.math.pool import grade
from recipe.common.reward.truths import OWN_MANAGER

CONFIG = OmegaConf.create({"reward": {"reward_manager": {"source": "importlib", "module": {"path": OWN_MANAGER}}}})
ANSWER = re.compile(r"####[ \t]*([^\n]+)|<answer>(.*?)</answer>", re.DOTALL)
"""Where an answer stands that is in no box."""
NO_PRED = "[INVALID]"
"""What verl's reward of DAPO's mathematics calls no answer."""


class Grader:
    """Verdicts by answer and reference: most of the answers to a problem are alike and need one verdict."""

    def __init__(self, threads: ThreadPoolExecutor, workers: int):
        self.threads, self.workers = threads, workers
        self.verdicts: dict[tuple[str, str], bool | None] = {}

    def __call__(self, rows: list[dict], references: list[str]) -> list[tuple[str | None, bool | None]]:
        """Raw answer, None if there is none, and verdict, None if none was reached, of each response."""
        responses = [row["response"] for row in rows]
        answers = [final_answer(response) for response in responses]
        pairs = list(zip(answers, references, strict=True))
        fresh = {
            pair: response
            for pair, response in zip(pairs, responses, strict=True)
            if pair[0] is not None and pair not in self.verdicts
        }
        verdicts = self.threads.map(
            lambda item: grade(item[1], [item[0][1]], TIMEOUT_S, self.workers), list(fresh.items())
        )
        self.verdicts |= dict(zip(fresh, verdicts, strict=True))
        return [
            (answer, self.verdicts[answer, reference] if answer is not None else False) for answer, reference in pairs
        ]


class VerlsRewards:
    """Verdicts by response, and by data source and ground truth as `data.Problem.judged` has them."""

    def __init__(self, sources: set[str], threads: ThreadPoolExecutor, workers: int):
        timeout_s = PROGRAMS_S if sources & {*RUN_PROGRAMS} else TIMEOUT_S
        for fault in (fault for source in sorted(sources) for fault in verls_faults(source, timeout_s)):
            raise EvaluationError(fault)
        self.threads, self.judges = threads, Judges(CONFIG, timeout_s, workers)
        self.verdicts: dict[tuple[str, str], Verdict] = {}

    def __call__(self, rows: list[dict], judged: list[str]) -> list[tuple[str | None, bool | None]]:
        """As `Grader`."""
        asked = [(truth, row["response"]) for truth, row in zip(judged, rows, strict=True)]
        fresh = [each for each in dict.fromkeys(asked) if each not in self.verdicts]
        self.verdicts |= dict(zip(fresh, self.threads.map(self._ask, fresh), strict=True))
        return [self._told(response, self.verdicts[truth, response]) for truth, response in asked]

    def _ask(self, asked: tuple[str, str]) -> Verdict:
        judged = json.loads(asked[0])
        row = {"data_source": judged["data_source"], "reward_model": {"ground_truth": judged["ground_truth"]}}
        return self.judges(row, asked[1])

    def _told(self, response: str, verdict: Verdict) -> tuple[str | None, bool | None]:
        return answer_of(response, verdict.pred), None if verdict.error else self.judges.is_correct(verdict)


def answer_of(response: str, pred: str | None = None) -> str | None:
    """What a response answers, for the figures besides right and wrong; pred: what verl's reward took for it."""
    if pred is not None:
        return None if pred == NO_PRED else pred
    found = ANSWER.findall(response)
    return (found[-1][0] or found[-1][1]).strip() if found else final_answer(response)


class Judge:
    """Verdicts on answers to the problems of a plan.

    Args:
        problems: rows of problems.parquet by benchmark and index.
    """

    def __init__(self, problems: Mapping[tuple, dict], grader: Grader, verls: VerlsRewards | None):
        self.problems, self.grader, self.verls = problems, grader, verls

    def __call__(self, rows: list[dict], references: list[str]) -> list[tuple[str | None, bool | None]]:
        """As `Grader`."""
        judged = [self.problems[row["benchmark"], row["index"]]["judged"] for row in rows]
        found: dict[int, tuple[str | None, bool | None]] = {}
        for ask, told, chosen in (
            (self.grader, references, [i for i, each in enumerate(judged) if each is None]),
            (self.verls, judged, [i for i, each in enumerate(judged) if each is not None]),
        ):
            if chosen and ask is not None:
                found |= dict(zip(chosen, ask([rows[i] for i in chosen], [told[i] for i in chosen]), strict=True))
        return [found[i] for i in range(len(rows))]


@contextmanager
def asking(problems: Mapping[tuple, dict], threads: ThreadPoolExecutor, workers: int) -> Iterator[Judge]:
    """The judge of the problems of a plan, whose processes end with the block.

    Raises:
        EvaluationError: verl's reward of a data source cannot judge here.
    """
    sources = {json.loads(row["judged"])["data_source"] for row in problems.values() if row["judged"] is not None}
    verls = VerlsRewards(sources, threads, workers) if sources else None
    try:
        yield Judge(problems, Grader(threads, workers), verls)
    finally:
        if verls is not None:
            verls.judges.close()
