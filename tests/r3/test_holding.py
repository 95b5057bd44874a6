"""All-wrong groups that wait one step: their rows train with the next batch, whole, once, also over a restart."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
import transfer_queue as tq
from collector import N, finish_step, read, stored, write_group
from omegaconf import OmegaConf

from recipe.common.metrics import group_ledger
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import Origin, groups_of, tags_of, uid_of
from recipe.r3.config.r3_config import R3Config
from recipe.r3.r3_trainer import R3Mixin
from recipe.r3.replay.holding import FILE, Holder, _plain
from recipe.r3.replay.ways import Ways

WRONG, MIXED = ("wrong",) * N, ("right", *("wrong",) * (N - 1))


@pytest.fixture
def buffer(make_buffer):
    buffer = make_buffer()
    buffer.reflection_cap, buffer.may_hold = 2, True
    buffer.holder = Holder(0, fits=lambda group: group.row["query_id"] != "too long")
    return buffer


def uids(batch: KVBatchMeta) -> set[str]:
    return set(map(uid_of, batch.keys))


def answer(buffer, outcomes=("right", *WRONG[1:]), step=2) -> list[str]:
    """What the planner and the rollout workers do for the groups that wait."""
    groups = buffer.holder.groups()
    buffer.reflection_groups = len(groups)
    return [
        write_group(group.attempt.query_id, outcomes, step, variant="reflection", of=uid)
        for uid, group in groups.items()
    ]


def test_a_group_waits_and_trains_whole_with_what_was_found(buffer, history):
    hard, easy = write_group("hard", WRONG, 1), write_group("easy", MIXED, 1)
    batch, metrics = buffer.sample(1, "train", 2)
    assert uids(batch) == {easy}
    assert metrics["groups/held"] == 1
    assert {key for key, tag in tq.kv_list("train")["train"].items() if tag["waited"]} == set(buffer.holder.keys)
    finish_step(batch)
    (asked,) = answer(buffer)
    later = write_group("later", MIXED, 2)
    batch, metrics = buffer.sample(2, "train", 1)
    assert uids(batch) == {hard, asked, later}
    assert metrics["groups/held"] == 0
    tags, rows = tags_of(batch), read(batch)
    mine = [tags[position] for position in groups_of(batch.keys, tags)[hard]]
    assert [tag.origin for tag in mine] == [Origin.FRESH] * N + [Origin.REPLAYED]
    assert [tag.waited for tag in mine] == [True] * N + [False]
    assert [int(rows[f"{hard}_{session}_0"]["responses"][0]) for session in range(N)] == [100, 101, 102]
    assert all(rows[f"{hard}_{session}_0"]["rollout_log_probs"].eq(-0.25).all() for session in range(N))
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"
    history.flush()
    attempts = dict(history._db.execute("SELECT variant, sum(attempts) FROM statistics GROUP BY variant"))
    assert sorted(attempts.values()) == [N, 3 * N], "the rows that waited are counted once"


def test_a_group_for_which_nothing_was_found_waits_no_longer(buffer):
    hard = write_group("hard", WRONG, 1)
    write_group("easy", MIXED, 1)
    finish_step(buffer.sample(1, "train", 2)[0])
    answer(buffer, outcomes=WRONG)
    write_group("later", MIXED, 2)
    batch, _ = buffer.sample(2, "train", 1)
    assert hard in uids(batch)
    assert buffer.holder.keys == []


def test_a_group_that_further_answers_joined_waits_no_longer(buffer, history):
    """Also where they come before its own rows in the batch, and none is right."""
    buffer.ways = Ways("plain", 0)
    hard = write_group("hard", WRONG, 1)
    write_group("easy", MIXED, 1)
    finish_step(buffer.sample(1, "train", 2)[0])
    ((uid, group),) = buffer.holder.groups().items()
    buffer.reflection_groups = 1
    write_group(group.attempt.query_id, WRONG, 2, of=uid)
    write_group("later", WRONG, 2)
    batch, metrics = buffer.sample(2, "train", 1)
    assert metrics["groups/held"] == 1 and set(map(uid_of, buffer.holder.keys)).isdisjoint({hard})
    tags = tags_of(batch)
    mine = [tags[position] for position in groups_of(batch.keys, tags)[hard]]
    assert sorted((tag.waited, tag.again) for tag in mine) == [(False, True)] * N + [(True, False)] * N
    finish_step(batch)
    tq.kv_clear(keys=buffer.holder.keys, partition_id="train")
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_who_does_not_wait(buffer, history):
    """Rescued by the history; all right; asked in this step already; of another step; whose prompt does not fit."""
    history.add([stored(query="known")], step=0)
    names = {name: write_group(name, WRONG, 1) for name in ("known", "planned", "too long")}
    names["right"] = write_group("right", ("right",) * N, 1)
    names["reflection"] = write_group("planned", WRONG, 1, variant="reflection", of=names["planned"])
    buffer.reflection_groups = 1
    batch, _ = buffer.sample(1, "train", 4)
    assert uids(batch) == set(names.values())
    replayed = [key for key, tag in zip(batch.keys, tags_of(batch), strict=True) if tag.is_replayed]
    assert [uid_of(key) for key in replayed] == [names["known"]]


def test_at_most_the_cap_waits_and_never_a_whole_batch(buffer):
    first = [write_group(f"hard{number}", WRONG, 1) for number in range(2)]
    batch, metrics = buffer.sample(1, "train", 2)
    assert metrics["groups/held"] == 1
    assert len(uids(batch) & set(first)) == 1
    finish_step(batch)
    answer(buffer)
    for number in range(4):
        write_group(f"next{number}", WRONG, 2)
    _, metrics = buffer.sample(2, "train", 4)
    assert metrics["groups/held"] == 2


def test_none_waits_for_a_step_that_never_comes(buffer):
    buffer.may_hold = False
    hard = write_group("hard", WRONG, 1)
    write_group("easy", MIXED, 1)
    batch, _ = buffer.sample(1, "train", 2)
    assert hard in uids(batch)


def test_the_choice_does_not_depend_on_uids_or_arrival(make_buffer):
    chosen = Counter()
    for order in (range(6), reversed(range(6))):
        buffer = make_buffer()
        buffer.reflection_cap, buffer.may_hold = 2, True
        buffer.holder = Holder(0, fits=lambda group: True)
        for number in order:
            write_group(f"q{number}", WRONG, 1)
        batch, _ = buffer.sample(1, "train", 6)
        chosen[frozenset(group.attempt.query_id for group in buffer.holder.groups().values())] += 1
        finish_step(batch)
        tq.kv_clear(keys=buffer.holder.keys, partition_id="train")
    ((queries, times),) = chosen.items()
    assert (len(queries), times) == (2, 2)


def test_the_attempt_that_is_shown_does_not_depend_on_which_answer_was_finished_first(make_buffer):
    shown = []
    for backwards in (False, True):
        buffer = make_buffer()
        buffer.reflection_cap, buffer.may_hold = 4, True
        buffer.holder = Holder(0, fits=lambda group: True)
        for number in range(4):
            write_group(f"q{number}", WRONG, 1, backwards=backwards)
        write_group("easy", MIXED, 1)
        batch, _ = buffer.sample(1, "train", 5)
        groups = buffer.holder.groups().values()
        shown.append({group.attempt.query_id: group.attempt.tokens.tolist() for group in groups})
        finish_step(batch)
        tq.kv_clear(keys=buffer.holder.keys, partition_id="train")
    assert len(shown[0]) == 4 and shown[0] == shown[1]


def test_a_batch_keeps_a_plain_group_also_where_one_lost_all_its_answers(buffer):
    """verl's metrics are those of plain groups."""
    buffer.reflection_cap, buffer.reflection_groups = 4, 1
    lost = write_group("lost", (), 1, status="failure")
    asked = write_group("lost", WRONG, 1, variant="reflection", of=lost)
    hard = [write_group(f"hard{number}", WRONG, 1) for number in range(2)]
    batch, metrics = buffer.sample(1, "train", 3)
    assert metrics["groups/held"] == 1 and asked in uids(batch)
    assert len(uids(batch) & set(hard)) == 1


