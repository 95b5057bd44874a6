"""Grades the answers of a folder, as the reward of the training does, and never generates one.

Writes scores.parquet (a row per answer) and disagreements.jsonl: the answers on which the grader and the plain
comparison of the normalised strings differ, with how often each came.

Answers that were generated elsewhere are scored alike. Their file, parquet, jsonl or json, has the columns problem,
answer and responses (a list of texts), or response (one text per row). A column response_tokens of the same form is
optional; without it there are no figures on tokens.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.data import problems as data
from r3_ext.data import read
from r3_ext.evaluate import EvaluationError, benchmarks, checked, judging, plan
from r3_ext.host.files import write_text
from r3_ext.host.hardware import core_count
from recipe.common.reward.math.answer_text import final_answer, normalize

BATCH = 512

SCORE = pa.schema(
    {"benchmark": plan.TEXT, "index": plan.INT, "query_id": plan.TEXT, "sample": plan.INT}
    | {"correct": pa.bool_(), "strict": pa.bool_(), "timeout": pa.bool_(), "answer": plan.TEXT}
    | {"response_tokens": plan.INT, "truncated": pa.bool_()}
)
"""strict: the normalised strings are equal. timeout: the grader came to no verdict, which counts as wrong. answer:
normalised, null if there is none."""


def grade_folder(folder: Path, tick=lambda rows: None, judge: Callable | None = None) -> None:
    """Write scores.parquet and disagreements.jsonl; `tick` is told the number of rows that are graded.

    judge: called in the place of `judging.Judge`.

    Raises:
        EvaluationError: answers are missing, twice there or damaged.
    """
    problems = {(row["benchmark"], row["index"]): row for row in plan.read_problems(folder)}
    check_complete(folder, problems)
    workers = core_count()
    scores, disagreements = [], Counter()
    with ThreadPoolExecutor(workers) as threads, ExitStack() as stack:
        judge = judge or stack.enter_context(judging.asking(problems, threads, workers))
        for rows in _batches(folder, problems):
            references = [problems[row["benchmark"], row["index"]]["answer"] for row in rows]
            graded = judge(rows, references)
            for row, reference, (answer, verdict) in zip(rows, references, graded, strict=True):
                scores.append(_score(row, reference, answer, verdict))
                if answer is not None and scores[-1]["strict"] != scores[-1]["correct"]:
                    disagreements[row["benchmark"], row["index"], reference, answer, verdict] += 1
            tick(len(scores))
    scores.sort(key=lambda row: (row["benchmark"], row["index"], row["sample"]))
    if len(scores) > len(plan.done(folder)):
        raise EvaluationError(f"{folder}/generations holds some answers twice; remove the part that was copied there")
    plan.write_table(folder / "scores.parquet", scores, SCORE)
    names = ("benchmark", "index", "reference", "answer", "grader")
    lines = [{**dict(zip(names, key, strict=True)), "answers": n} for key, n in sorted(disagreements.items(), key=str)]
    write_text(folder / "disagreements.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _score(row: dict, reference: str, answer: str | None, verdict: bool | None) -> dict:
    normal = None if answer is None else normalize(answer)
    return {
        **{name: row[name] for name in SCORE.names if name in row},
        "correct": verdict is True,
        "strict": normal is not None and normal == normalize(final_answer(reference) or reference),
        "timeout": verdict is None,
        "answer": normal,
    }


def check_complete(folder: Path, problems: dict) -> None:
    keys = plan.done(folder)
    sampling = plan.read_plan(folder)["sampling"]
    if sampling and len(keys) < len(problems) * sampling["n"]:
        raise EvaluationError(
            f"{folder} holds {len(keys):,} of {len(problems) * sampling['n']:,} answers; the `r3 eval --model` command "
            "that began it generates the others. Scoring what is there would favour short answers, which come first"
        )


def _batches(folder: Path, problems: dict) -> Iterator[list[dict]]:
    for part in plan.parts(folder):
        begin = 0
        with plan.readable(part):
            for batch in pq.ParquetFile(part).iter_batches(BATCH):
                rows = batch.to_pylist()
                checked.require_generations(rows, begin, problems, part)
                begin += len(rows)
                yield rows


@dataclass(frozen=True)
class Scores:
    """Of one benchmark: P problems, R answers in order of problem and sample."""

    query_ids: list[str]
    """(P,)"""
    problem_R: np.ndarray
    sample_R: np.ndarray
    correct_R: np.ndarray
    strict_R: np.ndarray
    timeout_R: np.ndarray
    answers: list[str | None]
    """(R,)"""
    tokens_R: np.ndarray
    """NaN: not known."""
    truncated_R: np.ndarray
    """NaN: not known."""

    def sums(self, values_R: np.ndarray) -> np.ndarray:
        """Sum over the answers of each problem, (P,)."""
        return np.bincount(self.problem_R, weights=values_R, minlength=len(self.query_ids))

    @property
    def attempts_P(self) -> np.ndarray:
        return np.bincount(self.problem_R, minlength=len(self.query_ids))

    @property
    def successes_P(self) -> np.ndarray:
        return self.sums(self.correct_R).astype(np.int64)


def read_scores(folder: Path) -> dict[str, Scores]:
    """By benchmark, in the order of the plan."""
    file, wanted = folder / "scores.parquet", plan.read_plan(folder)["benchmarks"]
    table = plan.read_table(file, SCORE)
    checked.require_scores(table.to_pylist(), wanted, file)
    names = np.array(table["benchmark"].to_pylist())
    return {name: _scores(table.filter(pa.array(names == name))) for name in wanted}


def _scores(table: pa.Table) -> Scores:
    columns = table.to_pydict()
    by_index = dict(zip(columns["index"], columns["query_id"], strict=True))
    position = {index: at for at, index in enumerate(by_index)}
    nan = float("nan")
    return Scores(
        query_ids=list(by_index.values()),
        problem_R=np.array([position[index] for index in columns["index"]]),
        sample_R=np.array(columns["sample"]),
        correct_R=np.array(columns["correct"]),
        strict_R=np.array(columns["strict"]),
        timeout_R=np.array(columns["timeout"]),
        answers=columns["answer"],
        tokens_R=np.array([nan if value is None else value for value in columns["response_tokens"]], dtype=float),
        truncated_R=np.array([nan if value is None else value for value in columns["truncated"]], dtype=float),
    )


def read_responses(file: Path) -> tuple[dict, list[dict], list[dict]]:
    """Plan, problems and generations of a file of answers that were generated elsewhere."""
    try:
        rows, origin = read.read_rows(str(file))
        problems = checked.problems_of(rows, file)
    except (ValueError, OSError, RecursionError, pa.ArrowException) as error:
        raise EvaluationError(f"{file}: {str(error).removeprefix(str(file)).lstrip(':, ')}") from error
    first: dict[str, data.Problem] = {}
    answers: dict[str, list[dict]] = {}
    for problem, row in zip(problems, rows, strict=True):
        same = first.setdefault(problem.query_id, problem)
        if data.normal_form(same.answer) != data.normal_form(problem.answer):
            raise EvaluationError(
                f"{file}, rows {same.index} and {problem.index}: one problem with the answers {same.answer!r} and "
                f"{problem.answer!r}; correct one of them"
            )
        answers.setdefault(problem.query_id, []).extend(checked.responses_of(row, f"{file}, row {problem.index}"))
    name, digest = benchmarks.name_of(list(first.values()), file.stem)
    benchmark = benchmarks.Benchmark(name, str(file), digest, list(first.values()))
    model = {"path": f"answers of {file.name}", "fingerprint": origin["files"][file.name]}
    generations = [
        {"benchmark": name, "index": index, "query_id": query_id, "sample": k, **answer}
        for index, query_id in enumerate(first)
        for k, answer in enumerate(answers[query_id])
    ]
    return plan.make_plan(model, [benchmark], None), plan.problem_rows([benchmark], None), generations


def write_responses(folder: Path, content: dict, problems: list[dict], generations: list[dict]) -> None:
    """A folder like that of `r3 eval --model`."""
    plan.begin(folder, content, problems)
    plan.write_table(folder / "generations" / "000-00000.parquet", generations, plan.GENERATION)
