"""The training command of a run: what it is given, the Python that runs it, and its supervision."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext.doctor import network
from r3_ext.host import cluster, private_network, supervise
from r3_ext.host.files import write_text
from r3_ext.recipes import plays_sessions, recipe_of, recipe_of_config
from r3_ext.record.console import RunDisplay
from r3_ext.record.folder import INTERRUPTED, STOPPED
from r3_ext.record.memory import MemoryLog
from r3_ext.record.metrics_file import SOURCE as METRICS_SOURCE
from r3_ext.record.metrics_file import BudgetSpent, MetricsFile
from r3_ext.run.environment import environment
from r3_ext.run.start import Start
from r3_ext.settings.compose import EMBEDDED, OWN_CONFIG, quoted, searchpath
from r3_ext.tiny.world import is_text
from recipe.common.config.verl_rules import ENVIRONMENT
from recipe.common.row_files import most_rows
from recipe.common.trainer.stop import last_step, stop_file

OTHERS_STOPPABLE = ("rehearse",)
"""Trainer modes of no recipe that save and end when asked to, as the recipes' do; verl's own do not."""
CONTAINER_LOG_LEVEL = "SAGEMAKER_CONTAINER_LOG_LEVEL"
PY_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"


def total_steps(config: DictConfig) -> int | None:
    """The last step of the run, as far as the files tell; None where they tell nothing."""
    steps_per_epoch = most_rows(config.data) // config.data.train_batch_size
    return last_step(config.trainer, steps_per_epoch) if steps_per_epoch else config.trainer.total_training_steps


@contextmanager
def interpreter(profile: str, overrides: list[str], say):
    """The Python for the training's processes; on the embedded profile they are forks of this one, unless told not to.

    Everything else a run does is the same with `+ray_kwargs.ray_init.runtime_env.py_executable=python`.
    """
    if profile != EMBEDDED:
        yield sys.executable
        return
    from r3_ext.cpu.fork import environment as forks
    from r3_ext.cpu.fork import server as forkserver

    forks.set_environment({**forks.environment(), "VERL_PLATFORM": "cpu"})
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
    overrides += [f"{key}={quoted(folder / name)}" for key, name in recipe_of(method).files.items()]
    return overrides + cluster.overrides()


def command_of(
    start: Start, overrides: list[str], config: DictConfig, python: str, entry: str | None = None
) -> list[str]:
    """The training command; what it is given lies in the folder before it begins.

    entry: the module that trains (None: the method's).
    """
    if python != sys.executable:
        overrides = [*overrides, f"+{PY_EXECUTABLE}={quoted(python)}"]
    overrides = [*overrides, *environment_overrides(start)]
    if is_text(start.world):  # of sessions, which verl's own training command does not know where to find
        overrides = [searchpath(), *overrides]
    recipe = recipe_of(start.method)
    command = [python, "-m", entry or recipe.entry, "--config-path", str(recipe.folder)]
    command += ["--config-name", recipe.base, "--config-dir", str(OWN_CONFIG), *overrides]
    command = private_network.wrap(command, network.needs(config), network.several_machines(config))
    write_text(start.folder / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    write_text(start.folder / "environment.json", json.dumps(environment(command), indent=2) + "\n")
    return command


def environment_overrides(start: Start) -> list[str]:
    """Where verl's loggers write, for all processes of the run: those on an existing cluster inherit nothing of this
    one's environment, so the embedded profile's goes to them too."""
    variables = {
        "VERL_FILE_LOGGER_PATH": str(start.folder / METRICS_SOURCE),
        "TENSORBOARD_DIR": str(start.folder / "tensorboard"),
        # A package that vLLM imports sets the root logger to ERROR unless told; a recipe's warnings would be lost.
        CONTAINER_LOG_LEVEL: os.environ.get(CONTAINER_LOG_LEVEL, "WARNING"),
    }
    if start.profile == EMBEDDED and os.environ.get(cluster.ADDRESS):
        from r3_ext.cpu.fork import environment as forks

        variables |= {name: os.environ[name] for name in ("VERL_PLATFORM", *forks.ENVIRONMENT)}
    return [f"++{ENVIRONMENT}.{name}={quoted(value)}" for name, value in variables.items()]


def run(
    start: Start, step: int, config: DictConfig, command: list[str], console: Console, lock: int, sample_s: float = 10.0
) -> tuple[int, int]:
    """Train; returns the exit code, and the byte of run.log at which this start begins.

    lock: file descriptor that keeps the run's folder. sample_s: seconds from one line of memory.jsonl to the next.
    """
    log = start.folder / "run.log"
    log_begins = log.stat().st_size if log.exists() else 0
    last = total_steps(config)
    with RunDisplay(console, start.method, last, plays_sessions(config)) as display:
        if (limit := config.trainer.total_training_steps) and last < limit:
            epochs = f"trainer.total_epochs={config.trainer.total_epochs}"
            display.say(f"the last step is {last}: {epochs} comes before trainer.total_training_steps={limit}")
        recipe = recipe_of_config(config)  # none of a rehearsal's trainer
        for line in recipe.describe(config) if recipe else ():
            display.say(line)
        wait = "about 20 s" if start.profile == EMBEDDED else "minutes"
        display.say(f"starting Ray, FSDP and vLLM: {wait}; their output goes to {os.path.relpath(log)}")
        try:
            with supervise.only_local_run() as machine, cluster.held(start.folder) as nodes:
                budgets = start.options["until_tokens"], start.options.get("until_turns")
                metrics = MetricsFile(start.folder, step, display, *budgets)
                # The processes of a cluster are not below this one: their memory is not seen.
                memory = None if nodes else MemoryLog(start.folder, sample_s)
                watched = [metrics.poll, memory.poll if memory else nodes.check]
                try:
                    code = train(start.folder, command, watched, config, (lock, machine))
                except BudgetSpent:
                    code = 0
                finally:
                    metrics.close()
                    if memory:
                        memory.close()
                for name in nodes.lost() if nodes and code not in (0, STOPPED) else ():
                    display.say(f"error: {name} died")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except (supervise.WorkerDied, supervise.MachineBusy, cluster.ClusterBusy) as error:
            display.say(f"error: {error}")
            code = 1
    return code, log_begins


def train(
    folder: Path, command: list[str], watched: list[Callable[[], None]], config: DictConfig, held: tuple[int, ...]
) -> int:
    """Run the training command under supervision; returns its exit code, `STOPPED` where SIGTERM ended it in order.

    watched: what to call meanwhile. held: file descriptors of locks, which belong to what trains.
    """
    stop, stoppable = stop_file(config.trainer), is_stoppable(config)
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
        log, poll_all = folder / "run.log", lambda: [poll() for poll in watched]
        code = supervise.run(command, env, log, poll_all, on_sigterm=on_sigterm, held=held)
        return STOPPED if code == 0 and asked and not stop.exists() else code
    finally:
        stop.unlink(missing_ok=True)


def is_stoppable(config: DictConfig) -> bool:
    return recipe_of_config(config) is not None or config.trainer.v1.trainer_mode in OTHERS_STOPPABLE
