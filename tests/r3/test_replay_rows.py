import pytest
import torch
from collector import stored
from tagged import FAILED, make_meta, make_row, make_tag

from recipe.common.metrics import series_metrics
from recipe.common.rows import PLAIN, REPLAY_MARK
from recipe.r3.replay.rows import replayed_row, replayed_tag


def test_errors_of_the_reward_function_are_those_of_this_step():
    replayed = replayed_tag(FAILED, stored(), replayed_row(make_row(), stored(), session=4), step=5)
    assert series_metrics(make_meta({"a": [FAILED, FAILED, replayed]}))["reward/errors"] == 2
    assert replayed["reward_error"] is False and "grade" not in replayed


def test_stored_log_probs_that_are_not_finite_count_as_unknown():
    row = replayed_row(make_row(), sample := stored(log_probs=(-0.1, float("-inf"), -0.2, -0.3)), session=4)
    assert replayed_tag(make_tag(False), sample, row, step=5)["stored_log_probs"] is False
    assert replayed_tag(make_tag(False), stored(), row, step=5)["stored_log_probs"] is True


def test_a_replayed_row_has_the_fields_and_types_of_a_fresh_one():
    template = make_row(attention_mask=torch.ones(5, dtype=torch.int64))
    row = replayed_row(template, stored(), session=4)
    assert row.keys() == template.keys()
    for name, value in template.items():
        assert type(row[name]) is type(value)
        assert not isinstance(value, torch.Tensor) or row[name].dtype == value.dtype


def test_a_replayed_row_is_the_stored_response_under_the_prompt_of_the_group():
    row = replayed_row(make_row(attention_mask=torch.ones(5, dtype=torch.int64)), stored(), session=4)
    assert row["input_ids"].tolist() == [7, 8, 9, 4, 5, 6, 4]
    assert row["prompts"].tolist() == [7, 8, 9] and row["responses"].tolist() == [4, 5, 6, 4]
    assert row["position_ids"].tolist() == list(range(7)) and row["attention_mask"].tolist() == [1] * 7
    assert row["response_mask"].tolist() == row["loss_mask"].tolist() == [1] * 4
    assert row["rm_scores"].tolist() == [0, 0, 0, 1.75]
    assert row["rollout_log_probs"].tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert (row["uid"], row["session_id"]) == ("u" + REPLAY_MARK, 4)


def test_a_replayed_row_is_compared_with_the_fresh_rows_even_where_their_keys_have_another_uid():
    """verl's replay of recorded rollouts writes them under new keys, and their `uid` fields stay."""
    assert replayed_row(make_row(uid="recorded"), stored(), session=4)["uid"] == "recorded" + REPLAY_MARK


def test_a_replayed_row_leaves_the_template_and_the_sample_alone():
    template, sample = make_row(), stored()
    replayed_row(template, sample, session=4)["rollout_log_probs"].zero_()
    assert template["responses"].tolist() == [1, 2] and template["uid"] == "u"
    assert sample.log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])


def test_log_probs_are_zeros_when_none_were_stored_and_absent_when_the_run_records_none():
    assert replayed_row(make_row(), stored(log_probs=None), 4)["rollout_log_probs"].tolist() == [0.0] * 4
    template = {name: value for name, value in make_row().items() if name != "rollout_log_probs"}
    assert "rollout_log_probs" not in replayed_row(template, stored(), 4)


def test_a_replayed_tag_describes_the_stored_response_and_its_age():
    fresh = make_tag(False, truncated=True, group="q", prompt_len=3, seq_len=5, response_len=2, global_steps=7)
    row = replayed_row(make_row(), stored(), session=4)
    assert replayed_tag(fresh, stored(), row, step=7) == {
        **{"group": "q", "variant": PLAIN, "global_steps": 7},
        **{"prompt_len": 3, "response_len": 4, "seq_len": 7},
        **{"correct": True, "truncated": False, "score": 1.75, "replay_age": 4},
        **{"origin": "replayed", "stored_log_probs": True, "versions": 1, "reward_error": False, "waited": False},
        "again": False,
    }
    assert fresh["response_len"] == 2 and "replay_age" not in fresh
