"""Rows of local files and folders (parquet, JSON, JSON lines, Arrow) and of the hub; errors name the file."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3_ext.host import hub
from r3_ext.host.files import sha256
from r3_ext.host.text import first_line, is_utf8

SUFFIXES = (".parquet", ".jsonl", ".json", ".arrow")
SPLITS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev", "eval"), "validation"
)
"""Words in a file's name that say which split it holds."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""What `save_to_disk` of `datasets` writes beside the rows of one split, and beside the folders of several."""
MAX_DEPTH = 50
"""Lists and groups in each other that a value of JSON may hold: many that read it count on Python's recursion."""


def read_rows(source: str, split: str = "train", revision: str | None = None) -> tuple[list[dict], dict]:
    """Rows of a local file, of the data files of a local folder, or of a data set on the Hugging Face hub.

    The second value says where they came from: file names with sha256, or hub id with a sha256 over the rows.
    """
    files = local_files(source)
    if files is None:
        return _read_hub(source, split, revision)
    rows = [row for file in files for row in read_file(file)]
    return rows, {"source": source, "files": {file.name: sha256(file) for file in files}}


def local_files(source: str) -> list[Path] | None:
    """The data files of a folder, or the file itself; None for a name that can only be one on the hub.

    Raises ValueError for a path that does not exist, a folder without data or with several splits, and a file of
    another type.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _files_of(path)
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path}: file type must be one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
        return [path]
    if path.suffix in SUFFIXES or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source):
        raise ValueError(f"{source}: no such file or folder; pass an existing one or a Hugging Face data set id")
    return None


def _files_of(folder: Path) -> list[Path]:
    if (folder / SAVED_SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{SAVED}"))
        raise ValueError(f"{folder} holds the splits {', '.join(splits)}; name one of their folders: {folder}/SPLIT")
    if (folder / SAVED).is_file() and any(folder.glob("*.arrow")):
        return _saved_files(folder)
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and not p.name.endswith(".parquet.json"))
    if not files:
        inner = next((p.parent for p in sorted(folder.glob("*/*")) if p.suffix in SUFFIXES), None)
        way = f"; there are some in {inner}" if inner else ""
        raise ValueError(f"{folder}: no data file found; expected files ending in {', '.join(SUFFIXES)}{way}")
    splits = {split: file.name for file in files if (split := _split_of(file))}
    if len(splits) > 1:
        found = ", ".join(f"{split} ({name})" for split, name in sorted(splits.items()))
        raise ValueError(f"{folder} holds files of several splits: {found}; name one file, or a folder with one split")
    return files


def _split_of(file: Path) -> str | None:
    """`train-00000-of-00002.parquet`: train; None for a name that tells of no split, or of more than one."""
    found = {SPLITS[word] for word in re.split(r"[^a-z]+", file.stem.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def _saved_files(folder: Path) -> list[Path]:
    """The files that hold the rows: `map` and `filter` leave others of the same kind beside them."""
    try:
        state = json.loads((folder / SAVED).read_text())
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / SAVED} is not that of `save_to_disk` ({error!r}); save it again") from error


def _read_hub(name: str, split: str, revision: str | None) -> tuple[list[dict], dict]:
    rows = load_from_hub(name, split, revision).to_list()
    digest = sha256(json.dumps(rows, sort_keys=True, default=str))
    return rows, {"source": name, "split": split, "revision": revision, "rows_sha256": digest}


def load_from_hub(name: str, split: str = "train", revision: str | None = None):
    """The `datasets.Dataset`. Raises ValueError where it cannot be had, soon when the hub is out of reach."""
    hub.go_offline_if_unreachable()
    from datasets import load_dataset  # slow to import, and not needed for local files
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(name, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:  # of the hub's client, of the network, of the data
        raise ValueError(f"{name}: {hub.why_not(error)}; pass a local file instead") from error


def read_file(path: Path) -> list[dict]:
    """The rows of one file. Raises ValueError or OSError with the file's name when it cannot be read."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if path.suffix == ".parquet":
        return to_rows(read_parquet(path), path)
    if path.suffix == ".arrow":
        return to_rows(read_arrow(path), path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON in UTF-8 ({error})") from error
    rows = _read_lines(path, text) if rows is None else rows
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: every row must be a JSON object with a problem and an answer")
    for number, row in enumerate(rows):
        for column, value in row.items():
            if fault := _fault([column, value], MAX_DEPTH + 1):
                name = column if is_utf8(column) else f"the column {column!a}"
                raise ValueError(f"{path}, row {number}: {name} {fault}")
    return rows


def _fault(value: object, deeper: int = MAX_DEPTH) -> str | None:
    """What is wrong with a value of JSON that may go `deeper` levels down, or None."""
    if isinstance(value, str) and not is_utf8(value):
        return "holds half a character (a lone surrogate); write the text as UTF-8"
    if not isinstance(value, dict | list):
        return None
    if not deeper:
        return f"is nested over {MAX_DEPTH} deep; leave it out"
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return next(filter(None, (_fault(item, deeper - 1) for item in items)), None)


def _read_lines(path: Path, text: str) -> list:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}); one object per line") from error
    return rows


def to_rows(table: pa.Table | pa.RecordBatch, path: Path, first: int = 0) -> list[dict]:
    """The rows as Python values. Raises ValueError with file, row and column for one that there is none for, such as a
    date after the year 9999.

    first: number of the first row in the file.
    """
    impossible = (ValueError, OverflowError)  # text that is not UTF-8 is the former
    try:
        return table.to_pylist()
    except impossible as error:
        for name in table.schema.names:
            for number, value in enumerate(table[name]):
                try:
                    value.as_py()
                except impossible as found:
                    text = f"{path}, row {first + number}: {name} cannot be read ({first_line(found)})"
                    raise ValueError(f"{text}; correct it or leave it out") from found
        raise ValueError(f"{path}: not readable ({first_line(error)})") from error


def read_parquet(path: Path) -> pa.Table:
    try:
        # Not read_table(path): that takes `name=value` in the path for a column.
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({first_line(error)}); copy or make it again") from error


def read_arrow(path: Path) -> pa.Table:
    """What `save_to_disk` wrote."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_stream(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Arrow file ({first_line(error)}); save it again") from error


def columns_of(path: Path) -> list[str]:
    if path.suffix == ".arrow":
        return read_arrow(path).column_names
    if path.suffix != ".parquet":
        return sorted({column for row in read_file(path) for column in row})
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    try:
        return pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({first_line(error)}); copy or make it again") from error


def is_verl(columns: Iterable[str]) -> bool:
    """Whether rows with these columns are in verl's format, and are trained on as they are."""
    return {"prompt", "reward_model"} <= set(columns)


def to_table(file: Path) -> pa.Table:
    """All rows with the types that they have. Raises ValueError where JSON mixes types in one column."""
    if file.suffix in (".parquet", ".arrow"):
        return read_parquet(file) if file.suffix == ".parquet" else read_arrow(file)
    rows, arrays = read_file(file), {}
    for name in sorted({column for row in rows for column in row}):
        try:
            arrays[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            raise ValueError(f"{file}: column {name} holds values of different kinds ({first_line(error)})") from error
    return pa.table(arrays)


def tables(source: str) -> pa.Table:
    """All rows of a local file or folder as they are; columns that a file lacks are null."""
    parts = [to_table(file) for file in local_files(source)]
    try:
        return pa.concat_tables(parts, promote_options="default")
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"{source}: its files have columns of different kinds ({first_line(error)})") from error
