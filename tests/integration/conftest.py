"""Runs of the real command on a tiny model: verl's trainer, Ray, TransferQueue, FSDP2 and vLLM on the CPU.

Two runs compare bit for bit only on one recording of the rollouts (verl's `skip.rollout_tq`): vLLM under load is not
deterministic. `recording` makes one with stock GRPO and a graded reward function; every comparison replays it.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from r3_ext.cpu.fork import server as forkserver
from r3_ext.cpu.fork.environment import environment
from r3_ext.host import supervise
from r3_ext.run.train import PY_EXECUTABLE
from recipe.common.config.verl_rules import ENVIRONMENT
from recipe.common.rows import TrainedUid

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
WARM_START_STEPS = "140"
# 16 prompts a step and 16 problems in all: every step is an epoch, so history exists from step 2 on.
SMALL = [
    "data.train_max_samples=16",
    "data.val_max_samples=8",
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=100",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
]

GRADED = [f"reward.custom_reward_function.path={Path(__file__).with_name('graded_reward.py')}"]
VERLS_MANAGER = ["reward.reward_manager.source=register", "reward.reward_manager.name=naive"]


@dataclass
class Run:
    folder: Path
    code: int
    output: str

    @property
    def logged(self) -> list[dict]:
        """All rows of metrics.jsonl."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def rows(self) -> list[dict]:
        """The training rows of metrics.jsonl."""
        return [row for row in self.logged if "training/global_step" in row]

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())

    def explain(self) -> str:
        log = self.folder / "run.log"
        return self.output[-3000:] + (log.read_text(errors="replace")[-6000:] if log.exists() else "")


def weights(run: Run, step: int, role: str = "actor") -> dict:
    """The checkpoint's tensors by name."""
    [file] = (run.folder / "checkpoints" / f"global_step_{step}" / role).glob("model_world_size_1_rank_0.pt")
    values = torch.load(file, weights_only=False)
    return {name: v.to_local() if hasattr(v, "to_local") else v for name, v in values.items()}


def assert_equal_weights(expected: Run, actual: Run, step: int, role: str = "actor") -> None:
    theirs, ours = weights(expected, step, role), weights(actual, step, role)
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        assert torch.equal(value, ours[name]), name


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Model and data of the embedded profile, warm-started just enough to have right and wrong answers."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def warm_start(cache) -> Path:
    """Folder of the tiny model and its problems."""
    made = [sys.executable, "-m", "r3_ext.tiny.warm_start", "--cache", cache, "--steps", WARM_START_STEPS]
    told = subprocess.run(made, check=True, capture_output=True, text=True)
    return Path(told.stdout.splitlines()[-1]).parent


def command(
    method: str, outputs: Path, name: str, cache: Path, *overrides: str, python: str = sys.executable
) -> list[str]:
    return [
        *(python, "-m", "r3_ext.cli", "run", "--profile", "embedded", "--method", method),
        *("--outputs", str(outputs), "--experiment", "test", "--run", name),
        *("--cache", str(cache), "--warm-start-steps", WARM_START_STEPS, "--no-report"),
        *SMALL,
        *overrides,
    ]


@pytest.fixture(scope="session")
def python():
    """A Python that imports the libraries once for all runs, as `r3 study` uses it for its cells."""
    with supervise.scratch_folder() as folder, forkserver.serving(folder) as executable:
        yield str(executable)


@pytest.fixture(scope="session")
def train(tmp_path_factory, cache, python):
    """train(method, name, *overrides) runs `r3 run` on the embedded profile to its end.

    With `forks=False` every process of the run is a new interpreter; `sources` are DATA, VAL_DATA and MODEL.
    """
    outputs = tmp_path_factory.mktemp("outputs")

    def run(
        method: str,
        name: str,
        *overrides: str,
        ok: bool = True,
        forks: bool = True,
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> Run:
        if not forks:
            overrides = (*overrides, f"+{PY_EXECUTABLE}={sys.executable}")
        done = subprocess.run(
            command(method, outputs, name, cache, *overrides, python=python if forks else sys.executable),
            capture_output=True,
            text=True,
            timeout=600,
            env={**(environment() if forks else os.environ), **sources, "COLUMNS": "120"},
        )
        result = Run(outputs / "test" / name, done.returncode, done.stdout + done.stderr)
        assert not ok or result.code == 0, result.explain()
        return result

    return run


def rows_override(folder: Path) -> str:
    """Makes each rank write down the rows that it receives."""
    return f"+{ENVIRONMENT}.R3_ROWS_FOLDER={folder}"


def received_rows(folder: Path, step: int) -> list[list[list[dict]]]:
    """What each rank received in each optimizer step of a training step, as it wrote it because of `rows_override`."""
    files = sorted((folder / f"step_{step}").glob("rank_*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def rescued_groups(ranks: list[list[list[dict]]]) -> list[dict[str, list[dict]]]:
    """For each optimizer step, the rows of the rescued groups that any rank received in it, by group."""
    rows_of_step = [[row for rows in step for row in rows] for step in zip(*ranks, strict=True)]
    rescued = {TrainedUid.parse(row["uid"]).group for rows in rows_of_step for row in rows if "#" in row["uid"]}
    steps = []
    for rows in rows_of_step:
        steps.append(defaultdict(list))
        for row in rows:
            if TrainedUid.parse(row["uid"]).group in rescued:
                steps[-1][TrainedUid.parse(row["uid"]).group].append(row)
    return steps


def check_contrast(rows: list[dict]) -> None:
    """What the workers received of a rescued group, fresh and replayed rows, has the mean 0; replayed failures that
    became less likely count for less."""
    sums = {True: 0.0, False: 0.0}
    for row in rows:
        sums["#replay" in row["uid"]] += row["advantage"]
    fresh, replayed = sums[False], sums[True]
    if replayed < 0:
        assert -fresh - 1e-4 <= replayed, rows
    else:
        assert fresh + replayed == pytest.approx(0, abs=1e-4), rows


def skip_overrides(folder: Path, steps: int = STEPS) -> list[str]:
    """Record the rollouts of each step into `folder`, or replay them when they are there."""
    return [
        "skip.rollout_tq.enable=True",
        f"skip.rollout_tq.dump_dir={folder}",
        f"skip.rollout_tq.steps={list(range(1, steps + 1))}",
    ]


@pytest.fixture(scope="session")
def recording(tmp_path_factory, train) -> Path:
    """Rollouts of `STEPS` steps of GRPO, scored by a reward function of the user's in verl's own manager."""
    folder = tmp_path_factory.mktemp("recording")
    train("grpo", "record", *skip_overrides(folder), *GRADED, *VERLS_MANAGER)
    return folder
