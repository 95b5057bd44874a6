"""How a response is packed, hashed and read back."""

import math
import subprocess
import sys
import zlib

import numpy as np
import pytest

from recipe.common.rows import PLAIN
from recipe.r3.history.codec import Sample, decode, entropy_of, identified, packed
from recipe.r3.history.file import HistoryError


def make_sample(tokens, log_probs=None, **changes) -> Sample:
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    values = {"query_id": "q", "correct": False, "score": 0.0, "truncated": False, "step": 3, **changes}
    return Sample(tokens=np.array(tokens, dtype="int32"), log_probs=log_probs, **values)


def random_samples() -> list[Sample]:
    """Of small and large ids, empty ones and ones without log-probs among them."""
    rng, samples = np.random.default_rng(0), []
    for number in range(60):
        length = int(rng.integers(0, 40)) if number % 7 else 0
        largest = (1 << 16, 151_643, 1 << 24, 2**31 - 1)[number % 4]
        log_probs = None if number % 5 == 0 else -rng.exponential(size=length)
        samples.append(make_sample(rng.integers(0, largest, length), log_probs, score=float(number)))
    return samples


# float16


def half_of(values) -> bytes:
    return zlib.decompress(packed(identified(make_sample(range(len(values)), values), 3, 0)).log_probs)


def test_every_float16_and_what_lies_between_two_rounds_as_in_numpy():
    """All finite ones, the middle of each and its neighbour, where the even one wins, and the next float32 to it."""
    halves = np.arange(1 << 16, dtype="uint16").view("float16").astype("float32")
    halves = np.unique(halves[np.isfinite(halves)])
    middle = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate([halves, middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)])
    assert len(values) > 4 * 63_000 and half_of(values) == values.astype("<f2").tobytes()


def test_what_float16_cannot_hold_becomes_its_lowest_number():
    lowest = np.array([-65_504] * 3, dtype="<f2").tobytes()
    assert half_of([-65_504, -65_520, -np.inf]) == lowest


@pytest.mark.parametrize("length", [1, 4_095, 40_000, 100_000])
def test_entropy_is_the_mean_of_a_slow_exact_sum(length):
    log_probs = -np.random.default_rng(length).exponential(size=length).astype("float32")
    assert entropy_of(log_probs) == pytest.approx(-math.fsum(log_probs.tolist()) / length, rel=1e-6)


@pytest.mark.parametrize("log_probs, entropy", [([], None), ([-1.0, np.nan], None), ([-0.0, 0.0], 0.0)])
def test_no_mean_and_no_negative_zero(log_probs, entropy):
    found = entropy_of(np.array(log_probs, dtype="float32"))
    assert found == entropy and str(found) != "-0.0"


# together


def test_what_is_packed_is_decoded_and_the_sample_is_left_as_it_was():
    samples = random_samples()
    before = [(sample.tokens.tobytes(), listed(sample.log_probs)) for sample in samples]
    for sample in samples:
        stored = packed(identified(sample, 3, 0))
        again = decode((*stored.columns, stored.checksum, stored.tokens, stored.log_probs), 1, "path")
        assert again.tokens.tobytes() == sample.tokens.tobytes() and again.score == sample.score
        half = None if sample.log_probs is None else sample.log_probs.astype("<f2").astype("float32")
        assert listed(again.log_probs) == listed(half)
    assert [(sample.tokens.tobytes(), listed(sample.log_probs)) for sample in samples] == before


def listed(array) -> list | None:
    return None if array is None else array.tolist()


def test_read_only_arrays_and_other_number_types_are_stored_alike():
    tokens, log_probs = np.array([1, 70_000]), np.array([-0.5, -70_000.0])
    for array in (tokens, log_probs):
        array.setflags(write=False)
    expected = packed(identified(make_sample(tokens, log_probs), 3, 0))
    odd = Sample("q", tokens, False, 0.0, False, 3, PLAIN, log_probs)
    assert packed(identified(odd, 3, 0)) == expected


# hashes


def digest_of(ids, seed: int) -> bytes:
    return identified(make_sample(ids), 3, seed).digest


def test_the_digest_is_the_published_function():
    """The value of XXH3 for nothing at all, as its authors give it."""
    assert digest_of([], 0).hex() == "99aa06d3014798d86001c324468d497f"


def test_the_digest_tells_ids_lengths_and_seeds_apart():
    responses = [[], [0], [0, 0], [1, 2], [2, 1], [1, 2, 0], [1 << 16], [1, 0]]
    digests = {digest_of(ids, seed) for ids in responses for seed in (0, 1, 2**64 - 1)}
    assert len(digests) == 3 * len(responses) and {len(digest) for digest in digests} == {16}


def test_a_flipped_bit_of_a_stored_row_is_refused_when_it_is_read():
    """Every bit of the payload, and every column."""
    stored = packed(identified(make_sample([1, 70_000], [-1, -2]), 3, 0))
    row = (*stored.columns, stored.checksum, stored.tokens, stored.log_probs)
    assert decode(row, 7, "path").tokens.tolist() == [1, 70_000]
    changes = [(place, "x" if isinstance(row[place], str) else row[place] + 1) for place in range(len(row) - 2)]
    for place in (-2, -1):
        for bit in range(8 * len(row[place])):
            flipped = bytearray(row[place])
            flipped[bit // 8] ^= 1 << bit % 8
            changes.append((len(row) + place, bytes(flipped)))
    changes += [(len(row) - 2, None), (len(row) - 1, None), (len(row) - 1, b"")]
    for place, value in changes:
        with pytest.raises(HistoryError, match="history path: sample 7 of query . is damaged"):
            decode((*row[:place], value, *row[place + 1 :]), 7, "path")
    assert len(changes) == len(row) + 1 + 8 * stored.bytes


def test_reading_needs_no_torch():
    """A command that shows a history has an answer before torch is loaded."""
    script = "import sys, recipe.r3.history.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
