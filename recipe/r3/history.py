# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The sample buffer: every generated response by stable query id, and per-query statistics kept apart from it.

One SQLite file in WAL mode. Every row carries the training step that wrote it, and a sample that leaves the buffer is
only marked with the step of its eviction, so `restore(step)` brings back the state after that step exactly. Token ids
are stored, not text: re-tokenising would change the sequence that was sampled.

    samples     one stored response                          (what replay and reflection draw from)
    statistics  attempts, successes, truncated per query, prompt variant and step   (never evicted)

Example: two wrong and one correct attempt at query "a" in step 1, then

    history.success_rates(["a"], min_attempts=3)  ->  {"a": 1/3}
    history.draw("a", correct=True, k=2, rng=rng) ->  the one correct Sample
"""

import os
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

SCHEMA_VERSION = 1
PLAIN, REFLECTION = "plain", "reflection"
"""Prompt variants: the dataset's own prompt, or the reflection prompt built from it."""

_SCHEMA = """
CREATE TABLE samples (
    id INTEGER PRIMARY KEY,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- plain | reflection
    correct INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    score REAL NOT NULL,            -- reward of the reward manager, ranking rewards excluded
    length INTEGER NOT NULL,        -- response tokens
    step INTEGER NOT NULL,          -- training step that generated it
    evicted INTEGER,                -- training step that evicted it, NULL while it can be drawn
    digest BLOB NOT NULL,           -- of the token ids; equal responses of a query are stored once
    tokens BLOB NOT NULL,           -- int32, little endian
    log_probs BLOB                  -- float32, little endian, of the policy that generated it; NULL if not recorded
);
CREATE INDEX samples_by_query ON samples (query_id, correct, variant) WHERE evicted IS NULL;
CREATE INDEX samples_by_step ON samples (step);
CREATE TABLE statistics (
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,
    step INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    successes INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    PRIMARY KEY (query_id, variant, step)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Sample:
    """One generated response."""

    query_id: str
    tokens: np.ndarray
    """(L,) int32 response token ids."""
    correct: bool
    score: float
    truncated: bool
    step: int
    variant: str = PLAIN
    log_probs: np.ndarray | None = None
    """(L,) float32 log-probs of the policy that generated it, or None."""


class History:
    """The sample buffer in the file `path`; `max_per_outcome` stored samples per query, variant and outcome.

    Raises:
        ValueError: the file is not a history, or one of another schema version.
    """

    def __init__(self, path: str, max_per_outcome: int):
        self.path = path
        self.max_per_outcome = max_per_outcome
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._open()
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"algorithm.r3.history.path: {path} is not a usable history ({error}); "
                "move the file away or name another one"
            ) from error

    def _open(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != SCHEMA_VERSION and tables:
            raise ValueError(
                f"algorithm.r3.history.path: {self.path} has schema version {version}, this recipe reads "
                f"{SCHEMA_VERSION}; move the file away or name another one"
            )
        if tables:
            self._db.execute("SELECT 1 FROM samples, statistics LIMIT 0")  # fails on a database of something else
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        if not tables:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")

    def add(self, samples: list[Sample], step: int) -> None:
        """Store the responses of training step `step` and count them, in one transaction."""
        attempts, successes, truncated = Counter(), Counter(), Counter()
        for sample in samples:
            key = (sample.query_id, sample.variant)
            attempts[key] += 1
            successes[key] += sample.correct
            truncated[key] += sample.truncated
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO statistics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET attempts = attempts + "
                "excluded.attempts, successes = successes + excluded.successes, truncated = truncated + "
                "excluded.truncated",
                [(*key, step, attempts[key], successes[key], truncated[key]) for key in sorted(attempts)],
            )
            for sample in samples:
                self._insert(sample, step)

    def _insert(self, sample: Sample, step: int) -> None:
        tokens = np.ascontiguousarray(sample.tokens, dtype="<i4").tobytes()
        log_probs = sample.log_probs
        if log_probs is not None:
            log_probs = np.ascontiguousarray(log_probs, dtype="<f4").tobytes()
        digest = blake2b(tokens, digest_size=16).digest()
        where = (sample.query_id, int(sample.correct), sample.variant)
        live = "FROM samples WHERE query_id = ? AND correct = ? AND variant = ? AND evicted IS NULL"
        if self._db.execute(f"SELECT 1 {live} AND digest = ?", (*where, digest)).fetchone():
            return
        self._db.execute(
            "INSERT INTO samples (query_id, correct, variant, truncated, score, length, step, digest, tokens, "
            "log_probs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*where, int(sample.truncated), sample.score, len(sample.tokens), step, digest, tokens, log_probs),
        )
        self._db.execute(
            f"UPDATE samples SET evicted = ? WHERE id IN (SELECT id {live} ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (step, *where, self.max_per_outcome),
        )

    def success_rates(
        self, query_ids: list[str], min_attempts: int, variants: tuple[str, ...] = (PLAIN,)
    ) -> dict[str, float]:
        """Share of correct attempts of each query with at least `min_attempts` attempts; the others are left out."""
        rates = {}
        marks = ", ".join("?" * len(variants))
        for query_id in query_ids:
            attempts, successes = self._db.execute(
                "SELECT coalesce(sum(attempts), 0), coalesce(sum(successes), 0) FROM statistics "
                f"WHERE query_id = ? AND variant IN ({marks})",
                (query_id, *variants),
            ).fetchone()
            if attempts >= min_attempts:
                rates[query_id] = successes / attempts
        return rates

    def draw(
        self,
        query_id: str,
        correct: bool,
        k: int,
        rng: random.Random,
        variants: tuple[str, ...] = (PLAIN,),
        selection: str = "uniform",
        max_length: int | None = None,
    ) -> list[Sample]:
        """At most `k` stored samples of the query with that outcome, without replacement.

        `selection` is `uniform` (by `rng`), `newest` or `shortest`; samples longer than `max_length` tokens are
        passed over.
        """
        marks = ", ".join("?" * len(variants))
        order = {"uniform": "id", "newest": "step DESC, id DESC", "shortest": "length, id"}[selection]
        rows = self._db.execute(
            f"SELECT id FROM samples WHERE query_id = ? AND correct = ? AND variant IN ({marks}) AND evicted IS NULL "
            f"AND length <= ? ORDER BY {order}",
            (query_id, int(correct), *variants, max_length if max_length is not None else 1 << 62),
        ).fetchall()
        ids = [row[0] for row in rows]
        chosen = rng.sample(ids, min(k, len(ids))) if selection == "uniform" else ids[:k]
        return [self._load(sample_id) for sample_id in chosen]

    def _load(self, sample_id: int) -> Sample:
        query_id, variant, correct, truncated, score, step, tokens, log_probs = self._db.execute(
            "SELECT query_id, variant, correct, truncated, score, step, tokens, log_probs FROM samples WHERE id = ?",
            (sample_id,),
        ).fetchone()
        return Sample(
            query_id=query_id,
            tokens=np.frombuffer(tokens, dtype="<i4"),
            correct=bool(correct),
            score=score,
            truncated=bool(truncated),
            step=step,
            variant=variant,
            log_probs=None if log_probs is None else np.frombuffer(log_probs, dtype="<f4"),
        )

    def restore(self, step: int) -> int:
        """Bring back the state after training step `step`; returns the number of later samples dropped."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            dropped = self._db.execute("DELETE FROM samples WHERE step > ?", (step,)).rowcount
            self._db.execute("UPDATE samples SET evicted = NULL WHERE evicted > ?", (step,))
            self._db.execute("DELETE FROM statistics WHERE step > ?", (step,))
        return dropped

    def size(self) -> int:
        """Number of samples that can be drawn."""
        return self._db.execute("SELECT count(*) FROM samples WHERE evicted IS NULL").fetchone()[0]

    def close(self) -> None:
        self._db.close()
