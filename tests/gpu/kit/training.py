"""Real runs of the trainers on the tiny model, with `tests.gpu.hf_rollout`: R^3 with all mechanisms; GRPO, and R^3 with
none, on one recording of the rollouts; R^3 with replay and ranking on it, on the GPU and on the CPU.

All are in bf16, with packed rows and fused log-probs. The recording comes with the kit, made on a CPU. With a GPU all
runs go on beside each other: on the H200 where this was tried a run took 2 minutes to start, and 20 s to train.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from r3_ext.recipes import recipe_of
from r3_ext.settings.compose import EMBEDDED, OWN_CONFIG, base_overrides, quoted, searchpath
from recipe.common.config.verl_rules import ENVIRONMENT
from tests.gpu.hf_rollout import AS_ON_GPUS, REFLECTS, overrides

from .report import Report, arguments

STEPS, WARM_UP = 6, 2
RECORDING = "recording"
"""Folder of the kit."""
PROFILE = {"cuda": "gpu_1x80gb", "cpu": EMBEDDED}
# 16 prompts a step and 16 problems in all: every step is an epoch, so there is a history from step 2 on.
SIZES = [
    "data.train_batch_size=16",
    "data.train_max_samples=16",
    "data.val_max_samples=8",
    "data.max_prompt_length=512",
    "data.max_response_length=64",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2500",
    "actor_rollout_ref.actor.optim.lr=2e-4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.max_model_len=576",
    "actor_rollout_ref.rollout.max_num_seqs=256",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "reward.reward_kwargs.length_bonus_max_tokens=256",
    "trainer.total_epochs=100",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.logger=[file]",
    "++ray_kwargs.ray_init.include_dashboard=False",
]
OFF = [f"algorithm.r3.{mechanism}.enable=False" for mechanism in ("replay", "reflection", "ranking")]
NO_REFLECTION = ["algorithm.r3.reflection.enable=False"]
LEDGER = [f"groups/{name}" for name in ("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "split")]
SAME = ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy", "critic/advantages/max")
NEAR = ("actor/grad_norm", "actor/entropy")
Rows = list[dict]


def settings_of(method: str, device: str) -> list[str]:
    """What all runs of a method have there; the GPU's profile is in bf16 by itself."""
    trains = AS_ON_GPUS if device == "cpu" else []
    return [*base_overrides(PROFILE[device], method), *overrides(method, device == "cuda"), *trains, *SIZES]


class Runs:
    def __init__(self, work: Path, tiny: Path):
        """work: where they write. tiny: the model and its problems."""
        self.work, self.tiny = work, tiny

    def __call__(self, method: str, name: str, device: str, *settings: str) -> Rows:
        """The metrics of its steps, which stay beside its log.

        Raises:
            subprocess.CalledProcessError: it failed; its log's end is on standard output.
        """
        folder, logs = self.work / "runs" / name, self.work / "logs"
        for each in (folder, logs):
            each.mkdir(parents=True, exist_ok=True)
        recipe, log, metrics = recipe_of(method), logs / f"{name}.log", logs / f"{name}.jsonl"
        command = [sys.executable, "-m", recipe.entry, "--config-path", str(recipe.folder)]
        command += ["--config-name", recipe.base, "--config-dir", str(OWN_CONFIG), searchpath()]
        command += [
            *settings_of(method, device),
            f"actor_rollout_ref.model.path={quoted(self.tiny / 'model')}",
            f"data.train_files={quoted(self.tiny / 'train.parquet')}",
            f"data.val_files={quoted(self.tiny / 'val.parquet')}",
            f"trainer.default_local_dir={quoted(folder / 'checkpoints')}",
            *(f"{key}={quoted(folder / file)}" for key, file in recipe.files.items()),
            f"hydra.run.dir={quoted(folder)}",
            "hydra.output_subdir=null",
            "hydra/job_logging=none",
            f"++{ENVIRONMENT}.VERL_FILE_LOGGER_PATH={quoted(metrics)}",
            *settings,
        ]
        with log.open("w") as output:
            env = environment(device) | {"RAY_TMPDIR": str(folder)}  # else it may join the cluster of another run
            code = subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT).returncode
        if code:
            print(f"{name}: {log.read_text(errors='replace')[-3000:]}")
            raise subprocess.CalledProcessError(code, name)
        rows = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
        return [row for row in rows if "training/global_step" in row]


