"""Samples in parquet files: written by `export`, read and distrusted by `import`."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recipe.common.query_ids import MAX_ID_BYTES
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import PLAIN, REFLECTION, Sample

FORMAT = "1"
"""Of the parquet files that `export` writes."""
ROW_GROUP_TOKENS = 1 << 20
"""At which a row group ends; only one is in memory."""
IMPORTED = re.compile(r"imported ([0-9a-f]{16}) of steps to (\d{1,18})")
"""The key in `meta` of statistics that were imported: their fingerprint, and the source's last step at the time."""
MOST_META = 1 << 16
"""Characters of `r3.meta`: a few names and paths."""
MOST_SCORE = 1_000.0
"""A reward beyond it, either way, would drown all others of its group. R^3's own are from 0 to 2."""
MOST_IDS = 1 << 24
"""Token ids when nothing says how large the vocabulary is; none is that large."""


def parquet_schema(meta: dict[str, str], text: bool):
    import pyarrow as pa

    fields = {"query_id": pa.string(), "variant": pa.string(), "correct": pa.bool_(), "truncated": pa.bool_()}
    fields |= {"score": pa.float64(), "length": pa.int32(), "entropy": pa.float64(), "step": pa.int64()}
    fields |= {"version": pa.int64(), "versions": pa.int32()}
    # The stored float16 values, as a type that every reader knows.
    fields |= {"tokens": pa.list_(pa.int32()), "log_probs": pa.list_(pa.float32()), "abandoned": pa.bool_()}
    if text:
        fields["text"] = pa.string()
    return pa.schema(fields, metadata={"r3.format": FORMAT, "r3.meta": json.dumps(meta)})


def write_parquet(file: Path, rows: Iterable[tuple], meta: dict[str, str], tokenizer) -> None:
    """Write (sample, entropy, abandoned) rows, holding one row group in memory."""
    import pyarrow.parquet as pq

    schema = parquet_schema(meta, tokenizer is not None)
    group, tokens = [], 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for row in rows:
            group.append(row)
            tokens += len(row[0].tokens)
            if tokens >= ROW_GROUP_TOKENS:
                writer.write_batch(row_group(group, schema, tokenizer))
                group, tokens = [], 0
        if group:
            writer.write_batch(row_group(group, schema, tokenizer))


def row_group(rows: list[tuple], schema, tokenizer):
    import pyarrow as pa

    values = [columns_of(*row, tokenizer) for row in rows]
    return pa.record_batch([pa.array([row[f.name] for row in values], f.type) for f in schema], schema=schema)


def columns_of(sample: Sample, entropy: float | None, abandoned: bool, tokenizer) -> dict:
    columns = {**vars(sample), "length": len(sample.tokens), "entropy": entropy, "abandoned": abandoned}
    if tokenizer is not None:
        columns["text"] = tokenizer.decode(sample.tokens, skip_special_tokens=True)
    return columns


