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
"""Where an answer may be cut.

An answer has L tokens. A cut t keeps `tokens[:t]`, 1 <= t < L. V: size of the vocabulary.
"""

import random
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

ENDS, STOPS, DIGIT = 1, 2, 4
"""Bits of a token: it ends in a newline; it ends in a full stop; it begins with a digit."""
FULL_STOPS = (".", "。", "।", "۔")
ROUNDING = 1e-9
"""0.1 * 30 is above 3 in floats; the third of 30 tokens is at a tenth all the same."""
END_OF_THINKING = "</think>"


def step_ends(texts: Sequence[str], special: Collection[int]) -> np.ndarray:
    """What each token says about the end of a step; computed once for a tokenizer.

    texts ["a", "b.\\n", ".", "5"], special []: [0, ENDS, STOPS, DIGIT].

    Args:
        texts: (V,) what each token id stands for.
        special: ids that never end a step, those of end and padding among them.

    Returns:
        (V,) uint8 bits, for `cut_points`.
    """
    bits_V = np.zeros(len(texts), dtype=np.uint8)
    for token, text in enumerate(texts):
        written = text.rstrip(" \t\r")
        if written.endswith("\n"):
            bits_V[token] |= ENDS
        elif written.endswith(FULL_STOPS):
            bits_V[token] |= STOPS
        if text[:1] and unicodedata.category(text[0]) == "Nd":
            bits_V[token] |= DIGIT
    bits_V[[token for token in special if token < len(texts)]] = 0
    return bits_V


def cut_points(
    tokens_L: np.ndarray,
    ends_V: np.ndarray,
    *,
    room: int,
    max_length: int,
    lowest: float = 0.05,
    highest: float = 0.8,
    never: Collection[int] = (),
) -> np.ndarray:
    """The cuts t at which a step has ended: after a newline, or after a full stop that no digit follows (3.14).

    Tokens "a" "." "b" "." "c", lowest 0, highest 1, enough room: [2, 4]; highest 0.6: [2].

    Args:
        tokens_L: (L,) ids of an answer. Ids of V and above, which pad an embedding, end no step.
        ends_V: of `step_ends`.
        room: tokens that the rest of the answer must have: max_length - t >= room.
        max_length: of prefix and rest together.
        lowest, highest: share of the answer that a prefix has at least and at most.
        never: ids that no prefix may hold, as the end of thinking: only cuts before the first of them count.

    Returns:
        Sorted int64 positions, perhaps none.
    """
    tokens_L = np.asarray(tokens_L, dtype=np.int64)
    length = len(tokens_L)
    known_L = tokens_L < len(ends_V)
    bits_L = np.where(known_L, np.asarray(ends_V, dtype=np.uint8)[np.where(known_L, tokens_L, 0)], 0)
    within_number_L = np.append(bits_L[1:] & DIGIT > 0, False)
    ended_L = (bits_L & ENDS > 0) | ((bits_L & STOPS > 0) & ~within_number_L)
    cuts = np.flatnonzero(ended_L) + 1
    barred = np.flatnonzero(np.isin(tokens_L, list(never)))
    last = min(length - 1, max_length - room, highest * length + ROUNDING, *barred[:1])
    return cuts[(cuts >= lowest * length - ROUNDING) & (cuts <= last)]


def random_cut(points: np.ndarray, rng: random.Random) -> int | None:
    """One of the cuts, each as likely; None without a cut."""
    return int(points[rng.randrange(len(points))]) if len(points) else None


@dataclass(frozen=True)
class Cutter:
    """Where answers of a model may be cut.

    Args:
        ends: (V,) of `step_ends`.
        never: ids that no prefix may hold.
        room: tokens that a restart has left at least.
        max_length: data.max_response_length.
    """

    ends: np.ndarray
    never: frozenset[int]
    room: int
    max_length: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, tokenizer, room: float, lowest: float, highest: float, max_length: int) -> "Cutter":
        """room: share of `max_length`."""
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        never = {*tokenizer.all_special_ids, tokenizer.eos_token_id}
        never |= {token for token, text in enumerate(texts) if text.strip() == END_OF_THINKING}
        tokens = -(-round(room * max_length * 1e6) // 10**6)  # up, but for the rounding of floats
        return cls(step_ends(texts, never), frozenset(never), max(1, tokens), max_length, lowest, highest)

    def points(self, tokens: np.ndarray) -> np.ndarray:
        return cut_points(
            tokens,
            self.ends,
            room=self.room,
            max_length=self.max_length,
            lowest=self.lowest,
            highest=self.highest,
            never=self.never,
        )
