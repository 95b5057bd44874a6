"""Training and validation files: can they be read, and has every row what verl and the recipe need?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from r3_ext.data import check as rows
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_r3, not_set
from r3_ext.doctor.model_files import VERL_DEFAULT_PATHS
from r3_ext.host.text import first_line
from r3_ext.recipes import plays_sessions
from recipe.common.query_ids import check_query_ids
from recipe.common.reward.judge import TIMEOUT_S, verls_faults
from recipe.common.row_files import rows_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from r3_ext.data.check import DataFile


def read_data(config: DictConfig, path: str) -> DataFile:
    """Raises OSError or ValueError when the file cannot be read."""
    return rows.read(path, config.data.get("prompt_key", "prompt"), rows.may_be_any_truth(config))


def data_files(config: DictConfig) -> list[tuple[str, list[str]]]:
    """(key, paths) of the training and validation files; files on HDFS are left to verl."""
    files = []
    for key in ("train_files", "val_files"):
        paths = config.data[key] or []
        paths = [str(path) for path in ([paths] if isinstance(paths, str | int | float) else paths)]
        files.append((f"data.{key}", [path for path in paths if not path.startswith("hdfs://")]))
    return files


def readable_data(config: DictConfig) -> list[tuple[str, DataFile]]:
    """(key, content) of every file that can be read and has rows."""
    found = []
    for key, paths in data_files(config):
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                found += [(key, data)] if (data := read_data(config, path)).rows else []
    return found


def check_data(config: DictConfig) -> list[Finding]:
    findings = []
    for key, paths in data_files(config):
        if any(path in VERL_DEFAULT_PATHS for path in paths):
            findings.append(not_set("data", key))
            continue
        number = 0
        for path in paths:
            findings += file_findings(config, key, path)
            with contextlib.suppress(OSError, ValueError):
                number += read_data(config, path).rows
        limit = config.data.get("train_max_samples", -1)
        number = min(number, limit) if limit > 0 else number
        if key == "data.train_files" and 0 < number < config.data.train_batch_size:
            found = f"{number} training rows, data.train_batch_size={config.data.train_batch_size}"
            findings.append(Finding(FAIL, "data", found, "lower data.train_batch_size, or use more data"))
    return findings + unequal_types(config) + (shared_ids(config) if is_r3(config) else [])


def check_worlds(config: DictConfig) -> list[Finding]:
    """What the rows of sessions are played with; of rows that `r3 run` will make, TextWorld."""
    if not plays_sessions(config):
        return []
    from recipe.hgpo.environments.base import adapter

    paths = [Path(path) for _, paths in data_files(config) for path in paths if path not in VERL_DEFAULT_PATHS]
    first = [next(rows_of(path, ["task"]), {}).get("task") or {} for path in paths if path.is_file()]
    worlds = {str(task.get("world")) for task in first} or {"textworld"}
    faults = []
    for world in sorted(worlds):
        try:
            adapter(world)
        except ValueError as error:
            faults.append(Finding(FAIL, "worlds", str(error), "bash examples/install.sh --games, or mend the rows"))
    return faults or [Finding(OK, "worlds", ", ".join(sorted(worlds)))]


def unequal_types(config: DictConfig) -> list[Finding]:
    """Columns that verl's dataset cannot hold, or cannot put together from several files."""
    import pyarrow
    import pyarrow.parquet
    from datasets import Features

    findings = []
    for key, paths in data_files(config):
        schemas = {}
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                if (data := read_data(config, path)).path.suffix == ".parquet":
                    schemas[data.path.name] = pyarrow.parquet.read_schema(data.path)
        try:
            for name, schema in schemas.items():
                Features.from_arrow_schema(schema)
            name = ", ".join(schemas)
            pyarrow.unify_schemas(list(schemas.values())) if schemas else None
        except (ValueError, TypeError, NotImplementedError) as error:  # of Arrow and of datasets
            found = f"{name}: {first_line(error)}"
            findings.append(Finding(FAIL, "data", found, f"write the files of {key} with plain columns of equal types"))
    return findings


