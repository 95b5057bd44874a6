"""verl's settings with R^3: each one run through the real command on the embedded profile, and what its batches held.

    python -m tests.benchmarks.settings --folder DIR [--only NAME ...]     one to three minutes a setting on two cores

Every setting is one `r3 run` of three steps over the same 16 problems, so that the second step has a history. Hard is
every problem that was ever failed, and all failures are ranked, not the cut-off ones alone: replayed, reflected and
ranked rows are in the trained batches. What each optimizer step received is counted from R3_ROWS_FOLDER.

Writes DIR/settings.csv and DIR/settings.md after each setting; what is in there as it should be is not run again. Exits
1 when one that should train did not, or one that should be refused was not. What R^3's rows mean under each of them is
told in docs/settings.md.
"""

import argparse
import csv
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from pyarrow import parquet

from r3_ext.cpu.fork import environment as forks
from r3_ext.cpu.fork import server as forkserver
from r3_ext.host import supervise
from r3_ext.record.summary import read_metrics
from recipe.common.config.verl_rules import ENVIRONMENT
from recipe.common.rows import RANK_MARK, REPLAY_MARK, is_reflection

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
SMALL = (
    "data.train_max_samples=16",
    "data.val_max_samples=8",
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=100",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "algorithm.r3.reflection.threshold=1.0",
    "algorithm.r3.reflection.min_attempts=1",
    "data.max_response_length=48",  # about the mean length, so that answers are cut off, and ranked
    *("algorithm.r3.replay.outcome=both", "algorithm.r3.replay.trains=all"),  # three steps: whatever is stored
)
ACTOR, MODEL, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "rollout"))
CORRECTION = "algorithm.rollout_correction"
REJECTION = (f"{CORRECTION}.rollout_rs=seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold=0.9_1.1")
REFLECTION_ALONE = ("algorithm.r3.replay.enable=False", "algorithm.r3.ranking.enable=False")
LORA = (f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=16")
TWO_RANKS = ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2")
VAL, SECOND_VAL = "VAL", "SECOND_VAL"
"""Stand for the profile's validation file and a copy of it under another name."""


@dataclass(frozen=True)
class Setting:
    name: str
    overrides: tuple[str, ...] = ()
    refused: str = ""
    """The key that the refusal at the start names; "": it trains."""


def loss(mode: str, *more: str) -> Setting:
    return Setting(f"loss {mode}", (f"{ACTOR}.policy_loss.loss_mode={mode}", *more))


SETTINGS = (
    Setting("R^3 as it is"),
    Setting("KL loss", (f"{ACTOR}.use_kl_loss=True",)),
    Setting("KL in the reward", ("algorithm.use_kl_in_reward=True",)),
    Setting("LoRA", LORA),
    Setting("LoRA and KL loss", (*LORA, f"{ACTOR}.use_kl_loss=True")),
    Setting("two passes", (f"{ACTOR}.ppo_epochs=2",)),
    Setting(
        "Dr. GRPO",
        (
            "algorithm.norm_adv_by_std_in_grpo=False",
            f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
            f"{ACTOR}.loss_scale_factor=64",
        ),
    ),
    Setting("mean over rows of means", (f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",)),
    Setting("mean over rows of sums", (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum",)),
    Setting("sum over tokens", (f"{ACTOR}.loss_agg_mode=token-sum",)),
    loss("gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    loss("cispo"),
    loss("geo_mean"),
    loss("clip_cov"),
    loss("kl_cov"),
    loss("sapo"),
    loss("dro", f"{ACTOR}.policy_loss.dro_beta=0.1"),
    loss("gpg"),
    loss("dppo_tv"),
    loss("dppo_kl"),
    Setting("TIS", (f"{CORRECTION}.rollout_is=token",)),
    Setting("TIS, a weight for each row", (f"{CORRECTION}.rollout_is=sequence",)),
    Setting("rejection sampling", REJECTION),
    Setting("no log-prob pass", (f"{CORRECTION}.bypass_mode=True",), refused="algorithm.r3.ranking.enable"),
    Setting("no log-prob pass, reflection alone", (f"{CORRECTION}.bypass_mode=True", *REFLECTION_ALONE)),
    Setting(
        "loss bypass_mode, with a log-prob pass",
        (f"{ACTOR}.policy_loss.loss_mode=bypass_mode",),
        refused=f"{ACTOR}.policy_loss.loss_mode",
    ),
    Setting(
        "fixed micro-batches",
        (
            f"{ACTOR}.use_dynamic_bsz=False",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
        ),
    ),
    Setting("packed rows", (f"{MODEL}.use_remove_padding=True",)),
    Setting(
        "sequence parallel",
        (*TWO_RANKS, f"{MODEL}.use_remove_padding=True", f"{ACTOR}.ulysses_sequence_parallel_size=2"),
        refused=f"{ACTOR}.ulysses_sequence_parallel_size",
    ),
    Setting(
        "several validation sets",
        (f"data.val_files=[{VAL},{SECOND_VAL}]", "data.val_max_samples=-1", "trainer.val_before_train=True"),
    ),
)
COLUMNS = ("setting", "overrides", "outcome", "steps", "replayed", "reflected", "ranked", "padding")
FIGURES = ("grad_norm", "loss", "policies_differ")
"""Largest gradient norm and loss of a step, and the largest difference between a token's probability in the trainer and
in the rollout of plain rows, after the weights were sent."""
TOLD = "told"


def run(args: argparse.Namespace, python: Path, setting: Setting) -> dict[str, str]:
    """The setting's row of the table."""
    name = re.sub(r"\W+", "_", setting.name)
    folder = args.folder / "runs" / "settings" / name
    shutil.rmtree(folder, ignore_errors=True)
    rows = folder / "rows"
    options = ["--profile", "embedded", "--method", "r3", "--outputs", str(args.folder / "runs"), "--no-report"]
    options += ["--experiment", "settings", "--run", name, "--cache", str(args.cache)]
    overrides = [*SMALL, *(with_files(args, override) for override in setting.overrides)]
    done = subprocess.run(
        [str(python), "-m", "r3_ext.cli", "run", *options, *overrides, f"+{ENVIRONMENT}.R3_ROWS_FOLDER={rows}"],
        capture_output=True,
        text=True,
        env={**forks.environment(), "COLUMNS": "1000"},
        cwd=ROOT,
    )
    steps = [row for row in read_metrics(folder / "metrics.jsonl") if "training/global_step" in row]
    found = dict.fromkeys((*COLUMNS, *FIGURES, TOLD), "")
    found |= {"setting": setting.name, "overrides": " ".join(setting.overrides), "steps": str(len(steps))}
    said = done.stdout + done.stderr
    if done.returncode == 0:
        found |= {"outcome": "trains"} | counts(rows) | figures(steps)
        sources = {
            key.split("/")[1] for row in read_metrics(folder / "metrics.jsonl") for key in row if "pass@1" in key
        }
        found[TOLD] = f"validated: {', '.join(sorted(sources))}" if sources else ""
    elif (told := refusal(said)).startswith(setting.refused) and setting.refused and not steps:
        found |= {"outcome": "refused", TOLD: told}
    else:
        found |= {"outcome": f"exit code {done.returncode}", TOLD: said.strip().splitlines()[-1]}
    return found


def refusal(said: str) -> str:
    """What the doctor's check of the configuration says, which is wrapped over lines; "" where nothing failed."""
    found = re.search(r"^fail +config +(.*?)\s+->", said, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def with_files(args: argparse.Namespace, override: str) -> str:
    """The override with paths in place of VAL and SECOND_VAL."""
    if VAL not in override:
        return override
    [val] = args.cache.glob("warm-start-*/val.parquet")
    second = args.folder / "second.parquet"
    table = parquet.read_table(val)
    column = table.column_names.index("data_source")
    field, values = table.schema.field(column), pyarrow.array(["second"] * len(table), table.schema.types[column])
    parquet.write_table(table.set_column(column, field, values), second)
    return override.replace(SECOND_VAL, str(second)).replace(VAL, str(val))


def counts(folder: Path) -> dict[str, str]:
    """Rows that trained in all steps together, by what made them; a row of several passes counts once."""
    kinds = dict.fromkeys(("replayed", "reflected", "ranked", "padding"), 0)
    for step in folder.glob("step_*"):
        lines = (line for file in step.glob("rank_*.jsonl") for line in file.read_text().splitlines())
        uids = {(row["uid"], row["session"]) for line in lines for row in json.loads(line)}
        for uid, _ in uids:
            kinds["replayed"] += uid.endswith(REPLAY_MARK)
            kinds["ranked"] += uid.endswith(RANK_MARK)
            kinds["reflected"] += is_reflection(uid) and not uid.endswith(REPLAY_MARK)
            kinds["padding"] += uid.startswith("pad")
    return {kind: str(number) for kind, number in kinds.items()}


def figures(steps: list[dict]) -> dict[str, str]:
    """FIGURES as text; `nan` or `inf` where a step had one."""

    def largest(key: str) -> str:
        values = [row[key] for row in steps if key in row]
        bad = [value for value in values if not math.isfinite(value)]
        return f"{(bad or [max(values, key=abs)])[0]:.2g}" if values else ""

    keys = "actor/grad_norm", "actor/loss", "training/rollout_probs_diff_max"
    return {name: largest(key) for name, key in zip(FIGURES, keys, strict=True)}


def is_as_expected(setting: Setting, found: dict[str, str]) -> bool:
    if setting.refused:
        return found["outcome"] == "refused"
    values = [float(found[name]) for name in ("grad_norm", "loss") if found[name]]
    return found["outcome"] == "trains" and len(values) == 2 and all(map(math.isfinite, values)) and values[0] > 0


def read(file: Path) -> dict[str, dict[str, str]]:
    """What was found before, by overrides."""
    if not file.exists():
        return {}
    with open(file, newline="") as lines:
        return {row["overrides"]: row for row in csv.DictReader(lines)}


def write(folder: Path, known: dict[str, dict[str, str]]) -> None:
    """The table, in the order of SETTINGS."""
    names = (*COLUMNS, *FIGURES, TOLD)
    rows = [(setting.name, known.get(" ".join(setting.overrides))) for setting in SETTINGS]
    found = [{**row, "setting": name} for name, row in rows if row is not None]
    with open(folder / "settings.csv", "w", newline="") as lines:
        table = csv.DictWriter(lines, names, lineterminator="\n")
        table.writeheader()
        table.writerows(found)
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(row[name].replace("|", "\\|") for name in names) for row in found]
    (folder / "settings.md").write_text("".join(f"| {line} |\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="model and data; FOLDER/cache where not given")
    parser.add_argument("--only", nargs="+", default=[setting.name for setting in SETTINGS], metavar="NAME")
    args = parser.parse_args()
    if unknown := set(args.only) - {setting.name for setting in SETTINGS}:
        parser.error(f"--only {sorted(unknown)}: known are {[setting.name for setting in SETTINGS]}")
    args.folder.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.resolve()
    args.cache = (args.cache or args.folder / "cache").resolve()
    known = read(args.folder / "settings.csv")
    with supervise.scratch_folder() as scratch, forkserver.serving(scratch) as python:
        for setting in SETTINGS:
            overrides = " ".join(setting.overrides)
            if setting.name in args.only and not (overrides in known and is_as_expected(setting, known[overrides])):
                known[overrides] = run(args, python, setting)
                print(", ".join(f"{name} {value}" for name, value in known[overrides].items()), flush=True)
                write(args.folder, known)
    found = [(setting, known.get(" ".join(setting.overrides))) for setting in SETTINGS]
    missing = [setting.name for setting, row in found if row is None]
    wrong = [setting.name for setting, row in found if row is not None and not is_as_expected(setting, row)]
    print(f"not as expected: {', '.join(wrong) or 'none'}; not run: {', '.join(missing) or 'none'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
