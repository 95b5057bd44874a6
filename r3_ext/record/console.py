"""What a person sees of a run: a progress bar with ETA, one line per step that fits the terminal, a closing table."""

import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from r3_ext.host.text import in_one_line
from r3_ext.record.summary import NO_SCORE, NO_USE, environment_steps, reward_of, skipped_steps, validation_accuracy


def sayer(console: Console) -> Callable[[str], None]:
    """What prints a text as it is: nothing in it is markup or coloured, and the terminal breaks the lines."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True)


def step_line(row: dict, width: int, with_sessions: bool = False) -> str:
    """One line on a training step; the parts on the right go first when the terminal is narrow.

    with_sessions: whether it trained on sessions of several turns.
    """
    parts = [f"step {int(row['step']):>4}", f"reward {reward_of(row):.3f}"]
    parts += session_parts(row) if with_sessions else answer_parts(row)
    if "actor/grad_norm" in row:
        parts.append(f"grad {row['actor/grad_norm']:.2f}")
    parts.append(f"{row['timing_s/step']:.1f}s")
    if (accuracy := validation_accuracy(row)) is not None:
        parts.insert(2, f"val {accuracy:.3f}")
    if errors := row.get("reward/errors"):
        parts.insert(1, f"no score {int(errors)}")
    while len("  ".join(parts)) > width and len(parts) > 2:
        parts.pop()
    return "  ".join(parts)


def answer_parts(row: dict) -> list[str]:
    parts = []
    if "fresh/acc/mean" in row:
        parts.append(f"acc {row['fresh/acc/mean']:.2f}")
        parts.append(f"trunc {row['fresh/truncated/mean']:.2f}")
    parts.append(f"len {row['response_length/mean']:.0f}")
    if "groups/total" in row:
        right, wrong = int(row["groups/all_correct"]), int(row["groups/all_wrong"])
        parts.append(f"dead {right}+{wrong} rescued {right + wrong - int(row['groups/still_dead'])}")
        parts.append(f"replay {int(row['replay/rows'])}")
        if "reflection/prompts" in row:
            parts.append(f"reflect {int(row['reflection/solved'])}/{int(row['reflection/prompts'])}")
        parts.append(f"ranked {int(row['groups/ranked'])}")
    if "restart/success" in row:
        parts.insert(1, f"restarts {row['restart/success']:.2f} (fresh {max(0.0, row['restart/fresh_success']):.2f})")
    return parts


def session_parts(row: dict) -> list[str]:
    """`signal`: share of turns with an advantage."""
    parts = [f"success {row['fresh/acc/mean']:.2f}"] if "fresh/acc/mean" in row else []
    parts.append(f"turns {environment_steps(row):,}")
    if "sessions/bad_format" in row:
        parts.append(f"invalid {row['sessions/bad_format'] + row['sessions/inadmissible']:.2f}")
    if "groups/total" in row:
        parts.append(f"dead {int(row['groups/all_correct'])}+{int(row['groups/all_wrong'])}")
    if "hgpo/turns_with_signal" in row:
        parts.append(f"signal {row['hgpo/turns_with_signal']:.2f}")
    if failed := row.get("sessions/failed"):
        parts.insert(0, f"failed {int(failed)}")
    return parts


def paragraph(text: str, width: int) -> str:
    """The text in lines of up to `width`; what has no space in it, such as a path, stays in one piece."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


class RunDisplay:
    """Live progress of a run; on a console that is not a terminal, lines only."""

    def __init__(self, console: Console, title: str, total_steps: int, with_sessions: bool = False):
        self.console, self.say, self.with_sessions = console, sayer(console), with_sessions
        self.began = time.monotonic()
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=total_steps)

    def __enter__(self) -> "RunDisplay":
        self.progress.start()
        return self

    def __exit__(self, *_) -> None:
        self.progress.stop()

    def row(self, row: dict) -> None:
        """Show a row of metrics.jsonl."""
        if "training/global_step" in row:
            if self.began is not None:
                self.say(f"first step after {time.monotonic() - self.began:.0f} s")
                self.began = None
            self.say(step_line(row, self.console.width, self.with_sessions))
            self.progress.update(self.task, completed=row["step"])
        elif (accuracy := validation_accuracy(row)) is not None:
            self.say(f"step {int(row['step']):>4}  validation accuracy {accuracy:.3f}")
        if row.get("alarm/not_finite"):
            skipped, taken = skipped_steps(row)
            told = f"optimizer steps skipped: {skipped} of {skipped + taken}"
            self.say(f"alarm: gradients or weights are not finite; {told}")
        if row.get("alarm/restarts"):
            self.say(f"alarm: restarts succeed no more often than fresh attempts at the same problems: {NO_USE}")


