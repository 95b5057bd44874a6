"""Cross-context replay on verl's data collector: rows, tags and counts by hand, then the real collector on
TransferQueue with trajectories written by verl's own rollout worker."""

import asyncio
import math
import random
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta

from recipe.common.metrics import DeadGroupAlarm, LengthAlarm, group_ledger, series_metrics
from recipe.common.trainer.measured import MeasuredMixin, count_discarded
from recipe.r3.core_algos import REPLAY_MARK, compute_r3_advantage
from recipe.r3.history.store import PLAIN, REFLECTION, History, Sample
from recipe.r3.r3_config import ReplayConfig
from recipe.r3.replay import buffer as replay_buffer
from recipe.r3.replay.buffer import (
    REFLECTION_UID,
    R3ReplayBuffer,
    dead_outcome,
    entropy_of,
    group_of,
    groups_of,
    is_fresh,
    lower_failed,
    replayed_row,
    replayed_tag,
    rows_of,
)
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync
from recipe.r3.replay.straggler import ABORTED
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

N = 3
"""Responses per prompt."""


def make_tag(correct: bool, score: float | None = None, variant: str = PLAIN, **changes) -> dict:
    score = float(correct) if score is None else score
    tag = {"group": "q", "variant": variant, "correct": correct, "truncated": False, "score": score}
    return {**tag, "prompt_len": 20, "response_len": 10, **changes}


def make_meta(groups: dict[str, list[dict]]) -> KVBatchMeta:
    """A batch of groups uid -> tags."""
    keys = [f"{uid}_{session}_0" for uid, tags in groups.items() for session in range(len(tags))]
    return KVBatchMeta(keys=keys, tags=[tag for tags in groups.values() for tag in tags], partition_id="train")


WRONG, RIGHT = make_tag(False), make_tag(True)
FAILED = make_tag(False, grade=0.0, reward_error=True)
REPLAYED_WRONG, REPLAYED_RIGHT = make_tag(False, replay_age=2), make_tag(True, replay_age=4)
PADDING = {"is_padding": True}


# dead groups


@pytest.mark.parametrize(
    "tags, outcome",
    [
        ([make_tag(True, score) for score in (1.9, 1.8, 1.7)], True),  # the length bonus differs, the outcome does not
        ([make_tag(False, score) for score in (0.0, 0.5)], False),
        ([make_tag(True, 1.0), make_tag(False, 1.0)], None),  # equal scores, unequal outcomes
        ([WRONG, WRONG, REPLAYED_RIGHT], False),  # a replayed row does not hide that the group was dead
        ([WRONG, PADDING], False),
        ([], None),
        ([FAILED, FAILED], False),
        ([RIGHT, FAILED], None),
        (
            [make_tag(False, 0.2, grade=0.2), FAILED],
            False,
        ),  # its grade is no judgement
    ],
)
def test_a_group_is_dead_by_correctness_of_its_fresh_rows_not_by_score(tags, outcome):
    assert dead_outcome(tags) is outcome


@pytest.mark.parametrize(
    "judged, score",
    [([-1.0, -2.0], -2.0), ([0.0, 0.0], 0.0), ([1.9, 1.8], 0.0), ([1.0, -1.0], -1.0), ([0.2, 0.5], 0.0), ([], 0.0)],
)
def test_an_answer_without_a_score_earns_no_more_than_one_that_was_judged(judged, score):
    tags = [make_tag(value >= 1.0, value, grade=min(value, 1.0)) for value in judged] + [dict(FAILED), dict(FAILED)]
    lower_failed(tags)
    assert [tag["score"] for tag in tags] == [*judged, score, score]
    assert [tag["grade"] for tag in tags[-2:]] == [score, score]


def test_only_generated_rows_are_fresh():
    assert [is_fresh(tag) for tag in (WRONG, REPLAYED_RIGHT, PADDING, {"is_padding": False})] == [
        True,
        False,
        False,
        True,
    ]


def test_rows_are_grouped_by_the_uid_of_their_key_without_padding():
    batch = make_meta({"a": [RIGHT, WRONG], "b": [RIGHT], "pad": [PADDING]})
    assert groups_of(batch) == {"a": [0, 1], "b": [2]}
    assert group_of("3f2b-11_7_0") == "3f2b-11"


# the ledger


def test_ledger_counts_each_group_once_and_every_way_out_of_death():
    batch = make_meta(
        {
            "mixed": [RIGHT, WRONG],
            "right": [RIGHT, RIGHT],
            "right-replay": [RIGHT, RIGHT, REPLAYED_WRONG],
            "wrong": [WRONG, WRONG],
            "wrong-ranked": [WRONG, WRONG],
            "wrong-both": [WRONG, WRONG, REPLAYED_RIGHT],
            "pad": [PADDING],
        }
    )
    ledger = group_ledger(batch, ranked={"wrong-ranked": [0.5, 0.0], "wrong-both": [0.5, 0.0]})
    assert {name: count for name, count in ledger.items() if not name.startswith("reflection/")} == {
        "groups/total": 6,
        "groups/mixed": 1,
        "groups/all_correct": 2,
        "groups/all_wrong": 3,
        "groups/rescued_by_replay": 2,
        "groups/ranked": 2,
        "groups/still_dead": 2,
        "groups/still_wrong": 1,
        "groups/no_signal": 2,
    }
    assert not any(count for name, count in ledger.items() if name.startswith("reflection/"))


@pytest.mark.parametrize(
    "rewards, is_ranked",
    [
        ([0.5, 0.25, 0.0], True),
        ([0.25, 0.25, 0.25], False),  # all three tied: still no contrast
        ([0.25, 0.25, 0.0], True),  # two rows ranked and tied, a finished one at 0
        ([0.25, 0.25, 0.25], False),  # and at their mean
        ([0.0, 0.0, 0.0], False),  # one row ranked: all earn 0
        ([], False),
    ],
)
def test_a_group_counts_as_ranked_only_when_its_rewards_differ(rewards, is_ranked):
    ledger = group_ledger(make_meta({"u": [WRONG] * 3}), ranked={"u": rewards} if rewards else {})
    assert (ledger["groups/ranked"], ledger["groups/still_dead"]) == (is_ranked, not is_ranked)


def test_dead_is_about_answers_and_no_signal_about_rewards():
    """With the length bonus an all-correct group is dead and trains, and a mixed one always does."""
    bonus = [make_tag(True, 1.9), make_tag(True, 1.5)]
    ledger = group_ledger(make_meta({"bonus": bonus, "equal": [RIGHT, RIGHT], "mixed": [RIGHT, WRONG]}), ranked={})
    assert (ledger["groups/all_correct"], ledger["groups/still_dead"], ledger["groups/no_signal"]) == (2, 2, 1)
    tied = make_meta({"tied": [WRONG] * 3, "replayed": [WRONG, WRONG, REPLAYED_RIGHT]})
    assert group_ledger(tied, ranked={"tied": [0.25] * 3})["groups/no_signal"] == 1


