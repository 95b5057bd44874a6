"""Settings of the whole suite."""

import signal

import pytest

# The shell starts a script's background jobs with Ctrl-C ignored, and all their children inherit that: tests that press
# it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items) -> None:
    """What starts Ray is slow, wherever it stands."""
    for item in items:
        if "transfer_queue" in item.fixturenames:
            item.add_marker("slow")


@pytest.fixture(scope="module")
def transfer_queue():
    """verl's queue, in a Ray of its own."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    storage = {"SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1}}
    tq.init(OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", **storage}}))
    yield
    tq.close()
    ray.shutdown()
