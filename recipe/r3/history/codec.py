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
"""How a response is stored: packed token ids and log-probs, the digest that tells responses apart, the checksum.

A response costs 2, 3 or 4 bytes per token for its ids (3 for vocabularies over 65,536) and 2 for its log-probs. It is
stored in two moves: `identified` hashes it, which is enough to order and compare responses, and `packed` does the rest
for those that are written.

Digest and checksum are XXH3, whose values are fixed for good. It tells damage, not intent: who may write the file can
write a checksum that fits. A checksum has a part for the columns and a part for the payload: what people read of a
sample is checked without reading its tokens.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import xxhash

from recipe.r3.history.file import HistoryError

PLAIN, REFLECTION = "plain", "reflection"
"""Prompt variants: the dataset's own prompt, or the reflection prompt built from it."""
CHUNK_TOKENS = 96 << 10
"""That are packed at once: enough that the calls take less time than the work, few enough for the processor's cache."""
PER_THREAD = 32 << 10
"""Numbers at a time that torch starts no threads for."""
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


def by_bucket(samples: Iterable[Sample]) -> dict[Bucket, list[Sample]]:
    """The samples of each bucket; the buckets in order."""
    buckets: dict[Bucket, list[Sample]] = {}
    for sample in samples:
        buckets.setdefault(bucket_of(sample), []).append(sample)
    return dict(sorted(buckets.items()))


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
"""Of a sample in the file, those that its checksum is of."""


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
    tokens, log_probs, tie = np.ascontiguousarray(sample.tokens, dtype="<i4"), None, b""
    if sample.log_probs is not None:
        if len(sample.log_probs) != len(tokens):
            raise ValueError(f"query {sample.query_id}: {len(sample.log_probs)} log-probs for {len(tokens)} tokens")
        log_probs = np.ascontiguousarray(sample.log_probs, dtype="<f4")
        tie = xxhash.xxh3_64_digest(log_probs)
    score = float(sample.score) + 0.0  # SQLite knows no -0.0
    identity = bucket_of(sample), digest_of(tokens, seed), int(sample.truncated), score, tie
    version = step - 1 if sample.version is None else sample.version
    return Row(*identity, int(version), int(sample.versions), int(step), tokens, log_probs)


