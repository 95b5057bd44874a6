"""A batch without a session ends the run with what happened to them; a batch with some goes on."""

import pytest
import transfer_queue as tq

from recipe.common import queue
from recipe.common.trainer.discarded import watched
from recipe.common.trainer.failed import told
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

HUNG, ENDED = "the environment hung: raise the deadline", "its process ended"


@pytest.fixture(params=[("sync", ReplayBuffer), ("separate_async", ReplayBufferAsync)], ids=lambda param: param[0])
def buffer(transfer_queue, request):
    mode, cls = request.param
    return watched(cls(mode, {}, None, "drop", {}, poll_interval=0.02, refill_fn=lambda count: None))


def finish(uid: str, partition: str, failed: dict[int, str], rows: int = 0) -> None:
    """A group as the rollout worker leaves it."""
    for session, why in failed.items():
        tq.kv_put(key=f"{uid}_{session}", partition_id=queue.FAILED, tag={"why": why})
    if rows:
        keys = [f"{uid}_{session}_0" for session in range(rows)]
        queue.write(partition, keys, tags=[{"response_len": 1}] * rows)
    tq.kv_put(key=uid, partition_id=partition, tag={"is_prompt": True, "status": "finished", "global_steps": 1})


@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_batch_without_a_session_ends_the_run_and_says_why(buffer, partition):
    finish("a", partition, {0: HUNG, 1: ENDED, 2: HUNG})
    finish("b", partition, {0: HUNG})
    with pytest.raises(RuntimeError, match=f"all 4 sessions of a batch to .* failed: 3 x {HUNG}; 1 x {ENDED}$"):
        buffer.sample(1, partition, 2)


@pytest.mark.parametrize("partition", ["train", "val"])
def test_a_failed_session_leaves_its_group_to_the_others_and_is_told_once(buffer, partition, caplog):
    finish("a", partition, {0: HUNG, 1: HUNG})
    finish("b", partition, {2: ENDED}, rows=2)
    finish("later", "val" if partition == "train" else "train", {0: ENDED})
    batch, _ = buffer.sample(1, partition, 2)
    assert batch.keys == ["b_0_0", "b_1_0"]
    assert f"{partition}: 3 sessions failed: 2 x {HUNG}; 1 x {ENDED}" in caplog.text
    assert [*tq.kv_list(queue.FAILED)[queue.FAILED]] == ["later_0"]


def test_many_reasons_are_cut_short():
    assert told(["a", "b", "a", "c", "d", "e"]) == "2 x a; 1 x b; 1 x c; 2 for other reasons"
