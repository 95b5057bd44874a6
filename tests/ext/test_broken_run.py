"""What is said of a run that ended as its gradients were not finite: not to go on with it as it was."""

import json

import pytest

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


def test_a_step_whose_log_probs_alone_are_known_to_be_broken_counts_too(tmp_path):
    (tmp_path / "summary.json").write_text('{"exit_code": 1}')
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **STEP}) + '\n{"step": 2, "alarm/not_finite": 1}\n')
    assert "Train anew with a lower learning rate" in opening([Arm("r3", [load_run(tmp_path)])])[2]