def test_reflection_groups_have_a_ledger_of_their_own():
    reflected = make_tag(False, variant=REFLECTION)
    rescuer = make_tag(True, variant=REFLECTION, replay_age=1)
    batch = make_meta({"plain": [RIGHT, WRONG], "dead": [reflected] * 2, "rescued": [reflected, reflected, rescuer]})
    ledger = group_ledger(batch, ranked={})
    assert ledger["groups/total"] == 1
    names = ("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "ranked", "still_dead", "still_wrong")
    assert [ledger[f"reflection/groups/{name}"] for name in names] == [2, 0, 0, 2, 1, 0, 1, 1]


# the series


def test_fresh_replayed_and_reflection_series_do_not_mix():
    def tag(score, length, **changes):
        return make_tag(score > 0, score, response_len=length, **changes)

    batch = make_meta(
        {
            "plain": [tag(1.5, 10), tag(0.0, 30, truncated=True)],
            "replay": [tag(0.0, 50), tag(1.9, 5, replay_age=3), tag(0.0, 7, replay_age=1, truncated=True)],
            "reflection": [tag(1.0, 100, variant=REFLECTION), tag(0.0, 200, variant=REFLECTION)],
            "reflection-replay": [tag(1.1, 9, variant=REFLECTION, replay_age=2)],
            "pad": [PADDING],
        }
    )
    expected = {
        "trained": {"rows": 8, "tokens": 411},
        "fresh": {"rows": 3, "tokens": 90, "score/mean": 0.5, "acc/mean": 1 / 3, "truncated/mean": 1 / 3},
        "replay": {"rows": 3, "tokens": 21, "score/mean": 1.0, "acc/mean": 2 / 3, "truncated/mean": 1 / 3},
        "reflection": {"rows": 2, "tokens": 300, "score/mean": 0.5, "acc/mean": 0.5, "truncated/mean": 0.0},
    }
    prompts = {"fresh": 60, "replay": 60, "reflection": 40}
    lengths = {"fresh": 30.0, "replay": 7.0, "reflection": 150.0}
    flat = {f"{name}/{key}": value for name, values in expected.items() for key, value in values.items()}
    flat |= {f"{name}/response_length/mean": value for name, value in lengths.items()}
    flat |= {f"{name}/prompt_tokens": value for name, value in prompts.items()}
    assert series_metrics(batch) == pytest.approx({**flat, "replay/age/mean": 2.0, "reflection/solved": 1})


def test_errors_of_the_reward_function_are_those_of_this_step():
    replayed = replayed_tag(FAILED, stored(), replayed_row(make_row(), stored(), session=4), step=5)
    assert series_metrics(make_meta({"a": [FAILED, FAILED, replayed]}))["reward/errors"] == 2
    assert not {"reward_error", "grade"} & set(replayed)


def test_changing_one_series_leaves_the_others_alone():
    plain, replayed, reflected = (make_tag(True), make_tag(True, replay_age=1), make_tag(True, variant=REFLECTION))
    before = series_metrics(make_meta({"a": [plain, replayed], "b": [reflected]}))
    after = series_metrics(make_meta({"a": [plain, make_tag(False, 9.0, replay_age=8)], "b": [reflected]}))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"replay/score/mean", "replay/acc/mean", "replay/age/mean"}


def test_an_empty_series_reports_no_means():
    metrics = series_metrics(make_meta({"a": [WRONG]}))
    assert metrics["replay/rows"] == metrics["reflection/rows"] == metrics["replay/tokens"] == 0
    assert not any(name.startswith("replay/") and name.endswith("/mean") for name in metrics)


def test_solved_counts_queries_not_answers():
    tags = [make_tag(True, variant=REFLECTION, group=query) for query in ("q1", "q1", "q2")]
    assert series_metrics(make_meta({"a": tags}))["reflection/solved"] == 2


# the alarm


def ledger_of(dead: int, rescued: int) -> dict:
    return {"groups/all_correct": 0, "groups/all_wrong": dead, "groups/still_dead": dead - rescued}


def test_groups_that_are_all_right_alone_sound_no_alarm():
    alarm = DeadGroupAlarm(patience=2)
    right = {"groups/all_correct": 4, "groups/all_wrong": 0, "groups/still_dead": 4}
    assert [alarm.update(right) for _ in range(4)] == [None] * 4


def test_the_alarm_sounds_once_after_steps_with_dead_groups_and_no_rescue():
    alarm = DeadGroupAlarm(patience=3)
    warnings = [alarm.update(ledger_of(dead=2, rescued=0)) for _ in range(6)]
    assert [bool(warning) for warning in warnings] == [False, False, True, False, False, False]
    assert warnings[2].startswith("3 steps with all wrong groups and none rescued")


def test_a_rescue_starts_the_count_again_and_a_step_without_dead_groups_does_not_count():
    alarm = DeadGroupAlarm(patience=2)
    steps = [(1, 0), (1, 1), (1, 0), (0, 0), (0, 0), (1, 0)]
    assert [bool(alarm.update(ledger_of(*step))) for step in steps] == [False] * 5 + [True]


def test_patience_zero_never_warns():
    alarm = DeadGroupAlarm(patience=0)
    assert [alarm.update(ledger_of(1, 0)) for _ in range(50)] == [None] * 50


# rows


def test_answers_of_several_turns_end_the_run(make_buffer):
    write_group("q", ("wrong", "turns", *["right"] * (N - 2)), step=1)
    with pytest.raises(ValueError, match="holds tokens that the model did not write: .* answers of one turn"):
        make_buffer().sample(1, "train", 1)


def test_stored_log_probs_that_are_not_finite_count_as_unknown():
    row = replayed_row(make_row(), sample := stored(log_probs=(-0.1, float("-inf"), -0.2, -0.3)), session=4)
    assert replayed_tag(make_tag(False), sample, row, step=5)["stored_log_probs"] is False
    assert replayed_tag(make_tag(False), stored(), row, step=5)["stored_log_probs"] is True


def make_row(prompt=(7, 8, 9), response=(1, 2), score: float = 0.0, **changes) -> dict:
    """The fields of a finished trajectory."""
    prompts, responses = torch.tensor(prompt), torch.tensor(response)
    rm_scores = torch.zeros(len(responses))
    rm_scores[-1] = score
    return {
        "uid": "u",
        "session_id": 0,
        "query_id": "q",
        "raw_prompt": [{"role": "user", "content": "1+1?"}],
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses)),
        "response_mask": torch.ones_like(responses),
        "loss_mask": torch.ones_like(responses),
        "rm_scores": rm_scores,
        "rollout_log_probs": -torch.ones(len(responses)),
        "extra_fields": {"reward_extra_info": {"acc": score > 0, "truncated": False}},
        "multi_modal_inputs": {},
        **changes,
    }


