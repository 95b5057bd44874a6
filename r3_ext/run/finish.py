"""The end of a run: its summary, its report, and what a person is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from r3_ext.host import guard
from r3_ext.host.files import write_text
from r3_ext.recipes import plays_sessions
from r3_ext.record import memory
from r3_ext.record.console import closing_table, lists_table, paragraph, sayer
from r3_ext.record.failure import error_lines
from r3_ext.record.folder import STOPPED, read_starts
from r3_ext.record.summary import (
    CUT,
    over_starts,
    read_cut,
    read_metrics,
    seconds_of,
    summarise,
    validation_lists,
)
from recipe.common.trainer.resume import resume_step


def finish(folder: Path, config: DictConfig, code: int, log_begins: int, console: Console, with_report: bool) -> int:
    """Write summary.json and report.html, say in three sentences and a table how it went, and where to look when the
    run failed."""
    starts, cut = read_starts(folder), read_cut(folder / CUT)
    rows = read_metrics(folder / "metrics.jsonl")
    summary = summarise(
        *(rows, config.data.train_batch_size, config.actor_rollout_ref.rollout.n),
        seconds_total=seconds_of(starts),
        with_sessions=plays_sessions(config),
    )
    summary |= over_starts(starts, cut) | {"exit_code": code}
    summary["peak_memory_gib"] = memory.peak(memory.read(folder))
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")

    say = sayer(console)
    if summary["steps"]:
        from r3_ext.report.opening import opening  # imports scipy, which is slow
        from r3_ext.report.run_facts import cautions
        from r3_ext.report.runs import Arm, load_run

        told = load_run(folder)
        for text in cautions([told]):
            say(paragraph(text, console.width) + "\n")
        for text in opening([Arm(told.method, [told])]):
            say(paragraph(text, console.width))
        console.print(closing_table(summary))
    if plays_sessions(config) and (lists := validation_lists(rows)):
        console.print(lists_table(lists))
    if summary["steps"] and with_report and not guard.is_gone():
        say(report_line(folder))
    if code == 0:
        say(f"done: {os.path.relpath(folder)}")
        return 0
    if code == STOPPED:
        step = resume_step(config.trainer)
        where = f"after step {step}, which is saved" if step >= 0 else "before the first step"
        say(f"stopped by SIGTERM {where}; `r3 resume {os.path.relpath(folder)}` goes on")
        return code
    say(f"the run ended with exit code {code}; see {os.path.relpath(folder / 'run.log')}")
    say("\n".join(error_lines(folder / "run.log", log_begins)))
    return code


def report_line(folder: Path, limit_s: float = 300) -> str:
    """Make the run's report.html; returns the closing line on it.

    In a process of its own: whatever happens to the drawing, the run keeps its exit code.
    """
    command = [sys.executable, "-m", "r3_ext.cli", "report", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no report: drawing took over {limit_s:g} s; try again with: r3 report {os.path.relpath(folder)}"
    except KeyboardInterrupt:
        return f"no report: interrupted; make it with: r3 report {os.path.relpath(folder)}"
    if made.returncode:
        last = (made.stderr.strip().splitlines() or [f"exit code {made.returncode}"])[-1]
        return f"no report: {last.removeprefix('error: ')}"
    return f"report: {os.path.relpath(folder / 'report.html')}"
