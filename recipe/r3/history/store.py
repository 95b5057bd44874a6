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

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, islice

from recipe.common.rows import PLAIN
from recipe.common.store import pins
from recipe.common.store.codec import tokenizer_fingerprint
from recipe.common.store.store import Store
from recipe.r3.history import draws, writes
from recipe.r3.history.codec import Row, Sample, identified, in_order
from recipe.r3.history.draws import Transfer
from recipe.r3.history.eviction import keep_to_bounds
from recipe.r3.history.file import HISTORY, HistoryError, explained

__all__ = ["History", "Sample", "Transfer", "tokenizer_fingerprint"]
ABSORBED_AT_ONCE = 16_384
"""Samples that `absorb` stores before it looks at the bounds."""


class History(Store):
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

    kind = HISTORY

    def __init__(self, path: str, max_per_outcome: int, max_bytes: int = 32 << 30, seed: int = 0):
        self.max_per_outcome = max_per_outcome
        self.max_bytes = max_bytes
        self.seed = seed
        super().__init__(path)

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
        self._in_background(self._add, samples, step, list(replays), list(unfinished))

    def _add(
        self, samples: list[Sample], step: int, replays: list[tuple[Sample, str]], unfinished: list[tuple[str, str]]
    ) -> None:
        writes.count(self._db, writes.counted(samples, unfinished, step), self.path)
        # The order of arrival differs from run to run; ids, and so later draws, must not.
        self._store(in_order(samples, step, self.seed), step)
        writes.log_replays(self._db, replays, step, self.seed)

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
        if last := pins.last_step(self._db, self.kind):
            raise HistoryError(f"history {self.path}: has {last} steps of its own; import before the first step")
        samples = iter(samples)
        with self._transaction():
            for first in samples:
                chunk = chain([first], islice(samples, ABSORBED_AT_ONCE - 1))
                self._store((identified(replace(sample, version=None), 0, self.seed) for sample in chunk), 0)
            counts = ((query_id, variant, 0, *counts) for query_id, variant, *counts in statistics)
            writes.count(self._db, counts, self.path)
            self._db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", sorted((meta or {}).items()))
        self._measure()

    def _store(self, rows: Iterable[Row], step: int) -> None:
        """Insert the rows and keep to the bounds."""
        held = writes.insert(self._db, rows)
        grown = sorted(bucket for bucket, number in held.items() if number > self.max_per_outcome)
        keep_to_bounds(self._db, grown, step, self.max_per_outcome, self.max_bytes)
        pins.reclaim(self._db, self.kind, pins.spare_bytes, self.max_bytes)

    # drawing

    def success_rates(
        self, query_ids: list[str], min_attempts: int, variants: tuple[str, ...] = (PLAIN,), rounds: int | None = None
    ) -> dict[str, float]:
        """Share of correct attempts of each query with at least `min_attempts` attempts; the others are left out.

        rounds: training steps that asked the query, newest first, whose attempts count. None: all.
        """
        self.flush()
        rates = {}
        with explained(self.path):
            for query_id in query_ids:
                attempts, successes = draws.attempts(self._db, query_id, variants, rounds)
                if attempts >= min_attempts:
                    rates[query_id] = successes / attempts
        return rates

    def transfer(self, query_ids: list[str]) -> dict[str, Transfer]:
        """What reflection did to the plain prompt of each query that was reflected on; the others are left out."""
        self.flush()
        with explained(self.path):
            found = {query_id: draws.transfer(self._db, query_id) for query_id in query_ids}
        return {query_id: transfer for query_id, transfer in found.items() if transfer}

    def draw(
        self,
        query_id: str | None,
        correct: bool | None,
        k: int,
        rng: random.Random,
        variants: tuple[str, ...] = (PLAIN,),
        max_length: int | None = None,
        min_version: int = -1,
        accepts: Callable[[Sample], bool] | None = None,
    ) -> list[Sample]:
        """At most `k` stored samples of the query (None: of any) with that outcome (None: any), uniformly and without
        replacement.

        Args:
            max_length: samples of more tokens are passed over.
            min_version: samples that earlier weights began are passed over.
            accepts: samples for which it is false are passed over.

        Raises:
            HistoryError: a chosen sample is damaged.
        """
        self.flush()
        with explained(self.path):
            ids = draws.candidates(self._db, query_id, correct, variants, max_length, min_version)
            ids = rng.sample(ids, len(ids) if accepts else min(k, len(ids)))
            samples = (draws.load(self._db, sample_id, self.path) for sample_id in ids)
            return list(islice(filter(accepts, samples), k))

    def metrics(self) -> dict[str, float]:
        """Seconds of the last write and of waiting for it; bytes of stored trajectories."""
        return {
            "history/write_s": self.write_seconds,
            "history/wait_s": self.wait_seconds,
            "history/live_bytes": self.live_bytes,
        }
