"""Fused log-probs through the real command, with untied embeddings as the models of the GPU profiles have them."""

import json
import shutil
import subprocess

import pytest
from safetensors.torch import load_file, save_file

from r3_ext.cpu.fork import environment as forks

from .conftest import SMALL, Run

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


def test_the_fused_log_probs_of_an_untied_model_are_those_of_vllm(warm_start, untied, python, tmp_path):
    """verl's own engine ends here with "got mixed torch.Tensor and DTensor"."""
    sources = {"MODEL": untied, "DATA": warm_start / "train.parquet", "VAL_DATA": warm_start / "val.parquet"}
    command = [python, "-m", "r3_ext.cli", "run", "--profile", "embedded", "--method", "grpo", "--no-report"]
    command += ["--outputs", tmp_path, "--experiment", "test", "--run", "fused", "--cache", tmp_path / "cache"]
    settings = [*SMALL, "trainer.total_training_steps=2", "actor_rollout_ref.model.use_fused_kernels=True"]
    env = {**forks.environment(), **{name: str(path) for name, path in sources.items()}, "COLUMNS": "120"}
    done = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=600, env=env)
    run = Run(tmp_path / "test" / "fused", done.returncode, done.stdout + done.stderr)
    assert run.code == 0, run.explain()
    assert "Using Torch backend for fused kernels" in (run.folder / "run.log").read_text(errors="replace")
    # The second step's weights have passed through the fused gradient, the optimizer and vLLM.
    assert [row["training/rollout_probs_diff_max"] < 1e-3 for row in run.rows] == [True, True], run.rows
    assert all(row["actor/grad_norm"] > 0 for row in run.rows)