def file_findings(config: DictConfig, key: str, path: str) -> list[Finding]:
    try:
        data = read_data(config, path)
    except FileNotFoundError:
        advice = f"set {key}; examples/data_preprocess makes such files"
        return [Finding(FAIL, "data", f"{path} does not exist", advice)]
    except (OSError, ValueError) as error:
        found = first_line(error)
        found = found if path in found else f"{path}: {found}"
        return [Finding(FAIL, "data", found, "prepare the file again")]
    name = data.path.name
    if data.rows == 0:
        return [Finding(FAIL, "data", f"{name} has no rows", f"set {key} to a file with data")]
    if missing := data.missing(config.data.get("prompt_key", "prompt")):
        advice = "examples/data_preprocess writes verl's columns and a stable query_id per problem"
        return [Finding(FAIL, "data", f"{name} lacks {', '.join(missing)}; it has {', '.join(data.columns)}", advice)]
    findings = [Finding(FAIL, "data", f"{name}, {fault}", fault.rule) for fault in data.faults]
    findings += judges(config, data)
    if "extra_info" not in data.columns:
        findings.append(Finding(WARN, "data", f"{name} lacks extra_info", "verl goes on with an empty one"))
    findings += answerable(data)
    if not findings:
        findings.append(Finding(OK, "data", f"{name}: {counted(data)}"))
    if key == "data.train_files":
        findings += copies(data)
    if is_r3(config) and key == "data.train_files" and "query_id" not in data.columns:
        found = f"{name} has no query_id: ids are made from prompt and answer"
        findings.append(Finding(OK, "data", found))
    return findings


def judges(config: DictConfig, data: DataFile) -> list[Finding]:
    """What verl's rewards lack that judge rows of the file."""
    if rows.may_be_any_truth(config):
        return []
    timeout_s = OmegaConf.select(config, "reward.reward_kwargs.grader_timeout_s", default=TIMEOUT_S)
    faults = [fault for source in sorted(data.verls) for fault in verls_faults(source, timeout_s)]
    parts = [fault.rpartition(": ") for fault in faults]
    return [Finding(FAIL, "data", f"{data.path.name}, {found}", advice) for found, _, advice in parts]


def counted(data: DataFile) -> str:
    """Rows, and problems where some are asked in several rows."""
    problems = len(data.problems)
    return f"{data.rows:,} rows" + (f", {problems:,} problem{'s' * (problems > 1)}" if 0 < problems < data.rows else "")


COPIES = 2
"""Rows of each problem, on average, from which on a file looks as if it held copies by mistake."""


def copies(data: DataFile) -> list[Finding]:
    """A problem in several rows is asked several times in each epoch."""
    if data.rows < COPIES * max(len(data.problems), 1):
        return []
    advice = "an epoch asks each problem as often; leave the copies out if that is not meant"
    return [Finding(WARN, "data", f"{data.path.name}: {counted(data)}", advice)]


def answerable(data: DataFile) -> list[Finding]:
    """Rows whose reference their own grader does not accept. The file is not ours to change."""
    hopeless = data.asked.hopeless()
    others = [source for source in data.asked.rows if source not in hopeless]
    found = [
        Finding(level, "data", f"{data.path.name}, {sentence}", advice)
        for level, sources, advice in ((FAIL, hopeless, rows.NO_ROW), (WARN, others, rows.LEAVE_OUT))
        for sentence in data.asked.sentences(sources)
    ]
    return found


def shared_ids(config: DictConfig) -> list[Finding]:
    """An id that stands for different prompts, in one training file or in two of them."""
    training = [data for key, data in readable_data(config) if key == "data.train_files"]
    if any(fault.column == "query_id" for data in training for fault in data.faults):
        return []  # told already
    named = [row for data in training for row in data.named_prompts]
    try:
        check_query_ids(*zip(*named, strict=True)) if named else None
    except ValueError as error:
        found, _, advice = str(error).partition("; ")
        return [Finding(FAIL, "data", found, advice)]
    return []
