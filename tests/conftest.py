"""Settings of the whole suite."""

import copy
import signal
from functools import cache
from pathlib import Path

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

# The shell starts a script's background jobs with Ctrl-C ignored, and all their children inherit that: tests that press
# it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

Plugins.instance()  # makes hydra's sources known
FileSource = SourcesRegistry.instance().resolve("file")
read = FileSource.load_config


@cache
def parsed(provider: str, folder: str, config_path: str, changed_ns: int):
    return read(FileSource(provider, folder), config_path)


def load_config(source, config_path: str):
    """hydra parses some thirty files for every composition, half of its time; the suite composes a thousand times."""
    file = Path(source.path, source._normalize_file_name(config_path))
    if not file.is_file():
        return read(source, config_path)
    return copy.deepcopy(parsed(source.provider, source.path, config_path, file.stat().st_mtime_ns))


FileSource.load_config = load_config

QUEUE = "transfer_queue"
waiting: set[Path] = set()
"""Files whose tests are still to use the queue."""


def pytest_collection_modifyitems(items) -> None:
    """What starts Ray is slow, wherever it stands. It comes first: one Ray for all of it, none for others."""
    for item in items:
        if QUEUE in item.fixturenames:
            item.add_marker("slow")
    items.sort(key=lambda item: QUEUE not in item.fixturenames)


def pytest_collection_finish(session) -> None:
    """Here it is known what is left out, which is not waited for."""
    waiting.update(item.path for item in session.items if QUEUE in item.fixturenames)


@pytest.fixture(scope="module")
def running_queue(request):
    """verl's queue in a Ray of its own, which goes on until no file waits for it."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    if not ray.is_initialized():
        ray.init("local", num_cpus=4, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
        storage = {"SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1}}
        tq.init(OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", **storage}}))
    yield
    waiting.discard(request.path)
    if not waiting:
        tq.close()
        ray.shutdown()


@pytest.fixture
def transfer_queue(running_queue):
    """verl's queue, emptied after each test."""
    import transfer_queue as tq

    yield
    for partition, items in tq.kv_list().items():
        if items:
            tq.kv_clear(keys=list(items), partition_id=partition)
