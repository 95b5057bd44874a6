"""verl's recorded rollouts (`skip.rollout_tq`): a step comes back as it was, also with groups that wait."""

import collector
import pytest
import transfer_queue as tq
from collector import N, finish_step, read, write_group
from omegaconf import OmegaConf

from recipe.common.metrics import group_ledger
from recipe.common.rows import RowKey, groups_of, is_reflection, reflection_uid, tags_of
from recipe.r3.replay.holding import Holder
from recipe.r3.replay.ways import Ways
from verl.utils.skip import SkipManager

STEPS = (1, 2)
OUTCOMES = {"hard": ("wrong",) * N, "easy": ("right", "wrong", "cut"), "later": ("wrong", "right", "wrong")}
FOUND = ("wrong", "wrong", "right")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """verl's recording of both steps."""
    for name in ("config", "step", "skip_instances"):
        monkeypatch.setattr(SkipManager, name, getattr(SkipManager, name))
    off = {"enable": False}
    skip = {"enable": True, "dump_dir": str(tmp_path), "steps": list(STEPS)}
    config = {
        "skip": {"rollout": off, "async_rollout": off, "rollout_tq": skip},
        "trainer": {"v1": {"trainer_mode": "sync"}},
        "actor_rollout_ref": {"rollout": {"n": N}},
        "data": {"train_batch_size": 2},
    }
    SkipManager.init(OmegaConf.create(config))
    return SkipManager.skip_instances["rollout_tq"]


def run(buffer, name: str, generate) -> list:
    """Both steps: of each group of a batch, what it is and its answers by session; and the ledgers."""
    buffer.reflection_cap, told = 2, []
    buffer.holder, buffer.ways = Holder(0, fits=lambda group: True), Ways("plain", 0)
    for step, queries in zip(STEPS, (("hard", "easy"), ("later",)), strict=True):
        asked = [(uid, group.attempt.query_id) for uid, group in buffer.holder.groups().items()]
        prompts = [(f"{name}-{query}", query) for query in queries]
        prompts += [(reflection_uid(uid), query) for uid, query in asked]
        SkipManager.set_step(step)
        generate(step, prompts)
        buffer.may_hold, buffer.reflection_groups = step == 1, len(asked)
        batch, metrics = buffer.sample(step, "train", len(queries))
        rows = read(batch)
        for uid, positions in groups_of(batch.keys, tags_of(batch)).items():
            keys = [batch.keys[position] for position in positions]
            answers = sorted((RowKey.parse(key).session, rows[key]["responses"].tolist()) for key in keys)
            told.append((is_reflection(uid), rows[keys[0]]["query_id"], answers))
        told += [group_ledger(batch, {}), metrics["groups/held"], buffer.step_metrics()]
        finish_step(batch)
    return told


def test_a_step_comes_back_as_it_was(make_buffer, new_history, recorded, monkeypatch):
    """Also where the prompts that were submitted last were answered first."""

    def roll_out(step, prompts) -> None:
        marks = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in prompts]
        tq.kv_batch_put(keys=[uid for uid, _ in prompts], partition_id="train", tags=marks)
        for uid, query in reversed(prompts):
            monkeypatch.setattr(collector.uuid, "uuid4", lambda uid=uid: uid)
            outcomes = FOUND if is_reflection(uid) else OUTCOMES[query]
            write_group(query, outcomes, step, of=uid.partition("reflection-")[2], backwards=True)

    def replay(step, prompts) -> None:
        assert recorded.maybe_load_and_inject(step, [uid for uid, _ in prompts])

    told = []
    for name, generate in (("first", roll_out), ("second", replay)):
        buffer = make_buffer()
        buffer.replayer.history = new_history(16)
        told.append(run(buffer, name, generate))
    assert told[0] == told[1]
    (_, query, answers) = told[0][-4]
    assert (query, len(answers)) == ("hard", 2 * N), "further answers joined the group that waited"
