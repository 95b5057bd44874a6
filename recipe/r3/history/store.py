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

`add` writes a training step in the background, in one transaction; every reader waits for it. Samples are stored in an
order that depends on their content alone, so equal rollouts make equal histories, whatever order they arrived in.

Bounded: a query keeps the newest `max_per_outcome` samples per variant and outcome, and the samples that can be drawn
take at most `max_bytes`; past that, lottery numbers (the seeded digests) decide who leaves, and the last sample of a
query and outcome leaves only when nothing else is left. Statistics never change by eviction.

A checkpoint pins its step: `pin` writes one row, whatever the size of the file. A sample evicted later stays in the
file as long as a pinned step needs it, so `restore` brings that step's state back exactly.

Example: two wrong and one correct attempt at query "a" in step 1, then

    history.success_rates(["a"], min_attempts=3)  ->  {"a": 1/3}
    history.draw("a", correct=True, k=2, rng=rng) ->  the one correct Sample
"""

import hashlib
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from recipe.r3.history import file as history_file
from recipe.r3.history.codec import (
    COLUMNS,
    PLAIN,
    REFLECTION,
    Bucket,
    Row,
    Sample,
    by_bucket,
    chunks,
    damaged,
    decode,
    identified,
    in_order,
    packed,
)
from recipe.r3.history.file import HistoryError, explained

SELECTIONS = ("uniform", "newest", "shortest", "nearest_length", "lowest_entropy")


class Transfer(NamedTuple):
    """Counts of a query: answers to its reflection prompt, and to its plain prompt up to the step of the first of them
    and since."""

    reflected: int
    attempts_before: int
    successes_before: int
    attempts_after: int
    successes_after: int


class History:
    """The sample buffer in the file `path`, which no other trainer may use meanwhile.

    Args:
        path: created when absent.
        max_per_outcome: stored samples per query, variant and outcome.
        max_bytes: payload bytes of the samples that can be drawn. Evicted ones that a checkpoint needs take at most as
            much again: past that, the oldest checkpoints can no longer be restored with their samples.
        seed: of the eviction.

    Raises:
        HistoryError: not a history, another schema version, damaged, not writable, or in use.
    """

    def __init__(self, path: str, max_per_outcome: int, max_bytes: int = 32 << 30, seed: int = 0):
        self.path = path
        self.max_per_outcome = max_per_outcome
        self.max_bytes = max_bytes
        self.seed = seed
        self.write_seconds = 0.0
        """Of the last step's transaction, in the background."""
        self.wait_seconds = 0.0
        """Since the last `add`, spent waiting for it."""
        with explained(path):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._lock = history_file.Lock(path)
        try:
            self.exclusive = history_file.network_file_system(path) is not None
            self._db = history_file.open_for_writing(path, self.exclusive)
        except BaseException:
            self._lock.release()
            raise
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._pending: Future | None = None
        self._measure()

    # writing

    def add(
        self,
        samples: list[Sample],
        step: int,
        replays: Iterable[tuple[Sample, str]] = (),
        unfinished: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Store and count the responses of training step `step` in the background, all of them or none.

        Args:
            replays: (sample, variant of the group it was replayed into) of everything the step replayed.
            unfinished: (query_id, variant) of every attempt that left nothing to store; it counts as a failed one.
        """
        self.flush()
        self.wait_seconds = 0.0
        self._pending = self._writer.submit(self._write, samples, step, list(replays), list(unfinished))

    def flush(self) -> None:
        """Wait for the last `add`; raises HistoryError when it failed."""
        if self._pending is None:
            return
        begin, pending, self._pending = time.monotonic(), self._pending, None
        try:
            pending.result()
        finally:
            self.wait_seconds += time.monotonic() - begin

    @contextmanager
    def _transaction(self):
        before = self.live_bytes, self.spare_bytes
        try:
            with explained(self.path):
                self._db.execute("BEGIN IMMEDIATE")
                with self._db:
                    yield self._db
        except BaseException:
            self.live_bytes, self.spare_bytes = before
            raise

    def _write(
        self, samples: list[Sample], step: int, replays: list[tuple[Sample, str]], unfinished: list[tuple[str, str]]
    ) -> None:
        begin = time.monotonic()
        buckets = by_bucket(samples)
        with self._transaction():
            self._count(buckets, unfinished, step)
            # The order of arrival differs from run to run; ids, and so later draws, must not.
            self._store(in_order(buckets, step, self.seed), step)
            self._log_replays(replays, step)
        self.write_seconds = time.monotonic() - begin

    def absorb(
        self,
        samples: Iterable[Sample],
        statistics: Iterable[tuple[str, str, int, int, int]],
        meta: dict[str, str] | None = None,
    ) -> None:
        """Take over samples of another history, and its (query_id, variant, attempts, successes, truncated), as of
        step 0, all or none. The samples keep their order, so equal draws from both histories give equal samples.

        Args:
            meta: of the other history, for the keys that this one does not have.

        Raises:
            HistoryError: this history has steps of its own.
        """
        self.flush()
        [(last,)] = self._db.execute("SELECT coalesce(max(step), 0) FROM steps")
        if last:
            raise HistoryError(f"history {self.path}: has {last} steps of its own; import before the first step")
        samples = iter(samples)
        with self._transaction():
            while chunk := list(islice(samples, 1024)):
                self._store((identified(replace(sample, version=None), 0, self.seed) for sample in chunk), 0)
            self._count_rows([(query_id, variant, 0, *counts) for query_id, variant, *counts in statistics])
            self._db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", sorted((meta or {}).items()))

    def _store(self, rows: Iterable[Row], step: int) -> None:
        """Insert the rows and keep to the bounds."""
        crowded, newest_pin = self._insert(rows), self._newest_pin()
        self._evict([row for bucket in crowded for row in self._beyond_the_cap(bucket)], step, newest_pin)
        if self.live_bytes > self.max_bytes:
            self._evict(self._lottery(self.live_bytes - int(0.9 * self.max_bytes)), step, newest_pin)
        if self.spare_bytes > self.max_bytes:
            self._reclaim()

    def _count(self, buckets: dict[Bucket, list[Sample]], unfinished: list[tuple[str, str]], step: int) -> None:
        counts: dict[tuple[str, str], list[int]] = {}
        for (query_id, variant, correct), samples in buckets.items():
            count = counts.setdefault((query_id, variant), [0, 0, 0])
            count[0] += len(samples)
            count[1] += correct * len(samples)
            count[2] += sum(int(sample.truncated) for sample in samples)
        for key in unfinished:
            counts.setdefault(key, [0, 0, 0])[0] += 1
        for query_id, _ in counts:
            history_file.check_id(query_id, self.path)
        self._count_rows([(*key, step, *count) for key, count in counts.items()])

    def _count_rows(self, values: list[tuple]) -> None:
        """Add (query_id, variant, step, attempts, successes, truncated) to the statistics and the sums of the steps."""
        add = "attempts = attempts + excluded.attempts, successes = successes + excluded.successes, "
        add += "truncated = truncated + excluded.truncated"
        self._db.executemany(
            f"INSERT INTO statistics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {add}", values
        )
        self._db.executemany(
            f"INSERT INTO steps VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET {add}", [value[2:] for value in values]
        )

    def _log_replays(self, replays: list[tuple[Sample, str]], step: int) -> None:
        self._db.executemany(
            "INSERT INTO replays VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1",
            [
                (sample_id, step, sample.query_id, variant, step - sample.age(step))
                for sample, variant in replays
                if (sample_id := self._id_of(sample)) is not None
            ],
        )

    def _id_of(self, sample: Sample) -> int | None:
        """The row of a sample that was drawn, or of one that was replayed in its own step and stored after that; None
        where the bounds left no room for it."""
        if sample.id is not None:
            return sample.id
        row = identified(sample, sample.step, self.seed)
        same = "SELECT max(id) FROM samples WHERE query_id = ? AND variant = ? AND correct = ? AND digest = ?"
        return self._db.execute(same, (*row.bucket, row.digest)).fetchone()[0]

    def _insert(self, rows: Iterable[Row]) -> list[Bucket]:
        """Store the rows that are not there yet; returns the buckets that now hold more than `max_per_outcome`."""
        seen: dict[Bucket, set[bytes]] = {}
        [(last,)] = self._db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'samples'")
        inserted = []

        def payloads() -> Iterator[tuple]:
            for chunk in chunks(self._unknown(rows, seen)):
                for row in packed(chunk):
                    sample_id = last + 1 + len(inserted)
                    inserted.append((sample_id, *row.columns, row.bytes, row.digest, row.checksum))
                    self.live_bytes += row.bytes
                    yield sample_id, row.tokens, row.log_probs

        self._db.executemany("INSERT INTO payloads VALUES (?, ?, ?)", payloads())
        self._db.executemany(
            f"INSERT INTO samples (id, {COLUMNS}, abandoned, bytes, digest, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
            inserted,
        )
        return sorted(bucket for bucket, digests in seen.items() if len(digests) > self.max_per_outcome)

    def _unknown(self, rows: Iterable[Row], seen: dict[Bucket, set[bytes]]) -> Iterator[Row]:
        """The rows whose response is not stored in their bucket; `seen` takes up the digests of each bucket."""
        known = "SELECT digest FROM samples WHERE query_id = ? AND variant = ? AND correct = ? AND evicted IS NULL"
        for row in rows:
            if row.bucket not in seen:
                seen[row.bucket] = {digest for (digest,) in self._db.execute(known, row.bucket)}
            if row.digest not in seen[row.bucket]:
                seen[row.bucket].add(row.digest)
                yield row

    def _beyond_the_cap(self, bucket: Bucket) -> list[tuple[int, int, int]]:
        """(id, step, bytes) of the samples of a bucket that are older than its newest `max_per_outcome`."""
        return self._db.execute(
            "SELECT id, step, bytes FROM samples WHERE query_id = ? AND variant = ? AND correct = ? "
            "AND evicted IS NULL ORDER BY step DESC, id DESC LIMIT -1 OFFSET ?",
            (*bucket, self.max_per_outcome),
        ).fetchall()

    def _lottery(self, excess: int) -> list[tuple[int, int, int]]:
        """(id, step, bytes) of at least `excess` bytes of samples: lowest digests first, newest of a bucket last."""
        losers = []
        for sample_id, step, size in self._db.execute(
            "SELECT id, step, bytes FROM (SELECT id, step, bytes, digest, row_number() OVER (PARTITION BY query_id, "
            "variant, correct ORDER BY step DESC, id DESC) = 1 AS newest FROM samples WHERE evicted IS NULL) "
            "ORDER BY newest, digest, id"
        ):
            if excess <= 0:
                break
            losers.append((sample_id, step, size))
            excess -= size
        return losers

    def _evict(self, rows: list[tuple[int, int, int]], step: int, newest_pin: int) -> None:
        """Take samples out of the buffer; only those that a pinned step had stay in the file."""
        needed, others = [], []
        for row in rows:
            (needed if row[1] <= newest_pin < step else others).append(row)
        self._db.executemany("UPDATE samples SET evicted = ? WHERE id = ?", [(step, row[0]) for row in needed])
        self._delete([row[0] for row in others])
        self.live_bytes -= sum(row[2] for row in rows)
        self.spare_bytes += sum(row[2] for row in needed)

    def _delete(self, ids: list[int]) -> None:
        for table in ("samples", "payloads"):
            self._db.executemany(f"DELETE FROM {table} WHERE id = ?", [(i,) for i in ids])

    # drawing

    def success_rates(
        self, query_ids: list[str], min_attempts: int, variants: tuple[str, ...] = (PLAIN,), rounds: int | None = None
    ) -> dict[str, float]:
        """Share of correct attempts of each query with at least `min_attempts` attempts; the others are left out.

        rounds: training steps that asked the query, newest first, whose attempts count. None: all.
        """
        self.flush()
        rates = {}
        marks = ", ".join("?" * len(variants))
        with explained(self.path):
            for query_id in query_ids:
                attempts, successes = self._db.execute(
                    "SELECT coalesce(sum(a), 0), coalesce(sum(s), 0) FROM (SELECT sum(attempts) AS a, sum(successes) "
                    f"AS s FROM statistics WHERE query_id = ? AND variant IN ({marks}) GROUP BY step "
                    "ORDER BY step DESC LIMIT ?)",
                    (query_id, *variants, -1 if rounds is None else rounds),
                ).fetchone()
                if attempts >= min_attempts:
                    rates[query_id] = successes / attempts
        return rates

    def transfer(self, query_ids: list[str]) -> dict[str, Transfer]:
        """What reflection did to the plain prompt of each query that was reflected on; the others are left out."""
        self.flush()
        found = {}
        with explained(self.path):
            for query_id in query_ids:
                row = self._db.execute(
                    "WITH first AS (SELECT min(step) AS step FROM statistics WHERE query_id = :q AND variant = :r) "
                    "SELECT coalesce(sum(s.attempts) FILTER (WHERE s.variant = :r), 0), "
                    "coalesce(sum(s.attempts) FILTER (WHERE s.variant = :p AND s.step <= first.step), 0), "
                    "coalesce(sum(s.successes) FILTER (WHERE s.variant = :p AND s.step <= first.step), 0), "
                    "coalesce(sum(s.attempts) FILTER (WHERE s.variant = :p AND s.step > first.step), 0), "
                    "coalesce(sum(s.successes) FILTER (WHERE s.variant = :p AND s.step > first.step), 0) "
                    "FROM statistics AS s, first WHERE s.query_id = :q AND first.step IS NOT NULL",
                    {"q": query_id, "p": PLAIN, "r": REFLECTION},
                ).fetchone()
                if row[0]:
                    found[query_id] = Transfer(*row)
        return found

    def draw_other_query(
        self, query_id: str, correct: bool | None, rng: random.Random, variants: tuple[str, ...] = (PLAIN,)
    ) -> str:
        """A random query other than `query_id` with stored samples of that outcome; `query_id` when there is none."""
        self.flush()
        where, values = _outcome(correct, variants)
        with explained(self.path):
            rows = self._db.execute(
                f"SELECT DISTINCT query_id FROM samples WHERE {where} AND evicted IS NULL AND query_id != ? ORDER BY 1",
                (*values, query_id),
            ).fetchall()
        return rng.choice(rows)[0] if rows else query_id

    def draw(
        self,
        query_id: str,
        correct: bool | None,
        k: int,
        rng: random.Random,
        variants: tuple[str, ...] = (PLAIN,),
        selection: str = "uniform",
        max_length: int | None = None,
        min_version: int = -1,
        max_replays: int | None = None,
        replays: Counter | None = None,
        near_length: float = 0.0,
        accepts: Callable[[Sample], bool] | None = None,
    ) -> list[Sample]:
        """At most `k` stored samples of the query with that outcome (None: any), without replacement.

        Args:
            selection: `uniform` (by `rng`), `newest`, `shortest`, `nearest_length` (to `near_length` tokens) or
                `lowest_entropy`; ties go to the older sample, of `newest` to the one stored last.
            max_length: samples of more tokens are passed over.
            min_version: samples that earlier weights began are passed over.
            max_replays: samples replayed that often are passed over; `replays` counts by id what is not stored yet.
            accepts: samples for which it is false are passed over, and the next in the order of `selection` is tried.

        Raises:
            HistoryError: a chosen sample is damaged.
        """
        self.flush()
        where, values = _outcome(correct, variants)
        times = "(SELECT coalesce(sum(times), 0) FROM replays WHERE sample_id = samples.id)"
        with explained(self.path):
            rows = self._db.execute(
                f"SELECT id, length, step, entropy, {'0' if max_replays is None else times} "
                f"FROM samples WHERE query_id = ? AND {where} AND evicted IS NULL AND length <= ? AND version >= ? "
                "ORDER BY id",
                (query_id, *values, max_length if max_length is not None else 1 << 62, min_version),
            ).fetchall()
            if max_replays is not None:
                rows = [row for row in rows if row[4] + (replays or {}).get(row[0], 0) < max_replays]
            if accepts is None:
                return [self._load(row[0]) for row in select(rows, k, rng, selection, near_length)]
            ordered = select(rows, len(rows), rng, selection, near_length)
            return list(islice(filter(accepts, (self._load(row[0]) for row in ordered)), k))

    def _load(self, sample_id: int) -> Sample:
        try:
            row = self._db.execute(
                f"SELECT {COLUMNS}, checksum, tokens, log_probs FROM samples LEFT JOIN payloads USING (id) "
                "WHERE id = ?",
                (sample_id,),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "decode" not in str(error):
                raise  # the disk, or another program; nothing is wrong with the sample
            raise damaged(sample_id, self.path) from error
        return decode(row, sample_id, self.path)

    # checkpoints

    def pin(self, step: int) -> None:
        """Make the present state, that after training step `step`, one that `restore` can bring back."""
        self.flush()
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO pins VALUES (?)", (step,))

    def unpin(self, gone: Callable[[int], bool]) -> None:
        """Give up the pinned steps for which `gone(step)`, and the evicted samples that only they need."""
        self.flush()
        with self._transaction():
            for step in self.pinned():
                if gone(step):
                    self._unpin(step)

    def pinned(self) -> list[int]:
        """Steps that can be restored, in order."""
        return [step for (step,) in self._db.execute("SELECT step FROM pins ORDER BY step")]

    def _newest_pin(self) -> int:
        return self._db.execute("SELECT coalesce(max(step), -1) FROM pins").fetchone()[0]

    def _unpin(self, step: int) -> None:
        """A sample of step b evicted at e is needed by the pins in [b, e): delete those with no pin but `step`."""
        [(before, after)] = self._db.execute(
            "SELECT (SELECT max(step) FROM pins WHERE step < :p), (SELECT min(step) FROM pins WHERE step > :p)",
            {"p": step},
        )
        self._delete_spare(
            "evicted > ? AND evicted <= ? AND NOT abandoned AND step > ? AND step <= ?",
            (step, 1 << 62 if after is None else after, -1 if before is None else before, step),
        )
        self._db.execute("DELETE FROM pins WHERE step = ?", (step,))

    def _reclaim(self) -> None:
        """Bring what cannot be drawn under `max_bytes`: abandoned samples go, then the oldest pins but the newest."""
        self._drop_abandoned()
        for step in self.pinned()[:-1]:
            if self.spare_bytes <= self.max_bytes:
                break
            self._unpin(step)

    def _drop_abandoned(self) -> int:
        return self._delete_spare("evicted IS NOT NULL AND abandoned", ())

    def _delete_spare(self, where: str, values: tuple) -> int:
        """Delete those of the samples that cannot be drawn; returns their number."""
        rows = self._db.execute(f"SELECT id, bytes FROM samples WHERE {where}", values).fetchall()
        self._delete([row[0] for row in rows])
        self.spare_bytes -= sum(row[1] for row in rows)
        return len(rows)

    def drop_abandoned(self) -> int:
        """Delete the samples that no state can bring back; returns their number."""
        self.flush()
        with self._transaction():
            return self._drop_abandoned()

    def drop_damaged(self) -> int:
        """Delete the samples whose checksum does not fit, pinned or not; returns their number. Their payloads stay in
        the file: giving back damaged pages could hurt the samples next to them."""
        self.flush()
        with explained(self.path):
            ids = [i for (i,) in self._db.execute("SELECT id FROM samples ORDER BY id")]
            # Before the transaction: SQLite ends one in which it met a damaged page.
            broken = [sample_id for sample_id in ids if not self._is_whole(sample_id)]
        with self._transaction():
            self._db.executemany("DELETE FROM samples WHERE id = ?", [(i,) for i in broken])
        self._measure()
        return len(broken)

    def _is_whole(self, sample_id: int) -> bool:
        try:
            self._load(sample_id)
        except HistoryError:
            return False
        return True

    def compact(self) -> None:
        """Give the space of deleted samples back to the file system; takes as much space again while it runs."""
        self.flush()
        with explained(self.path):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def restore(self, step: int, mode: str = "all", identity: dict[str, str] | None = None) -> list[str]:
        """Bring back the state after training step `step`, 0 for the state before the first; returns what to tell.

        Samples written later stay in the file as abandoned: never drawn, but there for `r3 history export`.

        Args:
            mode: `all`, `statistics` (no samples; every attempt in the file counts, as if made by `step`) or `none`.
            identity: tokenizer, model and limits of this run; compared with those the samples were stored under.

        Raises:
            HistoryError: `all`, but that state is not in the file, or its tokens are of another tokenizer.
        """
        self.flush()
        identity = identity or {}
        with explained(self.path):
            told = self._compare(identity, mode)
            if mode == "all":
                self._check_restorable(step)
        with self._transaction():
            if mode == "all":
                self._forget_after(step)
                self._abandon("step > ? AND NOT abandoned", (step,))
                self._db.execute("UPDATE samples SET evicted = NULL WHERE evicted > ? AND NOT abandoned", (step,))
                self._db.execute("DELETE FROM pins WHERE step > ?", (step,))
            else:
                self._abandon("evicted IS NULL OR NOT abandoned", ())
                self._db.execute("DELETE FROM pins")
                totals = self._totals(step) if mode == "statistics" else []
                self._forget_after(-1)
                self._count_rows(totals)
            self._db.execute("INSERT OR IGNORE INTO pins VALUES (?)", (step,))
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", sorted(identity.items()))
        self._measure()
        return told + [f"{self.size()} samples, {self._abandoned} abandoned ones, restored to step {step} ({mode})"]

    def _compare(self, identity: dict[str, str], mode: str) -> list[str]:
        told = []
        for key, stored in self._db.execute("SELECT key, value FROM meta ORDER BY key"):
            current = identity.get(key, stored)
            if current == stored:
                continue
            if key == "tokenizer" and mode == "all":
                raise HistoryError(
                    f"history {self.path}: its tokens are of another tokenizer ({stored}) than the model's "
                    f"({current}); set algorithm.r3.history.restore=statistics to keep the pass rates only"
                )
            told.append(f"{key} changed from {stored} to {current}")
        return told

    def _check_restorable(self, step: int) -> None:
        [(last,)] = self._db.execute("SELECT coalesce(max(step), 0) FROM steps")
        if step != last and step not in self.pinned():
            state = f"ends at step {last}" if step > last else f"can go back to steps {self.pinned()}"
            raise HistoryError(
                f"history {self.path}: the checkpoint is of step {step}, but the history {state}; put the right file "
                "back, or set algorithm.r3.history.restore to statistics or none for a start without its samples"
            )

    def _totals(self, step: int) -> list[tuple]:
        return self._db.execute(
            "SELECT query_id, variant, ?, sum(attempts), sum(successes), sum(truncated) FROM statistics "
            "GROUP BY query_id, variant",
            (step,),
        ).fetchall()

    def _forget_after(self, step: int) -> None:
        for table in ("statistics", "steps", "replays"):
            self._db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

    def _abandon(self, where: str, values: tuple) -> None:
        self._db.execute(f"UPDATE samples SET evicted = step, abandoned = 1 WHERE {where}", values)

    # the whole

    def _measure(self) -> None:
        with explained(self.path):
            [(self.live_bytes,)] = self._db.execute("SELECT coalesce(sum(bytes), 0) FROM samples WHERE evicted IS NULL")
            [(self.spare_bytes, self._abandoned)] = self._db.execute(
                "SELECT coalesce(sum(bytes), 0), coalesce(sum(abandoned), 0) FROM samples WHERE evicted IS NOT NULL"
            )

    def meta(self) -> dict[str, str]:
        """Tokenizer, model and limits that the samples were stored under; empty before the first run."""
        return dict(self._db.execute("SELECT key, value FROM meta"))

    def size(self) -> int:
        """Number of samples that can be drawn."""
        self.flush()
        with explained(self.path):
            return self._db.execute("SELECT count(*) FROM samples WHERE evicted IS NULL").fetchone()[0]

    def close(self) -> None:
        """Wait for the last write and let go of the file."""
        try:
            self.flush()
        finally:
            self._writer.shutdown()
            self._db.close()
            self._lock.release()


def _outcome(correct: bool | None, variants: tuple[str, ...]) -> tuple[str, tuple]:
    """A condition on `samples` with its values: prompt variant and outcome (None: any)."""
    outcomes = (0, 1) if correct is None else (int(correct),)
    marks = [", ".join("?" * len(values)) for values in (variants, outcomes)]
    return f"variant IN ({marks[0]}) AND correct IN ({marks[1]})", (*variants, *outcomes)


def select(rows: list[tuple], k: int, rng: random.Random, selection: str, near_length: float) -> list[tuple]:
    """`k` of the rows (id, length, step, entropy, ...), which are ordered by id; see `History.draw`."""
    if selection == "uniform":
        return rng.sample(rows, min(k, len(rows)))
    order = {
        "newest": lambda row: (-row[2], -row[0]),
        "shortest": lambda row: row[1],
        "nearest_length": lambda row: abs(row[1] - near_length),
        "lowest_entropy": lambda row: float("inf") if row[3] is None else row[3],
    }[selection]
    return sorted(rows, key=order)[:k]


def tokenizer_fingerprint(tokenizer) -> str:
    """Equal for tokenizers whose ids mean the same: size and hash of the vocabulary."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return f"{len(vocabulary)} tokens {hashlib.sha256(repr(vocabulary).encode()).hexdigest()[:12]}"
