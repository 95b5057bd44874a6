"""What files of answers, plans and scores must hold. They may come from somebody else, or be edited by hand."""

from collections.abc import Iterable
from pathlib import Path

from r3_ext.data import problems as data
from r3_ext.evaluate import EvaluationError
from r3_ext.host.text import short

MOST_TOKENS = 1 << 31


def is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS


def problems_of(rows: list[dict], file: Path) -> list[data.Problem]:
    """The problems of rows with answers; raises EvaluationError with the first row that is none."""
    for index, row in enumerate(rows):
        if "prompt" in row and "reward_model" in row:
            _require_contract(row, f"{file}, row {index}")
    require_one_answer(rows, file)
    problems = data.to_problems(rows, str(file), file.stem)
    for problem in problems:
        for name, text in (("problem", problem.text), ("answer", problem.answer)):
            if not text:
                raise EvaluationError(f"{file}, row {problem.index}: {name} must not be empty")
    return problems


def _require_contract(row: dict, where: str) -> None:
    prompt, reward = row["prompt"], row["reward_model"]
    turns = isinstance(prompt, list) and prompt and all(isinstance(turn, dict) for turn in prompt)
    if not turns or not isinstance(prompt[-1].get("content"), str):
        raise EvaluationError(f"{where}: prompt must be a list of turns with role and content, got {short(prompt)}")
    if not isinstance(reward, dict) or "ground_truth" not in reward:
        raise EvaluationError(f"{where}: reward_model must have a ground_truth, got {short(reward)}")
    if not isinstance(row.get("data_source"), str):
        raise EvaluationError(f"{where}: data_source must be text, got {short(row.get('data_source'))}")
    if not isinstance(row.get("extra_info") or {}, dict):
        raise EvaluationError(f"{where}: extra_info must be an object, got {short(row['extra_info'])}")


def require_one_answer(rows: list[dict], file: Path) -> None:
    """Raise EvaluationError with the first row in verl's format that accepts several answers, of which one is kept."""
    for index, row in enumerate(rows):
        reward = row.get("reward_model")
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        if isinstance(truth, list) and len({data.normal_form(str(value)) for value in truth}) > 1:
            raise EvaluationError(
                f"{file}, row {index}: any of the answers {short(truth)} is right, and an evaluation grades against "
                "one alone, as a training's validation does not; leave one in a copy of the file, or leave the row out"
            )


def refuse_sessions(rows: list[dict], file: Path) -> None:
    """Raise EvaluationError where a row is a task to be played in several turns."""
    if any(isinstance(row.get("task"), dict) for row in rows):
        raise EvaluationError(
            f"{file} has the column task: its rows are played in several turns, and an evaluation asks for one answer; "
            "play them with a checkpoint of a run by `r3 run --method hgpo trainer.val_only=True trainer.resume_mode="
            f"resume_path trainer.resume_from_path=RUN/checkpoints/global_step_N data.val_files={file}`"
        )


def responses_of(row: dict, where: str) -> list[dict]:
    """The answers of a row, each with its length or None."""
    texts, tokens = row.get("responses", row.get("response")), row.get("response_tokens")
    texts = [texts] if isinstance(texts, str) else texts
    tokens = tokens if isinstance(tokens, list) or tokens is None else [tokens]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise EvaluationError(f"{where}: responses must be a list of texts, or response a text, got {short(texts)}")
    if tokens is not None and len(tokens) != len(texts):
        raise EvaluationError(f"{where}: response_tokens must have one number per response, got {len(tokens)}")
    lengths = [_length(value, where) for value in tokens or [None] * len(texts)]
    return [{"response": text, "response_tokens": n} for text, n in zip(texts, lengths, strict=True)]


def _length(value, where: str) -> int | None:
    if value is None or value != value:  # NaN, which pandas writes for a missing value
        return None
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if not is_count(number):
        raise EvaluationError(f"{where}: response_tokens must be whole numbers from 0 to 2^31 - 1, got {short(value)}")
    return number


def require_plan(plan: object, file: Path, form: int) -> None:
    """Raise EvaluationError unless the content of plan.json is a plan."""
    if not isinstance(plan, dict) or plan.get("format") != form:
        raise EvaluationError(f"{file} must be a plan of format {form}; evaluate into another folder")
    model, parts, sampling = plan.get("model"), plan.get("benchmarks"), plan.get("sampling")
    rules = {
        "model": isinstance(model, dict) and all(isinstance(model.get(key), str) for key in ("path", "fingerprint")),
        "benchmarks": isinstance(parts, dict)
        and bool(parts)
        and all(isinstance(part, dict) and isinstance(part.get("hash"), str) for part in parts.values()),
        "sampling": sampling is None
        or (isinstance(sampling, dict) and all(is_count(sampling.get(key)) for key in ("n", "max_tokens"))),
    }
    for key, holds in rules.items():
        if not holds:
            raise EvaluationError(f"{file}: {key} is not that of a plan, got {short(plan.get(key))}; put a copy back")


def require_problems(rows: list[dict], names: Iterable[str], file: Path) -> None:
    """Raise EvaluationError unless every row is a problem of a benchmark of the plan, and every benchmark has some."""
    names = set(names)
    for number, row in enumerate(rows):
        for key in ("benchmark", "index", "query_id", "problem", "answer"):
            if row[key] is None:
                raise EvaluationError(f"{file}, row {number}: {key} is null; put a copy of the file back")
    if (found := {row["benchmark"] for row in rows}) != names:
        raise EvaluationError(f"{file} has problems of {sorted(found)}, and plan.json of {sorted(names)}")


def require_generations(rows: list[dict], begin: int, problems: dict, file: Path) -> None:
    """Raise EvaluationError with the first row that is no answer to one of the problems; `begin` is its first row."""
    for number, row in enumerate(rows, begin):
        key, where = (row.get("benchmark"), row.get("index")), f"{file}, row {number}"
        if key not in problems:
            raise EvaluationError(f"{where}: the plan has no problem {key[1]} of benchmark {key[0]}; delete the file")
        if row.get("query_id") != problems[key]["query_id"]:
            raise EvaluationError(
                f"{where}: is of query {short(row.get('query_id'))}, not of {problems[key]['query_id']}"
            )
        if not is_count(row.get("sample")) or not isinstance(row.get("response"), str):
            raise EvaluationError(f"{where}: sample must be a number and response a text; delete the file")
        _length(row.get("response_tokens"), where)


def require_scores(rows: list[dict], names: Iterable[str], file: Path) -> None:
    """Raise EvaluationError with the first row of scores.parquet that cannot be a score."""
    way, seen, ids = "; `r3 eval score` writes the file again", set(), {}
    for number, row in enumerate(rows):
        where = f"{file}, row {number}"
        for key in ("benchmark", "query_id", "correct", "strict", "timeout"):
            if row[key] is None:
                raise EvaluationError(f"{where}: {key} is null{way}")
        for key in ("index", "sample", "response_tokens"):
            if not is_count(row[key]) and (key != "response_tokens" or row[key] is not None):
                raise EvaluationError(f"{where}: {key} must be 0 or more, got {row[key]}{way}")
        problem = row["benchmark"], row["index"]
        if (*problem, row["sample"]) in seen or ids.setdefault(problem, row["query_id"]) != row["query_id"]:
            raise EvaluationError(f"{where}: is there twice, or another row gives its problem another query_id{way}")
        seen.add((*problem, row["sample"]))
    if missing := set(names) - {name for name, _ in ids}:
        raise EvaluationError(f"{file} has no row of benchmark {', '.join(sorted(missing))}{way}")