def stored(tokens=(4, 5, 6, 4), log_probs=(-0.1, -0.2, -0.3, -0.4), query="q", **changes) -> Sample:
    values = {"correct": True, "score": 1.75, "truncated": False, "step": 3, **changes}
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    return Sample(query, np.array(tokens, dtype="int32"), log_probs=log_probs, **values)


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
        "stored_log_probs": True,
        "versions": 1,
    }
    assert fresh["response_len"] == 2 and "replay_age" not in fresh


@pytest.mark.parametrize("responses", [[(1, 2), (3,), (4, 5, 6)], [(1, 2), (3, 4), (5, 6)], [(1, 2)]])
def test_rows_come_out_as_they_went_in_whether_lengths_differ_or_not(responses):
    rows = [make_row(response=response, uid=f"u{number}") for number, response in enumerate(responses)]
    data = list_of_dict_to_tensordict(rows)
    assert data["responses"].is_nested == (len({len(response) for response in responses}) > 1)
    for before, after in zip(rows, rows_of(data), strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert torch.equal(after[name], value) if isinstance(value, torch.Tensor) else after[name] == value


def test_rows_of_reads_every_kind_of_non_tensor_column():
    columns = {
        "stack": NonTensorStack("a", "b"),
        "dicts": NonTensorStack({"x": 1}, {}),
        "none": NonTensorStack(None, 1),
    }
    rows = rows_of(TensorDict(columns, batch_size=2))
    assert rows == [{"stack": "a", "dicts": {"x": 1}, "none": None}, {"stack": "b", "dicts": {}, "none": 1}]


# the stall clock


@pytest.mark.parametrize("progress", [(1, 0), (0, 1)])
def test_the_stall_clock_starts_again_with_every_response_and_every_finished_group(monkeypatch, progress):
    now = 0.0
    monkeypatch.setattr(replay_buffer, "time", SimpleNamespace(monotonic=lambda: now))
    buffer = R3ReplayBuffer("sync", {}, None, "drop", {}, poll_interval=0)
    buffer.attach(None, ReplayConfig(), 0, 100, stall_timeout_s=10, check_workers=lambda: None)
    buffer._last_progress, buffer._last_counts = now, None
    responses, groups = progress
    for step in range(5):
        buffer.partitions["train"] = dict.fromkeys(range(responses * step))
        buffer.finished_keys["train"] = set(range(groups * step))
        for now in (9.0 * step, 9.0 * step + 8):
            buffer._wait_for_next_poll("train", last_debug_time=0.0)
    now += 3
    with pytest.raises(TimeoutError, match=f"{4 * responses} responses of {4 * groups} finished groups"):
        buffer._wait_for_next_poll("train", last_debug_time=0.0)


# the alarm on growing answers


def growing(length, truncated, acc, rows=64):
    names = {"response_length": length, "truncated": truncated, "acc": acc}
    return {"fresh/rows": rows, **{f"fresh/{name}/mean": value for name, value in names.items()}}


@pytest.mark.parametrize(
    "before,after,warns",
    [
        ((100, 0.1, 0.5), (112, 0.1, 0.5), True),  # longer by more than a tenth
        ((100, 0.1, 0.5), (109, 0.1, 0.5), False),
        ((100, 0.1, 0.5), (100, 0.16, 0.5), True),  # more truncated
        ((100, 0.1, 0.5), (150, 0.3, 0.52), False),  # and better
        ((100, 0.3, 0.5), (50, 0.1, 0.4), False),  # shorter and worse is another matter
    ],
)
def test_growth_without_accuracy_is_told_once(before, after, warns):
    alarm = LengthAlarm(patience=3)
    told = [alarm.update(growing(*values)) for values in [before] * 3 + [after] * 3]
    assert told[:5] == [None] * 5 and bool(told[5]) == warns
    if warns:
        assert "response_length" in told[5] and alarm.update(growing(*after)) is None


def test_the_length_alarm_can_be_turned_off_and_passes_steps_without_fresh_rows():
    off, patient = LengthAlarm(patience=0), LengthAlarm(patience=1)
    for values in [(10, 0, 0.5), (99, 1, 0.1)]:
        assert off.update(growing(*values)) is None
    assert patient.update(growing(10, 0, 0.5)) is None and patient.update({"fresh/rows": 0}) is None
    assert patient.update(growing(99, 0, 0.5))


# the collector on TransferQueue


@pytest.fixture(scope="module")
def transfer_queue():
    ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    storage = {"SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1}}
    tq.init(OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", **storage}}))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture
def history(tmp_path):
    history = History(str(tmp_path / "history.sqlite"), max_per_outcome=16)
    yield history
    history.close()


@pytest.fixture
def make_buffer(transfer_queue, history):
    """make_buffer(stall_timeout_s, check_workers, **replay settings); the queue is emptied afterwards."""

    def make(stall_timeout_s: float = 30.0, check_workers=lambda: None, abort=None, **replay) -> R3ReplayBuffer:
        buffer = R3ReplayBuffer("sync", {}, None, "drop", OmegaConf.create({}), poll_interval=0.02)
        deadline = {"rollout_deadline_s": 0.1, "group_size": N, "abort_rollouts": abort} if abort else {}
        settings = history, ReplayConfig(**replay), 0, 100, stall_timeout_s, check_workers
        buffer.attach(*settings, **deadline, decode=lambda ids: TEXTS.get(ids[0], "no word of it"))
        return buffer

    yield make
    for partition, items in tq.kv_list().items():
        if items:
            tq.kv_clear(keys=list(items), partition_id=partition)


TEXTS = {60: "The mistake in the earlier attempt was a sign.", 61: "I attempt this anew, without a hint."}
"""Texts of stored answers by their first token."""


class RolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's rollout worker without a model: it only writes finished trajectories to TransferQueue."""

    processor = None
    reward_loop_worker_handles = None
    distillation_enabled = False

    def __init__(self):
        pass


def write_group(
    query,
    outcomes,
    step,
    partition="train",
    variant=PLAIN,
    info=None,
    log_probs=True,
    length=2,
    uid="",
    status="finished",
    versions=None,
    wrong=0.0,
) -> str:
    """A prompt with one trajectory per outcome (right, wrong, cut, failed, aborted, turns); returns its uid.

    Response `session` has `length + session` tokens 100 * step + session; a right one scores 1.9 - session / 10.
    failed: the reward function failed. turns: its first token is not the model's. wrong: score of wrong answers.
    versions: the first and the last step whose weights wrote it.
    """
    uid = uid + str(uuid.uuid4())
    mark = {"is_prompt": True, "status": "pending", "global_steps": step}
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[mark])
    for session, outcome in enumerate(outcomes):
        size, judged = length + session, outcome != "failed"
        right, cut = outcome == "right", outcome == "cut"
        output = AgentLoopOutput(
            prompt_ids=[7, 8, 9],
            response_ids=[100 * step + session] * size,
            response_mask=[int(outcome != "turns")] + [1] * (size - 1),
            response_logprobs=[-0.25] * size if log_probs else None,
            reward_score=1.9 - session / 10 if right else wrong * judged,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": info or {"acc": float(right), "truncated": float(cut)}},
        )
        if wrong or not judged:  # as the recipe's manager says it of a reward function
            graded = {"score": 1.0 if right else wrong * judged, "reward_error": float(not judged)}
            output.extra_fields["reward_extra_info"] |= graded
        if variant == REFLECTION:
            output.extra_fields["prompt_variant"] = REFLECTION
        if versions:
            output.extra_fields |= dict(zip(("min_global_steps", "max_global_steps"), versions, strict=True))
        if outcome == "aborted":
            output.extra_fields[ABORTED] = True
        row = {"uid": uid, "session_id": session, "global_steps": step, "query_id": query, "index": 0}
        row["raw_prompt"] = [{"role": "user", "content": query}]
        asyncio.run(RolloutWorker()._agent_loop_postprocess(output, partition == "val", **row))
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[{"status": status}])
    return uid


def read(batch: KVBatchMeta) -> dict[str, dict]:
    """Key -> every field of the row."""
    return dict(zip(batch.keys, rows_of(tq.kv_batch_get(keys=batch.keys, partition_id="train")), strict=True))


def finish_step(batch: KVBatchMeta) -> None:
    tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)


