"""A real rehearsal: that its worst step is the worst, by what the workers received, and what the report makes of it."""

import json
import os
import subprocess
from collections import Counter

import pytest

from r3_ext.cpu.fork import environment as forks
from r3_ext.rehearse.steps import PHASES
from recipe.common.rows import TrainedUid

from .conftest import WARM_START_STEPS, received_rows

pytestmark = pytest.mark.integration

PROMPTS, N, LIMIT, PROMPT_LIMIT = 8, 4, 40, 320
SETTINGS = [
    f"data.train_batch_size={PROMPTS}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    f"data.max_response_length={LIMIT}",
    f"data.max_prompt_length={PROMPT_LIMIT}",
    "data.val_max_samples=8",
    "trainer.total_training_steps=30",
]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory, cache, python):
    """Of a run that asks all-wrong groups at once, the default: its folder, and what it said."""
    outputs = tmp_path_factory.mktemp("rehearsal")
    command = [python, "-m", "r3_ext.cli", "rehearse", "--profile", "embedded", "--repeat", "1"]
    command += ["--outputs", str(outputs), "--run", "it", "--cache", str(cache)]
    command += ["--warm-start-steps", WARM_START_STEPS, *SETTINGS]
    env = {**forks.environment(), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    folder = outputs / "rehearse" / "it"
    log = folder / "run.log"
    assert done.returncode == 0, done.stdout[-3000:] + (log.read_text()[-3000:] if log.exists() else "")
    return folder, done.stdout


def metrics_of(folder) -> dict[int, dict]:
    """By step."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows if "training/global_step" in row}


def test_the_worst_step_is_the_worst_that_the_settings_allow(rehearsal):
    folder, _ = rehearsal
    rows = [row for rank in received_rows(folder / "rows", 5) for step in rank for row in step]
    rows = [row for row in rows if not row["uid"].startswith("pad")]
    marks = Counter(row["uid"].partition("#")[2] for row in rows)
    # 8 plain groups and the 2 of reflection, a quarter, that the cap allows: all ranked, and one replayed row each
    assert marks == {"ranked": (PROMPTS + 2) * N, "replay": PROMPTS + 2}
    assert len({TrainedUid.parse(row["uid"]).group for row in rows}) == PROMPTS + 2
    assert {row["tokens"] for row in rows} == {LIMIT}, "every fresh and every replayed answer is at the limit"

    metrics = metrics_of(folder)
    worst = metrics.pop(5)
    assert list(metrics) == [1, 2, 3, 4] and worst["prompt_length/max"] == PROMPT_LIMIT
    # All rows with their prompts: plain ones, those to reflect on and those of reflection are near the limit.
    assert worst["perf/total_num_tokens"] > 0.9 * len(rows) * (PROMPT_LIMIT + LIMIT)
    assert all(row["perf/total_num_tokens"] < worst["perf/total_num_tokens"] / 2 for row in metrics.values())


def test_the_first_epoch_asks_grpo_does_not_and_the_worst_step_asks_the_most(rehearsal):
    folder, _ = rehearsal
    metrics = metrics_of(folder)
    found = json.loads((folder / "rehearsal.json").read_text())
    worst, (got, caps) = metrics[max(metrics)], (found["worst_case"][name] for name in ("received", "caps"))
    assert metrics[2]["reflection/prompts"] > 0, "a step of the first epoch"
    assert not any("#" in row["uid"] for rank in received_rows(folder / "rows", 4) for step in rank for row in step)
    assert metrics[4]["trained/rows"] == PROMPTS * N and not metrics[4]["reflection/rows"], "a step of GRPO"
    assert got["fresh"] == caps["fresh"] + caps["reflection"] * N == (PROMPTS + 2) * N
    assert worst["reflection/prompts"] == worst["reflection/at_once/prompts"] == 2
    assert worst["reflection/at_once/wait_s"] > 0 and got["fresh_tokens"] == [LIMIT]
    assert got["ranked_groups"] == caps["ranked"] == PROMPTS + 2
    assert got["replayed"] == caps["replayed"] == PROMPTS + 2


def test_the_report_adds_up_and_its_figures_are_those_of_the_run(rehearsal):
    folder, output = rehearsal
    found = json.loads((folder / "rehearsal.json").read_text())
    phases = [json.loads(line) for line in (folder / PHASES).read_text().splitlines()]
    names = {(line["step"], line["phase"]) for line in phases}
    assert {(4, "checkpoint"), (4, "validation"), (5, "update")} <= names
    assert not {(5, "checkpoint"), (5, "validation")} & names
    assert found["fits"] and found["advice"] == []
    memory = found["memory"]
    assert 1 < memory["typical"] <= memory["budget"] and memory["worst"] <= memory["budget"]
    assert found["step_seconds"]["worst"] > found["step_seconds"]["first"]
    seconds = found["prediction"]
    assert seconds["steps"] == 30
    assert 0 < seconds["seconds"] < seconds["seconds_if_every_step_is_the_worst"]
    assert found["disk"]["checkpoint"] > 1e6 and not (folder / "checkpoints").exists()
    assert (folder / "rehearsal.md").read_text().strip() in output
    # It is no run: nothing goes on with it.
    assert not os.path.exists(folder / "starts.jsonl")
