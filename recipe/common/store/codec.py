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
"""How token ids are stored: compressed, with the digest that tells them apart and the checksum of their row.

The digest is XXH3, whose values are fixed for good. The checksum tells damage, not intent: who may write the file can
write a checksum that fits.
"""

import hashlib
import zlib

import numpy as np
import xxhash

LEVEL = 1
"""Of zlib: a higher one takes twice the time and saves a few per cent."""


def as_ids(tokens) -> np.ndarray:
    """(L,) int32, little endian, whatever the machine's order and the kind of numbers are."""
    return np.ascontiguousarray(tokens, dtype="<i4")


def pack(array: np.ndarray) -> bytes:
    return zlib.compress(array.data, LEVEL)


def unpack(data: bytes, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(data), dtype=dtype)


def digest_of(ids: np.ndarray, seed: int) -> bytes:
    """16 bytes, equal for equal ids; the seed decides how those of different ids are ordered."""
    return xxhash.xxh3_128_digest(ids.data, seed=seed)


def checksum_of(columns: tuple, *payloads: bytes | None) -> int:
    """CRC-32 of all that is stored of a row."""
    checksum = zlib.crc32(repr(columns).encode())
    for payload in payloads:
        checksum = zlib.crc32(payload or b"", checksum)
    return checksum


def tokenizer_fingerprint(tokenizer) -> str:
    """Equal for tokenizers whose ids mean the same: size and hash of the vocabulary."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return f"{len(vocabulary)} tokens {hashlib.sha256(repr(vocabulary).encode()).hexdigest()[:12]}"