FIRST = {"mixed": ("right", "wrong", "cut"), "q-right": ("right",) * N, "q-wrong": ("wrong",) * N, "cut": ("cut",) * N}
SECOND = {**FIRST, "q-right": ("wrong",) * N, "q-wrong": ("right",) * N}
"""Outcomes by query: in the second epoch two dead groups have flipped."""


def sample_epochs(buffer) -> tuple[KVBatchMeta, KVBatchMeta, dict[str, str]]:
    """Both epochs' batches (the second one's rows still in the queue) and the uids of the second by query."""
    for query, outcomes in FIRST.items():
        write_group(query, outcomes, step=1)
    first, _ = buffer.sample(1, "train", len(FIRST))
    finish_step(first)
    uids = {query: write_group(query, outcomes, step=2) for query, outcomes in SECOND.items()}
    second, _ = buffer.sample(2, "train", len(SECOND))
    return first, second, uids


def test_two_epochs_dead_groups_get_opposing_rows_on_the_second(make_buffer, history):
    first, second, uids = sample_epochs(make_buffer(k=1, outcome="both"))
    assert len(first) == 12 and all(is_fresh(tag) for tag in first.tags)
    assert sorted(second.keys[12:]) == sorted(f"{uids[query]}_{N}_0" for query in ("q-right", "q-wrong"))
    tags = dict(zip(second.keys, second.tags, strict=True))
    rows = read(second)
    for query, correct in (("q-right", True), ("q-wrong", False)):
        tag, row = tags[f"{uids[query]}_{N}_0"], rows[f"{uids[query]}_{N}_0"]
        assert (tag["group"], tag["correct"], tag["replay_age"]) == (query, correct, 1)
        size, token = len(row["responses"]), int(row["responses"][0])
        assert 100 <= token < 100 + N and size == 2 + token - 100  # a response of step 1
        assert row["input_ids"].tolist() == [7, 8, 9] + [token] * size
        assert row["rm_scores"].sum().item() == pytest.approx(1.9 - (token - 100) / 10 if correct else 0.0)
        assert row["rollout_log_probs"].tolist() == [-0.25] * size
        assert row["uid"] == uids[query] + REPLAY_MARK and row["query_id"] == query


def test_two_epochs_the_tags_and_ledger_of_the_second(make_buffer):
    _, second, uids = sample_epochs(make_buffer(k=2, outcome="both"))
    ledger = group_ledger(second, ranked={})
    names = ("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "still_dead")
    assert [ledger[f"groups/{name}"] for name in names] == [4, 1, 1, 2, 2, 1]  # nothing opposes the truncated group
    assert tq.kv_list("train")["train"] == dict(zip(second.keys, second.tags, strict=True))
    metrics = series_metrics(second)
    assert (metrics["fresh/rows"], metrics["replay/rows"], metrics["replay/age/mean"]) == (12, 4, 1.0)
    assert metrics["fresh/truncated/mean"] == pytest.approx(4 / 12)
    assert all(tag["seq_len"] == tag["prompt_len"] + tag["response_len"] for tag in second.tags)


def test_two_epochs_replayed_rows_revive_the_advantage_of_their_group(make_buffer):
    _, second, uids = sample_epochs(make_buffer(k=1, outcome="both"))
    rows = read(second)
    scores = torch.stack([row["rm_scores"].sum() for row in rows.values()]).unsqueeze(1)
    marks = [row["uid"] for row in rows.values()]
    index = np.array([mark.removesuffix(REPLAY_MARK) for mark in marks])
    replayed = np.array([mark.endswith(REPLAY_MARK) for mark in marks])
    advantages, _ = compute_r3_advantage(scores, torch.ones_like(scores), index, replayed)
    assert (advantages[index == uids["q-right"]] != 0).all() and (advantages[index == uids["cut"]] == 0).all()


def test_two_epochs_history_holds_every_fresh_row_once_and_no_replayed_one(make_buffer, history):
    sample_epochs(make_buffer(k=1))
    assert history.size() == 24
    rates = history.success_rates(list(FIRST), min_attempts=2 * N)
    assert rates == pytest.approx({"mixed": 1 / 3, "q-right": 0.5, "q-wrong": 0.5, "cut": 0.0})
    samples = history.draw("mixed", False, 99, random.Random(0), selection="shortest")
    stored_now = [(len(sample.tokens), sample.truncated, sample.step) for sample in samples]
    assert stored_now == [(3, False, 1), (3, False, 2), (4, True, 1), (4, True, 2)]
    assert all(sample.log_probs.tolist() == [-0.25] * len(sample.tokens) for sample in samples)


def test_replay_off_appends_nothing_and_still_fills_the_history(make_buffer, history):
    _, second, _ = sample_epochs(make_buffer(enable=False))
    assert len(second) == 12 and history.size() == 24


def test_the_draw_does_not_depend_on_the_random_uids(make_buffer, history):
    def tokens_drawn() -> dict[str, int]:
        history.restore(0)
        _, second, _ = sample_epochs(make_buffer(k=1))
        rows = read(second)
        finish_step(second)
        return {rows[key]["query_id"]: int(rows[key]["responses"][0]) for key in second.keys[12:]}

    assert tokens_drawn() == tokens_drawn() == tokens_drawn()


def test_reflection_groups_are_awaited_described_and_rescued_like_plain_ones(make_buffer, history):
    buffer = make_buffer(k=1)
    history.add([stored(correct=True, step=1)], step=1)
    write_group("q", ("right",) * N, step=2)
    reflected = write_group("q", ("wrong",) * N, step=2, variant=REFLECTION)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    tags = dict(zip(batch.keys, batch.tags, strict=True))
    assert len(batch) == 2 * N + 1 and tags[f"{reflected}_{N}_0"]["variant"] == REFLECTION
    assert history.success_rates(["q"], 2) == {"q": 1.0}  # plain attempts alone
    assert history.success_rates(["q"], 2, (PLAIN, REFLECTION)) == {"q": pytest.approx(4 / 7)}


@pytest.mark.parametrize("allowed", [False, True])
def test_answers_born_under_reflection_reach_plain_groups_only_on_request(make_buffer, history, allowed):
    history.add([stored(correct=True, step=1, variant=REFLECTION)], step=1)
    write_group("q", ("wrong",) * N, step=2)
    batch, _ = make_buffer(reflected_to_plain=allowed).sample(2, "train", 1)
    assert len(batch) == N + allowed


@pytest.mark.parametrize("same_step", [False, True])
def test_reflection_rescues_the_plain_group_of_its_own_step_on_request(make_buffer, history, same_step):
    uid = write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("wrong",) * (N - 1) + ("right",), step=2, variant=REFLECTION)
    buffer = make_buffer(k=2, same_step=same_step)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert len(batch) == 2 * N + same_step
    history.flush()
    logged = history._db.execute(
        "SELECT sample_id, step, query_id, variant, sample_step, times FROM replays"
    ).fetchall()
    if same_step:
        row, tag = read(batch)[f"{uid}_{N}_0"], batch.tags[batch.keys.index(f"{uid}_{N}_0")]
        assert row["responses"].tolist() == [200 + N - 1] * (N + 1) and row["uid"].endswith(REPLAY_MARK)
        assert (tag["correct"], tag["replay_age"], tag["stored_log_probs"]) == (True, 0, True)
        [sample] = history.draw("q", True, 9, random.Random(0), variants=(REFLECTION,))
        assert logged == [(sample.id, 2, "q", PLAIN, 2, 1)]
    else:
        assert not logged