@pytest.mark.parametrize("lost", [WRONG[:1], ()])
def test_answers_that_were_lost_hold_nobody_back(buffer, lost):
    """Of the group itself, and of what was asked for it."""
    hard = write_group("hard", WRONG[:2], 1, status="failure")
    write_group("easy", MIXED, 1)
    finish_step(buffer.sample(1, "train", 2)[0])
    ((uid, group),) = buffer.holder.groups().items()
    buffer.reflection_groups = 1
    write_group(group.attempt.query_id, lost, 2, variant="reflection", of=uid, status="failure")
    write_group("later", MIXED, 2)
    batch, metrics = buffer.sample(2, "train", 1)
    assert hard in uids(batch) and metrics["groups/held"] == 0
    assert len(batch) == 2 + len(lost) + N
    finish_step(batch)
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_over_a_run_with_restarts_every_group_trains_once(make_buffer, tmp_path):
    """Steps with groups of all outcomes and ways; the process is another one after each checkpoint."""
    rng, steps, prompts = random.Random(5), 9, 4
    written, trained, held = {}, Counter(), 0
    for step in range(1, steps + 1):
        buffer = make_buffer()
        buffer.reflection_cap, buffer.may_hold = 2, step < steps
        buffer.holder, buffer.ways = Holder(0, fits=lambda group: True), Ways("adaptive", 0)
        for part in (buffer.holder, buffer.ways):
            part.load(tmp_path / str(step - 1))
        for number in range(prompts):
            outcomes = rng.choice([WRONG, WRONG, MIXED, ("right",) * N])
            written[write_group(f"q{step}-{number}", outcomes, step, backwards=rng.random() < 0.5)] = N
        for uid, group in buffer.holder.groups().items():
            way = buffer.ways.way(group.attempt.query_id, group.attempt.step)
            found = rng.choice([WRONG, MIXED])
            written[write_group(group.attempt.query_id, found, step, variant=way, of=uid)] = N
            buffer.reflection_groups += 1
        batch, metrics = buffer.sample(step, "train", prompts)
        fresh = [row for row, tag in zip(read(batch).values(), tags_of(batch), strict=True) if tag.is_fresh]
        trained.update(f"{int(row['responses'][0])} of {row['query_id']}" for row in fresh)
        assert group_ledger(batch, {})["groups/total"] == prompts + held - metrics["groups/held"]
        held = metrics["groups/held"]
        for part in (buffer.holder, buffer.ways):
            part.save(tmp_path / str(step))
        finish_step(batch)
        if buffer.holder.keys:
            tq.kv_clear(keys=buffer.holder.keys, partition_id="train")  # as with its process
    assert held == 0 and max(trained.values()) == 1
    assert sum(trained.values()) == sum(written.values())
    assert not tq.kv_list("train").get("train"), "nothing is left behind"


