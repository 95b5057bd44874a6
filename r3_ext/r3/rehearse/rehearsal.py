"""A rehearsal from its settings to its report, in the process that supervises it."""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext.doctor import command as doctor
from r3_ext.doctor.finding import is_cpu
from r3_ext.doctor.model_files import model_architecture, tokenizer_of
from r3_ext.host.hardware import list_gpus, main_memory
from r3_ext.host.units import GIB
from r3_ext.r3.rehearse import predict, report, steps, weights
from r3_ext.r3.rehearse.measured import Measured
from r3_ext.record.folder import STOPPED, held
from r3_ext.record.memory import CLOSE_S
from r3_ext.run import command as launch
from r3_ext.run.start import Start
from r3_ext.run.train import command_of, run, run_overrides
from r3_ext.settings import sizing
from r3_ext.settings.compose import compose_config, quoted
from r3_ext.settings.prepare import MODEL, override
from recipe.common.config.verl_rules import ENVIRONMENT, MODULES
from recipe.r3.config.r3_config import R3Config
from recipe.r3.config.r3_rules import validate_r3_config

ENTRY = "verl.trainer.main_ppo"
"""recipe.r3.main_r3 without its check, which takes the trainer mode `r3` only."""
TRAINER = "r3_ext.r3.rehearse.trainer"


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
    r3 = validate_r3_config(config)
    start.folder.mkdir(parents=True, exist_ok=True)
    repeat = own.repeat or (3 if is_cpu(config) else 1)
    kinds = steps.kinds_of(repeat, r3)
    with held(start.folder) as lock:
        say(f"{len(kinds)} steps: {', '.join(kinds)}")
        problems = prepare(config, r3, start.folder, repeat)
        overrides = [*overrides, *rehearsal_overrides(config, start.folder, places, kinds)]
        rehearsed = compose_config(overrides)
        command = command_of(start, overrides, rehearsed, python, ENTRY)
        code, _ = run(start, -1, rehearsed, command, console, lock, CLOSE_S)
        if code in (130, STOPPED):
            return code
        measured = Measured.read(start.folder, began, time.time())
        sizes = {"problems": problems, "budget": budget, "sizing": report.sized(plan)}
        facts = sizes | {"caps": steps.Caps.of(config, r3)} | left_behind(start.folder)
        found = outcome(config, measured, facts, code, start.folder)
        (start.folder / "rehearsal.json").write_text(json.dumps(found, indent=2) + "\n")
        text = report.markdown(found)
        (start.folder / "rehearsal.md").write_text(text)
    say(text)
    say(f"report: {os.path.relpath(start.folder / 'rehearsal.md')}, and rehearsal.json beside it")
    return code or (0 if found["fits"] else 1)


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


def prepare(config: DictConfig, r3: R3Config, folder: Path, repeat: int) -> int:
    """Write the rows of all steps, and the history of the worst one; returns the number of problems of the run."""
    tokenizer = tokenizer_of(config)
    kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})

    def count(messages: list[dict]) -> int:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **kwargs)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    data = steps.Data(config, r3, count, repeat)
    reflected, others, cut_off = data.worst()
    held = data.worst(steps.HELD)[:2] if steps.holds(r3) else ()
    data.write(folder / "steps.parquet", steps.batches_of(repeat), *held, reflected, others)
    texts = [row[config.data.prompt_key][-1]["content"] for row in data.rows]
    vocabulary = sorted({token for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] for token in ids})
    names = [[data.query_id(row) for row in rows] for rows in (reflected, others)]
    history = folder / "history.sqlite"
    steps.plant(str(history), config, r3, *names, cut_off, vocabulary)
    most = config.data.get("train_max_samples", -1)
    return min(len(data.table), most) if most > 0 else len(data.table)


def rehearsal_overrides(config: DictConfig, folder: Path, places: list[str], kinds: list[str]) -> list[str]:
    """What makes the training command the rehearsal's: after everything else, so that it holds."""
    modules = OmegaConf.select(config, MODULES)
    last = len(kinds) - 1
    return [
        *places,
        f"{MODULES}={quoted(f'{modules},{TRAINER}')}",
        "trainer.v1.trainer_mode=rehearse",
        f"+rehearse.kinds=[{','.join(kinds)}]",
        f"+rehearse.folder={quoted(folder)}",
        f"data.train_files={quoted(folder / 'steps.parquet')}",
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
