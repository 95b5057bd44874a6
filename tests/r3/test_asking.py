"""All-wrong groups asked again while their batch is generated: which, once, and held until the answers are there."""

from itertools import permutations

import pytest
import torch
import transfer_queue as tq
from collector import N, finish_prompts, finish_step, read, stored, write_group
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
    """Answers reflection prompts in place of the rollout workers: as they come, or when `answer` is called."""

    def __init__(self, buffer, outcomes=("right", *("wrong",) * (N - 1)), is_slow=False):
        self.buffer, self.outcomes, self.is_slow, self.asked = buffer, outcomes, is_slow, []
        buffer.asker = Asker(self.prompts, self.submit, buffer.replayer.is_known, seed=0, reading=buffer.reading)

    def prompts(self, groups, step):
        self.asked += [(uid, group.row["query_id"], group.attempt.correct) for uid, group in groups.items()]
        uids = NonTensorStack(*(f"reflection-{uid}" for uid in groups))
        return TensorDict({"uid": uids, "step": torch.full((len(uids),), step)}, batch_size=len(uids))

    def submit(self, batch):
        for uid, step in zip(batch["uid"], batch["step"].tolist(), strict=True):
            if self.is_slow:
                mark = {"is_prompt": True, "status": "pending", "global_steps": step}
                tq.kv_put(uid, partition_id="train", tag=mark)
            else:
                self.answer(uid.removeprefix("reflection-"), step)
        return len(batch)

    def answer(self, plain, step, outcomes=None, **changes):
        (query,) = [query for uid, query, _ in self.asked if uid == plain]
        outcomes = self.outcomes if outcomes is None else outcomes
        return write_group(query, outcomes, step, variant="reflection", of=plain, **changes)

    def plain(self, query, outcomes, step=1, **changes):
        uid = write_group(query, outcomes, step, **changes)
        self.buffer.asker.remember({"uid": [uid], "query_id": [query]})
        return uid


def uids(batch) -> set[str]:
    return set(map(uid_of, batch.keys))


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


