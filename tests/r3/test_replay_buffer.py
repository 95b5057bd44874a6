import random

import numpy as np
import pytest
import torch
import transfer_queue as tq
from collector import PROMPT, N, finish_step, read, stored, write_group

from recipe.common.metrics import group_ledger, series_metrics
from recipe.common.outcome import dead_outcome
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, REFLECTION, REPLAY_MARK, groups_of, tags_of
from recipe.common.trainer.discarded import watched
from recipe.r3.core_algos import compute_r3_advantage
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


def test_answers_of_several_turns_end_the_run(make_buffer):
    write_group("q", ("wrong", "turns", *["right"] * (N - 2)), step=1)
    with pytest.raises(ValueError, match="holds tokens that the model did not write: .* answers of one turn"):
        make_buffer().sample(1, "train", 1)


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
    assert len(first) == 12 and all(tag.is_fresh for tag in tags_of(first))
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
    samples = history.draw("mixed", False, 99, random.Random(0))
    stored_now = sorted((len(sample.tokens), sample.truncated, sample.step) for sample in samples)
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


def test_answers_born_under_reflection_reach_plain_groups(make_buffer, history):
    history.add([stored(correct=True, step=1, variant=REFLECTION)], step=1)
    write_group("q", ("wrong",) * N, step=2)
    batch, _ = make_buffer().sample(2, "train", 1)
    assert len(batch) == N + 1


@pytest.mark.parametrize("same_step", [False, True])
def test_reflection_rescues_the_plain_uid_of_its_own_step_on_request(make_buffer, history, same_step):
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


def test_what_the_history_holds_comes_before_what_the_step_found(make_buffer, history):
    history.add([stored(correct=True, step=1, tokens=[55], log_probs=[-0.1])], step=1)
    uid = write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("right",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(k=1, same_step=True)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert len(batch) == 2 * N + 1 and read(batch)[f"{uid}_{N}_0"]["responses"].tolist() == [55]


@pytest.mark.parametrize("settings", [{"reflected_unless": "no word"}, {"outcome": "wrong"}])
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
    buffer = make_buffer(k=2)
    batch, _ = buffer.sample(2, "train", 1)
    assert [tag["response_len"] for tag in batch.tags[N:]] == [2]
    assert read(batch)[batch.keys[N]]["responses"].tolist() == [61, 1]
    assert buffer.step_metrics()["replay/passed_over_for_text"] == 1
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


@pytest.mark.parametrize("outcome, rescued", [("both", {"hard", "easy"}), ("correct", {"hard"}), ("wrong", {"easy"})])
def test_only_the_outcomes_that_are_asked_for_are_replayed(history, make_buffer, outcome, rescued):
    samples = [stored(query="hard", correct=True, step=1), stored(query="easy", correct=False, step=1)]
    history.add(samples, step=1)
    write_group("hard", ("wrong",) * N, step=2)
    write_group("easy", ("right",) * N, step=2)
    batch, _ = make_buffer(outcome=outcome).sample(2, "train", 2)
    assert {tag["group"] for tag in batch.tags if tag["origin"] == "replayed"} == rescued


def test_tokens_that_dynamic_sampling_throws_away_are_counted(transfer_queue, make_buffer):
    buffer = ReplayBuffer(
        *("sync", {}, None, "drop", {}),
        **dict(poll_interval=0.02, refill_fn=lambda count: None, filter_groups_metric="acc"),
        **dict(train_batch_size=2, gen_batch_size=1),
    )
    assert watched(buffer) is buffer
    write_group("alive", ("right", "wrong", "cut"), step=1)
    write_group("dead", ("wrong",) * 3, step=1, length=10)  # 10 + 11 + 12 tokens
    write_group("surplus", ("right", "wrong", "wrong"), step=2, length=20)  # 20 + 21 + 22 tokens
    batch, metrics = buffer.sample(1, "train", 1)
    assert len(batch) == 3 and metrics["training/filter_groups/evicted_samples"] == 1
    assert buffer.take_discarded() == (33 + 63, 2 * 3 * len(PROMPT))
    assert buffer.take_discarded() == (0, 0)


def test_what_was_replayed_is_logged_and_max_age_bounds_it(make_buffer, history):
    history.add([stored(correct=True, step=1)], step=1)
    replayed = []
    for step in (2, 3):
        write_group("q", ("wrong",) * N, step)
        batch, _ = make_buffer().sample(step, "train", 1)
        replayed.append(len(batch) - N)
        finish_step(batch)
    assert replayed == [1, 1]
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
    buffer = make_buffer()
    dead = write_group("q", ("wrong", "wrong", "failed", "wrong"), step=1, wrong=-1.0)
    mixed = write_group("r", ("right", "right", "failed"), step=1, wrong=-1.0)
    alone = write_group("s", ("failed", "failed"), step=1, wrong=-1.0)
    batch, _ = buffer.sample(1, "train", 3)
    rows, groups = read(batch), groups_of(batch.keys, tags_of(batch))
    assert [dead_outcome([tags_of(batch)[p] for p in groups[uid]]) for uid in (dead, mixed, alone)] == [
        False,
        None,
        False,
    ]
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
