"""The acceptance suite for GPUs works: its own tests at small shapes on the CPU, through verl's real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.record import Record
from tests.gpu.shapes import SMALL

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {
    "advantage, everything off, against verl's GRPO",
    "advantage with replayed rows, against the CPU",
    "ranking in torch.float32, against the CPU",
    "ranking in torch.bfloat16, against the CPU",
    "fused against plain log-probs, bf16",
    "fused against plain log-probs, fp32",
    "packed against single rows, torch.float32",
    "packed against single rows, torch.bfloat16",
    "log-probs by attention, bf16",
    "gradients of a head that fits no key",
    "gradient norm of planted dead groups",
}
BROKEN = """
import verl.utils.experimental.torch_functional as fused
backward = fused._fused_linear_for_ppo_bwd
def wrong_backward(**given):
    states, weight = backward(**given)
    return states, 1.05 * weight
fused._fused_linear_for_ppo_bwd = wrong_backward
"""
CUDNNS = """
import torch
from torch.nn import functional
attention = functional.scaled_dot_product_attention
def cudnns(query, key, value, attn_mask=None, **rest):
    if attn_mask is not None and query.shape[-2] % 128 == 64 and query.requires_grad:
        scores = query.detach().float() @ key.detach().float().mT / query.shape[-1] ** 0.5
        lost = scores.masked_fill(~attn_mask, -torch.inf).logsumexp(-1, keepdim=True) < -88.7
        query.register_hook(lambda gradient: gradient.masked_fill(lost, torch.nan))
    return attention(query, key, value, attn_mask=attn_mask, **rest)
functional.scaled_dot_product_attention = cudnns
"""


def run_suite(results: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("R3_", "VERL_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/gpu", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, "R3_GPU_RESULTS": str(results), "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        timeout=600,
    )


ON_THE_CPU = {"R3_GPU_SUITE": "small", "VERL_PLATFORM": "cpu"}


@pytest.mark.slow
def test_every_check_that_needs_no_vllm_passes_on_the_cpu_and_is_written_down(tmp_path):
    done = run_suite(tmp_path / "figures.json", **ON_THE_CPU)
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads((tmp_path / "figures.json").read_text())
    assert {check["check"] for check in found["checks"]} == CHECKS
    assert all(check["ok"] and check["figures"] for check in found["checks"])
    assert (
        found["device"].startswith("CPU")
        and found["versions"]["verl"]
        and found["shapes"] == json.loads(json.dumps(vars(SMALL)))
    )
    [planted] = [check for check in found["checks"] if "planted" in check["check"]]
    assert planted["figures"]["r3"] > 0


@pytest.mark.slow
def test_a_wrong_gradient_is_found_and_told_with_all_figures(tmp_path):
    """5 % too much of the output embeddings' gradient, in verl's fused function."""
    (tmp_path / "broken.py").write_text(BROKEN)
    arguments = ("-p", "broken", "-k", "single_precision")
    done = run_suite(tmp_path / "figures.json", *arguments, PYTHONPATH=str(tmp_path), **ON_THE_CPU)
    assert done.returncode == 1
    assert "head_gradient = 0.0" in done.stdout and "at most 0.0001" in done.stdout
    checks = {check["check"]: check for check in json.loads((tmp_path / "figures.json").read_text())["checks"]}
    wrong = checks["fused against plain log-probs, fp32"]
    assert not wrong["ok"] and wrong["figures"]["head_gradient"] == pytest.approx(0.05, abs=1e-3)
    assert wrong["figures"]["other_gradients"] < 1e-4


@pytest.mark.slow
def test_an_attention_with_cudnns_fault_is_found(tmp_path):
    """NaN in the gradients of queries by the three conditions of pytorch issue 196678."""
    (tmp_path / "cudnns.py").write_text(CUDNNS)
    arguments = ("-p", "cudnns", "-k", "cudnns or planted")
    done = run_suite(tmp_path / "figures.json", *arguments, PYTHONPATH=str(tmp_path), **ON_THE_CPU)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout[-2000:]
    checks = {check["check"]: check for check in json.loads((tmp_path / "figures.json").read_text())["checks"]}
    assert checks["gradients of a head that fits no key"]["figures"]["not_finite"] > 0


@pytest.mark.slow
def test_without_a_gpu_everything_is_skipped_for_that_reason(tmp_path):
    done = run_suite(tmp_path / "figures.json")
    assert done.returncode == 0 and "no CUDA device" in done.stdout, done.stdout[-2000:]
    assert " passed" not in done.stdout and not (tmp_path / "figures.json").exists()


@pytest.mark.parametrize("value", [2.0, float("nan")])
def test_a_figure_over_its_limit_fails_with_all_figures(tmp_path, value):
    record = Record(tmp_path / "figures.json", "cpu", SMALL)
    record.check("fine", {"error": 0.5}, {"error": 1.0})
    with pytest.raises(AssertionError, match=r"wrong: error = (2.0|nan), at most 1.0; all figures(.|\n)*other"):
        record.check("wrong", {"error": value, "other": 3.0}, {"error": 1.0})
    assert [check["ok"] for check in json.loads(record.path.read_text())["checks"]] == [True, False]
