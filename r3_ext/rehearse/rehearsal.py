"""A rehearsal from its settings to its report, in the process that supervises it."""

import argparse
import json
import os
import shutil
import time
from importlib import import_module
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext.doctor import command as doctor
from r3_ext.doctor.finding import is_cpu
from r3_ext.doctor.model_files import model_architecture
from r3_ext.host.files import write_text
from r3_ext.host.hardware import list_gpus, main_memory
from r3_ext.host.units import GIB
from r3_ext.recipes import Recipe, recipe_of, recipe_of_config
from r3_ext.record.folder import INTERRUPTED, STOPPED, held
from r3_ext.record.memory import CLOSE_S
from r3_ext.rehearse import predict, report, text, weights
from r3_ext.rehearse.measured import Measured
from r3_ext.rehearse.steps import STEPS, Plan
from r3_ext.run import command as launch
from r3_ext.run.start import Start
from r3_ext.run.train import command_of, run, run_overrides
from r3_ext.settings import sizing
from r3_ext.settings.compose import compose_config, quoted
from r3_ext.settings.prepare import MODEL, override
from recipe.common.config.verl_rules import ENVIRONMENT, MODULES

ENTRY = "verl.trainer.main_ppo"
"""A recipe's own without its check, which takes its own trainer modes only."""


def rehearse(own: argparse.Namespace, start: Start, python: str, began: float, console: Console, say) -> int:
    """Run it and tell; returns the exit code.

    Raises:
        ValueError: a source or a setting that cannot be taken.
    """
    places = run_overrides(start.folder, start.method, False)
    known = compose_config(start.compose(places + start.stored_paths()))
    overrides, config, _ = launch.prepare(start, places, known, say)
    architecture, budget = model_architecture(config), own.memory or available(config)
    plan = None
    if architecture is not None and budget and not is_cpu(config):
        plan = sizing.plan(config, architecture, budget)
        if not plan.fits:
            return refuse(config, plan, architecture, say)
    overrides, config = with_weights(own, start, overrides, config, say)

    if not doctor.report(doctor.diagnose(config)):
        return 1
    start.folder.mkdir(parents=True, exist_ok=True)
    repeat = own.repeat or (3 if is_cpu(config) else 1)
    with held(start.folder) as lock:
        planned = plan_of(recipe_of(start.method), config, start.folder, repeat)
        say(f"{len(planned.kinds)} steps: {', '.join(planned.kinds)}")
        overrides = [*overrides, *rehearsal_overrides(config, start.folder, places, planned)]
        rehearsed = compose_config(overrides)
        command = command_of(start, overrides, rehearsed, python, ENTRY)
        code, _ = run(start, -1, rehearsed, command, console, lock, CLOSE_S)
        if code in (INTERRUPTED, STOPPED):
            return code
        measured = Measured.read(start.folder, began, time.time())
        sizes = {"problems": planned.problems, "budget": budget, "sizing": report.sized(plan)}
        facts = sizes | {"caps": planned.caps} | left_behind(start.folder)
        found = outcome(config, measured, facts, code, start.folder)
        write_text(start.folder / "rehearsal.json", json.dumps(found, indent=2) + "\n")
        told = text.markdown(found)
        write_text(start.folder / "rehearsal.md", told)
    say(told)
    say(f"report: {os.path.relpath(start.folder / 'rehearsal.md')}, and rehearsal.json beside it")
    return code or (0 if found["fits"] else 1)


def plan_of(recipe: Recipe, config: DictConfig, folder: Path, repeat: int) -> Plan:
    """What is rehearsed of a recipe, `repeat` typical steps of each kind; its rows are written into the folder."""
    return import_module(f"{recipe.rehearsal}.plan").prepare(config, folder, repeat)


def left_behind(folder: Path) -> dict:
    """Where the workers wrote what they received, and the size of a checkpoint, which is deleted."""
    return {"rows_folder": folder / "rows", "checkpoint_bytes": drop_checkpoint(folder / "checkpoints")}


def with_weights(
    own: argparse.Namespace, start: Start, overrides: list[str], config: DictConfig, say
) -> tuple[list[str], DictConfig]:
    """The overrides and the config with a model that has weights, random ones if need be."""
    model = config.actor_rollout_ref.model.path
    if not (own.random_weights or weights.lacks_weights(model)):
        return overrides, config
    say(f"random weights of the config of {model}: time and memory are those of real ones, answers are not")
    overrides = [*overrides, override(MODEL, str(weights.random_weights(model, start.cache)), start.cache)]
    return overrides, compose_config(overrides)


def available(config: DictConfig) -> float:
    """GiB: of the smallest GPU, 0 where there is none, or of the main memory that is free now where none is used."""
    if is_cpu(config):
        return round(main_memory()[0] / GIB, 2)
    return min((gpu.total for gpu in list_gpus()), default=0.0)


def refuse(config: DictConfig, plan: sizing.Plan, architecture: sizing.Architecture, say) -> int:
    """Tell, before anything is loaded, that the computed need does not fit, and what would."""
    say(
        f"error: does not fit: computed {plan.update:.1f} GiB to update and {plan.rollout:.1f} to roll out, of "
        f"{plan.memory:.1f} per GPU"
    )
    fit = predict.computed_fit(config, architecture, plan.memory)
    if fit is None:
        say("no micro-batch, utilization or offload fits: more GPUs, a smaller model or shorter responses")
    else:
        say(f"what would fit, computed: {' '.join(fit)}")
    return 1


def rehearsal_overrides(config: DictConfig, folder: Path, places: list[str], planned: Plan) -> list[str]:
    """What makes the training command the rehearsal's: after everything else, so that it holds."""
    modules, recipe = OmegaConf.select(config, MODULES), recipe_of_config(config)
    kinds = planned.kinds
    last = len(kinds) - 1
    return [
        *places,
        f"{MODULES}={quoted(f'{modules},{recipe.rehearsal}.trainer')}",
        *planned.overrides,
        "trainer.v1.trainer_mode=rehearse",
        f"+rehearse.recipe={recipe.name}",
        f"+rehearse.kinds=[{','.join(kinds)}]",
        f"+rehearse.folder={quoted(folder)}",
        f"data.train_files={quoted(folder / STEPS)}",
        "data.train_max_samples=-1",
        "data.shuffle=False",
        f"trainer.total_training_steps={len(kinds)}",
        "trainer.total_epochs=1",
        "trainer.resume_mode=disable",
        "trainer.val_before_train=False",
        # Before the worst step, should that one fail.
        *(f"trainer.{key}={last if config.trainer[key] > 0 else -1}" for key in ("test_freq", "save_freq")),
        f"+{ENVIRONMENT}.R3_ROWS_FOLDER={quoted(folder / 'rows')}",
    ]


def drop_checkpoint(folder: Path) -> int:
    """Bytes of the checkpoint that was written; it is deleted."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def outcome(config: DictConfig, measured: Measured, facts: dict, code: int, folder: Path) -> dict:
    """The report's content; `fits` and `advice` are always there."""
    if code:
        failed = report.failure(measured, folder / "run.log")
        return {"failure": failed, "fits": False, "advice": report.failure_advice(config, failed)}
    found = report.contents(config, measured, facts)
    advice = report.advice(config, measured, facts["budget"])
    return found | {"fits": not advice, "advice": advice}
