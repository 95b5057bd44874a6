"""What the sample buffer costs: time and disk.

    python -m tests.benchmarks.history                   the full size: 10 minutes, 4 GB of disk
    python -m tests.benchmarks.history --queries 1000 --steps 5

add     steps of 1,024 responses of 4,096 tokens into the buffer, and the same arrays, as they are, into a plain
        table of blobs; the two take turns
draw    one response and the success rate of each of 128 queries, from a file of 100 queries and from one of
        `--queries`, 32 responses of 256 tokens each; the two take turns. So do checkpoints, and steps of 1,024
        such responses, all of which evict others
open    opening the larger file, which checks its tables, and going back to its checkpoint
"""

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable

import numpy as np

from recipe.r3.history.store import History, Sample

VOCABULARY = 151_643
PER_OUTCOME, STEP, BATCH, SHORT, LONG = 16, 1_024, 128, 256, 4_096


def timed(work: Callable, *values) -> float:
    """Milliseconds that the call takes."""
    begin = time.perf_counter()
    work(*values)
    return 1e3 * (time.perf_counter() - begin)


def make_step(queries: list[str], tokens: int, step: int) -> list[Sample]:
    """`STEP` responses, as many of every query, every second one correct; others in every step.

    Token ids are as frequent as words are, by Zipf's law; most log-probs are near 0."""
    rng = np.random.default_rng(step)
    shape, each = (STEP, tokens), STEP // len(queries)
    ids = np.random.default_rng(0).permutation(VOCABULARY).astype(np.int32)[rng.zipf(1.3, shape) % VOCABULARY]
    sure = rng.random(shape) < 0.7
    log_probs = -np.where(sure, rng.exponential(0.005, shape), rng.exponential(0.8, shape)).astype(np.float32)
    names = [(queries[i // each], bool(i % 2)) for i in range(STEP)]
    return [Sample(q, ids[i], c, float(c), False, step, log_probs=log_probs[i]) for i, (q, c) in enumerate(names)]


def write(history: History, samples: list[Sample], step: int) -> None:
    history.add(samples, step)
    history.flush()


def write_plain(db: sqlite3.Connection, samples: list[Sample]) -> None:
    with db:
        db.executemany(
            "INSERT INTO plain VALUES (?, ?)", [(s.tokens.tobytes(), s.log_probs.tobytes()) for s in samples]
        )


def add(folder: str, steps: int) -> None:
    history, plain = History(f"{folder}/add", PER_OUTCOME), sqlite3.connect(f"{folder}/plain")
    plain.executescript("PRAGMA page_size=16384; PRAGMA journal_mode=WAL; CREATE TABLE plain (tokens, log_probs)")
    ours, theirs = [], []
    for step in range(1, steps + 1):
        samples = make_step([f"{step} {i}" for i in range(BATCH)], LONG, step)
        ours.append(timed(write, history, samples, step))
        theirs.append(timed(write_plain, plain, samples))
    size = history.live_bytes / (steps * STEP * LONG)
    print(f"add: {np.median(ours):.0f} ms a step, plain table {np.median(theirs):.0f} ms; {size:.2f} bytes per token")
    history.close()
    plain.close()


class File:
    """A history of so many queries, full by the bound of each."""

    def __init__(self, path: str, queries: int):
        self.path, self.queries, self.rng = path, [f"query {i}" for i in range(queries)], random.Random(0)
        self.history, self.step, self.times = History(path, PER_OUTCOME), 0, {"draw": [], "add": [], "pin": []}
        for _ in range(-(-queries * 2 * PER_OUTCOME // STEP)):
            begin = self.step * STEP // (2 * PER_OUTCOME) % queries
            self.write((self.queries * 2)[begin : begin + STEP // (2 * PER_OUTCOME)])

    def write(self, queries: list[str]) -> float:
        self.step += 1
        return timed(write, self.history, make_step(queries, SHORT, self.step), self.step)

    def draw(self) -> None:
        queries = self.rng.choices(self.queries, k=BATCH)
        self.history.success_rates(queries, min_attempts=8)
        for query in queries:
            assert self.history.draw(query, True, 1, self.rng)

    def pin(self) -> None:
        self.history.pin(self.step)
        self.history.unpin(lambda step: step < self.step)

    def once(self) -> None:
        self.times["draw"].append(timed(self.draw))
        self.times["add"].append(self.write(self.rng.sample(self.queries, 64)))
        self.times["pin"].append(timed(self.pin))


def draw(folder: str, queries: int, rounds: int) -> None:
    files = [File(f"{folder}/small", 100), File(f"{folder}/large", queries)]
    for _ in range(rounds):
        for file in files:
            file.once()
    for file in files:
        medians = ", ".join(f"{name} {np.median(times):.1f} ms" for name, times in file.times.items())
        print(f"{len(file.queries):,} queries, {file.history.size():,} responses: {medians}")
        file.history.close()
    opened = []
    seconds = timed(lambda: opened.append(History(files[1].path, PER_OUTCOME)))
    print(f"open: {seconds:.0f} ms, back to the checkpoint {timed(opened[0].restore, files[1].step):.0f} ms")
    opened[0].close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        add(folder, args.steps)
        draw(folder, args.queries, args.steps)
