"""Training and validation files: can they be read, and has every row what verl and the recipe need?"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_r3, not_set
from r3_ext.doctor.model_files import VERL_DEFAULT_PATHS
from recipe.r3.query_ids import check_query_ids

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLE_ROWS = 64
"""Rows per data file that are rendered and looked at closely, evenly spaced."""


@dataclass
class DataFile:
    path: Path
    columns: list[str]
    rows: int
    named_prompts: list[tuple] = field(default_factory=list)
    """(query_id, prompt) of every row, where there are both columns."""
    sample: list[dict] = field(default_factory=list)
    """At most SAMPLE_ROWS rows, evenly spaced."""


def read_data(path: str) -> DataFile:
    """Raises OSError or ValueError when the file cannot be read (pyarrow's errors are of these two kinds)."""
    file = Path(path).expanduser()
    stat = file.stat()
    return _read_data(file, stat.st_mtime_ns, stat.st_size)


@lru_cache
def _read_data(file: Path, modified: int, size: int) -> DataFile:
    if file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(file)
        columns, rows = table.column_names, table.num_rows
        named = []
        if {"query_id", "prompt"} <= set(columns):
            named = list(zip(*(table.column(name).to_pylist() for name in ("query_id", "prompt")), strict=True))
        return DataFile(file, columns, rows, named, table.take(pyarrow.array(spaced(rows), "int64")).to_pylist())
    from r3_ext.data import read_rows

    rows = read_rows(str(file))[0]
    columns = sorted({column for row in rows for column in row})
    named = [(row.get("query_id"), row.get("prompt")) for row in rows] if "query_id" in columns else []
    return DataFile(file, columns, len(rows), named, [rows[index] for index in spaced(len(rows))])


def spaced(rows: int) -> list[int]:
    """At most SAMPLE_ROWS row numbers: 0, 2, 4, ... for twice as many rows."""
    return [index * rows // min(rows, SAMPLE_ROWS) for index in range(min(rows, SAMPLE_ROWS))]


def data_files(config: DictConfig) -> list[tuple[str, list[str]]]:
    """(key, paths) of the training and validation files; files on HDFS are left to verl."""
    files = []
    for key in ("train_files", "val_files"):
        paths = config.data[key] or []
        paths = [paths] if isinstance(paths, str) else list(paths)
        files.append((f"data.{key}", [path for path in paths if not path.startswith("hdfs://")]))
    return files


def readable_data(config: DictConfig) -> list[tuple[str, DataFile]]:
    """(key, content) of every file that can be read and has rows."""
    found = []
    for key, paths in data_files(config):
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                found += [(key, data)] if (data := read_data(path)).rows else []
    return found


def check_data(config: DictConfig) -> list[Finding]:
    findings = []
    for key, paths in data_files(config):
        if any(path in VERL_DEFAULT_PATHS for path in paths):
            findings.append(not_set("data", key))
            continue
        rows = 0
        for path in paths:
            findings += file_findings(config, key, path)
            with contextlib.suppress(OSError, ValueError):
                rows += read_data(path).rows
        limit = config.data.get("train_max_samples", -1)
        rows = min(rows, limit) if limit > 0 else rows
        if key == "data.train_files" and 0 < rows < config.data.train_batch_size:
            found = f"{rows} training rows, data.train_batch_size={config.data.train_batch_size}"
            findings.append(Finding(FAIL, "data", found, "lower data.train_batch_size, or use more data"))
    return findings + (shared_ids(config) if is_r3(config) else [])


def file_findings(config: DictConfig, key: str, path: str) -> list[Finding]:
    try:
        data = read_data(path)
    except FileNotFoundError:
        advice = f"set {key}; examples/data_preprocess makes such files"
        return [Finding(FAIL, "data", f"{path} does not exist", advice)]
    except (OSError, ValueError) as error:
        return [Finding(FAIL, "data", f"{path}: {str(error).splitlines()[0]}", "prepare the file again")]
    name = data.path.name
    if data.rows == 0:
        return [Finding(FAIL, "data", f"{name} has no rows", f"set {key} to a file with data")]
    missing = [column for column in ("prompt", "reward_model", "data_source") if column not in data.columns]
    if missing:
        advice = "examples/data_preprocess writes verl's columns and a stable query_id per problem"
        return [Finding(FAIL, "data", f"{name} lacks {', '.join(missing)}; it has {', '.join(data.columns)}", advice)]
    findings = bad_rows(data)
    if "extra_info" not in data.columns:
        findings.append(Finding(WARN, "data", f"{name} lacks extra_info", "verl goes on with an empty one"))
    if not findings:
        findings.append(Finding(OK, "data", f"{name}: {data.rows:,} rows"))
    if is_r3(config) and key == "data.train_files" and "query_id" not in data.columns:
        found = f"{name} has no query_id: ids are made from prompt and answer"
        findings.append(Finding(OK, "data", found))
    return findings


def shared_ids(config: DictConfig) -> list[Finding]:
    """An id that stands for different prompts, in one training file or in two of them."""
    named = [row for key, data in readable_data(config) if key == "data.train_files" for row in data.named_prompts]
    try:
        check_query_ids(*zip(*named, strict=True)) if named else None
    except ValueError as error:
        found, _, advice = str(error).partition("; ")
        return [Finding(FAIL, "data", found, advice)]
    return []


def bad_rows(data: DataFile) -> list[Finding]:
    """The first sampled row that verl or the reward manager could not use."""
    for row in data.sample:
        prompt, reward = row["prompt"], row["reward_model"]
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        truths = truth if isinstance(truth, list) else [truth]
        if not truths or any(value is None or not str(value).strip() for value in truths):
            found = f"{data.path.name}: reward_model.ground_truth is {truth!r}"
            return [Finding(FAIL, "data", found, "every row needs an answer, or a list of accepted answers")]
        is_chat = isinstance(prompt, list) and prompt and all(isinstance(turn, dict) for turn in prompt)
        if not is_chat or not all(turn.get("role") and turn.get("content") for turn in prompt):
            found = f"{data.path.name}: prompt is {str(prompt)[:60]!r}"
            return [Finding(FAIL, "data", found, "a prompt is a list of messages with role and content")]
    return []
