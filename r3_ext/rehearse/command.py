"""`r3 rehearse`: before days of training, minutes of it on this machine with this profile, model and data.

    r3 rehearse                                        the default run of this machine
    r3 rehearse --profile gpu_4x80gb trainer.total_epochs=1
    r3 rehearse --memory 60                            against 60 GiB per GPU (without GPUs: of main memory)

A few typical steps and the worst one go through the real trainer: every prompt and response of that one is at its
limit, R^3's mechanisms are at their caps, and sessions have all turns that they may. Told are memory, seconds and
tokens/s of each phase, what R^3 costs over GRPO, disk, how long the whole run takes, and what to change where it does
not fit. All other options and overrides are those of `r3 run`. Exits 1 when the run fails or does not fit.
"""

import argparse
import os
import time

from rich.console import Console

from r3_ext.host import cluster
from r3_ext.recipes import RECIPES, recipe_of
from r3_ext.record.console import sayer
from r3_ext.run import command as launch
from r3_ext.run.environment import replace_read_only_home
from r3_ext.run.start import Start, settle
from r3_ext.run.train import interpreter
from r3_ext.settings.choose import default_profile
from r3_ext.settings.prepare import EMBEDDED
from recipe.common.modes import SYNC


def parse(argv: list[str]) -> tuple[argparse.Namespace, argparse.Namespace]:
    """The command's own options, and those that it shares with `r3 run`."""
    parser = argparse.ArgumentParser(
        prog="r3 rehearse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, help="typical steps of each kind (default: 3 on embedded, 1 on GPUs)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="budget (default: what there is)")
    parser.add_argument("--random-weights", action="store_true", help="of the model's config, in place of its weights")
    own, rest = parser.parse_known_args(argv)
    args = launch.parse(rest, resume=False)
    args.experiment = args.experiment or "rehearse"
    return own, args


def check(own: argparse.Namespace, start: Start) -> None:
    """Raise ValueError for what cannot be rehearsed."""
    for name in ("repeat", "memory"):
        if (value := getattr(own, name)) is not None and not value > 0:
            raise ValueError(f"--{name} must be more than 0, got {value:g}")
    if recipe_of(start.method).rehearsal is None:
        rehearsed = [method for recipe in RECIPES.values() if recipe.rehearsal for method in recipe.methods]
        raise ValueError(
            f"--method {start.method}: rehearsed are {', '.join(rehearsed)}, and GRPO's steps beside those of r3"
        )
    if start.mode != SYNC:
        raise ValueError(f"--mode {start.mode}: rehearsed is the synchronous mode, whose phases come one by one")
    if start.known:
        raise ValueError(f"{start.name} is a run that there is already; a rehearsal needs another name")
    if os.environ.get(cluster.ADDRESS):
        raise ValueError(
            f"{cluster.ADDRESS} is set, and memory is measured on this machine only: unset it and rehearse one of the "
            "nodes by itself, with trainer.nnodes=1"
        )
    for name in ("tokens", "turns"):
        if start.options[f"until_{name}"]:
            raise ValueError(f"--until-{name} is not known in steps: leave it out, or set trainer.total_training_steps")


def main(argv: list[str]) -> int:
    began = time.time()
    own, args = parse(argv)
    console = Console()

    say = sayer(console)
    try:
        start = settle(args, False, default_profile)
        check(own, start)
        say(f"rehearsing {start.method} on {start.profile} in {os.path.relpath(start.folder)}")
        if start.profile == EMBEDDED:
            replace_read_only_home(start.cache, say)
        with interpreter(start.profile, start.overrides, say) as python:
            from r3_ext.rehearse.rehearsal import rehearse  # imports verl, and Ray, which must not be there before

            return rehearse(own, start, python, began, console, say)
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
