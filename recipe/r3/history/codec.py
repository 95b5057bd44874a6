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
"""How a response is stored: compressed token ids and log-probs, the digest that tells responses apart, the checksum.

A response is stored in two moves: `identified` hashes it, which is enough to order and compare responses, and `packed`
compresses those that are written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from recipe.common.rows import PLAIN
from recipe.common.store.codec import as_ids, checksum_of, digest_of, pack, unpack
from recipe.r3.history.file import HISTORY

LOWEST = float(np.finfo(np.float16).min)


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
    """(L,) float32 log-probs of the policy that generated it, or None. The file keeps them as float16."""
    id: int | None = None
    """Its row in the file, once drawn."""
    version: int | None = None
    """The training step whose weights were current when it was first taken up; None: those of step - 1."""
    versions: int = 1
    """Weight versions from then to its end: more than one where rollouts go on over weight syncs."""

    def age(self, step: int) -> int:
        """By how many training steps older its weights are than those that are current in `step`."""
        return step - (self.step if self.version is None else self.version + 1)


Bucket = tuple[str, str, int]
"""query_id, variant, correct: what the number of stored samples is bounded for."""


def bucket_of(sample: Sample) -> Bucket:
    return str(sample.query_id), str(sample.variant), int(sample.correct)


class Row(NamedTuple):
    """A sample before it is packed; first what tells samples apart, by which rows are sorted."""

    bucket: Bucket
    digest: bytes
    truncated: int
    score: float
    tie: bytes
    """Of the log-probs: orders equal responses that differ in them alone."""
    version: int
    versions: int
    step: int
    tokens: np.ndarray
    """(L,) int32."""
    log_probs: np.ndarray | None
    """(L,) float32."""

    def order(self) -> tuple:
        return self[:7]


COLUMNS = "query_id, variant, correct, truncated, score, length, entropy, step, version, versions"
"""Of a sample in the file, those that its checksum is of, beside its payload."""


class Packed(NamedTuple):
    """A sample as the file stores it."""

    columns: tuple
    """The values of `COLUMNS`."""
    digest: bytes
    checksum: int
    tokens: bytes
    log_probs: bytes | None

    @property
    def bytes(self) -> int:
        return len(self.tokens) + len(self.log_probs or b"")


def identified(sample: Sample, step: int, seed: int) -> Row:
    """The row of a sample of training step `step`; raises ValueError unless it has as many log-probs as tokens."""
    tokens, log_probs, tie = as_ids(sample.tokens), None, b""
    if sample.log_probs is not None:
        if len(sample.log_probs) != len(tokens):
            raise ValueError(f"query {sample.query_id}: {len(sample.log_probs)} log-probs for {len(tokens)} tokens")
        log_probs = np.ascontiguousarray(sample.log_probs, dtype="<f4")
        tie = xxhash.xxh3_64_digest(log_probs)
    digest = digest_of(tokens, seed)
    score = float(sample.score) + 0.0  # SQLite knows no -0.0
    identity = bucket_of(sample), digest, int(sample.truncated), score, tie
    version = step - 1 if sample.version is None else sample.version
    return Row(*identity, int(version), int(sample.versions), int(step), tokens, log_probs)


def in_order(samples: Iterable[Sample], step: int, seed: int) -> Iterator[Row]:
    """The rows of the samples, bucket by bucket, in an order that depends on their content alone."""
    yield from sorted((identified(sample, step, seed) for sample in samples), key=Row.order)


def packed(row: Row) -> Packed:
    """The row as the file stores it: int32 ids and float16 log-probs, each compressed."""
    tokens, log_probs, entropy = pack(row.tokens), None, None
    if row.log_probs is not None:
        half = np.maximum(row.log_probs, LOWEST).astype("<f2")  # float16 would make the lowest ones infinite
        log_probs = pack(half)
        entropy = entropy_of(row.log_probs)
    columns = (*row.bucket, row.truncated, row.score, len(row.tokens), entropy, row.step, row.version, row.versions)
    return Packed(columns, row.digest, checksum_of(columns, tokens, log_probs), tokens, log_probs)


def entropy_of(log_probs: np.ndarray) -> float | None:
    """Mean of -log_prob, each at least float16's lowest; None of no token or where one is not a number."""
    if not len(log_probs) or np.isnan(log_probs).any():
        return None
    return 0.0 - float(np.maximum(log_probs, LOWEST).mean(dtype=np.float64))  # SQLite knows no -0.0


def decode(row: tuple, sample_id: int, path: str) -> Sample:
    """The sample of a row (`COLUMNS`, checksum, tokens, log_probs); raises HistoryError unless its checksum fits."""
    *columns, checksum, tokens, log_probs = row
    query_id, variant, correct, truncated, score, _, _, step, version, versions = columns
    if tokens is None or checksum != checksum_of(tuple(columns), tokens, log_probs):
        raise HISTORY.damaged(path, sample_id, query_id)
    if log_probs is not None:
        log_probs = unpack(log_probs, "<f2").astype(np.float32)
    return Sample(
        query_id=query_id,
        tokens=unpack(tokens, "<i4"),
        correct=bool(correct),
        score=score,
        truncated=bool(truncated),
        step=step,
        variant=variant,
        log_probs=log_probs,
        id=sample_id,
        version=version,
        versions=versions,
    )
