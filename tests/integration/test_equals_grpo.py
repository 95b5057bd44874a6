"""All mechanisms off is verl's GRPO, bit for bit, through the real trainer on one recording of the rollouts."""

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC
from recipe.common.queue import rows_of
from recipe.common.reward.function import RewardFunction
from recipe.common.reward.judge import question
from verl.utils import tensordict_utils as tu

from .conftest import GRADED, STEPS, VERLS_MANAGER, Run, assert_equal_weights, skip_overrides

pytestmark = pytest.mark.integration

OFF = [f"algorithm.r3.{mechanism}.enable=False" for mechanism in ("replay", "reflection", "ranking")]
SAME = (
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/entropy",
    "critic/advantages/max",
    "critic/score/mean",
)


@pytest.fixture(scope="module")
def stock(train, recording) -> Run:
    """verl's trainer as it comes: without the measurements that `r3 run --method grpo` adds, and every process of it a
    new interpreter, while those of the other runs are forks of one that serves the whole suite."""
    own = *GRADED, *VERLS_MANAGER, "trainer.v1.trainer_mode=sync"
    return train("grpo", "grpo", f"trainer.save_freq={STEPS}", *skip_overrides(recording), *own, forks=False)


def test_everything_off_gives_the_losses_and_weights_of_stock_grpo(train, stock, recording, warm_start):
    off = train("r3", "off", f"trainer.save_freq={STEPS}", *skip_overrides(recording), *GRADED, *OFF)
    assert_equal_training(stock, off)
    # Graded scores trained: the reward function that was recorded was the user's own, and what verl's manager made of
    # it is what R^3's makes of it.
    rows = [row for file in recording.rglob("tq_batch.pt") for row in recorded(file)]
    scores = scores_of(rows)
    assert {round(score, 6) for score in scores} == {0.0, 0.3, 1.0}
    tokenizer = AutoTokenizer.from_pretrained(warm_start / "model")
    function = RewardFunction(GRADED[0].partition("=")[2], "compute_score", {}, 60, 1)
    try:
        texts = [tokenizer.decode(row["responses"], skip_special_tokens=True) for row in rows]
        verdicts = [function(*question(row, text)) for row, text in zip(rows, texts, strict=True)]
    finally:
        function.close()
    assert [float(np.float32(verdict.score)) for verdict in verdicts] == scores


def scores_of(rows: list[dict]) -> list[float]:
    return [float(row["rm_scores"].sum()) for row in rows]


def recorded(file: Path) -> list[dict]:
    fields = "rm_scores", "responses", "reward_model", "data_source", "extra_info"
    return rows_of(torch.load(file, weights_only=False)["tensordict"].select(*fields))


@pytest.fixture
def asynchronous_recording(recording, tmp_path):
    """The recording where the asynchronous modes look for it: verl fetches single prompts there."""
    (folder,) = recording.glob("*/GBS16_*")
    shutil.copytree(folder, tmp_path / folder.parent.name / folder.name.replace("GBS16", "GBS1"))
    return tmp_path


@pytest.fixture
def one_group(asynchronous_recording):
    """The same with one mixed group a step, for each of two local updates.

    verl takes the groups of a local update in the order of their random uids: only if all are alike do two runs get the
    same ones.
    """
    for file in sorted(asynchronous_recording.rglob("tq_batch.pt")):
        payload = torch.load(file, weights_only=False)
        groups = defaultdict(list)
        for position, key in enumerate(payload["keys"]):
            groups[key.split("_")[0]].append(position)
        scores = scores_of(recorded(file))
        mixed = next(rows for rows in groups.values() if len({scores[row] for row in rows}) > 1)
        payload["tensordict"] = tu.index_select_tensor_dict(payload["tensordict"], mixed)
        for name in ("keys", "tags"):
            payload[name] = [payload[name][row] for row in mixed]
        torch.save(payload, file)
        shutil.copytree(file.parent, file.parent.with_name("1"))
    return asynchronous_recording


def test_everything_off_gives_those_of_stock_grpo_with_rollouts_ahead(train, stock, asynchronous_recording):
    """On a recording verl fetches nothing ahead: a batch is what was submitted for it, and GRPO is that of `sync`."""
    rollouts = skip_overrides(asynchronous_recording)
    off = train("r3", "off_ahead", "--mode", COLOCATE_ASYNC, f"trainer.save_freq={STEPS}", *rollouts, *OFF)
    assert_equal_training(stock, off)
    assert {row["groups/total"] for row in off.rows} == {16}


def test_everything_off_gives_those_of_stock_grpo_with_rollouts_elsewhere(train, one_group):
    settings = ["--mode", SEPARATE_ASYNC, f"trainer.save_freq={STEPS}", *skip_overrides(one_group)]
    grpo = train("grpo", "grpo_elsewhere", *settings, f"trainer.v1.trainer_mode={SEPARATE_ASYNC}")
    off = train("r3", "off_elsewhere", *settings, *OFF)
    assert_equal_training(grpo, off)
    assert {row["groups/total"] for row in off.rows} == {16}


def assert_equal_training(grpo: Run, off: Run) -> None:
    assert len(grpo.rows) == len(off.rows) == STEPS
    for stock, ours in zip(grpo.rows, off.rows, strict=True):
        assert {key: ours[key] for key in SAME} == {key: stock[key] for key in SAME}
    # The comparison means something only if training moved the weights.
    assert any(row["actor/grad_norm"] > 0 for row in grpo.rows)
    assert_equal_weights(grpo, off, STEPS)
