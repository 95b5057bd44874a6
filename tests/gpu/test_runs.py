"""Real runs of `r3 run` on one GPU with 80 GB: the model, the settings and the packages that training there takes.

Three steps of 16 problems with answers of up to 1,024 tokens, six runs of some minutes. Model and data are those of
the profile, from the Hugging Face hub, or MODEL, DATA and VAL_DATA. A rehearsal of the profile as it stands comes last.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.integration.conftest import SMALL, STEPS, Run, skip_overrides
from tests.integration.test_equals_grpo import OFF, SAME
from tests.integration.test_fires import plant

from .conftest import IS_SMALL

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(IS_SMALL, reason="on the CPU tests/integration makes these runs with the profile embedded"),
]
SIZES = [
    "data.train_batch_size=16",
    "data.max_prompt_length=2048",
    "data.max_response_length=1024",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.max_model_len=3072",
    # Two runs of one recording are compared: torch must add up in one order.
    "actor_rollout_ref.actor.fsdp_config.full_determinism=True",
]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """train(method, name, *overrides) makes a run to its end."""
    pytest.importorskip("vllm", reason="vLLM is not installed: no real runs")
    outputs = tmp_path_factory.mktemp("outputs")

    def run(method: str, name: str, *overrides: str) -> Run:
        command = [sys.executable, "-m", "r3_ext.cli", "run", "--profile", "gpu_1x80gb", "--method", method]
        command += ["--outputs", str(outputs), "--experiment", "test", "--run", name, "--no-report"]
        done = subprocess.run(
            [*command, *SMALL, *SIZES, *overrides],
            capture_output=True,
            text=True,
            timeout=3600,
            env={**os.environ, "COLUMNS": "120"},
        )
        result = Run(outputs / "test" / name, done.returncode, done.stdout + done.stderr)
        assert result.code == 0, result.explain()
        return result

    return run


@pytest.fixture(scope="module")
def recording(tmp_path_factory, train):
    folder = tmp_path_factory.mktemp("recording")
    train("grpo", "record", *skip_overrides(folder))
    return folder


def largest_difference(one: Run, other: Run) -> float:
    """Of the losses, norms and entropies of all steps, relative to their size."""
    pairs = [(ours[key], theirs[key]) for ours, theirs in zip(one.rows, other.rows, strict=True) for key in SAME]
    return max(abs(ours - theirs) / max(abs(theirs), 1e-3) for ours, theirs in pairs)


def test_everything_off_trains_as_stock_grpo(train, recording, record):
    grpo, again = (train("grpo", name, *skip_overrides(recording)) for name in ("grpo", "again"))
    off = train("r3", "off", *skip_overrides(recording), *OFF)
    assert len(grpo.rows) == len(off.rows) == STEPS
    figures = {
        "off_against_grpo": largest_difference(off, grpo),
        "grpo_against_itself": largest_difference(again, grpo),
        "grad_norm": max(row["actor/grad_norm"] for row in grpo.rows),
    }
    assert figures["grad_norm"] > 0
    limit = max(2 * figures["grpo_against_itself"], 1e-6)
    record.check("runs: everything off against GRPO", figures, {"off_against_grpo": limit})


def test_planted_dead_groups_train_under_r3_and_not_under_grpo(train, recording, record, tmp_path):
    planted = skip_overrides(plant(recording, tmp_path / "planted"))
    grpo = train("grpo", "planted_grpo", *planted)
    r3 = train("r3", "planted_r3", "algorithm.r3.reflection.enable=False", *planted)
    # Step 1 has no history, and long answers that are cut off may be ranked; from step 2 on replay rescues.
    later = r3.rows[1:]
    figures = {
        "grpo_grad_norm": max(row["actor/grad_norm"] for row in grpo.rows),
        "r3_grad_norm": min(row["actor/grad_norm"] for row in later),
        "rescued_by_replay": min(row["groups/rescued_by_replay"] for row in later),
        "split": max(row["groups/split"] for row in r3.rows),
    }
    record.check("runs: planted dead groups", figures, {"grpo_grad_norm": 0, "split": 0})
    assert figures["r3_grad_norm"] > 0 and figures["rescued_by_replay"] > 0, figures


def test_a_rehearsal_of_the_profile_fits_and_says_what_it_took(record, tmp_path):
    """The worst step of gpu_1x80gb at its full lengths; its figures are what the README can cite."""
    pytest.importorskip("vllm", reason="vLLM is not installed: no real runs")
    command = [sys.executable, "-m", "r3_ext.cli", "rehearse", "--profile", "gpu_1x80gb", "--outputs", str(tmp_path)]
    command += ["--run", "it", "data.val_max_samples=8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * 3600)
    folder = tmp_path / "rehearse" / "it"
    assert (folder / "rehearsal.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((folder / "rehearsal.json").read_text())
    assert "failure" not in found, found
    worst = found["worst_case"]
    figures = {
        "worst_gib": found["memory"]["worst"],
        "typical_gib": found["memory"]["typical"],
        **{f"{kind}_step_s": seconds for kind, seconds in found["step_seconds"].items()},
        "run_s": found["prediction"]["seconds"],
        "rows_below_the_limit": sum(tokens < worst["response_limit"] for tokens in worst["received"]["fresh_tokens"]),
    }
    record.check("runs: r3 rehearse", figures, {"worst_gib": found["memory"]["budget"], "rows_below_the_limit": 0})
    assert done.returncode == 0, done.stdout[-3000:]