def test_a_checkpoint_whose_weights_are_gone_keeps_no_rows(buffer, tmp_path):
    write_group("hard", WRONG, 1)
    write_group("easy", MIXED, 1)
    buffer.sample(1, "train", 2)
    for step in (1, 2):
        buffer.holder.save(tmp_path / f"global_step_{step}")
        (tmp_path / f"global_step_{step}" / "actor").mkdir()
    (tmp_path / "global_step_1" / "actor").rmdir()  # as verl and the recipe leave it
    buffer.holder.save(tmp_path / "global_step_3")
    assert sorted(file.parent.name for file in tmp_path.rglob(FILE)) == ["global_step_2", "global_step_3"]


def test_a_checkpoint_brings_back_what_waited(buffer, tmp_path):
    hard = write_group("hard", WRONG, 1)
    write_group("easy", MIXED, 1)
    batch, _ = buffer.sample(1, "train", 2)
    before = read(KVBatchMeta(partition_id="train", keys=buffer.holder.keys, tags=buffer.holder.tags))
    groups = buffer.holder.groups()
    buffer.holder.save(tmp_path / "global_step_1")
    finish_step(batch)
    tq.kv_clear(keys=buffer.holder.keys, partition_id="train")
    holder = Holder(0, fits=lambda group: True)
    holder.load(tmp_path / "global_step_1")
    assert holder.keys == buffer.holder.keys
    after = read(KVBatchMeta(partition_id="train", keys=holder.keys, tags=holder.tags))
    for key, row in before.items():
        assert row.keys() == after[key].keys()
        for name, value in row.items():
            assert torch.equal(value, after[key][name]) if torch.is_tensor(value) else value == after[key][name]
    assert {uid: group.attempt.tokens.tolist() for uid, group in holder.groups().items()} == {
        uid: group.attempt.tokens.tolist() for uid, group in groups.items()
    }
    assert set(groups) == {hard}


