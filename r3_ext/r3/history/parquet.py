"""Samples in parquet files: written by `export`, read by `import`."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from recipe.r3.history.codec import Sample
from recipe.r3.history.file import HistoryError

FORMAT = "1"
"""Of the parquet files that `export` writes."""
ROW_GROUP_TOKENS = 1 << 20
"""At which a row group ends; only one is in memory."""


def sample_fields() -> list:
    """The columns that make a sample, and are read again."""
    import pyarrow as pa

    kinds = {"query_id": pa.string(), "variant": pa.string(), "correct": pa.bool_(), "truncated": pa.bool_()}
    kinds |= {"score": pa.float64(), "tokens": pa.list_(pa.field("item", pa.int32(), nullable=False))}
    # The stored float16 values, as a type that every reader knows.
    kinds |= {"log_probs": pa.list_(pa.field("item", pa.float32(), nullable=False))}
    return [pa.field(name, kind, nullable=name == "log_probs") for name, kind in kinds.items()]


def parquet_schema(meta: dict[str, str], text: bool):
    import pyarrow as pa

    kinds = {"length": pa.int32(), "entropy": pa.float64(), "step": pa.int64(), "version": pa.int64()}
    kinds |= {"versions": pa.int32(), "abandoned": pa.bool_()}
    if text:
        kinds["text"] = pa.string()
    fields = [*sample_fields(), *(pa.field(name, kind) for name, kind in kinds.items())]
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


def open_parquet(path: str) -> tuple[dict, int, Iterator[Sample], None]:
    """Metadata, number of rows, and the samples; there are no statistics."""
    import pyarrow.parquet as pq

    with readable(path):
        file = pq.ParquetFile(path)
        metadata = file.schema_arrow.metadata or {}
        if (found := metadata.get(b"r3.format", FORMAT.encode())) != FORMAT.encode():
            raise HistoryError(f"{path}: is of format {found!r}, this recipe reads {FORMAT}")
        meta = json.loads(metadata.get(b"r3.meta", b"{}"))
    return meta, file.metadata.num_rows, read_parquet(file, path), None


@contextmanager
def readable(path: str):
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise HistoryError(f"{path}: not a parquet of samples: {error}") from error


def read_parquet(file, path: str) -> Iterator[Sample]:
    """The samples; a column that is missing, of another type, or without a value where one must be is an error."""
    import pyarrow as pa

    schema = pa.schema(sample_fields())
    with readable(path):
        for batch in file.iter_batches(batch_size=256):
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            for row in table.to_pylist():
                if not row["tokens"]:
                    raise ValueError(f"an answer to query {row['query_id']} has no tokens")
                tokens, log_probs = np.array(row.pop("tokens"), np.int32), row.pop("log_probs")
                log_probs = None if log_probs is None else np.array(log_probs, np.float32)
                yield Sample(**row, tokens=tokens, log_probs=log_probs, step=0)
