"""What a person sees of a run: a progress bar with ETA, one line per step that fits the terminal, a closing table."""

import textwrap
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from r3_ext.record.summary import NO_SCORE, reward_of, skipped_steps, validation_accuracy


def step_line(row: dict, width: int) -> str:
    """One line on a training step; the parts on the right go first when the terminal is narrow."""
    parts = [f"step {int(row['step']):>4}", f"reward {reward_of(row):.3f}"]
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


def paragraph(text: str, width: int) -> str:
    """The text in lines of up to `width`; what has no space in it, such as a path, stays in one piece."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


class RunDisplay:
    """Live progress of a run; on a console that is not a terminal, lines only."""

    def __init__(self, console: Console, title: str, total_steps: int):
        self.console = console
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

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def row(self, row: dict) -> None:
        """Show a row of metrics.jsonl."""
        if "training/global_step" in row:
            if self.began is not None:
                self.say(f"first step after {time.monotonic() - self.began:.0f} s")
                self.began = None
            self.say(step_line(row, self.console.width))
            self.progress.update(self.task, completed=row["step"])
        elif (accuracy := validation_accuracy(row)) is not None:
            self.say(f"step {int(row['step']):>4}  validation accuracy {accuracy:.3f}")
        if row.get("alarm/not_finite"):
            skipped, taken = skipped_steps(row)
            told = f"optimizer steps skipped: {skipped} of {skipped + taken}"
            self.say(f"alarm: gradients or weights are not finite; {told}")


def found_by(by: dict[str, int]) -> str:
    """What one way of asking found. `40, found 10: 250 tokens each`."""
    price = f"{by['tokens'] // by['found']:,} tokens each" if by["found"] else f"nothing for {by['tokens']:,} tokens"
    return f"{by['asked']:,}, found {by['found']:,}: {price}"


def closing_table(summary: dict) -> Table:
    """The summary of a run as a table."""
    table = Table(title="Run summary", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    groups, reward, val, seconds = (summary[key] for key in ("groups", "reward", "val", "seconds"))
    table.add_row("steps / epochs", f"{summary['steps']} / {summary['epochs']}")
    table.add_row("prompts", f"{summary['prompts']:,}")
    again = summary["trained_again"]
    cut = f"; {again['generated_tokens']:,} more in {again['steps']} steps trained again" if again["steps"] else ""
    table.add_row("generated tokens", f"{summary['generated_tokens']:,}{cut}")
    tokens = f" of {summary['trained_tokens']:,} tokens" if summary["trained_tokens"] is not None else ""
    table.add_row("trained rows", f"{summary['trained_rows']:,}{tokens}")
    if groups["total"] is not None:
        dead = groups["all_correct"] + groups["all_wrong"]
        table.add_row("groups", f"{groups['total']:,}: {groups['mixed']:,} mixed, {dead:,} dead")
        rescued = f"{groups['rescued_by_replay']:,} by replay, {groups['ranked']:,} ranked"
        table.add_row(
            "dead groups rescued",
            f"{rescued}; {groups['still_dead']:,} still dead, {groups['still_wrong']:,} of them all wrong",
        )
        if groups["no_signal"] is not None:
            table.add_row("groups without signal", f"{groups['no_signal']:,}")
        if groups["split"] is not None:
            table.add_row("rescued groups split", f"{groups['split']:,}")
        table.add_row("replayed rows", f"{summary['replayed_rows']:,}")
        reflection = summary["reflection"]
        table.add_row("reflection prompts", f"{reflection['prompts']:,}, solved {reflection['solved']:,}")
        for way, by in reflection["by"].items():
            table.add_row(f"all-wrong groups asked again, {way}", found_by(by))
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
