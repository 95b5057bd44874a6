"""What an evaluation is going to do, written down before it starts, and the files of its folder.

    plan.json           model with a sha256 of its weights, benchmarks with theirs, sampling settings
    problems.parquet    benchmark, index, query_id, problem, answer, prompt, judged: scoring needs no other file
    prompts.parquet     of a probe: what is asked in place of problem and instruction
    generations/        parts with one row per answer (`GENERATION`)
    scores.parquet, results.json, results.md, disagreements.jsonl      see score.py

A folder goes on only under the plan it was begun with. Every file appears complete or not at all.
"""

import dataclasses
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.data import problems as data
from r3_ext.evaluate import EvaluationError, checked
from r3_ext.evaluate.benchmarks import Benchmark
from r3_ext.host.files import replacing, sha256, write_text

FORMAT = 1
WEIGHTS = ("*.safetensors", "*.bin")
MODEL_FILES = (*WEIGHTS, "*.json", "*.jinja", "*.model", "*.txt")
"""Weights, configuration, tokenizer, chat template: what decides which tokens a model gives."""
SHARDS = "model_world_size_*_rank_*.pt"

INT, TEXT = pa.int32(), pa.string()
PROBLEM = pa.schema(
    {"benchmark": TEXT, "index": INT, "query_id": TEXT, "problem": TEXT, "answer": TEXT, "prompt": TEXT}
    | {"judged": TEXT}
)
"""prompt, judged: of `data.Problem`, the messages as JSON."""
KEY = pa.schema({"benchmark": TEXT, "index": INT, "sample": INT})
PROMPT = pa.schema({"benchmark": TEXT, "index": INT, "token_ids": pa.list_(INT)})
GENERATION = pa.schema(
    {"benchmark": TEXT, "index": INT, "query_id": TEXT, "sample": INT, "seed": pa.int64(), "prompt_tokens": INT}
    | {"response": pa.large_string(), "response_tokens": INT, "finish_reason": TEXT, "truncated": pa.bool_()}
)

Prompts = dict[tuple[str, int], list[int]]
"""Token ids by benchmark and index."""


@dataclass(frozen=True)
class Sampling:
    n: int
    """Answers per problem."""
    max_tokens: int
    """Longest response; one that reaches it without an end token is truncated."""
    temperature: float
    top_p: float
    seed: int
    limit: int | None
    """First problems of each benchmark; None: all."""

    def __post_init__(self):
        for name in ("n", "max_tokens", "limit"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, "at least 1", value)
        _require(self.seed >= 0, "seed", "0 or more", self.seed)
        _require(0 <= self.temperature < float("inf"), "temperature", "0 or more", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        if self.temperature == 0 and self.n > 1:
            raise EvaluationError(f"--n must be 1 at --temperature 0, where all answers are alike, got {self.n}")


def _require(ok: bool, name: str, rule: str, value) -> None:
    if not ok:
        raise EvaluationError(f"--{name.replace('_', '-')} must be {rule}, got {value}")


class Request(NamedTuple):
    benchmark: str
    index: int
    query_id: str
    sample: int
    seed: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.benchmark, self.index, self.sample


def request_seed(seed: int, query_id: str, sample: int) -> int:
    """63 bits that depend on nothing else: not on n, on other problems, or on where an evaluation was interrupted."""
    return int(sha256(f"{seed}/{query_id}/{sample}")[:16], 16) >> 1


def requests(problems: list[dict], sampling: Sampling) -> list[Request]:
    """All answers to generate, in order."""
    return [
        Request(row["benchmark"], row["index"], row["query_id"], k, request_seed(sampling.seed, row["query_id"], k))
        for row in problems
        for k in range(sampling.n)
    ]


def model_folder(model: str) -> Path:
    """The local folder of a model: the given one, or that of a model of the Hugging Face hub, downloaded if needed."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if folder.exists() or model.startswith((".", "/", "~")):
            raise EvaluationError(f"--model {model}: no such folder; pass a folder with config.json or a hub id")
        from huggingface_hub import snapshot_download  # slow to import, and not needed for a folder

        try:
            return model_folder(snapshot_download(model, allow_patterns=list(MODEL_FILES)))
        except (OSError, ValueError) as error:
            raise EvaluationError(f"--model {model}: no such folder, and not from the hub: {error}") from error
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        for shards in (folder, folder / "actor", folder.parent):
            if any(shards.glob(SHARDS)):
                raise EvaluationError(
                    f"--model {model} is a checkpoint of verl in FSDP shards, which vLLM does not load; merge it: "
                    f"python -m verl.model_merger merge --backend fsdp --local_dir {shards} --target_dir MERGED, "
                    "then evaluate --model MERGED"
                )
        raise EvaluationError(f"--model {model}: no weights in it, expected {' or '.join(WEIGHTS)}")
    return folder.resolve()


def fingerprint(folder: Path) -> str:
    """sha256 over names and contents of the model's files."""
    files = sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern) if file.is_file()})
    return sha256(*(part for file in files for part in (f"{file.name}\0{file.stat().st_size}\0", file)))


