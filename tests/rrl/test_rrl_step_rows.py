"""What a step's rows tell of states."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import RESTART, RowTag
from recipe.rrl.step_rows import StepRow, answers_of, read_rows, restart_figures, tries_of


def row(right=False, prefix=0, query="q", value=0.5, tokens=(1, 2, 3, 4), failed=False) -> StepRow:
    tag = RowTag(
        group="u", variant=RESTART if prefix else "plain", correct=right, prefix_len=prefix, reward_error=failed
    )
    values = np.full(len(tokens), -9.0)
    values[prefix] = value
    return StepRow("u", query, tag, np.array(tokens), values, -np.arange(1.0, len(tokens) + 1))


def test_values_and_log_probs_in_bf16_as_gpus_have_them_are_read(monkeypatch):
    """numpy has no bf16."""
    numbers = torch.tensor([0.5, -1.25])
    stored = {"responses": torch.tensor([3, 4]), "query_id": "q"}
    stored |= dict.fromkeys(("old_log_probs", "values"), numbers.bfloat16())
    monkeypatch.setattr(queue, "read", lambda described, fields: [{name: stored[name] for name in fields}])
    described = KVBatchMeta(partition_id=queue.TRAIN, keys=["u_0_0"], tags=[RowTag(group="q").to_tag()])
    [found] = read_rows(described, with_values=True)
    assert found.values.tolist() == found.log_probs.tolist() == numbers.tolist()
    [found] = read_rows(described, with_values=False)
    assert found.values is None


def test_a_state_is_known_by_its_problem_and_its_tokens():
    rows = [row(), row(True, 2), row(False, 2), row(True, 2, query="p"), row(True, 3), row(True, 2, failed=True)]
    assert tries_of(rows) == {("p", (1, 2)): (1, 1), ("q", (1, 2)): (2, 1), ("q", (1, 2, 3)): (1, 1)}


def test_only_answers_from_the_start_that_were_judged_are_cut():
    rows = [row(True), row(), row(True, 2), row(failed=True)]
    assert [answer.is_right for answer in answers_of(rows)] == [True, False]


def test_figures_of_restarts_are_of_the_prefix_and_of_the_value_at_the_cut():
    rows = [row(True, 1, value=0.9), row(False, 2, value=0.1), row(False, 2, value=0.3), row(True)]
    assert restart_figures(rows) == {
        "restart/prefix_tokens": 5,
        "restart/prefix_log_prob": pytest.approx((-1 - 1 - 2 - 1 - 2) / 5),
        "restart/value/mean": pytest.approx(1.3 / 3),
        "restart/value_correlation": pytest.approx(np.corrcoef([0.9, 0.1, 0.3], [1, 0, 0])[0, 1]),
    }


def test_where_all_restarts_end_alike_there_is_no_correlation_and_without_any_no_figure():
    assert "restart/value_correlation" not in restart_figures([row(True, 1), row(True, 2, value=0.9)])
    assert restart_figures([row(True)]) == {}


def test_a_restart_that_wrote_nothing_has_no_value_and_the_rollout_knows_no_log_prob_of_a_prefix():
    empty = row(False, 1, tokens=(1, 2))
    empty = replace(empty, tokens=empty.tokens[:1], values=empty.values[:1], log_probs=empty.log_probs[:1])
    one = row(True, 2, value=0.9)
    assert restart_figures([one, empty]) == restart_figures([one])
    assert restart_figures([empty]) == {}
    assert "restart/prefix_log_prob" not in restart_figures([row(True, 0), row(False, 0)]), "no state, no token of it"
    assert restart_figures([one], is_bypassed=True) == {"restart/prefix_tokens": 2, "restart/value/mean": 0.9}