def test_a_checkpoint_of_a_step_in_which_none_waits_brings_back_none(buffer, tmp_path):
    (tmp_path / FILE).write_bytes(b"of an earlier run")
    buffer.holder.save(tmp_path)
    buffer.holder.load(tmp_path)
    assert buffer.holder.keys == []


class Loads:
    """verl's part of a resume, done already."""

    def _load_checkpoint(self) -> None:
        self.global_steps = 3


class Resumed(R3Mixin, Loads):
    def __init__(self, buffer, history, tokenizer, **trainer):
        self.replay_buffer, self.history, self.tokenizer = buffer, history, tokenizer
        model = {"model": {"path": "a model"}}
        self.config = OmegaConf.create({"trainer": trainer, "actor_rollout_ref": model})
        self._name, self.r3 = "r3", R3Config()


@pytest.mark.parametrize("is_named", [False, True])
def test_what_waited_comes_from_the_checkpoint_that_training_goes_on_from(
    buffer, history, tokenizer, tmp_path, is_named
):
    """Also where a checkpoint in another folder is named, and this one has one of the same step."""
    waits = {}
    for name in ("mine", "other"):
        waits[name] = write_group(name, WRONG, 3)
        write_group("easy", MIXED, 3)
        finish_step(buffer.sample(3, "train", 2)[0])
        buffer.holder.save(checkpoint := tmp_path / name / "global_step_3")
        (checkpoint / "actor").mkdir()
        (checkpoint / "data.pt").touch()
        (tmp_path / name / "latest_checkpointed_iteration.txt").write_text("3")
        tq.kv_clear(keys=buffer.holder.keys, partition_id="train")
    named = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "other" / "global_step_3")}
    settings = named if is_named else {"resume_mode": "auto"}
    buffer.holder = Holder(0, fits=lambda group: True)
    Resumed(buffer, history, tokenizer, default_local_dir=str(tmp_path / "mine"), **settings)._load_checkpoint()
    assert set(buffer.holder.groups()) == {waits["other" if is_named else "mine"]}


def test_it_is_told_that_groups_wait_for_nothing_where_none_is_asked_in_the_next_step(
    buffer, history, tokenizer, tmp_path, caplog
):
    write_group("hard", WRONG, 3)
    write_group("easy", MIXED, 3)
    finish_step(buffer.sample(3, "train", 2)[0])
    buffer.holder.save(checkpoint := tmp_path / "global_step_3")
    (checkpoint / "actor").mkdir()
    (checkpoint / "data.pt").touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    buffer.holder = None
    Resumed(buffer, history, tokenizer, default_local_dir=str(tmp_path), resume_mode="auto")._load_checkpoint()
    assert "these groups waited, and will not train; they would with algorithm.r3.reflection.when" in caplog.text


def test_plain():
    kept = _plain({"a": np.arange(2), "b": (np.float32(0.5), ["x", {"c": np.int64(3)}]), "t": torch.ones(1)})
    assert kept == {"a": [0, 1], "b": [0.5, ["x", {"c": 3}]], "t": torch.ones(1)}


def test_plain_inside_an_array_of_objects_and_under_its_own_keys():
    """As pandas has nested columns, and a class of the user's that reads by it (`data.custom_cls`)."""
    kept = _plain({"a": np.array([{"x": np.arange(2), 1: None}, "y"], dtype=object)})
    assert kept == {"a": [{"x": [0, 1], 1: None}, "y"]}
