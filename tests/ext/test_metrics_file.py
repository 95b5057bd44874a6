"""No start deletes a row of metrics: neither those that a start before left uncopied, nor those to train again."""

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from r3_ext.record.console import RunDisplay, step_line
from r3_ext.record.metrics_file import SOURCE, BudgetSpent, MetricsFile, split
from r3_ext.record.summary import CUT, read_metrics


class Display:
    def __init__(self):
        self.rows = []

    def row(self, row: dict) -> None:
        self.rows.append(row)


def log(folder: Path, steps, mode: str = "w", **data) -> None:
    """What verl's file logger has written."""
    with open(folder / SOURCE, mode) as file:
        file.writelines(json.dumps({"step": step, "data": {"loss": step / 7, **data}}) + "\n" for step in steps)


def steps(file: Path) -> list[int]:
    return [row["step"] for row in read_metrics(file)]


@pytest.mark.parametrize("checkpoint", [2, 9, 16])
def test_rows_that_nobody_copied_are_there_after_the_next_start(tmp_path, checkpoint):
    target = tmp_path / "metrics.jsonl"
    file = MetricsFile(tmp_path, -1, Display())
    log(tmp_path, (1, 2))
    file.poll()
    log(tmp_path, range(3, 17), "a")  # the supervisor is dead
    assert len(split(target, checkpoint)[1]) == 16 - checkpoint, "what the start says about it"
    MetricsFile(tmp_path, checkpoint, Display())
    assert steps(target) == list(range(1, checkpoint + 1))
    assert steps(tmp_path / CUT) == list(range(checkpoint + 1, 17))
    assert not (tmp_path / SOURCE).exists()


def test_a_start_that_is_killed_while_it_takes_them_over_takes_them_once(tmp_path):
    log(tmp_path, range(1, 6))
    text = (tmp_path / SOURCE).read_text()
    MetricsFile(tmp_path, 3, Display())
    (tmp_path / SOURCE).write_text(text)  # killed before it deleted verl's file
    MetricsFile(tmp_path, 3, Display())
    assert steps(tmp_path / "metrics.jsonl") == [1, 2, 3] and steps(tmp_path / CUT) == [4, 5]


def test_torn_and_damaged_lines_hide_no_other(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}')  # without its end of line
    log(tmp_path, (2,))
    with open(tmp_path / SOURCE, "a") as file:
        file.write('damaged\n{"step": 3, "data": {}}\n{"step": 4, "da')
    MetricsFile(tmp_path, 9, Display())
    assert steps(tmp_path / "metrics.jsonl") == [1, 2, 3]


def test_tokens_of_verls_own_trainer_spend_the_budget_too(tmp_path):
    verls = {"perf/total_num_tokens": 60, "response_length/mean": 10.0, "prompt_length/mean": 20.0}
    file = MetricsFile(tmp_path, -1, Display(), until_tokens=40)
    log(tmp_path, (1,), **verls, **{"val/x/pass@1": 0.5})
    file.poll()
    log(tmp_path, (2,), "a", **verls, **{"val/x/pass@1": 0.5})
    with pytest.raises(BudgetSpent):
        file.poll()


def test_an_interrupted_copy_and_a_spent_budget_lose_nothing(tmp_path):
    class Interrupting(Display):
        def row(self, row: dict) -> None:
            super().row(row)
            if row["step"] == 2:
                raise KeyboardInterrupt

    file = MetricsFile(tmp_path, -1, Interrupting(), until_tokens=3)
    log(tmp_path, range(1, 5))
    with pytest.raises(KeyboardInterrupt):
        file.poll()
    log(tmp_path, (5, 6), "a", **{"generated/tokens": 3, "val/x/pass@1": 0.5})
    file.close()
    file = MetricsFile(tmp_path, 4, Display(), until_tokens=3)
    assert steps(tmp_path / "metrics.jsonl") == [1, 2, 3, 4] and steps(tmp_path / CUT) == [5, 6]
    log(tmp_path, (5, 6), **{"generated/tokens": 3, "val/x/pass@1": 0.5})
    with pytest.raises(BudgetSpent):
        file.poll()
    file.close()
    assert steps(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5, 6], "in the same breath as the one that ended the run"


def test_a_budget_of_turns_is_spent_by_the_rows_of_sessions(tmp_path):
    file = MetricsFile(tmp_path, -1, Display(), until_turns=750)
    turns = {"fresh/rows": 400, "val/x/pass@1": 0.5}
    log(tmp_path, (1,), **turns)
    file.poll()
    log(tmp_path, (2,), "a", **turns)
    with pytest.raises(BudgetSpent):
        file.poll()
    file.close()
    with pytest.raises(BudgetSpent):
        again = MetricsFile(tmp_path, 2, Display(), until_turns=900)
        log(tmp_path, (3,), **turns)
        again.poll()


def test_what_is_no_number_is_shown_and_read_as_none_and_no_error(tmp_path, capsys):
    row = {"training/global_step": 2, "response_length/mean": 64.0, "timing_s/step": 1.0}
    broken = {"actor/grad_norm": None, "critic/score/mean": None, "alarm/not_finite": 1, "actor/skipped_steps": 4}
    display = RunDisplay(Console(width=200), "r3", 3)
    file = MetricsFile(tmp_path, -1, display)
    log(tmp_path, (2,), **row, **broken)
    file.poll()
    shown = capsys.readouterr().out
    assert "grad nan" in shown and "optimizer steps skipped: 4 of 4" in shown
    [read] = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(read["actor/grad_norm"])
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)  # other readers know no NaN
    assert "alarm" not in step_line({"step": 2, **row, "critic/score/mean": 0.0}, 200)
