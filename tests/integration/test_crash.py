"""Exact resume through the real command: after kills, and from an older checkpoint that training went past."""

import random

import pytest

from r3_ext.record.folder import read_starts
from recipe.common.modes import SEPARATE_ASYNC

from .conftest import rows_override
from .crash import EVERYTHING, Crash, overrides_for, survive
from .equal_runs import OF_RECORDED, assert_equal_runs
from .in_flight import IN_FLIGHT, account, assert_all_accounted_for

pytestmark = pytest.mark.integration
STEPS = 8


def test_a_run_broken_twice_and_taken_back_leaves_nothing_and_equals_the_uninterrupted_one(
    train, cache, tmp_path_factory, tmp_path
):
    settings = overrides_for(STEPS, tmp_path_factory.mktemp("r3_recording"))
    whole = train("r3", "whole", *settings)
    victim = Crash(tmp_path, "victim", cache, settings, random.Random(0), patience=120, apart=3)
    plan = [("trainer", "history write"), (EVERYTHING, "checkpoint")]
    told = survive(victim, plan, print)
    assert len(told) == len(plan), told
    assert not victim.overdue, "two minutes are enough to end, whoever dies"
    older = victim.last_step() - 2
    assert older > 2
    back = f"trainer.resume_from_path={victim.folder / 'checkpoints' / f'global_step_{older}'}"
    finished = victim.finish(back, "trainer.resume_mode=resume_path")
    assert finished.rows[-1]["step"] == STEPS
    assert_equal_runs(whole, finished, STEPS, kills=len(plan), but=OF_RECORDED)
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


def test_prompts_in_flight_are_neither_lost_nor_trained_twice(cache, tmp_path):
    """Where a trainer and a vLLM of its own work at once, and the latter dies; crash.py kills in the other mode."""
    steps = 6
    settings = ["--mode", SEPARATE_ASYNC, f"trainer.total_training_steps={steps}", "trainer.save_freq=3"]
    settings.append(rows_override(tmp_path / "rows"))
    run = Crash(tmp_path, "in_flight", cache, [*IN_FLIGHT, *settings], random.Random(0), patience=120)
    assert run.strike("vLLM server", "checkpoint") and not run.overdue
    finished = run.finish()
    assert finished.summary["starts"] == 2
    assert_all_accounted_for(account(finished, tmp_path / "rows"), steps)
    for name in ("replay/rows", "reflection/at_once/prompts", "groups/rescued_by_replay"):
        assert sum(row[name] for row in finished.rows) > 0, f"{name}: nothing to lose"
