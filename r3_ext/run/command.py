"""`r3 run`: prepare, check, train, and leave a run folder behind. `r3 resume`: go on with one.

    r3 run                                     R^3 with the largest profile that this machine's GPUs allow, or embedded
    r3 run --method grpo                       verl's GRPO with the same profile
    r3 run --method hgpo                       HGPO: agents of several turns in text games
    r3 run --profile gpu_4x80gb trainer.total_epochs=1
    r3 resume NAME                             go on with that run, with the settings that it has

The training itself is the recipe's command (`python -m recipe.r3.main_r3`, for one, or verl's `main_ppo`) in a child
process; everything after the options is a hydra override for it.
"""

import argparse
import os
import time
from contextlib import ExitStack
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from r3_ext.data import check as rows
from r3_ext.doctor.settings import check_values
from r3_ext.doctor.sizes import sized
from r3_ext.host import private_network, supervise
from r3_ext.recipes import DEFAULT_METHOD, methods
from r3_ext.record.cautions import what_it_shows
from r3_ext.record.console import paragraph, sayer
from r3_ext.record.folder import append, held
from r3_ext.run.changes import Changes
from r3_ext.run.environment import git_says, replace_read_only_home, writing_to
from r3_ext.run.finish import finish
from r3_ext.run.start import Start, settle
from r3_ext.run.train import command_of, interpreter, run, run_overrides
from r3_ext.settings.choose import default_profile
from r3_ext.settings.compose import EMBEDDED
from r3_ext.settings.prepare import model_and_data
from r3_ext.tiny.world import parse as parse_world
from recipe.common.modes import MODES, SYNC
from recipe.common.trainer.checkpoints import check_loadable, told_foreign
from recipe.common.trainer.resume import resume_step


