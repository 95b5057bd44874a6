"""Files as a user gives them, raw and in verl's format, for the tests of what `r3 run` trains on."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.settings import prepare

TRAIN, VAL, MODEL = prepare.TRAIN, prepare.VAL, prepare.MODEL


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def raw(path: Path, *names: str) -> Path:
    return write_lines(path, [{"problem": f"What is {name}?", "answer": "1"} for name in names])


def verl_row(problem: str, **changed) -> dict:
    system = {"role": "system", "content": "Be brief."}
    return {
        "prompt": [system, {"role": "user", "content": f"What is {problem}? Answer in a box."}],
        "reward_model": {"style": "rule", "ground_truth": ["5", "5.0"]},
        "data_source": "mine",
        "query_id": f"id of {problem}",
        "level": 3,
    } | changed


def verl_file(path: Path, *problems: str) -> Path:
    table = pa.Table.from_pylist([verl_row(problem) for problem in problems])
    pq.write_table(table.replace_schema_metadata({"kept": "as it was"}), path)
    return path
