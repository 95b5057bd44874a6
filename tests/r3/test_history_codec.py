"""How a response is packed, hashed and read back."""

import math
import subprocess
import sys

import numpy as np
import pytest
import xxhash

from recipe.r3.history import codec as history_codec
from recipe.r3.history.codec import (
    PLAIN,
    Sample,
    checksum_of,
    chunks,
    decode,
    digest_of,
    identified,
    joined,
    pack_log_probs,
    packed,
)
from recipe.r3.history.file import HistoryError


def make_sample(tokens, log_probs=None, **changes) -> Sample:
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    values = {"query_id": "q", "correct": False, "score": 0.0, "truncated": False, "step": 3, **changes}
    return Sample(tokens=np.array(tokens, dtype="int32"), log_probs=log_probs, **values)


def random_samples() -> list[Sample]:
    """Of every width, empty ones and ones without log-probs among them."""
    rng, samples = np.random.default_rng(0), []
    for number in range(60):
        length = int(rng.integers(0, 40)) if number % 7 else 0
        largest = (1 << 16, 151_643, 1 << 24, 2**31 - 1)[number % 4]
        log_probs = None if number % 5 == 0 else -rng.exponential(size=length)
        samples.append(make_sample(rng.integers(0, largest, length), log_probs, score=float(number)))
    return samples


# float16


def half_of(values) -> bytes:
    ((half, _),) = pack_log_probs(*joined([np.array(values, dtype="float32")]))
    return half


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
    ((_, entropy),) = pack_log_probs(*joined([log_probs]))
    assert entropy == pytest.approx(-math.fsum(log_probs.tolist()) / length, rel=1e-6)


@pytest.mark.parametrize("log_probs, entropy", [([], None), ([-1.0, np.nan], None), ([-0.0, 0.0], 0.0)])
def test_no_mean_and_no_negative_zero(log_probs, entropy):
    ((_, found),) = pack_log_probs(*joined([np.array(log_probs, dtype="float32")]))
    assert found == entropy and str(found) != "-0.0"


# together


def test_a_response_is_packed_alone_as_among_others():
    rows = [identified(sample, 3, 0) for sample in random_samples()]
    alone = [each for row in rows for each in packed([row])]
    assert list(packed(rows)) == alone and list(packed(rows[::-1])) == alone[::-1]
    assert len({len(each.tokens) // each.columns[5] for each in alone if each.columns[5]}) == 3


def test_what_is_packed_is_decoded_and_the_sample_is_left_as_it_was():
    samples = random_samples()
    before = [(sample.tokens.tobytes(), listed(sample.log_probs)) for sample in samples]
    for sample, stored in zip(samples, packed([identified(sample, 3, 0) for sample in samples]), strict=True):
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
    expected = list(packed([identified(make_sample(tokens, log_probs), 3, 0)]))
    odd = Sample("q", tokens, False, 0.0, False, 3, PLAIN, log_probs)
    assert list(packed([identified(odd, 3, 0)])) == expected


def test_chunks_keep_the_order_and_the_limit(monkeypatch):
    monkeypatch.setattr(history_codec, "CHUNK_TOKENS", 10)
    lengths = [3, 3, 4, 1, 12, 0, 10, 0, 1]
    rows = [identified(make_sample(range(length)), 3, 0) for length in lengths]
    made = [[len(row.tokens) for row in chunk] for chunk in chunks(rows)]
    assert made == [[3, 3, 4], [1], [12], [0, 10, 0], [1]]
    assert list(chunks([])) == []


# hashes


def test_digest_and_checksum_are_the_published_functions():
    """The values of XXH3 for nothing at all, as its authors give them."""
    assert xxhash.xxh3_64_hexdigest(b"") == "2d06800538d394c2"
    assert digest_of(np.array([], dtype="<i4"), 0).hex() == "99aa06d3014798d86001c324468d497f"


def test_the_digest_tells_ids_lengths_and_seeds_apart():
    responses = [[], [0], [0, 0], [1, 2], [2, 1], [1, 2, 0], [1 << 16], [1, 0]]
    digests = {digest_of(np.array(ids, dtype="<i4"), seed) for ids in responses for seed in (0, 1, 2**64 - 1)}
    assert len(digests) == 3 * len(responses) and {len(digest) for digest in digests} == {16}


def test_every_flipped_bit_and_every_changed_column_changes_the_checksum():
    columns = ("q", "plain", 0, 1, 0.5, 40, 0.25, 3, 2, 1)
    tokens, log_probs = bytes(range(120)), bytes(80)
    found = [checksum_of(columns, tokens, log_probs)]
    for payload in (0, 1):
        for bit in range(8 * len((tokens, log_probs)[payload])):
            changed = [bytearray(tokens), bytearray(log_probs)]
            changed[payload][bit // 8] ^= 1 << bit % 8
            found.append(checksum_of(columns, *map(bytes, changed)))
    for place, value in enumerate(("p", "reflection", 1, 0, 0.25, 41, None, 4)):
        found.append(checksum_of((*columns[:place], value, *columns[place + 1 :]), tokens, log_probs))
    found.append(checksum_of(columns, tokens[:-1], tokens[-1:] + log_probs))
    assert len(set(found)) == len(found) == 1 + 8 * 200 + 8 + 1
    assert all(0 <= checksum < 1 << 63 for checksum in found)


def test_a_payload_whose_checksum_does_not_fit_is_refused():
    (stored,) = packed([identified(make_sample([1, 2], [-1, -2]), 3, 0)])
    row = [*stored.columns, stored.checksum, stored.tokens, stored.log_probs]
    assert decode(tuple(row), 7, "path").tokens.tolist() == [1, 2]
    for place, value in ((8, stored.checksum ^ 1), (9, b"\x01\x00\x03\x00"), (10, None), (7, 4)):
        with pytest.raises(HistoryError, match="history path: sample 7 of query q is damaged"):
            decode((*row[:place], value, *row[place + 1 :]), 7, "path")


def test_reading_needs_no_torch():
    """`r3 history show` has an answer before torch is loaded."""
    script = "import sys, recipe.r3.history.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
