"""The three trainer modes beside each other, in turns, on the embedded profile with answers of long-tailed lengths.

    python -m tests.benchmarks.modes --folder DIR [--seeds 1 2 3] [--tokens 60000] [--method r3]

Every (world, mode) is one `r3 run` to the same number of generated tokens: a world's runs follow each other. Answers
may be twice as long as the profile's, so that those that never end take several times as long as the others. Printed
for each run: steps, median seconds per step, generated tokens per second, the idle share of the rollout server, and the
accuracy of the last validation; then means over the worlds, and of each mode's difference to the synchronous one.

The idle share is 1 less the CPU seconds of vLLM's process over the seconds, from the first step to the last: it
computes on one thread. Times of a busy machine are worth nothing: let nothing else run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median

import psutil

from r3_ext.record.summary import read_metrics
from r3_ext.study.arms import EMBEDDED
from recipe.common.modes import MODES, SYNC

ROOT = Path(__file__).resolve().parents[2]
LONG_TAIL = [
    "data.max_prompt_length=448",
    "data.max_response_length=128",
    "reward.reward_kwargs.length_bonus_max_tokens=512",
]
VLLM = ("VLLM::", "ray::vLLMHttpServer")
ACCURACY = "val/arithmetic/pass@1"
POLL_S = 0.5


def command(args: argparse.Namespace, mode: str, seed: int) -> list[str]:
    options = ["--method", args.method, "--profile", "embedded", "--mode", mode, "--world", f"seed={seed}"]
    options += ["--outputs", str(args.folder), "--experiment", mode, "--run", f"seed_{seed}"]
    options += ["--cache", str(args.folder / "cache"), "--until-tokens", str(args.tokens), "--no-report"]
    seeds = [f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"]
    return [sys.executable, "-m", "r3_ext.cli", "run", *options, *EMBEDDED, *LONG_TAIL, *seeds]


def cpu_of_vllm(root: psutil.Process) -> float:
    """CPU seconds so far of the processes that generate."""
    total = 0.0
    for process in root.children(recursive=True):
        try:
            with process.oneshot():
                if (process.cmdline() or [""])[0].startswith(VLLM):
                    times = process.cpu_times()
                    total += times.user + times.system
        except psutil.Error:
            continue
    return total


def measure(args: argparse.Namespace, mode: str, seed: int) -> dict[str, float]:
    folder = args.folder / mode / f"seed_{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    seen = []  # (seconds, CPU seconds of vLLM) from the first step on, at each step
    with open(args.folder / "output", "w") as output:
        process = subprocess.Popen(command(args, mode, seed), cwd=ROOT, stdout=output, stderr=output)
        root, rows = psutil.Process(process.pid), 0
        while process.poll() is None:
            if (folder / "metrics.jsonl").exists() and len(trained(folder)) > rows:
                rows = len(trained(folder))
                seen.append((time.monotonic(), cpu_of_vllm(root)))
            time.sleep(POLL_S)
    if process.returncode or len(seen) < 2:
        sys.exit(f"exit code {process.returncode}, see {args.folder / 'output'}")
    rows = trained(folder)
    (begin, busy_begin), (end, busy_end) = seen[0], seen[-1]
    return {
        "steps": len(rows),
        "tokens": sum(row["generated/tokens"] for row in rows),
        "step_s": median(row["timing_s/step"] for row in rows[1:]),
        "tokens_per_s": sum(row["generated/tokens"] for row in rows[1:]) / (end - begin),
        "idle": 1 - (busy_end - busy_begin) / (end - begin),
        "accuracy": [row[ACCURACY] for row in read_metrics(folder / "metrics.jsonl") if ACCURACY in row][-1],
        "longest": max(row["response_length/max"] for row in rows) / mean(row["response_length/mean"] for row in rows),
    }


def trained(folder: Path) -> list[dict]:
    return [row for row in read_metrics(folder / "metrics.jsonl") if "training/global_step" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tokens", type=int, default=60_000)
    parser.add_argument("--method", default="r3")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.resolve()
    found = {}
    for seed in args.seeds:
        for mode in MODES:
            found[mode, seed] = measure(args, mode, seed)
            told = ", ".join(f"{name} {value:.4g}" for name, value in found[mode, seed].items())
            print(f"world {seed}, {mode:<15} {told}", flush=True)
    (args.folder / "modes.json").write_text(json.dumps({f"{m}/{s}": v for (m, s), v in found.items()}, indent=2) + "\n")
    for name in ("step_s", "tokens_per_s", "idle", "accuracy"):
        print(f"\n{name}")
        for mode in MODES:
            values = [found[mode, seed][name] for seed in args.seeds]
            others = [found[mode, seed][name] - found[SYNC, seed][name] for seed in args.seeds]
            told = ", ".join(f"{difference:+.3f}" for difference in others)
            print(f"  {mode:<15} {mean(values):8.3f}" + ("" if mode == SYNC else f"   less {SYNC}: {told}"))


if __name__ == "__main__":
    main()