def parse(argv: list[str], resume: bool) -> argparse.Namespace:
    """Options that were not given are None: a run that goes on keeps its own."""
    parser = argparse.ArgumentParser(
        prog="r3 resume" if resume else "r3 run",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    if resume:
        parser.add_argument("run", metavar="RUN", help="NAME, EXPERIMENT/NAME or the folder of a run")
        parser.set_defaults(experiment=None)
    parser.add_argument("--method", choices=methods(), help=f"default: {DEFAULT_METHOD}")
    parser.add_argument("--mode", choices=MODES, help="verl's trainer mode (default: sync)")
    parser.add_argument("--profile", help="file in r3_ext/settings/profile (default: R3_PROFILE, or by this machine)")
    if not resume:
        parser.add_argument("--run", help="name of the run; an existing one goes on (default: date and time)")
    parser.add_argument("--wandb", action="store_true", default=None, help="log to Weights & Biases as well")
    if not resume:
        parser.add_argument("--experiment", help="folder under outputs/ (default: METHOD_PROFILE)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where the run folders lie")
    parser.add_argument(
        "--cache",
        type=Path,
        help="prepared data and the tiny model (default: the checkout's .cache, else ~/.cache/r3-recipe)",
    )
    parser.add_argument("--change", action="store_true", help="go on with settings that make it another run")
    parser.add_argument(
        "--private",
        action=argparse.BooleanOptionalAction,
        help="a network of its own for the run, out of reach for others, or none (default: where the run\n"
        "needs nothing from outside); with it W&B is offline and models come from the local cache",
    )
    parser.add_argument("overrides", nargs="*", help="hydra overrides")
    add_study_options(parser)
    return parser.parse_intermixed_args(argv)


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """What `r3 study` asks of its cells."""
    group = parser.add_argument_group("for a study, on the problems and the tiny model that are made here")
    group.add_argument(
        "--world",
        help="what the tiny model knows and how it fails, such as seed=3,mistaken=0 (r3_ext/tiny/world.py); or lists\n"
        "to put in order: sorting; or games that are played in several turns: textworld. Both take seed=3, too",
    )
    group.add_argument("--warm-start-steps", type=int, help="training of the tiny model (default: 480)")
    group.add_argument("--until-tokens", type=int, help="end at the first validation after so many generated tokens")
    group.add_argument("--until-turns", type=int, help="the same after so many turns of sessions")
    group.add_argument("--no-report", action="store_true", help="leave report.html out")


def resume(argv: list[str]) -> int:
    """`r3 resume`."""
    return main(argv, resume=True)


def main(argv: list[str], resume: bool = False) -> int:
    started = time.monotonic()
    args = parse(argv, resume)
    console = Console()

    say = sayer(console)
    try:
        start, places, config, changed = begin(args, resume, say)
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    if start.is_finished and not start.has_more_to_do(changed):
        say(f"{start.name} is finished: raise trainer.total_epochs or its budget to go on with it")
        return 0
    if caution := what_it_shows(start.arguments):
        say(paragraph(caution, console.width))
    with interpreter(start.profile, start.overrides, say) as python:
        try:
            with supervise.only_local_run():
                pass  # another run here is told now, and not after minutes
            overrides, config, changed = prepare(start, places, config, say)
        except (ValueError, supervise.MachineBusy) as error:
            say(f"error: {error}")
            return 2

        from r3_ext.doctor import command as doctor  # imports verl, which is slow

        if not doctor.report(doctor.diagnose(config)):
            return 1
        start.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(held(start.folder))
                step = go_on(start, config, changed, say)
            except ValueError as error:
                say(f"error: {error}")
                return 1
            command = command_of(start, overrides, config, python)
            code, log_begins = run(start, step, config, command, console, lock)
            append(start.folder, "end", seconds=round(time.monotonic() - started, 1), exit_code=code)
            return finish(start.folder, config, code, log_begins, console, not args.no_report)


def begin(args: argparse.Namespace, resume: bool, say) -> tuple[Start, list[str], DictConfig, Changes]:
    """The start, the overrides that put what it writes into its folder, its config as far as it is known before model
    and data are built, and what changed; sets R3_PRIVATE. A mistake in the settings ends the command here, before
    anything is loaded or built.

    Raises:
        ValueError: an option, a setting, a source or a cache that cannot be taken.
        OSError: a folder that cannot be made.
    """
    start = settle(args, resume, default_profile)
    if start.known:
        with held(start.folder):
            pass  # what trains there now is told at once, and not after a minute of checks
    if start.profile == EMBEDDED:  # elsewhere HOME holds tokens and models that a run needs
        replace_read_only_home(start.cache, say)
    mode = "" if start.mode == SYNC else f", mode {start.mode}"
    say(f"method {start.method}{mode}, profile {start.profile}, run folder {os.path.relpath(start.folder)}")
    places = run_overrides(start.folder, start.method, start.options["wandb"])
    _, config = sized(start.compose, places + start.stored_paths())
    changed = start.check(config, False, say)
    if wrong := check_values(config):
        raise ValueError("; ".join(finding.found for finding in wrong))
    data_of(start, config, lambda text: None, build=False)
    if start.options["private"] is not None:
        os.environ[private_network.VARIABLE] = str(int(start.options["private"]))
    return start, places, config, changed


def tiny_model(start: Start) -> dict:
    """Settings of the embedded profile's model."""
    steps = start.options["warm_start_steps"]
    return {"world": parse_world(start.world)} | ({} if steps is None else {"steps": steps})


def data_of(start: Start, config: DictConfig, say, build: bool = True) -> list[str]:
    """`model_and_data` for a run of this config."""
    given = start.profile, start.cache, tiny_model(start), say, start.overrides
    with writing_to(start.cache):
        return model_and_data(*given, build=build, any_truth=rows.may_be_any_truth(config))


def prepare(start: Start, places: list[str], config: DictConfig, say) -> tuple[list[str], DictConfig, Changes]:
    """Model and data, built where they are not there yet; returns all overrides, the config and what changed.

    config: the run's, as far as it is known without them.

    Raises:
        ValueError: a source that cannot be taken, or a change that needs --change.
    """
    given = data_of(start, config, say)
    overrides, config = sized(start.compose, places + given)
    return overrides, config, start.check(config, True, say)


def go_on(start: Start, config: DictConfig, changed: Changes, say) -> int:
    """Record this start; returns the step that it goes on from, -1 for none.

    Raises:
        ValueError: there is no checkpoint to go on from.
    """
    step = resume_step(config.trainer)
    check_loadable(config)
    if told := told_foreign(config.trainer):
        say(told)
    start.check_goes_on(step, say)
    start.record(step, config, changed, git_says("rev-parse", "HEAD"))
    return step
