"""R^3 in bf16 with packed rows and fused log-probs, as every GPU profile trains: the only such run of the suite.

vLLM's CPU build is left out of it: Hugging Face's generate answers, as on a GPU where vLLM is not installed.
"""

import math

import pytest

from tests.gpu.hf_rollout import AS_ON_GPUS, REFLECTS, overrides

from .conftest import STEPS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(train):
    return train("r3", "bf16", *overrides("r3", on_gpu=False), *AS_ON_GPUS, *REFLECTS)


def test_all_mechanisms_rescue_groups_and_none_is_split(run):
    assert len(run.rows) == STEPS
    assert [row["groups/split"] for row in run.rows] == [0] * STEPS
    assert sum(row["groups/rescued_by_replay"] for row in run.rows) > 0
    assert sum(row["reflection/rows"] for row in run.rows) > 0
    assert all(math.isfinite(row["actor/grad_norm"]) and row["actor/grad_norm"] > 0 for row in run.rows)


def test_rollout_and_trainer_agree_on_every_token_within_bf16(run):
    """Of single rows the one, of packed rows the other; from step 2 on of weights that were sent."""
    for row in run.rows:
        assert row["training/rollout_actor_probs_pearson_corr"] > 0.999, row
        assert row["training/rollout_probs_diff_mean"] < 0.01, row


def test_no_tensor_meets_one_of_another_type(run):
    """TransferQueue logs it as an error, and goes on."""
    assert "dtype mismatch" not in (run.folder / "run.log").read_text(errors="replace")