def environment(device: str) -> dict[str, str]:
    if device == "cuda":
        return {**os.environ}
    # The profile declares a GPU to Ray, which counts this as one; torch finds none there.
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    return {**os.environ, "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "r3_ext.cpu.plugin", **hidden}


def recorded(folder: Path) -> list[str]:
    steps = list(range(1, STEPS + 1))
    return ["skip.rollout_tq.enable=True", f"skip.rollout_tq.dump_dir={folder}", f"skip.rollout_tq.steps={steps}"]


def told(rows: Rows, names: Iterable[str]) -> dict[str, list]:
    """By name, its value in every step."""
    return {name: [row.get(name) for row in rows] for name in names}


def all_on(rows: Rows) -> dict:
    names = [*LEDGER, "groups/ranked", "groups/still_dead", "reflection/rows", "replay/rows", *NEAR]
    agreement = [f"training/rollout_{name}" for name in ("actor_probs_pearson_corr", "probs_diff_mean")]
    return told(rows, [*names, *agreement, "timing_s/step", "timing_s/gen"])


def apart(ours: Rows, theirs: Rows, names: Iterable[str]) -> dict[str, list[float]]:
    """By name, the difference in every step relative to the size."""
    pairs = [*zip(ours, theirs, strict=True)]
    return {name: [abs(a[name] - b[name]) / max(abs(b[name]), 1e-3) for a, b in pairs] for name in names}


def timings(rows: Rows) -> dict[str, float]:
    """Median seconds of each phase, without the first steps."""
    names = sorted(name for name in rows[-1] if name.startswith("timing_s/"))
    return {name.removeprefix("timing_s/"): median(row.get(name, 0) for row in rows[WARM_UP:]) for name in names}


def record(folder: Path, tiny: Path) -> None:
    """Make the recording in `folder` where the kit is built."""
    with tempfile.TemporaryDirectory() as work:
        Runs(Path(work), tiny)("grpo", "record", "cpu", *recorded(folder))


def main() -> None:
    args = arguments(__doc__)
    kit = args.work / "kit"
    report, run, replays = Report(args.out), Runs(args.work, kit / "tiny"), recorded(kit / RECORDING)
    with ThreadPoolExecutor(5 if args.device == "cuda" else 1) as side_by_side:
        begin = side_by_side.submit
        all_mechanisms = begin(run, "r3", "r3", args.device, *REFLECTS)
        grpo = begin(run, "grpo", "grpo", args.device, *replays)
        off = begin(run, "r3", "off", args.device, *OFF, *replays)
        rescued = begin(run, "r3", "rescued", args.device, *NO_REFLECTION, *replays)
        rescued_on_cpu = begin(run, "r3", "rescued_cpu", "cpu", *NO_REFLECTION, *replays)
        fires(report, all_mechanisms.result())
        equals_grpo(report, off.result(), grpo.result(), exactly=args.device == "cpu")
        equals_cpu(report, rescued.result(), rescued_on_cpu.result())
    report.end()


def fires(report: Report, r3: Rows) -> None:
    report.add({"r3": all_on(r3)})
    report.limit("groups split", max(row["groups/split"] for row in r3), 0)
    report.limit("steps without a gradient", sum(not 0 < row["actor/grad_norm"] < math.inf for row in r3), 0)
    report.limit("rollout and trainer, 1 - correlation", 1 - min(report.figures["r3"][CORRELATION]), 1e-3)
    report.limit("1 / rescued by replay", 1 / max(sum(report.figures["r3"]["groups/rescued_by_replay"]), 1e-9), 1)


def equals_grpo(report: Report, off: Rows, grpo: Rows, exactly: bool) -> None:
    times = {"grpo": timings(grpo), "off": timings(off)}
    times["off_over_grpo"] = times["off"]["step"] / times["grpo"]["step"]
    report.add({"seconds": times, "off_against_grpo": apart(off, grpo, SAME)})
    # Attention's gradients are added up in any order on a GPU.
    first = max(values[0] for values in report.figures["off_against_grpo"].values())
    report.limit("off against GRPO, first step", first, 0 if exactly else 1e-2)


def equals_cpu(report: Report, here: Rows, cpu: Rows) -> None:
    near = apart(here, cpu, NEAR)
    ledgers = {"here": told(here, LEDGER), "cpu": told(cpu, LEDGER)}
    report.add({"against_cpu": near, "ledger": ledgers})
    report.limit("ledgers that differ from the CPU's", ledgers["here"] != ledgers["cpu"], 0)
    report.limit("gradient and entropy against the CPU, first step", max(values[0] for values in near.values()), 0.05)


CORRELATION = "training/rollout_actor_probs_pearson_corr"

if __name__ == "__main__":
    main()