def is_parquet(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def open_parquet(path: str) -> tuple[dict, int, Iterator[tuple[Sample, str]], None]:
    import pyarrow.parquet as pq

    with readable(path):
        file = pq.ParquetFile(path)
        require_columns(file.schema_arrow, path)
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(b"r3.format", FORMAT.encode()) != FORMAT.encode():
            raise HistoryError(f"{path}: is of format {metadata[b'r3.format']!r}, this recipe reads {FORMAT}")
        meta = parsed_meta(metadata.get(b"r3.meta", b"{}"), path)
        if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
            raise HistoryError(f"{path}: the metadata r3.meta must be an object of texts")
    meta = {key: value for key, value in meta.items() if not IMPORTED.fullmatch(key)}  # those of its statistics
    return meta, file.metadata.num_rows, read_parquet(file, path), None


def parsed_meta(text: bytes, path: str) -> object:
    if len(text) > MOST_META:
        raise HistoryError(f"{path}: the metadata r3.meta has {len(text):,} bytes, {MOST_META:,} at most")
    try:
        return json.loads(text)
    except RecursionError:
        raise HistoryError(f"{path}: the metadata r3.meta must be an object of texts, and is nested deeply") from None


@contextmanager
def readable(path: str):
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HistoryError(f"{path}: not a readable parquet: {error}") from error


def column_kinds() -> dict[str, tuple]:
    """The columns that are imported: how to tell their type, and its name. Those of `export` but not here are not."""
    from pyarrow import types

    def text(kind):
        return types.is_string(kind) or types.is_large_string(kind)

    def lists(inner):
        return lambda kind: (types.is_list(kind) or types.is_large_list(kind)) and inner(kind.value_type)

    return {
        "query_id": (text, "text"),
        "variant": (text, "text"),
        "correct": (types.is_boolean, "boolean"),
        "truncated": (types.is_boolean, "boolean"),
        "score": (types.is_floating, "floating point"),
        "length": (types.is_integer, "whole numbers"),
        "tokens": (lists(types.is_integer), "lists of whole numbers"),
        "log_probs": (lists(types.is_floating), "lists of floating point numbers"),
    }


def require_columns(schema, path: str) -> None:
    for name, (is_kind, kind) in column_kinds().items():
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            raise HistoryError(f"{path}: column {name} is there {len(places)} times, not once; has {schema.names}")
        if not is_kind(found := schema.field(places[0]).type):
            raise HistoryError(f"{path}: column {name} must hold {kind}, not {found}")


def read_parquet(file, path: str) -> Iterator[tuple[Sample, str]]:
    """The samples, not yet `checked`, and where each is."""
    row = 0
    with readable(path):
        for batch in file.iter_batches(batch_size=256, columns=list(column_kinds())):
            for index in range(batch.num_rows):
                yield sample_at(batch, index, path, row), f"row {row}"
                row += 1


def sample_at(batch, index: int, path: str, row: int) -> Sample:
    """Row `index` of a batch, which is row `row` of the file, the first being 0."""
    values = {}
    for name in batch.schema.names:
        try:
            values[name] = value_of(batch.column(name)[index], optional=name == "log_probs")
        except ValueError as error:
            raise HistoryError(f"{path}: column {name}, row {row}: {error}") from error
    if (length := values.pop("length")) != len(values["tokens"]):
        raise HistoryError(f"{path}: column length, row {row}: is {length} for {len(values['tokens'])} tokens")
    return Sample(**values, step=0)


def value_of(scalar, optional: bool):
    """A pyarrow scalar as a Python value, a list as an array; raises ValueError on null."""
    if not scalar.is_valid:
        if optional:
            return None
        raise ValueError("is null")
    if not hasattr(scalar, "values"):
        return scalar.as_py()
    if scalar.values.null_count:
        raise ValueError("holds a null")
    return scalar.values.to_numpy(zero_copy_only=False)


def id_bound(*metas: dict[str, str]) -> int:
    """Token ids must be below: the vocabulary of the model that the first of the metas with a known one names, else
    that of its tokenizer and a 64th, as models pad it; else what no vocabulary has."""
    for meta in metas:
        if size := vocabulary_of(meta.get("model", "")):
            return size
    for meta in metas:
        if size := re.match(r"(\d{1,9}) tokens ", meta.get("tokenizer", "")):
            return int(size[1]) + int(size[1]) // 64
    return MOST_IDS


def vocabulary_of(model: str) -> int | None:
    """`vocab_size` of a local model folder; None when there is none."""
    config = Path(model) / "config.json"
    try:
        size = json.loads(config.read_text())["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # moved, or somebody else's folder: the tokenizer's size is known as well
    return size if isinstance(size, int) and size > 0 else None


def checked(sample: Sample, path: str, place: str, most_ids: int) -> Sample:
    """The sample; raises HistoryError when it cannot be one: the file may come from somebody else."""
    tokens, log_probs, score = sample.tokens, sample.log_probs, sample.score
    low, high = (tokens.min(), tokens.max()) if len(tokens) else (-1, -1)
    rules = {
        "query_id": (0 < len(sample.query_id.encode()) <= MAX_ID_BYTES, f"must have 1 to {MAX_ID_BYTES:,} bytes"),
        "variant": (sample.variant in (PLAIN, REFLECTION), f"must be {PLAIN} or {REFLECTION}, got {sample.variant!r}"),
        "score": (abs(score) <= MOST_SCORE, f"must be from {-MOST_SCORE:g} to {MOST_SCORE:g}, got {score}"),
        "correct": (not sample.correct or score > 0, f"is true with a score of {score}; a correct one is above 0"),
        "tokens": (low >= 0 and high < most_ids, f"must be ids of the vocabulary, 0 to {most_ids - 1:,}"),
    }
    if log_probs is not None:
        fits = len(log_probs) == len(tokens)
        rules["log_probs"] = (fits, f"holds {len(log_probs)} values for {len(tokens)} tokens")
        if fits:
            rules["log_probs"] = (bool((log_probs < 1).all()), "must be log-probabilities")
    for column, (holds, rule) in rules.items():
        if not holds:
            raise HistoryError(f"{path}: column {column}, {place}: {rule}")
    return sample
