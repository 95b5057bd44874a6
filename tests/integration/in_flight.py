"""The account of a run whose rollouts go on while it trains: every prompt that was fetched was consumed once, or waits.

fetched (position of the data)  =  consumed  +  evicted  +  outstanding
attempts in the history         =  rows that the optimizer steps received  +  rows of evicted groups
"""

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from recipe.common.rows import PLAIN, REFLECTION, REPLAY_MARK, TrainedUid, is_reflection
from recipe.r3.history.file import open_for_reading

from .conftest import Run

PROMPTS, REFLECTIONS = 16, 4
"""Of a step on the profile embedded; at most, of the second."""
PROBLEMS = 41
"""A prime: whatever number of batches of 16 was lost, the position of the data shows it."""
# Checkpoints that leave steps to be lost, reflection from the first failure on, and questions on the way.
IN_FLIGHT = [
    f"data.train_max_samples={PROBLEMS}",
    "trainer.save_freq=3",
    "algorithm.r3.reflection.threshold=1.0",
    "algorithm.r3.reflection.min_attempts=1",
    "algorithm.r3.reflection.when=at_once",
    "algorithm.r3.reflection.ask=adaptive",
]


@dataclass
class Account:
    """Of a finished run."""

    received: dict[int, Counter]
    """Training step -> group uid -> fresh rows that its optimizer steps received."""
    attempts: dict[int, dict[str, int]]
    """Training step -> prompt variant -> attempts that the history counts."""
    rows: list[dict]
    """Metrics of the steps."""
    position: int
    """Prompts of the epoch that were fetched at the last checkpoint."""

    def summary(self) -> str:
        groups = sum(map(len, self.received.values()))
        most = max(row.get("groups/outstanding", 0) for row in self.rows)
        reflections = max(row.get("reflection/groups/outstanding", 0) for row in self.rows)
        return (
            f"{len(self.received)} steps, {groups} groups consumed, none twice, all stored; at most {most} plain and "
            f"{reflections} reflection groups outstanding after a step"
        )


def account(run: Run, rows_folder: Path) -> Account:
    received: dict[int, Counter] = {}
    for file in rows_folder.glob("step_*/rank_*.jsonl"):
        step = int(file.parent.name.split("_")[1])
        for line in file.read_text().splitlines():
            fresh = (row for row in json.loads(line) if row["tokens"] and REPLAY_MARK not in row["uid"])
            received.setdefault(step, Counter()).update(TrainedUid.parse(row["uid"]).group for row in fresh)
    attempts: dict[int, dict[str, int]] = {}
    path = str(run.folder / "history.sqlite")
    with closing(open_for_reading(path)) as db:
        for step, variant, count in db.execute("SELECT step, variant, sum(attempts) FROM statistics GROUP BY 1, 2"):
            attempts.setdefault(step, {})[variant] = count
    last = max(received)
    state = torch.load(run.folder / "checkpoints" / f"global_step_{last}" / "data.pt", weights_only=False)
    return Account(received, attempts, run.rows, state["_num_yielded"])


def assert_all_accounted_for(found: Account, steps: int) -> None:
    assert sorted(found.received) == list(range(1, steps + 1)), "every step trained"
    seen = Counter(uid for groups in found.received.values() for uid in groups)
    assert max(seen.values()) == 1, "no group trains in two steps"
    assert any(map(is_reflection, seen)), "there were reflection groups to account for"
    told = {row["step"]: row for row in found.rows}
    for step, row in told.items():
        assert row["groups/total"] == PROMPTS, f"step {step}: a batch has its number of plain groups"
        assert row["groups/outstanding"] == PROMPTS, f"step {step}: one batch is ahead, as configured"
        assert row["reflection/groups/outstanding"] <= 2 * REFLECTIONS, f"step {step}: no backlog"
        assert row["fresh/rows"] + row["reflection/rows"] == sum(found.received[step].values())
    for step, groups in found.received.items():
        if any(told.get(step, {}).get(f"{kind}/evicted", 0) for kind in ("groups", "reflection/groups")):
            continue  # their rows are stored, and were not trained
        by_variant = {PLAIN: 0, REFLECTION: 0}
        for uid, rows in groups.items():
            by_variant[REFLECTION if is_reflection(uid) else PLAIN] += rows
        stored = {variant: found.attempts.get(step, {}).get(variant, 0) for variant in by_variant}
        assert stored == by_variant, f"step {step}: the history counts what was trained, under its own prompt variant"
    plain = sum(not is_reflection(uid) for uid in seen)
    evicted = sum(row.get("groups/evicted", 0) for row in found.rows)
    outstanding = told[steps].get("groups/outstanding", 0)
    fetched = int(plain + evicted + outstanding)
    assert fetched % PROBLEMS == found.position % PROBLEMS, "no prompt in flight was lost"