def found_by(by: dict[str, int]) -> str:
    """What one way of asking found. `40, found 10: 250 tokens each`."""
    price = f"{by['tokens'] // by['found']:,} tokens each" if by["found"] else f"nothing for {by['tokens']:,} tokens"
    return f"{by['asked']:,}, found {by['found']:,}: {price}"


def closing_table(summary: dict) -> Table:
    """The summary of a run as a table."""
    table = Table(title="Run summary", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    reward, val, seconds = (summary[key] for key in ("reward", "val", "seconds"))
    table.add_row("steps / epochs", f"{summary['steps']} / {summary['epochs']}")
    table.add_row("prompts", f"{summary['prompts']:,}")
    again = summary["trained_again"]
    cut = f"; {again['generated_tokens']:,} more in {again['steps']} steps trained again" if again["steps"] else ""
    table.add_row("generated tokens", f"{summary['generated_tokens']:,}{cut}")
    tokens = f" of {summary['trained_tokens']:,} tokens" if summary["trained_tokens"] is not None else ""
    table.add_row("trained rows", f"{summary['trained_rows']:,}{tokens}")
    parts = group_rows(summary), session_rows(summary.get("sessions")), restart_rows(summary.get("restarts"))
    for name, text in chain(*parts):
        table.add_row(name, text)
    if summary["skipped_steps"]:
        table.add_row("optimizer steps skipped", f"{summary['skipped_steps']:,}, as gradients were not finite")
    errors, in_validation = summary["reward_errors"], summary["val_reward_errors"]
    if errors or in_validation:
        told = f"{errors:,}, and {in_validation:,} in validation" if in_validation else f"{errors:,}"
        table.add_row("answers without a score", f"{told}: {NO_SCORE} (see run.log)")
    table.add_row("reward, first to last", f"{reward['first']} to {reward['last']}")
    if val["first"] is not None:
        table.add_row("validation accuracy", f"{val['first']} to {val['last']}")
    starts = f", {summary['starts']} starts" if summary["starts"] > 1 else ""
    table.add_row("seconds", f"{seconds['total']} ({seconds['per_step_median']} per step, median{starts})")
    return table


def group_rows(summary: dict) -> Iterator[tuple[str, str]]:
    """What became of the groups; of answers of one turn also what rescued them."""
    groups = summary["groups"]
    if groups["total"] is None:
        return
    dead = groups["all_correct"] + groups["all_wrong"]
    yield "groups", f"{groups['total']:,}: {groups['mixed']:,} mixed, {dead:,} dead"
    if thrown := summary.get("groups_thrown_away"):
        yield "dead groups thrown away", f"{thrown:,}"
    if summary.get("sessions"):
        return
    ranked = dead - groups["still_dead"] - groups["rescued_by_replay"]
    rescued = f"{groups['rescued_by_replay']:,} by replay, {ranked:,} by ranking alone"
    yield (
        "dead groups rescued",
        f"{rescued}; {groups['still_dead']:,} still dead, {groups['still_wrong']:,} of them all wrong",
    )
    if groups["no_signal"] is not None:
        yield "groups without signal", f"{groups['no_signal']:,}"
    if groups["split"] is not None:
        yield "rescued groups split", f"{groups['split']:,}"
    yield "replayed rows", f"{summary['replayed_rows']:,}"
    reflection = summary["reflection"]
    yield "reflection prompts", f"{reflection['prompts']:,}, solved {reflection['solved']:,}"
    for way, by in reflection["by"].items():
        yield f"all-wrong groups asked again, {way}", found_by(by)


def restart_rows(restarts: dict | None) -> Iterator[tuple[str, str]]:
    if restarts:
        if "right" in restarts:
            yield "restarts", f"{restarts['rows']:,}: {restarts['right']:.3f} right"
        yield "restarts whose problem came again", f"{restarts['compared']:,} compared: {restarts['success']:.3f} right"
        yield "fresh, of the same problems", f"{max(0.0, restarts['fresh_success']):.3f} right"


def session_rows(sessions: dict | None) -> Iterator[tuple[str, str]]:
    if not sessions:
        return
    yield "turns played", f"{sessions['turns']:,}"
    if sessions["failed"]:
        yield "sessions that failed", f"{sessions['failed']:,}, as their environment did (see run.log)"
    yield "success, first to last", f"{sessions['success']['first']} to {sessions['success']['last']}"


def lists_table(lists: dict[str, dict[str, float]]) -> Table:
    """The last validation by list of tasks, as `summary.validation_lists` has it."""
    table = Table(title="Last validation: success, with its 95 % interval over tasks")
    for name in ("list", "tasks", "success", "interval", "failed sessions"):
        table.add_column(name, justify="left" if name == "list" else "right")
    for name, found in lists.items():
        interval = f"{found['low']:.3f} to {found['high']:.3f}"
        counts = f"{found['problems']:.0f}", f"{found['pass@1']:.3f}", interval, f"{found['failed']:.0f}"
        table.add_row(Text(in_one_line(name)), *counts)
    return table
