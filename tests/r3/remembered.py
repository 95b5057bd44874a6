"""Samples, steps of training and what a history holds, for its tests."""

import os
import random
import sqlite3
from contextlib import closing

import numpy as np

from recipe.common.rows import PLAIN, REFLECTION
from recipe.r3.history.store import History, Sample

BOTH = (PLAIN, REFLECTION)
QUERIES = ("a", "b", "c")
PAIR = 14
"""Bytes of a stored response of two small ids, none of them 0, without log-probs."""


def make_sample(tokens, query="q", correct=False, **changes) -> Sample:
    values = {"score": float(correct), "truncated": False, "step": 1, **changes}
    return Sample(query_id=query, tokens=np.array(tokens, dtype="int32"), correct=correct, **values)


def drawn(history, query="q", correct=False, k=99, seed=0, **settings) -> list[list[int]]:
    """Token ids of the drawn samples, in the order of the draw."""
    samples = history.draw(query, correct, k, random.Random(seed), **settings)
    return [sample.tokens.tolist() for sample in samples]


def look(history, sql: str, values=()) -> list[tuple]:
    """The rows of a query, as another program sees them."""
    history.flush()
    with closing(sqlite3.connect(history.path)) as database:
        return database.execute(sql, values).fetchall()


def logical(path: str) -> str:
    """Every row of every table, as SQL."""
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


def contents(sample: Sample) -> tuple:
    log_probs = None if sample.log_probs is None else sample.log_probs.tobytes()
    flags = sample.variant, sample.correct, sample.truncated
    return sample.query_id, sample.tokens.tobytes(), log_probs, *flags, sample.score, sample.step


def dump(history) -> dict:
    """Everything that later steps can see: all samples in order, seeded draws of every kind, all rates."""
    state = {"size": history.size(), "live bytes": history.live_bytes}
    for query in QUERIES:
        for variants in ((PLAIN,), (REFLECTION,), BOTH):
            state[query, variants] = history.success_rates([query], 1, variants)
        for correct in (False, True):
            samples = history.draw(query, correct, 99, random.Random(7), BOTH)
            state[query, correct] = [contents(sample) for sample in samples]
        state[query, "drawn"] = drawn(history, query, None, 3, 7, variants=BOTH)
    columns = "step, query_id, variant, sample_step, times"
    state["replays"] = history._db.execute(f"SELECT {columns} FROM replays ORDER BY {columns}").fetchall()
    return state


def random_step(step: int, samples: int = 12, longest: int = 3) -> list[Sample]:
    """Responses of three queries; short ones are of few tokens, so that some are duplicates and some are evicted."""
    rng = np.random.default_rng(step)
    made = []
    for _ in range(samples):
        tokens = rng.integers(0, 3, size=rng.integers(1, longest + 1))
        made.append(
            make_sample(
                tokens,
                query=str(rng.choice(QUERIES)),
                correct=bool(rng.integers(2)),
                truncated=bool(rng.integers(2)),
                step=step,
                variant=str(rng.choice(BOTH)),
                log_probs=-rng.exponential(size=len(tokens)).astype("float32"),
            )
        )
    return made


def train(history, step: int, **settings) -> None:
    """A step: replay what a seeded draw gives, then add random responses."""
    replayed = [
        (sample, PLAIN) for query in QUERIES for sample in history.draw(query, None, 1, random.Random(step), BOTH)
    ]
    history.add(random_step(step, **settings), step, replayed)


def train_to(history, last: int, pins=(), first: int = 1) -> dict[int, dict]:
    """Train the steps `first` to `last`; returns the dumps after each."""
    states = {}
    for step in range(first, last + 1):
        train(history, step)
        states[step] = dump(history)
        if step in pins:
            history.pin(step)
    return states


def sizes(history) -> tuple[int, int]:
    """Payload bytes of the samples that can be drawn, and of the others, by adding them up."""
    sql = (
        "SELECT evicted IS NULL, length(tokens) + coalesce(length(log_probs), 0) FROM samples JOIN payloads USING (id)"
    )
    rows = look(history, sql)
    return sum(size for live, size in rows if live), sum(size for live, size in rows if not live)


def present(history) -> int:
    """The last step that was written."""
    return look(history, "SELECT coalesce(max(step), 0) FROM statistics")[0][0]


HELPERS = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from contextlib import closing
import pytest
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import History
from remembered import *
"""
"""First lines of a script of another process, which may use these names."""


def fill(path: str, steps: int = 8, pins=(2, 5)) -> dict[int, dict]:
    """A history with some steps; returns the dumps after each."""
    with closing(History(path, 3)) as history:
        history.restore(0, {"tokenizer": "t1", "model": "m1"})
        return train_to(history, steps, pins)
