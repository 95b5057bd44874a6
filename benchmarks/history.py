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
"""What the sample buffer costs: time, memory and disk, against bounds.

    python benchmarks/history.py                            every figure at full size: 5 to 10 minutes, 4 GB of disk
    python benchmarks/history.py --scale small              the same code in under a minute
    python benchmarks/history.py --only retrieval open      some of the figures

Exits with 1 if a figure misses its bound. The large file holds 40,000 queries with 16 correct and 16 wrong responses
each, written over 4 epochs; they are of 256 tokens only, so that it takes 2 GB instead of 28.

    retrieval   one response of each of 128 random queries and their success rates, for every selection; once with
                nothing of the file in memory. Each is checked against its checksum
    memory      by how much the process grows at most: while it fills the large file, and while a fresh one opens it,
                trains and draws
    throughput  steps of 1,024 responses of 4,096 tokens into the buffer, and the same bytes into a plain table of
                blobs with the same settings; the two take turns. Then steps that evict as much as they store
    checkpoint  pinning a step and giving up the one before, after a step of 1,024 responses with as many evictions, in
                the large file and in one of 10,000 responses; the two take turns
    volume      64,000 responses of 4,096 tokens written, and each read back and compared
    open        opening the large file, which checks tables, indexes and pages, and going back to a checkpoint
"""

import argparse
import hashlib
import os
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context

import numpy as np
import psutil
import torch  # noqa: F401  loaded in every trainer, so no growth of the process that the buffer causes

from recipe.r3.history import file as history_file
from recipe.r3.history.codec import identified, packed
from recipe.r3.history.store import SELECTIONS, History, Sample

VOCABULARY = 151_643
PER_OUTCOME, EPOCHS = 16, 4
SHORT, LONG = 256, 4_096
STEP, BATCH = 1_024, 128


@dataclass(frozen=True)
class Scale:
    queries: int
    """Of the large file, with 2 * PER_OUTCOME responses each."""
    small_queries: int
    """Of the small file that `checkpoint` compares it with."""
    batches: int
    """Per way of drawing."""
    steps: int
    """Of `throughput`, per side."""
    checkpoints: int
    """Per file."""
    trajectories: int
    """Of `volume`."""


SCALES = {
    "small": Scale(queries=1_000, small_queries=313, batches=100, steps=8, checkpoints=15, trajectories=4_000),
    "full": Scale(queries=40_000, small_queries=313, batches=300, steps=50, checkpoints=150, trajectories=64_000),
}


@dataclass(frozen=True)
class Figure:
    what: str
    value: str
    bound: str = ""
    holds: bool = True


# tools


def progress(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def timed(work: Callable, *values, **settings) -> float:
    """Seconds that the call takes."""
    begin = time.perf_counter()
    work(*values, **settings)
    return time.perf_counter() - begin


def in_fresh_process(function: Callable, *values):
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *values).result()


class Growth:
    """By how many bytes this process grows at most inside the `with`."""

    def __enter__(self):
        self._rss = psutil.Process().memory_info
        self._before = self._most = self._rss().rss
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self._most = max(self._most, self._rss().rss)

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()
        self._most = max(self._most, self._rss().rss)

    @property
    def bytes(self) -> int:
        return self._most - self._before


