"""What is said of a run that ended as its gradients were not finite: not to go on with it as it was."""

import io
import json

import pytest
from rich.console import Console

from r3_ext.record.console import closing_table
from r3_ext.record.summary import over_starts, summarise
from r3_ext.report.findings import alarms_said
from r3_ext.report.opening import opening
from r3_ext.report.runs import Arm, load_run

STEP = {"training/global_step": 1, "training/epoch": 0, "timing_s/step": 1.0, "response_length/mean": 9.0}


@pytest.mark.parametrize("alarm, norm", [(1, None), (0, 0.5)])
def test_a_run_that_cannot_learn_is_trained_anew_and_another_failure_goes_on(tmp_path, alarm, norm):
    (tmp_path / "config.yaml").write_text("actor_rollout_ref: {actor: {optim: {lr: 2.0e-4}}}\n")
    (tmp_path / "summary.json").write_text('{"exit_code": 1}')
    rows = [{"step": 1, **STEP}, {"step": 2, **STEP, "actor/grad_norm": norm, "alarm/not_finite": alarm}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try_next = opening([Arm("r3", [load_run(tmp_path)])])[2]
    if alarm:
        lower = "`actor_rollout_ref.actor.optim.lr=0.0001`"
        assert f"{lower}, as gradients or weights were not finite in step 2" in try_next and "resume" not in try_next
    else:
        assert "r3 resume" in try_next


def test_a_run_that_lost_a_part_of_its_steps_is_told_how_many_and_to_change_the_attention(tmp_path):
    (tmp_path / "summary.json").write_text('{"exit_code": 1}')
    lossy = {"alarm/not_finite": 1, "actor/skipped_steps": 1, "actor/optimizer_steps": 3, "actor/grad_norm": None}
    rows = [{"step": 1, **STEP, "actor/optimizer_steps": 4, "actor/skipped_steps": 0}, {"step": 2, **STEP, **lossy}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arm = Arm("r3", [load_run(tmp_path)])
    assert "Train with another `actor_rollout_ref.model.override_config.attn_implementation`" in opening([arm])[2]
    alarm, skipped = (finding.text for finding in alarms_said(arm))
    assert alarm == "Alarm not_finite was raised in 1 steps, first in step 2."
    assert skipped == "1 of 8 optimizer steps were skipped, as gradients were not finite."
    summary = summarise(rows, 4, 2, 1.0) | over_starts([], [])
    console = Console(file=io.StringIO(), width=120)
    console.print(closing_table(summary))
    assert "optimizer steps skipped" in console.file.getvalue() and summary["skipped_steps"] == 1


def test_a_step_whose_log_probs_alone_are_known_to_be_broken_counts_too(tmp_path):
    (tmp_path / "summary.json").write_text('{"exit_code": 1}')
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **STEP}) + '\n{"step": 2, "alarm/not_finite": 1}\n')
    assert "Train anew with a lower learning rate" in opening([Arm("r3", [load_run(tmp_path)])])[2]
