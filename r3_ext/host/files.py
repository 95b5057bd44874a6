"""Files: written as a whole or not at all, known by a digest, read line by line where the last line may be torn."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden neighbour to write a file or a folder to, which takes the place of `path` at the end of the block.

    Its folder is made where it is missing. Nothing is left of a block that fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A reader sees the old text or the new one, and never a part."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def sha256(*parts: bytes | str | Path) -> str:
    """64 hex digits over the parts as if they were one; of a path, what the file holds."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with open(part, "rb") as file:
                while block := file.read(1 << 24):
                    digest.update(block)
        else:
            digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def key_of(inputs: dict) -> str:
    """16 hex digits by which what is made of these settings is kept in a cache."""
    return sha256(json.dumps(inputs, sort_keys=True))[:16]


def json_lines(path: Path) -> list[Any]:
    """The value of each line, None for one that cannot be read; nothing where there is no file.

    A torn last line, which was being written when the machine stopped, is left out.
    """
    text = path.read_text(errors="replace") if path.exists() else ""
    values = [json_line(line) for line in text.splitlines()]
    return values[:-1] if values and values[-1] is None and not text.endswith("\n") else values


def json_line(line: str | bytes) -> Any:
    """The value of a line of JSON; None where it cannot be read."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
