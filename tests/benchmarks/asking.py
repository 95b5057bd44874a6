"""What asking all-wrong groups again adds to the generation of a step, with the tiny model's short answers.

    python -m tests.benchmarks.asking --folder DIR          a quarter of an hour on two cores

The same model, at a learning rate of 1e-12, answers the problems of one world for two epochs: without reflection, and
with each value of `reflection.when`. The runs take turns. Printed by epoch: the median over the steps of the seconds of
generation, and the means of generated tokens and of prompts asked again. In the second epoch the history knows right
answers, so less is asked sooner. Times of a busy machine are worth nothing: let nothing else run.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import mean, median

from r3_ext.record.summary import read_metrics
from recipe.r3.config.r3_config import AT_ONCE, NEXT_STEP, NEXT_VISIT

PROMPTS = 16
"""Of a step of the profile embedded."""
STILL = ["actor_rollout_ref.actor.optim.lr=1e-12", "trainer.total_epochs=2", "trainer.save_freq=-1"]
STILL += ["trainer.val_before_train=False", "trainer.test_freq=-1"]
NONE = "none"
WAYS = {NONE: "algorithm.r3.reflection.enable=False"}
WAYS |= {when: f"algorithm.r3.reflection.when={when}" for when in (NEXT_VISIT, NEXT_STEP, AT_ONCE)}


def steps_of(args: argparse.Namespace, way: str, number: int) -> list[dict]:
    """The metrics of the steps of one run."""
    name = f"{way}-{number}"
    options = ["--profile", "embedded", "--method", "r3", "--outputs", str(args.folder), "--experiment", "asking"]
    options += ["--run", name, "--cache", str(args.folder / "cache"), "--no-report"]
    line = [sys.executable, "-m", "r3_ext.cli", "run", *options, *STILL, WAYS[way]]
    line += [f"data.train_max_samples={args.steps * PROMPTS}", f"trainer.total_training_steps={2 * args.steps}"]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    rows = read_metrics(args.folder / "asking" / name / "metrics.jsonl")
    return [row for row in rows if "timing_s/gen" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.resolve()
    epochs: dict[tuple[str, int], list[dict]] = {}
    for number in range(args.rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            rows = steps_of(args, way, number)
            # The first step of a run warms up.
            epochs.setdefault((way, 1), []).extend(rows[1 : args.steps])
            epochs.setdefault((way, 2), []).extend(rows[args.steps :])
    for epoch in (1, 2):
        usual = median(row["timing_s/gen"] for row in epochs[NONE, epoch])
        for way in WAYS:
            rows = epochs[way, epoch]
            seconds = median(row["timing_s/gen"] for row in rows)
            tokens = mean(row["generated/tokens"] for row in rows)
            asked = mean(row.get("reflection/prompts", 0) for row in rows)
            told = (
                f"{seconds:5.2f} s ({seconds / usual - 1:+.0%}), {tokens:6.0f} tokens, {asked:.1f} prompts asked again"
            )
            print(f"epoch {epoch}  {way:<11} {told}")


if __name__ == "__main__":
    main()