@pytest.mark.parametrize("selection, session", [("shortest", 0), ("nearest_length", 1), ("newest", 2)])
def test_the_selection_holds_for_what_the_step_found(make_buffer, selection, session):
    uid = write_group("q", ("wrong",) * N, step=2)  # of 2, 3 and 4 tokens, as those under reflection
    write_group("q", ("right",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(k=1, same_step=True, selection=selection)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert read(batch)[f"{uid}_{N}_0"]["responses"].tolist() == [200 + session] * (2 + session)


def test_the_entropy_of_a_sample_is_the_mean_of_its_negative_log_probs():
    assert entropy_of(stored()) == pytest.approx(0.25)
    assert [entropy_of(stored(log_probs=marks)) for marks in (None, [-1.0, math.nan])] == [None, None]
    assert entropy_of(stored(tokens=[], log_probs=[])) is None


def test_what_the_history_holds_comes_before_what_the_step_found(make_buffer, history):
    history.add([stored(correct=True, step=1, tokens=[55], log_probs=[-0.1])], step=1)
    uid = write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("right",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(k=1, same_step=True)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert len(batch) == 2 * N + 1 and read(batch)[f"{uid}_{N}_0"]["responses"].tolist() == [55]


def test_the_control_experiment_takes_nothing_that_the_step_found_for_the_query_itself(make_buffer, history):
    history.add([stored(correct=True, step=1, query="other", tokens=[55], log_probs=[-0.1])], step=1)
    uid = write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("right",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(k=2, same_step=True, other_queries=True)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert len(batch) == 2 * N + 1 and read(batch)[f"{uid}_{N}_0"]["responses"].tolist() == [55]


@pytest.mark.parametrize(
    "settings", [{"reflected_to_plain": False}, {"reflected_unless": "no word"}, {"outcome": "wrong"}]
)
def test_what_may_not_be_replayed_later_is_not_in_its_own_step(make_buffer, settings):
    write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("right",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(same_step=True, **settings)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert len(batch) == 2 * N


def test_answers_that_speak_of_an_attempt_are_not_replayed_where_none_is_shown(make_buffer, history):
    found = [stored(correct=True, step=1, variant=REFLECTION, tokens=[first, 1], log_probs=None) for first in (60, 61)]
    history.add(found, step=1)
    write_group("q", ("wrong",) * N, step=2)
    batch, metrics = make_buffer(k=2).sample(2, "train", 1)
    assert [tag["response_len"] for tag in batch.tags[N:]] == [2]
    assert read(batch)[batch.keys[N]]["responses"].tolist() == [61, 1]
    assert metrics["replay/passed_over_for_text"] == 1
    write_group("q", ("wrong",) * N, step=3)
    batch, _ = make_buffer(k=2, reflected_unless=None).sample(3, "train", 1)
    assert len(batch) == N + 2


def test_the_share_of_answers_that_speak_of_an_attempt_is_logged(make_buffer, history):
    buffer = make_buffer()
    write_group("q", ("right", "wrong"), step=2)
    write_group("q", ("right",) * 3 + ("wrong",), step=2, variant=REFLECTION)
    buffer.reflection_groups = 1
    _, metrics = buffer.sample(2, "train", 1)
    assert metrics["reflection/speaks_of_attempt/mean"] == 0


def test_what_was_found_under_reflection_on_one_attempt_is_not_shown_beside_another(make_buffer, history):
    """It may speak of the attempt that its own prompt showed."""
    history.add([stored(correct=True, step=1, variant=REFLECTION)], step=1)
    write_group("q", ("wrong",) * N, step=2, variant=REFLECTION)
    batch, _ = make_buffer().sample(2, "train", 1)
    assert len(batch) == N


def test_the_control_experiment_replays_answers_of_another_query_under_this_ones_prompt(make_buffer, history):
    history.add(
        [stored(correct=True, step=1), stored(correct=True, step=1, query="other", tokens=[55], log_probs=[-0.1])],
        step=1,
    )
    uid = write_group("q", ("wrong",) * N, step=2)
    batch, _ = make_buffer(other_queries=True).sample(2, "train", 1)
    rows = read(batch)
    assert len(batch) == N + 1 and rows[f"{uid}_{N}_0"]["responses"].tolist() == [55]
    assert rows[f"{uid}_{N}_0"]["prompts"].tolist() == rows[f"{uid}_0_0"]["prompts"].tolist()


@pytest.mark.parametrize("outcome, rescued", [("both", {"hard", "easy"}), ("correct", {"hard"}), ("wrong", {"easy"})])
def test_only_the_outcomes_that_are_asked_for_are_replayed(history, make_buffer, outcome, rescued):
    samples = [stored(query="hard", correct=True, step=1), stored(query="easy", correct=False, step=1)]
    history.add(samples, step=1)
    write_group("hard", ("wrong",) * N, step=2)
    write_group("easy", ("right",) * N, step=2)
    batch, _ = make_buffer(outcome=outcome).sample(2, "train", 2)
    assert {tag["group"] for tag in batch.tags if "replay_age" in tag} == rescued


def test_tokens_that_dynamic_sampling_throws_away_are_counted(transfer_queue, make_buffer):
    buffer = ReplayBuffer(
        *("sync", {}, None, "drop", {}),
        **dict(poll_interval=0.02, refill_fn=lambda count: None, filter_groups_metric="acc"),
        **dict(train_batch_size=2, gen_batch_size=1),
    )
    discarded = count_discarded(buffer)
    write_group("alive", ("right", "wrong", "cut"), step=1)
    write_group("dead", ("wrong",) * 3, step=1, length=10)  # 10 + 11 + 12 tokens
    write_group("surplus", ("right", "wrong", "wrong"), step=2, length=20)  # 20 + 21 + 22 tokens
    batch, metrics = buffer.sample(1, "train", 1)
    assert len(batch) == 3 and metrics["training/filter_groups/evicted_samples"] == 1
    assert discarded["tokens"] == 33 + 63


@pytest.mark.parametrize("allowed", [False, True])
def test_dead_reflection_groups_can_be_left_alone(make_buffer, history, allowed):
    history.add([stored(correct=True, step=1)], step=1)
    write_group("q", ("wrong",) * N, step=2, variant=REFLECTION)
    batch, _ = make_buffer(reflection_groups=allowed).sample(2, "train", 1)
    assert len(batch) == N + allowed


def test_what_was_replayed_is_logged_and_max_replays_and_max_age_bound_it(make_buffer, history):
    history.add([stored(correct=True, step=1)], step=1)
    replayed = []
    for step in (2, 3, 4):
        write_group("q", ("wrong",) * N, step)
        batch, _ = make_buffer(max_replays=2).sample(step, "train", 1)
        replayed.append(len(batch) - N)
        finish_step(batch)
    assert replayed == [1, 1, 0]
    history.flush()
    assert history._db.execute("SELECT step, query_id, variant, sample_step, times FROM replays").fetchall() == [
        (2, "q", PLAIN, 1, 1),
        (3, "q", PLAIN, 1, 1),
    ]
    for age, expected in ((3, 0), (4, 1)):
        write_group("q", ("wrong",) * N, step=5)
        batch, _ = make_buffer(max_age=age).sample(5, "train", 1)
        assert len(batch) - N == expected
        finish_step(batch)


def test_one_trajectory_is_not_replayed_into_two_groups_of_a_step_past_its_cap(make_buffer, history):
    history.add([stored(correct=True, step=1)], step=1)
    for variant in (PLAIN, REFLECTION):
        write_group("q", ("wrong",) * N, step=2, variant=variant)
    assert len(make_buffer(max_replays=1).sample(2, "train", 2)[0]) == 2 * N + 1


def test_nearest_length_is_measured_against_the_mean_of_the_group(make_buffer, history):
    history.add([stored(tokens=[token] * token, log_probs=None) for token in (2, 5, 9)], step=1)
    write_group("q", ("wrong",) * N, step=2, length=4)  # 4, 5 and 6 tokens
    batch, _ = make_buffer(selection="nearest_length").sample(2, "train", 1)
    assert batch.tags[-1]["response_len"] == 5


# stragglers


def test_aborted_members_leave_the_group_and_stored_samples_take_their_place(make_buffer, history):
    history.add([stored([1, 2], None), stored([3, 4], None), stored([5], None, correct=False)], step=1)
    uid = write_group("q", ("right", "aborted", "wrong"), step=2)
    batch, metrics = make_buffer(abort=lambda: None).sample(2, "train", 1)
    assert metrics["rollout/aborted_rows"] == 1
    assert sorted(batch.keys) == [f"{uid}_0_0", f"{uid}_2_0", f"{uid}_3_0"]  # a mixed group: one sample, any outcome
    assert [is_fresh(tag) for tag in batch.tags].count(False) == 1
    assert f"{uid}_1_0" not in tq.kv_list("train")["train"]
    assert history.success_rates(["q"], 1) == {"q": pytest.approx(3 / 6)}, "an aborted response is an attempt"


def test_in_a_dead_group_the_gap_is_filled_by_opposing_samples_first_and_none_twice(make_buffer, history):
    history.add([stored([1], None), stored([5], None, correct=False)], step=1)
    write_group("q", ("wrong", "aborted", "aborted"), step=2)
    batch, _ = make_buffer(abort=lambda: None).sample(2, "train", 1)
    replayed = [tag for tag in batch.tags if not is_fresh(tag)]
    assert sorted(tag["correct"] for tag in replayed) == [False, True] and replayed[0]["correct"]


def test_the_deadline_aborts_once_something_is_finished(make_buffer):
    aborted = []

    def abort():
        aborted.append(True)
        write_group("late", ("right", "aborted", "aborted"), step=1)

    buffer = make_buffer(abort=abort)
    write_group("q", ("right",) * N, step=1)
    batch, metrics = buffer.sample(1, "train", 2)
    assert aborted == [True] and len(batch) == N + 1 and metrics["rollout/aborted_rows"] == 2
    finish_step(batch)
    with pytest.raises(TimeoutError, match="no rollout finished"):
        make_buffer(stall_timeout_s=0.3, abort=abort).sample(2, "train", 1)
    assert aborted == [True], "with nothing finished there is nothing to train on"


def test_stored_responses_over_the_response_limit_are_not_replayed(make_buffer, history):
    history.add([stored(tokens=[1] * 101, log_probs=None)], step=1)
    write_group("q", ("wrong",) * N, step=2)
    assert len(make_buffer().sample(2, "train", 1)[0]) == N


def test_rollouts_without_log_probs_work(make_buffer, history):
    buffer = make_buffer(k=1)
    for step, outcome in ((1, "right"), (2, "wrong")):
        write_group("q", (outcome,) * N, step, log_probs=False)
        batch, _ = buffer.sample(step, "train", 1)
        if step == 1:
            finish_step(batch)
    assert len(batch) == N + 1 and "rollout_log_probs" not in read(batch)[batch.keys[-1]]
    assert history.draw("q", True, 1, random.Random(0))[0].log_probs is None


def test_validation_passes_through_untouched(make_buffer, history):
    buffer = make_buffer()
    history.add([stored(correct=True, step=1)], step=1)
    buffer.reflection_groups = 5  # of a training step; validation must not wait for them
    uid = write_group("q", ("wrong",) * N, step=2, partition="val")
    before = tq.kv_list("val")["val"]
    batch, _ = buffer.sample(2, "val", 1)
    assert sorted(batch.keys) == sorted(f"{uid}_{session}_0" for session in range(N))
    assert batch.tags == [before[key] for key in batch.keys] and "correct" not in batch.tags[0]
    assert history.size() == 1 and history.success_rates(["q"], 1) == {"q": 1.0}


def test_a_reward_without_truncation_says_what_is_missing(make_buffer, history):
    write_group("q", ("right",) * N, step=1, info={"acc": 1.0, "score": 1.0})
    with pytest.raises(ValueError, match="reward_extra_info lacks 'truncated'.*acc.*R3RewardManager"):
        make_buffer().sample(1, "train", 1)
    assert history.size() == 0


def test_a_step_in_which_the_reward_function_always_failed_ends_the_run(make_buffer, history):
    write_group("q", ("wrong",) * N, step=1, info={"acc": 0.0, "truncated": 0.0, "reward_error": 1.0})
    with pytest.raises(RuntimeError, match="step 1: no answer got a score"):
        make_buffer().sample(1, "train", 1)
    assert history.size() == 0, "a failure of the function is no attempt at the query"


def test_an_answer_without_a_score_is_not_stored(make_buffer, history):
    write_group("q", ("wrong",) * N, step=1, info={"acc": 0.0, "truncated": 0.0, "reward_error": 1.0})
    write_group("r", ("wrong",) * N, step=1, info={"acc": 0.0, "truncated": 0.0, "reward_error": 0.0})
    batch, _ = make_buffer().sample(1, "train", 2)
    assert sum(tag.get("reward_error", False) for tag in batch.tags) == N
    assert history.size() == N and not history.draw("q", False, 1, random.Random(0))
    assert history.success_rates(["q", "r"], 1) == {"q": 0.0, "r": 0.0}, "it counts as an attempt"


def test_making_the_reward_function_fail_does_not_pay_where_wrong_answers_score_below_0(make_buffer, history):
    buffer = make_buffer(abort=lambda: None)  # one member is aborted: its row leaves the batch
    dead = write_group("q", ("wrong", "wrong", "failed", "wrong", "aborted"), step=1, wrong=-1.0)
    mixed = write_group("r", ("right", "right", "failed"), step=1, wrong=-1.0)
    alone = write_group("s", ("failed", "failed"), step=1, wrong=-1.0)
    batch, _ = buffer.sample(1, "train", 3)
    rows, groups = read(batch), groups_of(batch)
    assert [dead_outcome([batch.tags[p] for p in groups[uid]]) for uid in (dead, mixed, alone)] == [False, None, False]
    scores = {uid: [rows[batch.keys[p]]["rm_scores"] for p in groups[uid]] for uid in groups}
    assert scores[dead][2].tolist() == [0, 0, 0, -1], "on the last token of four"
    rewards = {uid: torch.stack([row.sum() for row in group]).unsqueeze(-1) for uid, group in scores.items()}
    assert {uid: reward.flatten().tolist() for uid, reward in rewards.items()} == {
        **{dead: [-1] * 4, alone: [0, 0]},
        mixed: pytest.approx([1.9, 1.8, 0]),
    }
    for uid, reward in rewards.items():
        none = np.zeros(len(reward), dtype=bool)
        found, _ = compute_r3_advantage(reward, torch.ones_like(reward), np.array([uid] * len(reward)), none)
        assert found[-1] < 0 if uid == mixed else not found.any()


def test_a_rollout_that_stops_moving_ends_the_run(make_buffer):
    buffer = make_buffer(stall_timeout_s=0.3)
    write_group("q", ("right",) * N, step=1)
    with pytest.raises(TimeoutError, match=r"stall_timeout_s=0.3 s \(3 responses of 1 finished groups so far\)"):
        buffer.sample(1, "train", 2)


def test_a_dead_worker_ends_the_wait(make_buffer):
    def check_workers():
        raise RuntimeError("a rollout server died")

    with pytest.raises(RuntimeError, match="a rollout server died"):
        make_buffer(check_workers=check_workers).sample(1, "train", 1)


# the asynchronous collector


@pytest.fixture
def make_async(make_buffer, history):
    """make_async(cap, strategy, threshold, refills): refills takes up how many prompts verl asks for; make_buffer
    empties the queue afterwards."""

    def make(cap=2, strategy="wait", threshold=3, refills=None, **replay) -> R3ReplayBufferAsync:
        settings = OmegaConf.create({})
        refill = (refills if refills is not None else []).append
        kind = "colocate_async", {}, threshold, strategy, settings
        buffer = R3ReplayBufferAsync(*kind, poll_interval=0.02, refill_fn=refill)
        buffer.attach(history, ReplayConfig(**replay), 0, 100, 5.0, lambda: None, reflection_cap=cap)
        return buffer

    return make


def reflect(query, step, outcomes=("wrong",) * N, **changes) -> str:
    return write_group(query, outcomes, step, variant=REFLECTION, uid=REFLECTION_UID, **changes)


def uids_of(batch: KVBatchMeta) -> set[str]:
    return set(map(group_of, batch.keys))


def test_a_batch_has_its_plain_groups_and_finished_reflections_ride_along_oldest_first(make_async, history):
    buffer = make_async(cap=2)
    reflections = [reflect(f"r{step}", step) for step in (3, 1, 2)]
    running = reflect("late", 3, outcomes=(), status="running")
    plain = [write_group(f"q{step}", ("right", "wrong", "cut"), step) for step in (2, 1, 3)]
    batch, _ = buffer.sample(3, "train", 2)
    assert uids_of(batch) == {plain[0], plain[1], reflections[1], reflections[2]}
    assert buffer.step_metrics() == {
        **{"groups/evicted": 0, "reflection/groups/evicted": 0, "replay/passed_over_for_text": 0},
        **{"groups/outstanding": 1, "reflection/groups/outstanding": 2},
    }
    finish_step(batch)
    batch, _ = buffer.sample(3, "train", 1)
    assert uids_of(batch) == {plain[2], reflections[0]}, "a running one is not waited for"
    finish_step(batch)
    assert set(tq.kv_list("train")["train"]) == {running}
    history.flush()
    assert sum(row[0] for row in history._db.execute("SELECT attempts FROM steps")) == 6 * N


def test_reflections_alone_are_no_batch(make_async):
    buffer = make_async(cap=9)
    for number in range(4):
        reflect(f"r{number}", 1)
    assert buffer.get_sampleable_count(1, "train") == 0
    buffer.stall_timeout_s = 0.3
    with pytest.raises(TimeoutError, match="no rollout finished"):
        buffer.sample(1, "train", 1)


def test_the_backlog_does_not_grow_with_reflections(make_async):
    """What a plain subclass does: it submits N + r groups, consumes N, and is 4 groups further behind every step."""
    buffer, waiting = make_async(cap=2), []
    for number in range(4):
        write_group(f"ahead{number}", ("right", "wrong", "cut"), 0)
    for step in range(1, 30):
        for number in range(4):
            write_group(f"q{step}_{number}".replace("_", "-"), ("right", "wrong", "cut"), step)
        for number in range(2):
            reflect(f"r{step}-{number}", step)
        batch, _ = buffer.sample(step, "train", 4)
        waiting.append(buffer.step_metrics())
        finish_step(batch)
    assert {metrics["groups/outstanding"] for metrics in waiting} == {4}
    assert {metrics["reflection/groups/outstanding"] for metrics in waiting} == {0}
    assert not any(metrics["groups/evicted"] for metrics in waiting)


def test_evicted_groups_are_stored_once_counted_and_plain_ones_replaced(make_async, history):
    refills = []
    buffer = make_async(strategy="drop", threshold=2, refills=refills)
    discarded = count_discarded(buffer)
    for query in ("old", "older"):
        write_group(query, ("right", "wrong", "cut"), 1)
    reflect("old", 1)
    write_group("failed", ("wrong",) * (N - 1), 4, status="failure")
    fresh = write_group("new", ("right", "wrong", "cut"), 4)
    batch, metrics = buffer.sample(4, "train", 1)
    assert uids_of(batch) == {fresh} and refills == [3]
    assert metrics["training/off_policy/evicted_samples"] == 3  # verl's own count knows no difference
    told = buffer.step_metrics()
    assert (told["groups/evicted"], told["reflection/groups/evicted"]) == (3, 1)
    rates = history.success_rates(["old", "older", "failed", "new"], 1)
    assert rates == {"old": 1 / 3, "older": 1 / 3, "failed": 0.0, "new": 1 / 3}
    counts = history._db.execute("SELECT step, variant, sum(attempts) FROM statistics GROUP BY 1, 2").fetchall()
    assert counts == [(4, PLAIN, 4 * N - 1), (4, REFLECTION, N)]
    assert discarded["tokens"] == 3 * (2 + 3 + 4) + 2 + 3
    finish_step(batch)
    write_group("next", ("right", "wrong", "cut"), 5)
    buffer.sample(5, "train", 1)
    history.flush()
    assert history.success_rates(["old"], 1) == {"old": 1 / 3}, "not stored again"


def test_an_evicted_group_without_any_score_does_not_end_the_run(make_async, history):
    buffer = make_async(strategy="drop", threshold=2)
    write_group("old", ("failed",) * N, 1)
    fresh = write_group("new", ("right", "wrong", "failed"), 4)
    batch, _ = buffer.sample(4, "train", 1)
    assert uids_of(batch) == {fresh} and history.success_rates(["old"], 1) == {"old": 0.0}
    finish_step(batch)
    write_group("next", ("failed",) * N, 5)
    with pytest.raises(RuntimeError, match="step 5: no answer got a score"):
        buffer.sample(5, "train", 1)


def test_age_is_that_of_the_weights_and_mixed_answers_are_said_to_be(make_async, history):
    buffer = make_async(k=1)
    write_group("q", ("right", "wrong", "cut"), 3, versions=(1, 2))  # begun long before the step that trains it
    finish_step(buffer.sample(3, "train", 1)[0])
    write_group("q", ("wrong",) * N, 7, versions=(6, 6))
    batch, _ = buffer.sample(7, "train", 1)
    (replayed,) = [tag for tag in batch.tags if not is_fresh(tag)]
    assert (replayed["replay_age"], replayed["versions"]) == (5, 2)  # the weights of step 6 are those of now
    metrics = series_metrics(batch)
    assert metrics["replay/mixed_versions/mean"] == 1 and metrics["fresh/mixed_versions/mean"] == 0
    finish_step(batch)
    write_group("q", ("wrong",) * N, 8, versions=(7, 7))
    assert all(map(is_fresh, make_async(k=1, max_age=5).sample(8, "train", 1)[0].tags))


def test_recorded_rollouts_are_as_old_as_those_that_were_recorded(make_buffer, history):
    """verl stamps them with the step that replays them; the weights of a real one's are those of the step before."""
    buffer = make_buffer(k=1)
    for step, outcome in ((3, "right"), (5, "wrong")):
        write_group("q", (outcome,) * N, step, versions=(step, step))
        batch, _ = buffer.sample(step, "train", 1)
        tags = [tag for tag in batch.tags if not is_fresh(tag)]
        finish_step(batch)
    assert [(tag["replay_age"], tag["versions"]) for tag in tags] == [(2, 1)]
    history.flush()
    assert history._db.execute("SELECT DISTINCT step - version FROM samples").fetchall() == [(1,)]


def test_what_is_counted_over_the_batches_of_a_step_adds_up(make_async, history):
    history.add([stored([60], None, variant=REFLECTION)], step=1)
    buffer = make_async(k=1, threshold=None)
    buffer.decode = lambda ids: TEXTS.get(ids[0], "")
    for expected in (1, 2):
        write_group("q", ("wrong",) * N, 2)
        finish_step(buffer.sample(2, "train", 1)[0])
        assert buffer.step_metrics()["replay/passed_over_for_text"] == expected
    write_group("other", ("wrong",) * N, 3)
    finish_step(buffer.sample(3, "train", 1)[0])
    assert buffer.step_metrics()["replay/passed_over_for_text"] == 0


def test_the_batches_of_one_step_draw_by_different_numbers_and_the_first_as_ever(make_async, make_buffer, history):
    history.add([stored([token], None) for token in range(1, 90)], step=1)

    def draw(buffer, step) -> int:
        write_group("q", ("wrong",) * N, step, variant=PLAIN)
        batch, _ = buffer.sample(step, "train", 1)
        (row,) = [row for key, row in read(batch).items() if key.split("_")[1] == str(N)]
        finish_step(batch)
        return int(row["responses"][0])

    updates = make_async(k=1, threshold=None)
    first, second = draw(updates, 2), draw(updates, 2)
    assert draw(make_buffer(k=1), 2) == first != second
    again = make_async(k=1, threshold=None)
    assert [draw(again, 2), draw(again, 2)] == [first, second]


class Loads:
    """verl's part of a resume, done already: the queue is as it was saved."""

    def _load_checkpoint(self) -> None:
        self._restored_tq_prompt_count = len(tq.kv_list("train")["train"])


class Resumed(MeasuredMixin, Loads):
    MODE = "colocate_async"

    def __init__(self):
        pass


def test_a_resume_drops_the_rows_of_the_step_that_was_saved_and_counts_plain_prompts(make_async):
    trained = write_group("trained", ("right", "wrong", "cut"), 3)
    tq.kv_clear(keys=[trained], partition_id="train")  # as when its batch was sampled
    kept = {write_group("done", ("right", "wrong"), 3), write_group("running", ("wrong",), 3, status="running")}
    kept.add(reflect("hard", 3))
    trainer = Resumed()
    trainer._load_checkpoint()
    keys = set(tq.kv_list("train")["train"])
    assert {key for key in keys if "_" not in key} == kept and set(map(group_of, keys)) == kept
    assert len(keys) == 3 + 2 + 1 + N
    assert trainer._restored_tq_prompt_count == 2, "verl fetches as many prompts ahead as are missing"
