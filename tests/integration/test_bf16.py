"""R^3 in bf16 with packed rows and fused log-probs, as every GPU profile trains: the only such run of the suite.

vLLM's CPU build is left out of it: Hugging Face's generate answers, as on a GPU where vLLM is not installed. The output
embeddings are not tied, as those of larger models are not: verl's own engine ends here with "got mixed torch.Tensor and
DTensor".
"""

import json
import math
import shutil
import subprocess

import pytest
from safetensors.torch import load_file, save_file

from r3_ext.cpu.fork import environment as forks
from tests.gpu.hf_rollout import AS_ON_GPUS, REFLECTS, overrides

from .conftest import SMALL, STEPS, Run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def untied(warm_start, tmp_path_factory):
    """The tiny model with output embeddings of its own, equal to the input's: it says what the tied one says."""
    folder = tmp_path_factory.mktemp("untied") / "model"
    shutil.copytree(warm_start / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def run(warm_start, untied, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bf16")
    sources = {"MODEL": untied, "DATA": warm_start / "train.parquet", "VAL_DATA": warm_start / "val.parquet"}
    command = [python, "-m", "r3_ext.cli", "run", "--profile", "embedded", "--method", "r3", "--no-report"]
    command += ["--outputs", folder, "--experiment", "test", "--run", "it", "--cache", folder / "cache"]
    command += [*SMALL, *overrides("r3", on_gpu=False), *AS_ON_GPUS, *REFLECTS]
    env = {**forks.environment(), **{name: str(path) for name, path in sources.items()}, "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    run = Run(folder / "test" / "it", done.returncode, done.stdout + done.stderr)
    assert run.code == 0, run.explain()
    return run


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


def test_log_probs_are_fused(run):
    assert "Using Torch backend for fused kernels" in (run.folder / "run.log").read_text(errors="replace")


def test_no_tensor_meets_one_of_another_type(run):
    """TransferQueue logs it as an error, and goes on."""
    assert "dtype mismatch" not in (run.folder / "run.log").read_text(errors="replace")
