"""Problems, files and scored folders, for the tests of `r3 eval`."""

import json
from pathlib import Path

from r3_ext.data import problems as data
from r3_ext.evaluate import benchmarks, plan, score

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "released.jsonl"


def problem(text: str, answer: str = "1", index: int = 0) -> data.Problem:
    return data.Problem(text, answer, "test", index)


def write_jsonl(file: Path, rows: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scored(folder: Path, successes: dict[str, int], n: int = 16, tokens=lambda k: 100, name="mine", extra="") -> Path:
    """A scored folder: problem -> how many of its n answers are right, the right ones last; tokens(k) long."""
    problems = [problem(text + extra) for text in successes]
    benchmark = benchmarks.Benchmark(name, "file", benchmarks.content_hash(problems), problems)
    rows = plan.problem_rows([benchmark], None)
    sampling = plan.Sampling(n, 8192, 0.6, 0.95, 0, None)
    plan.begin(folder, plan.make_plan({"path": str(folder), "fingerprint": "f"}, [benchmark], sampling), rows)
    answers = []
    for request in plan.requests(rows, sampling):
        right = request.sample >= n - list(successes.values())[request.index]
        text = {"response": rf"\boxed{{{int(right)}}}", "response_tokens": tokens(request.sample)}
        answers.append({**request._asdict(), **text, "truncated": False, "finish_reason": "stop"})
    plan.write_table(folder / "generations" / "000-00000.parquet", answers, plan.GENERATION)
    score.grade_folder(folder)
    return folder
