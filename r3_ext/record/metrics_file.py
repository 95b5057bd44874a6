"""metrics.jsonl of a run: verl's rows as they come, and what becomes of those that a resumed run trains again."""

import json
from contextlib import suppress
from pathlib import Path

from r3_ext.host.files import json_line, replacing
from r3_ext.record.console import RunDisplay
from r3_ext.record.summary import CUT, environment_steps, generated_tokens, numbers, read_metrics, validation_accuracy

SOURCE = ".verl_metrics.jsonl"
"""What verl's file logger writes in a run folder, as long as the run goes on."""


class BudgetSpent(Exception):
    """The run has generated the tokens that it may."""


class MetricsFile:
    """Copies verl's rows into metrics.jsonl as they come; rows after the checkpoint go to metrics_cut.jsonl first.

    Rows that a start before left in verl's file, as nobody copied them any more, count as copied.
    `poll` raises BudgetSpent at the first validation after `until_tokens` generated tokens or, of sessions,
    `until_turns` turns (None: never).
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        display: RunDisplay,
        until_tokens: int | None = None,
        until_turns: int | None = None,
    ):
        self.source, self.target = folder / SOURCE, folder / "metrics.jsonl"
        self.display, self.until_tokens, self.until_turns = display, until_tokens, until_turns
        self._cut(step, folder / CUT)
        self.source.unlink(missing_ok=True)
        self.offset = 0
        known = read_metrics(self.target)
        self.tokens, self.turns = sum(generated_tokens(row) or 0 for row in known), sum(map(environment_steps, known))

    def _cut(self, step: int, cut: Path) -> None:
        """Move what comes after `step`, and what cannot be read, out of metrics.jsonl."""
        kept, moved = split(self.target, step)
        if moved:
            with open(cut, "ab") as file:
                file.writelines(line.rstrip(b"\n") + b"\n" for line in moved)
        with replacing(self.target) as partial:
            partial.write_bytes(b"".join(line.rstrip(b"\n") + b"\n" for line in kept))

    def poll(self) -> None:
        for line in _whole_lines(self.source, self.offset):
            self.offset += len(line)
            if (row := _row(line)) is None:
                continue
            with open(self.target, "a") as target:
                target.write(json.dumps(row) + "\n")
            row = numbers(row)
            self.display.row(row)
            self.tokens, self.turns = self.tokens + (generated_tokens(row) or 0), self.turns + environment_steps(row)
            if self._is_spent() and validation_accuracy(row) is not None:
                raise BudgetSpent

    def _is_spent(self) -> bool:
        pairs = (self.tokens, self.until_tokens), (self.turns, self.until_turns)
        return any(most and spent >= most for spent, most in pairs)

    def close(self) -> None:
        """Take the rows that are left, whatever they cost, and delete verl's file."""
        with suppress(BudgetSpent):
            self.poll()
        # What came behind the row that spent the budget, and one at which the command was interrupted.
        with open(self.target, "ab") as target:
            target.writelines(_left_over(self.target))
        self.source.unlink(missing_ok=True)


def split(file: Path, step: int) -> tuple[list[bytes], list[bytes]]:
    """The lines of a metrics.jsonl up to a step, and all others: later ones, and those that are no row.

    With those that verl wrote and nobody copied.
    """
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    lines += _left_over(file)
    kept = [line for line in lines if _step_of(line) <= step]
    return kept, [line for line in lines if not _step_of(line) <= step]


def _left_over(target: Path) -> list[bytes]:
    """Rows of verl's file, as lines of metrics.jsonl, that are in none of the run's own files."""
    source, files = target.with_name(SOURCE), (target, target.with_name(CUT))
    rows = [json.dumps(row).encode() for line in _whole_lines(source) if (row := _row(line)) is not None]
    if not rows:
        return []
    known = {line for file in files if file.exists() for line in file.read_bytes().splitlines()}
    return [line + b"\n" for line in rows if line not in known]


def _whole_lines(source: Path, offset: int = 0) -> list[bytes]:
    """The lines from that byte on, without one that is being written."""
    if not source.exists():
        return []
    with open(source, "rb") as file:
        file.seek(offset)
        return [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]


def _row(line: bytes) -> dict | None:
    """A line of verl's as a row of metrics.jsonl; None of a damaged one."""
    logged = json_line(line)
    return {"step": logged["step"], **logged["data"]} if logged else None


def _step_of(line: bytes) -> float:
    """NaN for a line that was torn or damaged."""
    try:
        return float(json_line(line)["step"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return float("nan")
