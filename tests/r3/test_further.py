"""Further answers to an all-wrong group's plain prompt: rows of the group, on policy, once, and nothing left behind."""

import pytest
import transfer_queue as tq
from collector import TEXTS, N, finish_step, read, write_group

from recipe.common.metrics import group_ledger, series_metrics
from recipe.common.rows import RowKey, groups_of, plain_keys, tags_of, uid_of
from recipe.r3.replay.ways import Ways

WRONG, FOUND = ("wrong",) * N, ("wrong", "right", "wrong")


def with_ways(make_buffer, ask: str = "plain"):
    buffer = make_buffer()
    buffer.ways = Ways(ask, 0)
    return buffer


def test_they_join_their_group_as_answers_of_this_step(make_buffer, history):
    buffer = with_ways(make_buffer)
    hard = write_group("hard", WRONG, 1)
    write_group("hard", FOUND, 2, of=hard)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert {uid_of(key) for key in batch.keys} == {hard}
    assert sorted(RowKey.parse(key).session for key in batch.keys) == list(range(2 * N))
    tags, written = tags_of(batch), read(batch)
    ((uid, positions),) = groups_of(batch.keys, tags).items()
    assert (uid, len(positions)) == (hard, 2 * N)
    assert sorted(tag.again for tag in tags) == [False] * N + [True] * N
    assert all(tag.is_fresh and not tag.is_replayed for tag in tags), "nothing has to be replayed"
    first = {int(row["responses"][0]) for key, row in written.items() if RowKey.parse(key).session < N}
    more = {int(row["responses"][0]) for key, row in written.items() if RowKey.parse(key).session >= N}
    assert (first, more) == ({100, 101, 102}, {200, 201, 202})
    assert {row["uid"] for row in written.values()} == {hard}, "advantages are taken over all of them"
    assert all(row["session_id"] == RowKey.parse(key).session for key, row in written.items())
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"
    history.flush()
    ((attempts, successes),) = history._db.execute("SELECT sum(attempts), sum(successes) FROM statistics")
    assert (attempts, successes) == (2 * N, 1)


def test_the_group_counts_as_it_is_with_them_and_series_of_plain_answers_do_not(make_buffer):
    buffer = with_ways(make_buffer)
    hard = write_group("hard", WRONG, 1)
    write_group("hard", FOUND, 2, of=hard)
    lost = write_group("lost", WRONG, 1)
    write_group("lost", WRONG, 2, of=lost)
    buffer.reflection_groups = 2
    batch, _ = buffer.sample(2, "train", 2)
    ledger, series = group_ledger(batch, {}), series_metrics(batch)
    assert [ledger[f"groups/{name}"] for name in ("total", "mixed", "all_wrong", "still_wrong")] == [2, 1, 1, 1]
    assert ledger["reflection/groups/total"] == 0
    assert len(plain_keys(batch)) == series["fresh/rows"] == 2 * N
    assert (series["reflection/rows"], series["trained/rows"], series["fresh/acc/mean"]) == (2 * N, 4 * N, 0.0)
    metrics = buffer.step_metrics()
    assert [metrics[f"reflection/by_plain/{name}"] for name in ("asked", "found")] == [2, 1]
    assert metrics["reflection/by_plain/tokens"] == sum(2 * (2 + session) for session in range(N))
    assert metrics["reflection/by_reflection/asked"] == 0


def test_a_group_that_a_reflection_prompt_asked_stays_a_group_of_its_own(make_buffer):
    buffer = with_ways(make_buffer, "reflection")
    hard = write_group("hard", WRONG, 1)
    asked = write_group("hard", FOUND, 2, variant="reflection", of=hard)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert {uid_of(key) for key in batch.keys} == {hard, asked}
    assert sum(tag.is_replayed for tag in tags_of(batch)) == 1
    assert buffer.step_metrics()["reflection/by_reflection/found"] == 1


def test_a_way_has_found_nothing_by_answers_that_may_not_be_replayed(make_buffer):
    """`adaptive` would go on asking by a prompt whose right answers rescue nobody."""
    buffer = with_ways(make_buffer, "adaptive")
    buffer.replayer.decode = lambda ids: TEXTS[60]
    hard = write_group("hard", WRONG, 1)
    write_group("hard", FOUND, 2, variant="reflection", of=hard)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert not any(tag.is_replayed for tag in tags_of(batch))
    metrics = buffer.step_metrics()
    assert [metrics[f"reflection/by_reflection/{name}"] for name in ("asked", "found")] == [1, 0]


def test_without_their_group_they_are_one_that_was_asked_again(make_buffer):
    buffer = with_ways(make_buffer)
    other = write_group("other", ("right", *WRONG[1:]), 2)
    alone = write_group("hard", FOUND, 2, of="gone")
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert {uid_of(key) for key in batch.keys} == {other, alone}
    ledger, series = group_ledger(batch, {}), series_metrics(batch)
    assert (ledger["groups/total"], ledger["reflection/groups/total"]) == (1, 1), "a batch has its number of groups"
    assert (series["fresh/rows"], series["reflection/rows"]) == (N, N)
    assert set(plain_keys(batch)) == {key for key in batch.keys if uid_of(key) == other}
    written = tq.kv_list("train")["train"]
    assert all(written[key]["again"] == (uid_of(key) == alone) for key in batch.keys), "verl reads the tags again"


def test_answers_to_another_problem_join_nobody(make_buffer):
    """verl's recorded rollouts (`skip.rollout_tq`) come under the uids of the step in any order."""
    buffer = with_ways(make_buffer)
    hard = write_group("hard", WRONG, 1)
    other = write_group("other", FOUND, 1, of=hard)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(1, "train", 1)
    groups = groups_of(batch.keys, tags_of(batch))
    assert {uid: len(positions) for uid, positions in groups.items()} == {hard: N, other: N}
    metrics = buffer.step_metrics()
    assert [metrics[f"reflection/by_{way}/asked"] for way in ("plain", "reflection")] == [0, 0]


@pytest.mark.parametrize(("first", "more"), [(WRONG, ("failed",) * N), (("failed",) * N, WRONG)])
def test_making_the_reward_function_fail_does_not_pay_in_a_joined_group_either(make_buffer, first, more):
    buffer = with_ways(make_buffer)
    hard = write_group("hard", first, 1, wrong=-1.0)
    write_group("hard", more, 2, of=hard, wrong=-1.0)
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(2, "train", 1)
    assert {tag.score for tag in tags_of(batch)} == {-1.0}
    assert {float(row["rm_scores"].sum()) for row in read(batch).values()} == {-1.0}