def make_plan(
    model: dict, benchmarks: list[Benchmark], sampling: Sampling | None, template_kwargs: dict | None = None
) -> dict:
    """Content of plan.json; without sampling for answers that were generated elsewhere.

    template_kwargs: further arguments of the chat template.
    """
    asked = {"template_kwargs": template_kwargs} if template_kwargs else {}
    return asked | {
        "format": FORMAT,
        "model": model,
        "benchmarks": {b.name: {"file": b.file, "hash": b.hash, "problems": len(b.problems)} for b in benchmarks},
        "sampling": dataclasses.asdict(sampling) if sampling else None,
    }


def problem_rows(benchmarks: list[Benchmark], limit: int | None) -> list[dict]:
    return [
        {"benchmark": b.name, "index": i, "query_id": p.query_id, "problem": p.text, "answer": p.answer}
        | {"prompt": None if p.prompt is None else data.said(p.prompt), "judged": p.judged}
        for b in benchmarks
        for i, p in enumerate(b.problems[:limit])
    ]


def _facts(value, key: str = "") -> dict:
    """Leaves of a plan by dotted key, without where things lie."""
    if isinstance(value, dict):
        return {k: v for name, part in value.items() for k, v in _facts(part, f"{key}.{name}".lstrip(".")).items()}
    return {} if key.endswith((".path", ".file")) else {key: value}


def begin(folder: Path, plan: dict, problems: list[dict], prompts: Prompts | None = None) -> None:
    """Make the folder of a plan, or check that the folder there has the same one.

    prompts: what to ask, where it is not each problem's own prompt, or the problem with `data.INSTRUCTION`.
    """
    if prompts is not None:
        rows = [{"benchmark": name, "index": i, "token_ids": ids} for (name, i), ids in prompts.items()]
        plan = plan | {"prompts": sha256(json.dumps(rows))}
    if (folder / "plan.json").exists():
        there, asked = _facts(read_plan(folder)), _facts(plan)
        differing = [key for key in {**there, **asked} if there.get(key) != asked.get(key)]
        if differing:
            values = ", ".join(f"{key} ({there.get(key)} there, {asked.get(key)} asked for)" for key in differing)
            raise EvaluationError(f"{folder} holds another evaluation: {values}; name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    # First the plan, which says whose the folder is.
    write_text(folder / "plan.json", json.dumps(plan, indent=2) + "\n")
    (folder / "generations").mkdir(exist_ok=True)
    if prompts is not None:
        write_table(folder / "prompts.parquet", rows, PROMPT)
    write_table(folder / "problems.parquet", problems, PROBLEM)


def read_plan(folder: Path) -> dict:
    file = folder / "plan.json"
    if not file.is_file():
        raise EvaluationError(f"{folder} is not a folder of `r3 eval`: there is no plan.json in it")
    try:
        plan = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{file} is damaged ({error}); restore it, or evaluate into another folder") from error
    checked.require_plan(plan, file, FORMAT)
    return plan


def read_problems(folder: Path) -> list[dict]:
    file = folder / "problems.parquet"
    with readable(file):
        table = pq.read_table(file)
        for name in ("prompt", "judged"):  # a version before asked every problem with the instruction, and graded it
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table)))
        rows = table.select(PROBLEM.names).cast(PROBLEM).to_pylist()
    checked.require_problems(rows, read_plan(folder)["benchmarks"], file)
    return rows


def read_prompts(folder: Path) -> Prompts | None:
    """None where each problem is asked as problems.parquet says."""
    if "prompts" not in read_plan(folder):
        return None
    rows = read_table(folder / "prompts.parquet", PROMPT).to_pylist()
    return {(row["benchmark"], row["index"]): row["token_ids"] for row in rows}


def problem_of(row: dict) -> data.Problem:
    """The problem of a row of problems.parquet."""
    prompt = None if row["prompt"] is None else tuple(json.loads(row["prompt"]))
    return data.Problem(row["problem"], row["answer"], row["benchmark"], row["index"], prompt, row["judged"])


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "generations").glob("*.parquet"))


def done(folder: Path) -> set[tuple[str, int, int]]:
    """Keys of the answers that are there."""
    columns = [read_table(part, KEY).to_pydict() for part in parts(folder)]
    return {key for column in columns for key in zip(*column.values(), strict=True)}


def read_table(file: Path, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`."""
    with readable(file):
        return pq.read_table(file, columns=schema.names).cast(schema)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """What is wrong with a file of ours, as a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise EvaluationError(f"{file} is missing; `r3 eval score` makes scores, `r3 eval --model` the rest") from error
    except (ValueError, OSError, pa.ArrowException) as error:
        way = "delete it, and the same command generates its answers again"
        way = way if file.parent.name == "generations" else "delete it and run the command that wrote it again"
        raise EvaluationError(f"{file} is damaged ({error}); {way}") from error


def write_table(file: Path, rows: list[dict], schema: pa.Schema) -> None:
    with replacing(file) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, compression="zstd")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock: two evaluations would generate the same answers.

    Raises:
        EvaluationError: another evaluation holds it, it holds files of others, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A lock or a torn file of ours may lie there before the plan does.
        found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise EvaluationError(f"{folder} cannot be made: {error.strerror}; name another folder with --out") from error
    if found and "plan.json" not in found:
        raise EvaluationError(
            f"{folder} holds {', '.join(found[:3])} and no evaluation, and stays as it is; name another with --out"
        )
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EvaluationError(f"{folder}: another `r3 eval` is writing here; wait for it or use --out") from error
        yield