def in_order(buckets: dict[Bucket, list[Sample]], step: int, seed: int) -> Iterator[Row]:
    """The rows of the samples, bucket by bucket, in an order that depends on their content alone. Each is made just
    before it is used, for reading a response from memory takes longer than hashing it."""
    for samples in buckets.values():
        yield from sorted((identified(sample, step, seed) for sample in samples), key=Row.order)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in order, as many at a time as `packed` does best with."""
    chunk, tokens = [], 0
    for row in rows:
        tokens += len(row.tokens)
        if chunk and tokens > CHUNK_TOKENS:
            yield chunk
            chunk, tokens = [], len(row.tokens)
        chunk.append(row)
    if chunk:
        yield chunk


def packed(rows: list[Row]) -> Iterator[Packed]:
    """The rows as the file stores them. Packed together, for numpy takes longer to be called than to pack one."""
    responses = [row.log_probs for row in rows if row.log_probs is not None]
    recorded = iter(pack_log_probs(*joined(responses)) if responses else [])
    for row, tokens in zip(rows, pack_tokens(*joined([row.tokens for row in rows])), strict=True):
        log_probs, entropy = (None, None) if row.log_probs is None else next(recorded)
        columns = (*row.bucket, row.truncated, row.score, len(row.tokens), entropy, row.step, row.version, row.versions)
        yield Packed(columns, row.digest, checksum_of(columns, tokens, log_probs), tokens, log_probs)


def damaged(sample: str | int, path: str) -> HistoryError:
    return HistoryError(f"history {path}: sample {sample} is damaged; run `r3 history prune --damaged`")


def decode(row: tuple, sample_id: int, path: str) -> Sample:
    """The sample of a row (`COLUMNS`, checksum, tokens, log_probs); raises HistoryError unless its checksum and its
    lengths fit."""
    *columns, checksum, tokens, log_probs = row
    query_id, variant, correct, truncated, score, length, _, step, version, versions = columns
    try:
        if checksum != checksum_of(tuple(columns), tokens, log_probs):
            raise ValueError("the checksum does not fit")
        ids = unpack_tokens(tokens, length)
        if log_probs is not None and len(log_probs) != 2 * length:
            raise ValueError(f"{len(log_probs)} bytes do not hold {length} log-probs")
    except (TypeError, ValueError) as error:  # TypeError: something else in place of the bytes
        raise damaged(f"{sample_id} of query {query_id}", path) from error
    return Sample(
        query_id=query_id,
        tokens=ids,
        correct=bool(correct),
        score=score,
        truncated=bool(truncated),
        step=step,
        variant=variant,
        log_probs=None if log_probs is None else np.frombuffer(log_probs, dtype="<f2").astype(np.float32),
        id=sample_id,
        version=version,
        versions=versions,
    )


Spans = list[tuple[int, int]]
"""Begin and end of each response in an array of several, one after the other."""


def joined(responses: list[np.ndarray]) -> tuple[np.ndarray, Spans]:
    return np.concatenate(responses), list(pairwise(accumulate(map(len, responses), initial=0)))


def of_each(function: np.ufunc, values: np.ndarray, spans: Spans) -> list:
    """`function` over the values of each response; 0 for an empty one."""
    begins = [begin for begin, end in spans if begin < end]
    found = iter(function.reduceat(values, begins).tolist() if begins else ())
    return [next(found) if begin < end else 0 for begin, end in spans]


def pack_tokens(tokens: np.ndarray, spans: Spans) -> list[bytes]:
    """The low 16 bits of all ids, then the next 0, 8 or 16, as the response's largest needs: 151,643 takes 3 bytes.

    Args:
        tokens: (T,) int32 ids of all responses.
    """
    ids = tokens.view("<u4")
    low, high = ids.astype("<u2"), ids >> 16
    middle, blobs = high.astype(np.uint8), []
    for (begin, end), largest in zip(spans, of_each(np.maximum, high, spans), strict=True):
        if largest == 0:
            blobs.append(low[begin:end].tobytes())
        else:
            upper = middle[begin:end] if largest < 1 << 8 else high[begin:end].astype("<u2")
            blobs.append(b"".join((low[begin:end], upper)))
    return blobs


def unpack_tokens(blob: bytes, length: int) -> np.ndarray:
    """(length,) int32 ids from `pack_tokens`."""
    width = len(blob) // length if length > 0 else 2
    if width not in (2, 3, 4) or width * length != len(blob):
        raise ValueError(f"{len(blob)} bytes do not hold {length} token ids")
    ids = np.frombuffer(blob, dtype="<u2", count=length).astype("<i4")
    if width > 2:
        high = np.frombuffer(blob, dtype=np.uint8 if width == 3 else "<u2", offset=2 * length)
        ids |= high.astype("<i4") << 16
    return ids


def pack_log_probs(log_probs: np.ndarray, spans: Spans) -> list[tuple[bytes, float | None]]:
    """The nearest float16, at least the lowest finite one; and the mean of -log_prob, None if it is not a number.

    Args:
        log_probs: (T,) float32 of all responses; overwritten.
    """
    import torch  # reading a history needs none of it

    half = torch.empty(len(log_probs), dtype=torch.float16)
    for target, source in zip(half.split(PER_THREAD), torch.from_numpy(log_probs).split(PER_THREAD), strict=True):
        target.copy_(source.clamp_(min=LOWEST))  # rounds as numpy does, but with the processor's instruction for it
    half = half.numpy().astype("<f2", copy=False)
    packed = []
    for (begin, end), total in zip(spans, of_each(np.add, log_probs, spans), strict=True):
        known = begin < end and not math.isnan(total)
        entropy = 0.0 - total / (end - begin) if known else None  # SQLite knows no NaN and no -0.0
        packed.append((half[begin:end].tobytes(), entropy))
    return packed


def digest_of(tokens: np.ndarray, seed: int) -> bytes:
    """16 bytes that stand for the (L,) int32 ids; the seed decides how digests of different responses are ordered."""
    return xxhash.xxh3_128_digest(tokens, seed=seed)


def checksum_of(columns: tuple, tokens: bytes, log_probs: bytes | None) -> int:
    """63 bits: 32 of the XXH3-64 of the payload, above them 31 of that of the columns, seeded with the 32."""
    payload = xxh3_of(log_probs or b"", seed=xxh3_of(tokens)) % (1 << 32)
    return _above(columns, payload)


def columns_fit(columns: tuple, checksum: int) -> bool:
    """Whether the columns are what the checksum says, whatever became of the payload."""
    return _above(columns, checksum % (1 << 32)) == checksum


def _above(columns: tuple, payload: int) -> int:
    return xxh3_of(repr(columns).encode(), seed=payload) >> 33 << 32 | payload  # SQLite's integers have a sign


xxh3_of = xxhash.xxh3_64_intdigest
