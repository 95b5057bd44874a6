"""Rows in verl's format: made of problems, and written as parquet."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.data.problems import Problem
from r3_ext.host.files import replacing, write_text
from r3_ext.host.text import first_line
from recipe.common.reward.judge import BOXED_STYLE

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), ("source", pa.string())])),
    ]
)


def to_row(problem: Problem, data_source: str, split: str) -> dict:
    row = {
        "query_id": problem.query_id,
        "data_source": data_source,
        "prompt": problem.messages,
        "ability": "math",
        "reward_model": {"style": BOXED_STYLE, "ground_truth": problem.answer},
        "extra_info": {"index": problem.index, "split": split, "source": problem.source},
    }
    if problem.judged is None:
        return row
    judged = json.loads(problem.judged)  # such a row keeps its judge
    own = {"data_source": judged["data_source"]}
    return row | own | {"reward_model": {"style": "rule", "ground_truth": judged["ground_truth"]}}


def write_rows(path: str | Path, rows: list[dict], report: dict | None = None) -> None:
    """Parquet, and `report` as JSON beside it; a reader never sees half a file."""
    if not rows:
        raise ValueError(f"{path}: no rows left to write; counts: {(report or {}).get('counts')}")
    path = Path(path)
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA), report)


def write_table(path: Path, table: pa.Table, report: dict | None = None) -> None:
    try:
        with replacing(path) as partial:
            pq.write_table(table, partial, compression="zstd")
            if report is not None:  # before the rows have their name: who finds them takes it that it is there
                write_text(path.with_name(path.name + ".json"), json.dumps(report, indent=2) + "\n")
    except pa.ArrowNotImplementedError as error:  # a group without a value, `{}`, in all rows
        raise ValueError(f"{path}: parquet cannot hold these rows ({first_line(error)})") from error