def test_the_place_of_a_group_whose_prompt_does_not_fit_is_another_ones_also_when_all_are_finished(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap = 2
    rollout = Rollout(buffer)
    fits = {rollout.plain(f"short{number}", WRONG) for number in range(2)}
    for number in range(6):
        rollout.plain(f"long{number}", WRONG)

    def prompts(groups, step):
        groups = {uid: group for uid, group in groups.items() if uid in fits}
        return rollout.prompts(groups, step) if groups else None

    buffer.asker.prompts = prompts
    batch, _ = buffer.sample(1, "train", 8)
    assert {uid for uid, *_ in rollout.asked} == fits and len(rollout.asked) == 2
    assert sum(is_reflection(uid) for uid in uids(batch)) == 2


@pytest.mark.parametrize("cap", [1, 4])
def test_of_equal_problems_in_a_batch_the_first_is_asked_whichever_is_finished_first(make_buffer, cap):
    for finished_first in (0, 1, None):
        buffer = make_buffer()
        buffer.reflection_cap = cap
        rollout = Rollout(buffer, outcomes=WRONG)
        twins = [rollout.plain("twin", WRONG, status="running") for _ in range(2)]
        finish_prompts(buffer, twins[::-1] if finished_first else twins, at_once=finished_first is None)
        batch, _ = buffer.sample(1, "train", 2)
        assert [uid for uid, *_ in rollout.asked] == twins[:1]
        assert uids(batch) == {*twins, f"reflection-{twins[0]}"}
        finish_step(batch)


def test_a_problem_that_is_asked_with_its_batch_is_not_asked_for_its_twin_too(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap, buffer.reflection_groups = 4, 1
    rollout = Rollout(buffer)
    _, planned = rollout.plain("twin", WRONG), rollout.plain("twin", WRONG)
    write_group("twin", WRONG, 1, variant="reflection", of=planned)
    buffer.sample(1, "train", 2)
    assert rollout.asked == []


def test_what_was_asked_comes_in_the_order_of_its_groups_whichever_was_finished_first(make_buffer):
    """The order of a batch decides which rows share an optimizer step."""
    orders = set()
    for arrival in permutations(range(3)):
        buffer = make_buffer()
        buffer.reflection_cap = 3
        rollout = Rollout(buffer, outcomes=WRONG)
        running = [rollout.plain(f"q{number}", WRONG, status="running") for number in range(3)]
        finish_prompts(buffer, [running[number] for number in arrival])
        batch, _ = buffer.sample(1, "train", 3)
        assert [query for _, query, _ in rollout.asked] == [f"q{number}" for number in arrival]
        orders.add(tuple((tag.group, tag.variant) for tag in tags_of(batch)))
        finish_step(batch)
    assert len(orders) == 1


@pytest.mark.parametrize("lost", [("right",), ("wrong",), ()])
def test_a_group_whose_reflection_lost_answers_waits_no_longer_and_is_not_asked_again(make_buffer, lost):
    buffer = make_buffer()
    buffer.reflection_cap = 2
    rollout = Rollout(buffer)
    rollout.submit = buffer.asker.submit = lambda batch: [
        rollout.answer(uid.removeprefix("reflection-"), 1, lost, status="failure") for uid in batch["uid"]
    ]
    hard = rollout.plain("hard", WRONG)
    batch, _ = buffer.sample(1, "train", 1)
    assert len(rollout.asked) == 1 and hard in uids(batch)
    assert sum(tag.is_replayed for tag in tags_of(batch)) == ("right" in lost)
    assert len(batch) == N + len(lost) + ("right" in lost)
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_a_group_that_the_reward_function_failed_on_is_asked_by_an_answer_that_it_judged(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap = 9
    rollout = Rollout(buffer)
    rollout.plain("failed", ("failed",) * N)
    half = rollout.plain("half", ("failed", "wrong", "failed"))
    shown = []
    prompts = buffer.asker.prompts
    buffer.asker.prompts = lambda groups, step: shown.extend(groups.values()) or prompts(groups, step)
    buffer.sample(1, "train", 2)
    assert [uid for uid, *_ in rollout.asked] == [half]
    assert shown[0].attempt.tokens.tolist() == [101] * 3


def test_what_is_too_old_to_be_replayed_in_this_step_rescues_nobody(make_buffer, history):
    """So the group is asked again."""
    history.add([stored(query="old", step=3, version=2), stored(query="young", step=4, version=3)], step=4)
    buffer = make_buffer(max_age=2)
    buffer.reflection_cap = 9
    rollout = Rollout(buffer)
    buffer.replayer.begin(5)  # the step before
    for query in ("old", "young"):
        rollout.plain(query, WRONG, step=6)
    batch, _ = buffer.sample(6, "train", 2)
    assert [query for _, query, _ in rollout.asked] == ["old"]
    assert [tag.group for tag in tags_of(batch) if tag.is_replayed] == ["old", "young"]


def test_in_the_asynchronous_modes_a_group_waits_for_its_own_reflection_alone(make_async):
    buffer = make_async(cap=2)
    rollout = Rollout(buffer, is_slow=True)
    hard = rollout.plain("hard", WRONG)
    first, second = rollout.plain("first", MIXED), rollout.plain("second", MIXED)
    batch, _ = buffer.sample(1, "train", 2)
    assert uids(batch) == {first, second}
    finish_step(batch)
    third = rollout.plain("third", MIXED, step=2)
    rollout.answer(hard, 2)
    batch, _ = buffer.sample(2, "train", 2)
    assert uids(batch) == {hard, third, f"reflection-{hard}"}
    replayed = [tag for tag in tags_of(batch) if tag.is_replayed]
    assert [tag.group for tag in replayed] == ["hard"]
    assert len(rollout.asked) == 1
    assert read(batch)


def test_there_no_more_are_outstanding_than_the_cap_planned_ones_included(make_async):
    """In whichever order groups are finished, and whatever their places are."""
    buffer = make_async(cap=3, threshold=None)
    rollout = Rollout(buffer, is_slow=True)
    write_group("planned", (), 1, variant="reflection", of="in-flight", status="running")
    hard = []
    for step in range(1, 9):
        hard.append(rollout.plain(f"hard{step}", WRONG, step=step))
        rollout.plain(f"easy{step}", MIXED, step=step)
        finish_step(buffer.sample(step, "train", 1)[0])
        assert buffer.step_metrics()["reflection/groups/outstanding"] <= 3
    assert [uid for uid, *_ in rollout.asked] == hard[:2]


def test_there_a_group_is_not_made_too_old_by_waiting(make_async, history):
    """verl throws away what is older than the threshold; what was asked comes when it is there."""
    refills = []
    buffer = make_async(cap=2, strategy="drop", threshold=2, refills=refills)
    rollout = Rollout(buffer, is_slow=True)
    hard, first = rollout.plain("hard", WRONG), rollout.plain("first", MIXED)
    batch, _ = buffer.sample(1, "train", 1)
    assert uids(batch) == {first} and len(rollout.asked) == 1
    finish_step(batch)
    rollout.plain("second", MIXED, step=2)
    batch, _ = buffer.sample(2, "train", 1)
    assert uids(batch) == {hard} and refills == []
    finish_step(batch)
    rollout.answer(hard, 2)
    batch, _ = buffer.sample(3, "train", 1)
    assert f"reflection-{hard}" in uids(batch)
    assert history.success_rates(["hard"], 1, ("reflection",)) == {"hard": 1 / N}
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_there_a_group_whose_reflection_was_evicted_trains_alone(make_async):
    buffer = make_async(cap=2, strategy="drop", threshold=8)
    rollout = Rollout(buffer, is_slow=True)
    hard, _ = rollout.plain("hard", WRONG), rollout.plain("first", MIXED)
    finish_step(buffer.sample(1, "train", 1)[0])
    rollout.answer(hard, 1, WRONG[:1], status="failure")
    batch, _ = buffer.sample(2, "train", 1)
    assert uids(batch) == {hard} and len(rollout.asked) == 1
    assert buffer.step_metrics()["reflection/groups/evicted"] == 1


def test_there_the_answers_of_a_reflection_whose_group_was_evicted_are_kept(make_async, history):
    refills = []
    buffer = make_async(cap=2, strategy="drop", threshold=2, refills=refills)
    rollout = Rollout(buffer, is_slow=True)
    hard, _ = rollout.plain("hard", WRONG), rollout.plain("first", MIXED)
    finish_step(buffer.sample(1, "train", 1)[0])
    rollout.answer(hard, 3)
    later = rollout.plain("later", MIXED, step=4)
    batch, _ = buffer.sample(4, "train", 1)
    assert uids(batch) == {later, f"reflection-{hard}"} and refills == [1]
    rates = [history.success_rates(["hard"], 1, (variant,)) for variant in ("plain", "reflection")]
    assert rates == [{"hard": 0.0}, {"hard": 1 / N}]


def test_there_a_resumed_run_asks_nobody_for_the_second_time(make_async):
    """What the queue brings back: a group whose reflection is in flight, and one whose reflection is there."""
    before = make_async(cap=9)
    rollout = Rollout(before, is_slow=True)
    waits, ready = rollout.plain("waits", WRONG), rollout.plain("ready", WRONG)
    rollout.plain("first", MIXED)
    finish_step(before.sample(1, "train", 1)[0])
    rollout.answer(ready, 1)
    after = make_async(cap=9)
    again = Rollout(after, is_slow=True)
    batch, _ = after.sample(2, "train", 1)
    assert uids(batch) == {ready, f"reflection-{ready}"}
    finish_step(batch)
    rollout.answer(waits, 1)
    batch, _ = after.sample(3, "train", 1)
    assert uids(batch) == {waits, f"reflection-{waits}"}
    assert len(rollout.asked) == 2 and again.asked == []


def test_there_counting_what_is_finished_asks_nothing(make_async):
    """verl counts before it submits the first prompts of a step (`hybrid_rollout.enable_switch`)."""
    buffer = make_async(cap=9)
    rollout = Rollout(buffer)
    hard = write_group("hard", WRONG, 1)
    write_group("lost", (), 1, status="failure")
    assert buffer.get_sampleable_count(1, "train") == 1 and rollout.asked == []
    uids, _ = buffer.wait_for_sampleable(1, "train", 1)
    assert uids == {hard} and len(rollout.asked) == 1