def forget(path: str) -> bool:
    """Drop the file from the page cache, so that the disk is read; False where the system cannot."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def query_ids(number: int) -> list[str]:
    return [hashlib.sha1(b"query %d" % i).hexdigest()[:16] for i in range(number)]


def make_step(queries: list[str], each: int, tokens: int, step: int) -> list[Sample]:
    """`each` responses of every query, every second one correct; others in every step."""
    rng = np.random.default_rng(step)
    shape = len(queries) * each, tokens
    ids = rng.integers(0, VOCABULARY, shape, dtype=np.int32)
    log_probs = -rng.standard_exponential(shape, dtype=np.float32)
    return [
        Sample(queries[i // each], ids[i], bool(i % 2), float(i % 2), False, step, log_probs=log_probs[i])
        for i in range(len(ids))
    ]


def steps_of(queries: list[str], per_step: int) -> Iterator[list[str]]:
    """The queries of each step, in another order in every epoch, without end."""
    for epoch in count():
        order = random.Random(epoch).sample(queries, len(queries))
        for begin in range(0, len(order), per_step):
            yield order[begin : begin + per_step]


# the large file


def fill(path: str, queries: list[str]) -> int:
    """Write the file of `retrieval`, with some replays; returns by how many bytes the process grew."""
    each = 2 * PER_OUTCOME // EPOCHS
    steps = EPOCHS * -(-len(queries) // 512)
    with Growth() as growth:
        history = History(path, PER_OUTCOME)
        for step, batch in zip(range(1, steps + 1), steps_of(queries, 512), strict=False):
            history.add(make_step(batch, each, SHORT, step), step)
            if step % 25 == 0:
                progress(f"filled {step} of {steps} steps")
        rng = random.Random(0)
        for step in range(steps + 1, steps + 21):
            drawn = [history.draw(query, True, 4, rng) for query in rng.sample(queries, 256)]
            history.add([], step, [(sample, sample.variant) for samples in drawn for sample in samples])
        history.pin(step)
        if history.size() != 2 * PER_OUTCOME * len(queries):
            raise RuntimeError(f"{history.size()} responses of {len(queries)} queries")
        history.close()
    return growth.bytes


# retrieval


def draw_batch(history: History, queries: list[str], correct: bool | None, rng: random.Random, **settings) -> None:
    history.success_rates(queries, min_attempts=8)
    for query in queries:
        if len(history.draw(query, correct, 1, rng, **settings)) != 1:
            raise RuntimeError(f"nothing to draw for query {query}")


def retrieval(path: str, queries: list[str], batches: int) -> list[Figure]:
    history, rng = History(path, PER_OUTCOME), random.Random(1)
    ways = [(selection, True, {"selection": selection}) for selection in SELECTIONS]
    ways[3][2]["near_length"] = float(SHORT)
    ways += [("uniform, any outcome", None, {}), ("uniform, replayed at most once", False, {"max_replays": 2})]
    figures = []
    for name, correct, settings in ways:
        progress(f"retrieval: {name}")
        work = [rng.sample(queries, BATCH) for _ in range(batches)]
        seconds = [timed(draw_batch, history, batch, correct, rng, **settings) for batch in work]
        figures.append(percentiles(f"{BATCH} queries, {name}", seconds))
    history.close()
    return figures + cold_retrieval(path, queries, max(5, batches // 10), rng)


def cold_retrieval(path: str, queries: list[str], batches: int, rng: random.Random) -> list[Figure]:
    progress("retrieval: from disk")
    history, seconds = History(path, PER_OUTCOME), []
    for _ in range(batches):
        if not forget(path):
            return []
        seconds.append(timed(draw_batch, history, rng.sample(queries, BATCH), True, rng))
    history.close()
    return [Figure(f"{BATCH} queries, uniform, nothing of the file in memory", f"p50 {p50(seconds):.0f} ms")]


def p50(seconds: list[float]) -> float:
    return 1e3 * float(np.median(seconds))


def percentiles(what: str, seconds: list[float]) -> Figure:
    p99 = 1e3 * float(np.percentile(seconds, 99))
    return Figure(what, f"p50 {p50(seconds):.1f} ms, p99 {p99:.1f} ms", "p99 < 100 ms", p99 < 100)


# memory


def train_and_draw(path: str, queries: list[str]) -> int:
    """Open, train 5 steps and draw 20 batches; returns by how many bytes the process grew."""
    with Growth() as growth:
        history, rng = History(path, PER_OUTCOME), random.Random(2)
        first = history.pinned()[-1] + 1
        for step, batch in zip(range(first, first + 5), steps_of(queries, BATCH), strict=False):
            history.add(make_step(batch, STEP // BATCH, SHORT, step), step)
            for _ in range(4):
                draw_batch(history, rng.sample(queries, BATCH), True, rng)
            history.pin(step)
        history.close()
    return growth.bytes


def memory(what: str, growth: int) -> Figure:
    return Figure(f"growth of the process while {what}", f"{growth / 1e6:.0f} MB", "< 100 MB", growth < 100e6)


# throughput


def plain_table(path: str):
    """A file with the settings of the buffer's, and a table of blobs."""
    db = history_file.open_for_writing(path, exclusive=False)
    db.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, tokens BLOB NOT NULL, log_probs BLOB)")
    return db


