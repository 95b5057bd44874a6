import pytest
import ray
import transfer_queue as tq
from collector import replayer
from omegaconf import OmegaConf

from recipe.common.trainer.watchdog import StallWatch
from recipe.r3.history.store import History
from recipe.r3.replay.buffer import R3ReplayBuffer
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync


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

    def make(stall_timeout_s: float = 30.0, check_workers=lambda: None, **replay) -> R3ReplayBuffer:
        buffer = R3ReplayBuffer("sync", {}, None, "drop", OmegaConf.create({}), poll_interval=0.02)
        buffer.attach(replayer(history, **replay), StallWatch(stall_timeout_s, "stall_timeout_s"), check_workers)
        return buffer

    yield make
    for partition, items in tq.kv_list().items():
        if items:
            tq.kv_clear(keys=list(items), partition_id=partition)


@pytest.fixture
def make_async(make_buffer, history):
    """make_async(cap, strategy, threshold, refills, stall_timeout_s): `refills` takes up how many prompts
    verl asks for. make_buffer empties the queue afterwards."""

    def make(cap=2, strategy="wait", threshold=3, refills=None, stall_timeout_s=5.0, **replay) -> R3ReplayBufferAsync:
        settings = OmegaConf.create({})
        refill = (refills if refills is not None else []).append
        kind = "colocate_async", {}, threshold, strategy, settings
        buffer = R3ReplayBufferAsync(*kind, poll_interval=0.02, refill_fn=refill)
        stall = StallWatch(stall_timeout_s, "stall_timeout_s")
        buffer.attach(replayer(history, **replay), stall, lambda: None, reflection_cap=cap)
        return buffer

    return make
