"""Reading the store of a run from beside it, while the run may write on; see recipe/common/store."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from recipe.common.store.codec import tokenizer_fingerprint
from recipe.common.store.file import Kind


def existing(path: str, kind: Kind, what: str, name: str) -> str:
    """The file of a store: `path`, or the one of that name in the run folder `path`.

    Args:
        what: a file is called, as in "a history file".
    """
    file = Path(path) / name if os.path.isdir(path) else Path(path)
    if not file.is_file():
        raise kind.error(f"{file} does not exist; name {what} or a run folder that holds {name}")
    return str(file)


@contextmanager
def snapshot(path: str, kind: Kind) -> Iterator[sqlite3.Connection]:
    """A read-only connection in one transaction: what is read through it agrees, while a run writes on."""
    with closing(kind.open_for_reading(path)) as db:
        db.execute("BEGIN")
        try:
            yield db
        except sqlite3.Error as error:
            with kind.explained(path):
                raise error


def meta_of(db: sqlite3.Connection) -> dict[str, str]:
    return dict(db.execute("SELECT key, value FROM meta ORDER BY key"))


def require_same_tokenizer(meta: dict[str, str], other: dict[str, str], source: object, kind: Kind) -> None:
    ours, theirs = meta.get("tokenizer"), other.get("tokenizer")
    if ours and theirs and ours != theirs:
        raise kind.error(f"{source}: is of another tokenizer ({theirs}) than the {kind.name}'s tokens ({ours})")


def load_tokenizer(folder: str, meta: dict[str, str], kind: Kind):
    """The tokenizer of a local folder, without running its code; it must be the one of the store."""
    from transformers import AutoTokenizer

    if not os.path.isdir(folder):
        raise kind.error(f"{folder} is not the folder of a tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # of a malformed vocabulary the tokenizers library raises Exception itself
        raise kind.error(f"{folder}: no usable tokenizer: {error}") from error
    require_same_tokenizer(meta, {"tokenizer": tokenizer_fingerprint(tokenizer)}, folder, kind)
    return tokenizer
