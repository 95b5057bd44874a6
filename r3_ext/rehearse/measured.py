"""What a rehearsal's folder tells: seconds, tokens and memory of every phase and kind of step."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from r3_ext.record import memory
from r3_ext.record.summary import read_metrics, read_rows
from r3_ext.rehearse.predict import Seconds
from r3_ext.rehearse.steps import FIRST, GRPO, LATER, PHASES, WARM_UP, WORST
from recipe.common.rows import TrainedUid

START, END, ROLLOUT, UPDATE = "start", "end", "rollout", "update"
CHECKPOINT, VALIDATION = "checkpoint", "validation"
OUTSIDE = (START, END, CHECKPOINT, VALIDATION)
"""Phases that are no part of a typical step."""


@dataclass(frozen=True)
class Phase:
    name: str
    step: int
    kind: str | None
    begin: float
    end: float
    """Seconds since the epoch."""


def phases_of(folder: Path, ended: float) -> list[Phase]:
    """The phases in their order; the last one ends with the command, at `ended`."""
    lines = read_rows(folder / PHASES)
    ends = [*(line["t"] for line in lines[1:]), ended][: len(lines)]
    return [
        Phase(line["phase"], line["step"], line["kind"], line["t"], end) for line, end in zip(lines, ends, strict=True)
    ]


@dataclass(frozen=True)
class Measured:
    """The folder of a rehearsal."""

    phases: list[Phase]
    rows: dict[int, dict]
    """Metrics by step."""
    samples: list[dict]
    """Of memory.jsonl."""
    began: float
    ended: float

    @classmethod
    def read(cls, folder: Path, began: float, ended: float) -> "Measured":
        rows = {row["step"]: row for row in read_metrics(folder / "metrics.jsonl")}
        return cls(phases_of(folder, ended), rows, memory.read(folder), began, ended)

    def steps(self, kind: str) -> list[int]:
        """The steps of a kind that were finished."""
        return sorted({phase.step for phase in self.phases if phase.kind == kind and phase.step in self.rows})

    def seconds_of_step(self, step: int) -> float:
        """All phases of a step that belong to it."""
        return sum(p.end - p.begin for p in self.phases if p.step == step and p.name not in OUTSIDE)

    def step_seconds(self, kind: str) -> float:
        return mean(map(self.seconds_of_step, self.steps(kind)))

    def phase_seconds(self, name: str, kind: str | None = None) -> float:
        """Mean over the steps that have the phase; 0 where none has."""
        found = defaultdict(float)
        for phase in self.phases:
            if phase.name == name and kind in (None, phase.kind):
                found[phase.step] += phase.end - phase.begin
        return mean(found.values()) if found else 0.0

    def tokens(self, kind: str, name: str) -> float:
        """Tokens that a phase handles in a step of that kind: generated ones, or those of all trained rows."""
        metric = "generated/tokens" if name == ROLLOUT else "perf/total_num_tokens"
        return mean(self.rows[step].get(metric, 0) for step in self.steps(kind))

    def samples_in(self, *phases: Phase) -> list[dict]:
        return [s for s in self.samples if any(phase.begin <= s["t"] <= phase.end for phase in phases)]

    def peak(self, kind: str, name: str | None = None) -> dict:
        """`memory.peak` of the phases of that kind and name (None: all)."""
        found = [p for p in self.phases if p.kind == kind and name in (None, p.name)]
        return memory.peak(self.samples_in(*found))

    def before(self, kind: str, name: str) -> dict:
        """`memory.peak` of the last sample before the phase began."""
        begin = next((phase.begin for phase in self.phases if phase.kind == kind and phase.name == name), None)
        earlier = [s for s in self.samples if begin is not None and s["t"] <= begin]
        return memory.peak(earlier[-1:])

    def seconds(self) -> Seconds:
        first_step = next(phase.begin for phase in self.phases if phase.step == 1)
        typical = self.step_seconds(FIRST)
        return Seconds(
            start=first_step - self.began + max(0.0, self.step_seconds(WARM_UP) - typical),
            first=typical,
            later=self.step_seconds(LATER) if self.steps(LATER) else typical,
            worst=self.step_seconds(WORST),
            grpo=self.step_seconds(GRPO) if self.steps(GRPO) else None,
            validation=self.phase_seconds(VALIDATION),
            checkpoint=self.phase_seconds(CHECKPOINT),
            end=self.phase_seconds(END),
        )


def received(folder: Path, step: int) -> dict:
    """What the workers received in the optimizer steps of a training step (R3_ROWS_FOLDER)."""
    found = {}
    for file in sorted((folder / f"step_{step}").glob("rank_*.jsonl")):
        lines = file.read_text().splitlines()
        found |= {(row["uid"], row["session"]): row for line in lines for row in json.loads(line)}
    rows = [(TrainedUid.parse(row["uid"]), row["tokens"]) for row in found.values() if not row["uid"].startswith("pad")]
    fresh = [tokens for uid, tokens in rows if not uid.is_replayed]
    replayed = [tokens for uid, tokens in rows if uid.is_replayed]
    return {
        "rows": len(rows),
        "tokens": sum(tokens for _, tokens in rows),
        "fresh": len(fresh),
        "fresh_tokens": sorted(set(fresh)),
        "groups": len({uid.group for uid, _ in rows}),
        "replayed": len(replayed),
        "replayed_tokens": sorted(set(replayed)),
        "ranked_groups": len({uid.group for uid, _ in rows if uid.is_ranked}),
    }
