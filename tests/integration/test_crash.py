"""Exact resume through the real command: after kills, and from an older checkpoint that training went past."""

import random
import shutil

import pytest

from r3_ext.record.folder import read_starts
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC

from .conftest import rows_override
from .crash import EVERYTHING, SIGTERM, Crash, assert_equal_runs, overrides_for, survive
from .in_flight import IN_FLIGHT, account, assert_all_accounted_for

pytestmark = pytest.mark.integration
STEPS = 10


@pytest.fixture(scope="module")
def whole(train, r3_recording):
    """The uninterrupted run."""
    return train("r3", "whole", *overrides_for(STEPS, r3_recording))


@pytest.fixture(scope="module")
def r3_recording(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("r3_recording")
    train("r3", "record_r3", *overrides_for(STEPS, folder))
    return folder


def test_a_run_broken_five_times_leaves_nothing_and_equals_the_uninterrupted_one(whole, r3_recording, cache, tmp_path):
    victim = Crash(tmp_path, "victim", cache, overrides_for(STEPS, r3_recording), random.Random(0), patience=120)
    plan = [
        ("trainer", "history write"),
        ("vLLM server", "rollout or training"),
        ("FSDP worker", "rollout or training"),
        (SIGTERM, "rollout or training"),
        (EVERYTHING, "checkpoint"),
    ]
    told = survive(victim, plan, print)
    assert len(told) == len(plan), told
    assert not victim.overdue, "two minutes are enough to end, whoever dies"
    finished = victim.finish()
    assert_equal_runs(whole, finished, STEPS, kills=len(plan) - 1)  # SIGTERM loses nothing
    starts = read_starts(victim.folder)
    assert finished.summary["starts"] == len(plan) + 1 == sum(line["event"] == "start" for line in starts)
    assert [line["event"] for line in starts] == ["start", "end"] * (len(plan) + 1), "a killed start has an end too"
    assert finished.summary["seconds"]["total"] == pytest.approx(
        sum(line.get("seconds", 0) for line in starts), abs=0.1
    )
    assert all(line["changed"] == {} for line in starts if line["event"] == "start")
    # The recording holds what the claim is about.
    assert sum(row["replay/rows"] for row in whole.rows) > 0
    assert sum(row["reflection/prompts"] for row in whole.rows) > 0
    held = [row["groups/held"] for row in whole.rows]
    assert all(held[:2]) and held[-1] == 0, "groups wait when the first kills come, and none after the last step"
    # The ledger adds up: a group counts in the step that trains it.
    assert [row["groups/total"] for row in whole.rows] == [16 + b - a for b, a in zip([0, *held], held, strict=False)]


@pytest.mark.parametrize(
    ("mode", "victim", "moment"),
    [(COLOCATE_ASYNC, EVERYTHING, "rollout or training"), (SEPARATE_ASYNC, "vLLM server", "checkpoint")],
)
def test_prompts_in_flight_are_neither_lost_nor_trained_twice(cache, tmp_path, mode, victim, moment):
    steps = 8
    settings = ["--mode", mode, f"trainer.total_training_steps={steps}"]
    settings.append(rows_override(tmp_path / "rows"))
    run = Crash(tmp_path, "in_flight", cache, [*IN_FLIGHT, *settings], random.Random(0), patience=120)
    # The second start goes on from a checkpoint.
    told = survive(run, [(victim, "checkpoint"), (victim, moment)], print)
    assert len(told) == 2 and not run.overdue, told
    finished = run.finish()
    assert_all_accounted_for(account(finished, tmp_path / "rows"), steps)
    for name in ("replay/rows", "reflection/at_once/prompts", "groups/rescued_by_replay"):
        assert sum(row[name] for row in finished.rows) > 0, f"{name}: nothing to lose"


def test_an_older_checkpoint_resumes_exactly_after_training_went_past_it(train, whole, r3_recording):
    folder = whole.folder.parent / "back"
    shutil.copytree(whole.folder, folder)
    back = [f"trainer.resume_from_path={folder / 'checkpoints' / 'global_step_3'}", "trainer.resume_mode=resume_path"]
    assert_equal_runs(whole, train("r3", "back", *overrides_for(STEPS, r3_recording), *back), STEPS)
