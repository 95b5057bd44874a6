"""metrics.jsonl of a run: verl's rows as they come, and what becomes of those that a resumed run trains again."""

import json
from contextlib import suppress
from pathlib import Path

from r3_ext.host.files import json_line, replacing
from r3_ext.record.console import RunDisplay
from r3_ext.record.summary import CUT, read_metrics, validation_accuracy

SOURCE = ".verl_metrics.jsonl"
"""What verl's file logger writes in a run folder, as long as the run goes on."""


class BudgetSpent(Exception):
    """The run has generated the tokens that it may."""


class MetricsFile:
    """Copies verl's rows into metrics.jsonl as they come; rows after the checkpoint go to metrics_cut.jsonl first.

    `poll` raises BudgetSpent at the first validation after `until_tokens` generated tokens (None: never).
    """

    def __init__(self, folder: Path, step: int, display: RunDisplay, until_tokens: int | None = None):
        self.source, self.target = folder / SOURCE, folder / "metrics.jsonl"
        self.display, self.until_tokens = display, until_tokens
        self.source.unlink(missing_ok=True)
        self.offset = 0
        self._cut(step, folder / CUT)
        self.tokens = sum(row.get("generated/tokens", 0) for row in read_metrics(self.target))

    def _cut(self, step: int, cut: Path) -> None:
        """Move what comes after `step`, and what cannot be read, out of metrics.jsonl."""
        kept, moved = split(self.target, step)
        if moved:
            with open(cut, "ab") as file:
                file.writelines(line.rstrip(b"\n") + b"\n" for line in moved)
        with replacing(self.target) as partial:
            partial.write_bytes(b"".join(kept))

    def poll(self) -> None:
        if not self.source.exists():
            return
        with open(self.source, "rb") as source:
            source.seek(self.offset)
            text = source.read()
        end = text.rfind(b"\n") + 1
        self.offset += end
        for line in text[:end].splitlines():
            logged = json.loads(line)
            row = {"step": logged["step"], **logged["data"]}
            with open(self.target, "a") as target:
                target.write(json.dumps(row) + "\n")
            self.display.row(row)
            self.tokens += row.get("generated/tokens", 0)
            if self.until_tokens and self.tokens >= self.until_tokens and validation_accuracy(row) is not None:
                raise BudgetSpent

    def close(self) -> None:
        """Take the rows that are left, whatever they cost, and delete verl's file."""
        with suppress(BudgetSpent):
            self.poll()
        self.source.unlink(missing_ok=True)


def split(file: Path, step: int) -> tuple[list[bytes], list[bytes]]:
    """The lines of a metrics.jsonl up to a step, and all others: later ones, and those that are no row."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    kept = [line for line in lines if _step_of(line) <= step]
    return kept, [line for line in lines if not _step_of(line) <= step]


def _step_of(line: bytes) -> float:
    """NaN for a line that was torn or damaged."""
    try:
        return float(json_line(line)["step"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return float("nan")
