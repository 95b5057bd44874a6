"""What R^3 costs when there is nothing to rescue: steps of GRPO and of R^3 on the same rollouts.

    python -m tests.benchmarks.step --folder DIR            about ten minutes on two cores

One recording of rollouts is made with GRPO, and every group in it is planted half right, half wrong: nothing is dead,
nothing is hard, nothing is ranked. Then GRPO and R^3 with all mechanisms on replay it in turns. What remains is what
R^3 adds to every step: tags, the history, the ledger, the choice of hard queries. Generation is no part of these steps,
so the share is larger than in training. Exits 1 when R^3's median step is over the bound.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import torch
from tensordict import NonTensorData, NonTensorStack

from recipe.common.queue import rows_of
from tests.integration.conftest import command, skip_overrides

BOUND = 1.03
METHODS = ("grpo", "r3")


def plant_mixed_groups(recording: Path) -> None:
    """Make every other response of a query right and the others wrong, untruncated, in all recorded steps."""
    for file in recording.rglob("tq_batch.pt"):
        payload = torch.load(file, weights_only=False)
        data = payload["tensordict"]
        seen, extras, scores = {}, [], []
        for row in rows_of(data.select("uid", "extra_fields", "rm_scores")):
            number = seen[row["uid"]] = seen.get(row["uid"], -1) + 1
            extra, score = row["extra_fields"], torch.zeros_like(row["rm_scores"])
            score[-1] = right = float(number % 2)
            extra["reward_extra_info"].update(acc=right, truncated=0.0)
            extras.append(extra)
            scores.append(score)
        data["extra_fields"] = NonTensorStack.from_list([NonTensorData(extra) for extra in extras])
        data["rm_scores"] = torch.nested.as_nested_tensor(scores, layout=torch.jagged)
        torch.save(payload, file)


def step_seconds(folder: Path, skip: int) -> list[float]:
    """Seconds of every step but the first `skip`, which warm up."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["timing_s/step"] for row in rows if "timing_s/step" in row][skip:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    args = parser.parse_args()
    recording = args.folder / "recording"
    size = [
        f"data.train_batch_size={args.prompts}",
        f"data.train_max_samples={args.prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={args.prompts // 2}",
        f"actor_rollout_ref.rollout.n={args.group}",
        f"trainer.total_training_steps={args.steps}",
        *skip_overrides(recording, args.steps),
    ]

    def run(method: str, name: str) -> Path:
        # Recordings know no prompts that are asked on the way.
        when = ["algorithm.r3.reflection.when=next_visit"] if method == "r3" else []
        line = command(method, args.folder, name, args.folder / "cache", *size, *when)
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        return args.folder / "test" / name

    print(f"recording {args.steps} steps of {args.prompts} x {args.group} rollouts", flush=True)
    run("grpo", "record")
    plant_mixed_groups(recording)
    seconds = {method: [] for method in METHODS}
    for number in range(args.rounds):
        for method in METHODS if number % 2 == 0 else reversed(METHODS):
            folder = run(method, f"{method}-{number}")
            seconds[method] += step_seconds(folder, skip=3)
            print(f"{folder.name}: median step {median(step_seconds(folder, skip=3)):.3f} s", flush=True)
            if method == "r3":
                groups = json.loads((folder / "summary.json").read_text())["groups"]
                assert groups["mixed"] == groups["total"] > 0, f"something was dead: {groups}"
    grpo, r3 = (median(seconds[method]) for method in METHODS)
    print(f"median step: GRPO {grpo:.3f} s, R^3 {r3:.3f} s, ratio {r3 / grpo:.3f} (bound {BOUND})")
    sys.exit(r3 / grpo > BOUND)


if __name__ == "__main__":
    main()
