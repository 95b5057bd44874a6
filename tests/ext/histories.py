"""Small histories and what `r3 history` prints of them, for its tests."""

import random
import sqlite3
from contextlib import closing

import numpy as np

from r3_ext.r3.history.command import main
from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.store import History, Sample

META = {"tokenizer": "151643 tokens abcdef012345", "model": "/models/tiny", "max_per_outcome": "3", "max_gib": "32.0"}
BOUNDS = ["--max-per-outcome", "99", "--max-gib", "1"]


def sample(query, tokens, correct=False, variant=PLAIN, truncated=False, log_probs=None) -> Sample:
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    return Sample(query, np.array(tokens, dtype="int32"), correct, float(correct), truncated, 0, variant, log_probs)


def small(path, meta=META) -> None:
    """Three steps: `hard` is never solved and is replayed into, `easy` gets better; a checkpoint after each."""
    with closing(History(str(path), max_per_outcome=3)) as history:
        history.restore(0, meta)
        history.add([sample("hard", [1, 2], truncated=True), sample("hard", [3]), sample("easy", [4])], step=1)
        history.pin(1)
        (old,) = history.draw("easy", False, 1, random.Random(0))
        second = [sample("hard", [5], variant=REFLECTION), sample("easy", [6], True), sample("easy", [7])]
        history.add(second, step=2, replays=[(old, PLAIN), (old, PLAIN)])
        history.pin(2)
        history.add([sample("hard", [8]), sample("easy", [9], True), sample("easy", [10], True)], 3, [(old, PLAIN)])
        history.pin(3)


def rows_of(path, sql) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def error_of(capsys, *argv) -> str:
    """The one line that a refused command prints."""
    assert main([str(arg) for arg in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    return captured.err


def output_of(capsys, *argv) -> str:
    assert main([str(arg) for arg in argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out
