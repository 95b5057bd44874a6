"""The cells of a study, each an ordinary `r3 run`: their commands, their training in turn, and which are complete."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from r3_ext.host import descendants, supervise
from r3_ext.recipes import recipe_of
from r3_ext.record.folder import STOPPED, held, is_run, read_starts
from r3_ext.record.summary import read_metrics
from r3_ext.settings.compose import EMBEDDED
from r3_ext.settings.prepare import VARIABLES
from r3_ext.study import arms, record
from r3_ext.study.outcome import curve_of

WIDTH = max(map(len, arms.ARMS)) + 1
"""Of a column of arms."""
NO_MORE_VALIDATION = "trainer.val_before_train=False"
"""A cell that goes on would have a validation, and with it a point of its curve, that no other cell has."""
SEED = re.compile(r"seed_(0|-?[1-9][0-9]*)")


@contextmanager
def shared_interpreter(profile: str):
    """The Python that starts the cells, and its environment; on the embedded profile one start imports for them all."""
    if profile != EMBEDDED:
        yield sys.executable, None
        return
    from r3_ext.cpu.fork import environment as forks
    from r3_ext.cpu.fork import server as forkserver

    with supervise.scratch_folder() as folder, forkserver.serving(folder) as python:
        yield str(python), forks.environment()


class Stopped(Exception):
    """SIGTERM ended a cell, and the study with it."""


def train(args: argparse.Namespace, profile: str, console: Console, python: str, env: dict | None) -> list[str]:
    """Run the cells that are not complete, seed by seed so that every arm has some early; returns those that failed.

    Raises:
        Stopped: on SIGTERM, which the cell gets too.
    """
    recorded = record.read_curves(args.out)
    cells = [(arm, seed) for seed in args.seeds for arm in args.arms if seed not in recorded.get(arm, ())]
    columns = TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    failed = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("cells", total=len(cells))

        for arm, seed in cells:
            folder = args.out / arm / f"seed_{seed}"
            if not is_complete(folder, args.tokens, arms.unit_of([arm])):
                begin = [python, *cell_command(args, profile, arm, seed)]
                try:
                    if goes_on(folder):
                        begin.append(NO_MORE_VALIDATION)
                    else:
                        remove(folder)
                except ValueError as error:
                    failed.append(f"{arm} seed {seed}, {error}")
                    continue
                said = args.out / arm / f"run_{seed}.log"
                said.parent.mkdir(parents=True, exist_ok=True)
                with open(said, "wb") as log:
                    code, is_told = run_cell(begin, env, log)
                if code == STOPPED:
                    raise Stopped(f"{arm} seed {seed} was saved on SIGTERM")
                if is_told:  # in its last step, say, or before its first
                    raise Stopped(f"SIGTERM came, and {arm} seed {seed} ended with exit code {code}")
                if code or not is_complete(folder, args.tokens, arms.unit_of([arm])):
                    failed.append(f"{arm} seed {seed}, see {said}")
            progress.console.print(describe(arm, seed, folder), highlight=False)
            progress.advance(bar)
    return failed


def run_cell(command: list[str], env: dict | None, log) -> tuple[int, bool]:
    """The exit code, and whether SIGTERM came: to the study it is one to the cell. A cell dies with its study."""
    told, started, sent = [], [], []

    def tell(*_) -> None:
        told.append(True)
        if started:
            sent.append(started[0].send_signal(signal.SIGTERM))

    before = signal.signal(signal.SIGTERM, tell)
    try:
        with subprocess.Popen(command, env=env, stdout=log, stderr=log, preexec_fn=descendants.die_with_parent) as cell:
            started.append(cell)
            if told and not sent:  # it came while the cell was being started
                tell()
            return cell.wait(), bool(told)
    finally:
        signal.signal(signal.SIGTERM, before)


def goes_on(folder: Path) -> bool:
    """Whether the cell saved a step and ended on SIGTERM. One that ended before its first step begins anew."""
    starts = read_starts(folder)
    return bool(starts) and starts[-1].get("exit_code") == STOPPED and any(folder.glob("checkpoints/global_step_*"))


def remove(folder: Path) -> None:
    """Make room for a cell that starts anew.

    Raises:
        ValueError: another study is training it.
    """
    if is_run(folder):
        with held(folder):
            shutil.rmtree(folder)


def cell_command(args: argparse.Namespace, profile: str, arm: str, seed: int) -> list[str]:
    """Arguments of Python."""
    chosen = arms.ARMS[arm]
    return [
        *("-m", "r3_ext.cli", "run", "--method", chosen.method, "--profile", profile),
        *("--outputs", str(args.out), "--experiment", arm, "--run", f"seed_{seed}", "--cache", str(args.cache)),
        *(f"--until-{arms.unit_of([arm])}", str(args.tokens), "--no-report"),
        *world_of(args, profile, arm, seed),
        *settings_of(args, profile, arm, seed),
    ]


def generates(profile: str, overrides: list[str]) -> bool:
    """Whether the cells have a model and problems of their own, made from the seed."""
    named = {override.lstrip("+").partition("=")[0] for override in overrides}
    given = {key for name, key in VARIABLES.items() if os.environ.get(name)} | named
    return profile == EMBEDDED and not given & set(VARIABLES.values())


def world_of(args: argparse.Namespace, profile: str, arm: str, seed: int) -> list[str]:
    """On generated problems a seed is a world: a model, facts and problems of its own, or games."""
    if not generates(profile, args.overrides):
        return []
    return ["--world", ",".join(filter(None, [args.world or own_world(arm), f"seed={seed}"]))]


def own_world(arm: str) -> str:
    """What an arm is trained on where nobody says, as --world has it."""
    return recipe_of(arms.ARMS[arm].method).world


def settings_of(args: argparse.Namespace, profile: str, arm: str, seed: int) -> list[str]:
    """Hydra overrides of a cell."""
    chosen = arms.ARMS[arm]
    return [
        *((*arms.embedded([arm]), *chosen.embedded) if profile == EMBEDDED else ()),
        # What a recipe draws follows data.seed; the engine's seed is its own.
        *(f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"),
        *chosen.settings,
        *args.overrides,
        *args.tuned.get(arm, ()),
    ]


def is_complete(folder: Path, tokens: int, unit: str = arms.TOKENS) -> bool:
    """Whether the cell ended well and its last validation lies behind the budget; a damaged one starts anew."""
    try:
        return record.read_cell(folder, tokens, unit) is not None
    except ValueError:
        return False


def describe(arm: str, seed: int, folder: Path) -> str:
    """What became of a cell, in a line."""
    cell = f"{arm:<{WIDTH}}seed {seed} "
    unit = arms.unit_of([arm])
    spent, accuracy = curve_of(read_metrics(folder / "metrics.jsonl"), unit)
    if not len(spent):
        return f"{cell} no validation"
    if not (folder / "summary.json").exists():
        return f"{cell} was killed"
    seconds = json.loads((folder / "summary.json").read_text())["seconds"]["total"]
    return f"{cell} val {accuracy[0]:.3f} to {accuracy[-1]:.3f}, {spent[-1]:,.0f} {unit}, {seconds:.0f} s"


def complete_cells(out: Path, tokens: int, say) -> dict[tuple[str, int], record.Cell]:
    """The complete cells by arm and seed; what is no cell, or a damaged one, is said."""
    cells = {}
    for arm in arms.ARMS:
        for folder in sorted((out / arm).glob("seed_*")):
            try:
                if not SEED.fullmatch(folder.name):
                    raise ValueError(f"{folder} is not the folder of a seed")
                if found := record.read_cell(folder, tokens, arms.unit_of([arm])):
                    cells[arm, int(folder.name.removeprefix("seed_"))] = found
            except ValueError as error:
                say(f"left out: {error}")
    return cells
