"""The acceptance suite for a GPU: `bash tests/run_tests.sh gpu`. Its figures go to outputs/gpu_acceptance.json.

With R3_GPU_SUITE=small and VERL_PLATFORM=cpu the same checks run at small shapes on the CPU, but for the real runs of
test_runs.py: so tests/ext/test_gpu_suite.py shows that the suite itself works.
"""

import os
from pathlib import Path

import pytest
import torch

from .record import Record
from .shapes import REAL, SMALL

IS_SMALL = os.environ.get("R3_GPU_SUITE") == "small"
RESULTS = Path(os.environ.get("R3_GPU_RESULTS", "outputs/gpu_acceptance.json"))


def pytest_collection_modifyitems(items):
    if not IS_SMALL and not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no CUDA device: this suite is for a GPU"))


@pytest.fixture(scope="session")
def shapes():
    return SMALL if IS_SMALL else REAL


@pytest.fixture(scope="session")
def device():
    return "cpu" if IS_SMALL else "cuda"


@pytest.fixture(scope="session")
def record(shapes, device):
    return Record(RESULTS, device, shapes)