def write_plain(db, blobs: list[tuple[bytes, bytes]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO plain (tokens, log_probs) VALUES (?, ?)", blobs)
    db.execute("COMMIT")


def write_step(history: History, samples: list[Sample], step: int) -> None:
    history.add(samples, step)
    history.flush()


def move_pin(history: History, step: int) -> None:
    """What a checkpoint of `step` does when it replaces all earlier ones."""
    history.pin(step)
    history.unpin(lambda pinned: pinned < step)


def throughput(folder: str, steps: int) -> list[Figure]:
    history, plain = History(f"{folder}/throughput", PER_OUTCOME // 4), plain_table(f"{folder}/plain")
    queries = query_ids(steps * BATCH)
    ours, theirs, evicting = [], [], []
    for step, batch in zip(range(1, 2 * steps + 1), steps_of(queries, BATCH), strict=False):
        samples = make_step(batch, STEP // BATCH, LONG, step)
        seconds = timed(write_step, history, samples, step)
        if step > steps:
            evicting.append(seconds)
            move_pin(history, step)
            continue
        ours.append(seconds)
        blobs = [(row.tokens, row.log_probs) for sample in samples for row in packed([identified(sample, step, 0)])]
        theirs.append(timed(write_plain, plain, blobs))
        if step % 10 == 0:
            progress(f"throughput: {step} of {steps} steps")
    history.close()
    plain.close()
    size = sum(len(blob) for row in blobs for blob in row)
    share = float(np.median(theirs) / np.median(ours))
    return [
        Figure(f"step of {STEP:,} responses of {LONG:,} tokens", rate(ours, size)),
        Figure("its bytes into a plain table of blobs", rate(theirs, size)),
        Figure("throughput against the plain table", f"{100 * share:.0f} %", ">= 60 %", share >= 0.6),
        Figure("step that evicts as much as it stores", rate(evicting, size)),
    ]


def rate(seconds: list[float], size: int) -> str:
    return f"{p50(seconds):.0f} ms, {size / 1e3 / p50(seconds):.0f} MB/s"


# checkpoint


class Checkpoints:
    """Times checkpoints of a file of full buckets, each after a step that evicts as much as it stores."""

    def __init__(self, path: str, queries: list[str]):
        self.history, self.batches = History(path, PER_OUTCOME), steps_of(queries, BATCH)
        self.step = self.history.pinned()[-1]
        self.rows = self.history.size()
        self.seconds = []

    def once(self) -> None:
        self.step += 1
        batch = next(self.batches)
        while len(batch) < BATCH:
            batch = next(self.batches)
        write_step(self.history, make_step(batch, STEP // BATCH, SHORT, self.step), self.step)
        self.seconds.append(timed(move_pin, self.history, self.step))


def checkpoint(folder: str, large: str, queries: list[str], scale: Scale) -> list[Figure]:
    few = queries[: scale.small_queries]
    in_fresh_process(fill, f"{folder}/small", few)
    files = [Checkpoints(f"{folder}/small", few), Checkpoints(large, queries)]
    for number in range(scale.checkpoints):
        for file in files:
            file.once()
        if number % 25 == 24:
            progress(f"checkpoint: {number + 1} of {scale.checkpoints}")
    for file in files:
        file.history.close()
    ratio = p50(files[1].seconds) / p50(files[0].seconds)
    return [
        *(Figure(f"checkpoint at {file.rows:,} responses", f"{p50(file.seconds):.1f} ms") for file in files),
        Figure("ratio of the two", f"{ratio:.2f}", "<= 1.5", ratio <= 1.5),
    ]


# volume


def fingerprint(sample: Sample) -> tuple:
    log_probs = sample.log_probs.astype(np.float16).tobytes()
    return sample.query_id, sample.correct, zlib.crc32(sample.tokens.tobytes()), zlib.crc32(log_probs)


def volume(folder: str, trajectories: int) -> list[Figure]:
    path = f"{folder}/volume"
    queries = query_ids(trajectories // (2 * PER_OUTCOME))
    history, written, seconds, size = History(path, PER_OUTCOME), set(), 0.0, 0
    for step, batch in zip(range(1, 4 * len(queries)), steps_of(queries, BATCH), strict=False):
        if len(written) == trajectories:
            break
        samples = make_step(batch, STEP // BATCH, LONG, step)
        seconds += timed(write_step, history, samples, step)
        written.update(map(fingerprint, samples))
        progress(f"volume: {len(written):,} of {trajectories:,} written")
    size = history.live_bytes
    history.close()
    figures = [disk_use(path, trajectories, size), Figure("written", f"{size / 1e6 / seconds:.0f} MB/s")]
    for cold in (False, True):
        if cold and not forget(path):
            break
        progress(f"volume: reading {trajectories:,}")
        where = "from disk" if cold else "from the page cache"
        speed = size / 1e6 / read_all(path, queries, written)
        figures.append(Figure(f"read {where}, each compared", f"{speed:.0f} MB/s"))
    os.remove(path)
    return figures


def disk_use(path: str, trajectories: int, payload: int) -> Figure:
    size = os.path.getsize(path)
    value = f"{size / trajectories:,.0f} B, {size / trajectories / LONG:.2f} B per token, payload {payload / size:.0%}"
    return Figure(f"disk per response, {trajectories:,} of {LONG:,} tokens", value)


def read_all(path: str, queries: list[str], written: set[tuple]) -> float:
    """Seconds to draw everything, which must be what was written."""
    history, rng, seconds, read = History(path, PER_OUTCOME), random.Random(3), 0.0, 0
    for query in queries:
        begin = time.perf_counter()
        samples = history.draw(query, None, 2 * PER_OUTCOME, rng)
        seconds += time.perf_counter() - begin
        found = set(map(fingerprint, samples))
        if not found <= written or len(found) != len(samples):
            raise RuntimeError(f"query {query}: not what was written")
        read += len(found)
    history.close()
    if read != len(written):
        raise RuntimeError(f"{read} of {len(written)} responses read")
    return seconds


# open


def opening(path: str, queries: list[str]) -> list[Figure]:
    def reopen() -> None:
        History(path, PER_OUTCOME).close()

    progress("open")
    warm = [timed(reopen) for _ in range(3)]
    figures = [Figure("open", f"{np.median(warm):.1f} s")]
    if forget(path):
        figures.append(Figure("open, nothing of the file in memory", f"{timed(reopen):.1f} s"))
    history = History(path, PER_OUTCOME)
    rows, pinned = history.size(), history.pinned()[-1]
    same = timed(history.restore, pinned)
    for step, batch in zip(range(pinned + 1, pinned + 6), steps_of(queries, BATCH), strict=False):
        write_step(history, make_step(batch, STEP // BATCH, SHORT, step), step)
    back = timed(history.restore, pinned)
    if history.size() != rows:
        raise RuntimeError(f"{history.size()} of {rows} responses restored")
    history.close()
    figures += [Figure("restore its last step", f"{same:.1f} s"), Figure("go back 5 steps", f"{back:.1f} s")]
    return [Figure(f"{figure.what}, {rows:,} responses", figure.value) for figure in figures]


# all of them


def measure(folder: str, scale: Scale, names: list[str]) -> Iterator[tuple[str, list[Figure]]]:
    large, queries = f"{folder}/large", query_ids(scale.queries)
    if "throughput" in names:
        yield "throughput", throughput(folder, scale.steps)
        os.remove(f"{folder}/throughput")
        os.remove(f"{folder}/plain")
    if "volume" in names:
        yield "volume", volume(folder, scale.trajectories)
    if set(names) <= {"throughput", "volume"}:
        return
    growth = in_fresh_process(fill, large, queries)
    if "retrieval" in names:
        yield "retrieval", retrieval(large, queries, scale.batches)
    if "memory" in names:
        again = in_fresh_process(train_and_draw, large, queries)
        yield "memory", [memory("filling the large file", growth), memory("opening it, training, drawing", again)]
    if "checkpoint" in names:
        yield "checkpoint", checkpoint(folder, large, queries, scale)
    if "open" in names:
        yield "open", opening(large, queries)


def print_table(results: list[tuple[str, list[Figure]]]) -> None:
    rows = [("", "figure", "measured", "bound", "")]
    for name, figures in results:
        for figure in figures:
            verdict = ("pass" if figure.holds else "FAIL") if figure.bound else ""
            rows.append((name, figure.what, figure.value, figure.bound, verdict))
            name = ""
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> int:
    names = ["throughput", "volume", "retrieval", "memory", "checkpoint", "open"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the files go, all removed at the end (default: a temporary folder)")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    args = parser.parse_args()
    scale = SCALES[args.scale]
    begin, (load, *_) = time.monotonic(), os.getloadavg()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="history_") as folder:
        results = list(measure(folder, scale, args.only))
    progress(f"done in {(time.monotonic() - begin) / 60:.1f} minutes")
    print(f"{scale.queries:,} queries x {2 * PER_OUTCOME} responses of {SHORT} tokens in the large file; ", end="")
    print(f"{os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    print_table(results)
    return int(not all(figure.holds for _, figures in results for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
