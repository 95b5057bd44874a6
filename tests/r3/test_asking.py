"""All-wrong groups asked again while their batch is generated: which, once, and held until the answers are there."""

from itertools import permutations

import pytest
import torch
import transfer_queue as tq
from collector import N, finish_step, read, stored, write_group
from tensordict import NonTensorStack, TensorDict

from recipe.common.rows import Origin, groups_of, is_reflection, tags_of, uid_of
from recipe.r3.replay.asking import Asker, due

WRONG, MIXED = ("wrong",) * N, ("right", *("wrong",) * (N - 1))


@pytest.mark.parametrize(
    ("is_hard", "cap", "expected"),
    [
        ({"b": True}, 1, []),
        ({"a": False, "b": True}, 1, ["b"]),
        ({"a": True, "b": True}, 1, ["a"]),
        ({"a": True, "c": True}, 2, ["a"]),
        ({"a": True, "b": False, "c": True}, 2, ["a", "c"]),
        ({"a": True}, 0, []),
        ({"a": True}, -1, []),
    ],
)
def test_due(is_hard, cap, expected):
    assert due("abc", is_hard, cap) == expected


@pytest.mark.parametrize("cap", range(5))
def test_who_is_finished_first_does_not_decide(cap):
    hard = {"a": True, "b": False, "c": True, "d": True}
    for arrival in permutations("abcd"):
        known, asked = {}, []
        for uid in arrival:
            known[uid] = hard[uid]
            new = due("abcd", known, cap)
            assert set(asked) <= set(new), "what was asked cannot be taken back"
            asked = new
        assert asked == ["a", "c", "d"][:cap]


class Rollout:
    """Answers reflection prompts in place of the rollout workers, when it is told to."""

    def __init__(self, buffer, outcomes=("right", *("wrong",) * (N - 1))):
        self.buffer, self.outcomes, self.asked = buffer, outcomes, []
        buffer.asker = Asker(self.prompts, self.submit, buffer.replayer.is_known, seed=0, reading=buffer.reading)

    def prompts(self, groups, step):
        self.asked += [(uid, group.row["query_id"], group.attempt.correct) for uid, group in groups.items()]
        uids = NonTensorStack(*(f"reflection-{uid}" for uid in groups))
        return TensorDict({"uid": uids, "step": torch.full((len(uids),), step)}, batch_size=len(uids))

    def submit(self, batch):
        queries = {uid: query for uid, query, _ in self.asked}
        for uid, step in zip(batch["uid"], batch["step"].tolist(), strict=True):
            plain = uid.removeprefix("reflection-")
            write_group(queries[plain], self.outcomes, step, variant="reflection", of=plain)
        return len(batch)

    def plain(self, query, outcomes, step=1, **changes):
        uid = write_group(query, outcomes, step, **changes)
        self.buffer.asker.remember({"uid": [uid], "query_id": [query]})
        return uid


def test_an_all_wrong_group_is_rescued_in_the_step_that_asks_it(make_buffer, history):
    buffer = make_buffer()
    buffer.reflection_cap = 2
    rollout = Rollout(buffer)
    easy, hard = rollout.plain("easy", MIXED), rollout.plain("hard", WRONG)
    batch, _ = buffer.sample(1, "train", 2)
    assert rollout.asked == [(hard, "hard", False)]
    assert buffer.step_metrics()["reflection/at_once/prompts"] == 1
    assert buffer.step_metrics()["reflection/at_once/prompts"] == 0, "told once"
    tags = tags_of(batch)
    groups = {uid: [tags[p] for p in positions] for uid, positions in groups_of(batch.keys, tags).items()}
    assert set(groups) == {easy, hard, f"reflection-{hard}"}
    assert [tag.origin for tag in groups[hard]] == [Origin.FRESH] * N + [Origin.REPLAYED]
    assert groups[hard][-1].correct
    assert {tag.group for tag in groups[f"reflection-{hard}"]} == {"hard"}
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_what_nothing_was_found_for_comes_as_it_is(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap = 2
    rollout = Rollout(buffer, outcomes=WRONG)
    hard = rollout.plain("hard", WRONG)
    batch, _ = buffer.sample(1, "train", 1)
    assert {uid_of(key) for key in batch.keys} == {hard, f"reflection-{hard}"}
    assert not any(tag.is_replayed for tag in tags_of(batch))
    assert len(rollout.asked) == 1


def test_nothing_is_asked_twice_or_without_need(make_buffer, history):
    """Asked with its batch already; known to the history; all right; a reward function that failed; a lost rollout."""
    history.add([stored(query="known")], step=0)
    buffer = make_buffer()
    buffer.reflection_cap, buffer.reflection_groups = 9, 1
    rollout = Rollout(buffer)
    planned = rollout.plain("planned", WRONG)
    write_group("planned", WRONG, 1, variant="reflection", of=planned)
    rollout.plain("known", WRONG)
    rollout.plain("right", ("right",) * N)
    rollout.plain("lost", WRONG[:1], status="failure")
    batch, _ = buffer.sample(1, "train", 4)
    assert rollout.asked == []
    assert len(groups_of(batch.keys, tags_of(batch))) == 5


def test_the_cap_holds_for_what_was_planned_too(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap, buffer.reflection_groups = 3, 1
    rollout = Rollout(buffer)
    planned = rollout.plain("planned", MIXED)
    write_group("planned", WRONG, 1, variant="reflection", of=planned)
    for name in "abcd":
        rollout.plain(name, WRONG)
    batch, _ = buffer.sample(1, "train", 5)
    assert len(rollout.asked) == 2
    assert sum(is_reflection(uid) for uid in groups_of(batch.keys, tags_of(batch))) == 3


def test_in_the_asynchronous_modes_a_group_waits_for_its_own_reflection_alone(make_async):
    buffer = make_async(cap=2)
    rollout = Rollout(buffer)
    rollout.submit = lambda batch: [
        tq.kv_put(uid, partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1})
        for uid in batch["uid"]
    ]
    buffer.asker.submit = rollout.submit
    hard = rollout.plain("hard", WRONG)
    first, second = rollout.plain("first", MIXED), rollout.plain("second", MIXED)
    batch, _ = buffer.sample(1, "train", 2)
    assert {uid_of(key) for key in batch.keys} == {first, second}
    finish_step(batch)
    third = rollout.plain("third", MIXED, step=2)
    write_group("hard", ("right", *WRONG[1:]), 2, variant="reflection", of=hard)
    batch, _ = buffer.sample(2, "train", 2)
    assert {uid_of(key) for key in batch.keys} == {hard, third, f"reflection-{hard}"}
    replayed = [tag for tag in tags_of(batch) if tag.is_replayed]
    assert [tag.group for tag in replayed] == ["hard"]
    assert len(rollout.asked) == 1
    assert read(batch)
