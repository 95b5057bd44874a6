"""Real runs of the trainers on the tiny model, with `tests.gpu.hf_rollout`: R^3 with all mechanisms; GRPO, and R^3 with
none, on one recording of the rollouts; R^3 with replay and ranking on it, on the GPU and on the CPU.

All are in bf16, with packed rows and fused log-probs. The run on the CPU goes on beside the first one of R^3, before
anything is timed.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from r3_ext.recipes import recipe_of
from r3_ext.settings.compose import EMBEDDED, OWN_CONFIG, base_overrides, quoted, searchpath
from recipe.common.config.verl_rules import ENVIRONMENT
from tests.gpu.hf_rollout import AS_ON_GPUS, REFLECTS, overrides

from .report import Report, arguments

STEPS, WARM_UP = 6, 2
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
    def __init__(self, work: Path, device: str):
        self.work, self.device, self.tiny = work, device, work / "kit" / "tiny"

    def begin(self, method: str, name: str, device: str, *settings: str) -> Callable[[], Rows]:
        """Start a run; calling what is returned waits for its end and gives the metrics of its steps.

        Raises (when called):
            subprocess.CalledProcessError: it failed; its log's end is on standard output.
        """
        folder = self.work / "runs" / name
        folder.mkdir(parents=True)
        recipe, metrics = recipe_of(method), folder / "metrics.jsonl"
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
        log = self.work / "logs" / f"{name}.log"
        process = subprocess.Popen(command, env=environment(device), stdout=log.open("w"), stderr=subprocess.STDOUT)

        def wait() -> Rows:
            if code := process.wait():
                print(f"{name}: {log.read_text(errors='replace')[-3000:]}")
                raise subprocess.CalledProcessError(code, name)
            rows = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
            return [row for row in rows if "training/global_step" in row]

        return wait

    def run(self, method: str, name: str, *settings: str) -> Rows:
        return self.begin(method, name, self.device, *settings)()


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


def main() -> None:
    args = arguments(__doc__)
    report, runs, recording = Report(args.out), Runs(args.work, args.device), args.work / "runs" / "recording"
    runs.run("grpo", "record", *recorded(recording))
    on_cpu = runs.begin("r3", "rescued_cpu", "cpu", *NO_REFLECTION, *recorded(recording))
    r3 = runs.run("r3", "r3", *REFLECTS)
    report.add({"r3": all_on(r3)})
    report.limit("groups split", max(row["groups/split"] for row in r3), 0)
    report.limit("steps without a gradient", sum(not 0 < row["actor/grad_norm"] < math.inf for row in r3), 0)
    report.limit("rollout and trainer, 1 - correlation", 1 - min(report.figures["r3"][CORRELATION]), 1e-3)
    report.limit("1 / rescued by replay", 1 / max(sum(report.figures["r3"]["groups/rescued_by_replay"]), 1e-9), 1)
    cpu = on_cpu()

    grpo, off = runs.run("grpo", "grpo", *recorded(recording)), runs.run("r3", "off", *OFF, *recorded(recording))
    times = {"grpo": timings(grpo), "off": timings(off)}
    times["off_over_grpo"] = times["off"]["step"] / times["grpo"]["step"]
    report.add({"seconds": times, "off_against_grpo": apart(off, grpo, SAME)})
    # Attention's gradients are added up in any order on a GPU.
    first = max(values[0] for values in report.figures["off_against_grpo"].values())
    report.limit("off against GRPO, first step", first, 1e-2 if args.device == "cuda" else 0)

    here = runs.run("r3", "rescued", *NO_REFLECTION, *recorded(recording))
    near = apart(here, cpu, NEAR)
    ledgers = {"here": told(here, LEDGER), "cpu": told(cpu, LEDGER)}
    report.add({"against_cpu": near, "ledger": ledgers})
    report.limit("ledgers that differ from the CPU's", ledgers["here"] != ledgers["cpu"], 0)
    report.limit("gradient and entropy against the CPU, first step", max(values[0] for values in near.values()), 0.05)
    report.end()


CORRELATION = "training/rollout_actor_probs_pearson_corr"

if __name__ == "__main__":
    main()
