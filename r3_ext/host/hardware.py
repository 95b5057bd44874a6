"""What this machine has: GPUs, main memory, processor, installed packages. Imports nothing heavy."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "r3-recipe"
"""The name of this project's distribution."""
ANSWER_S = 30.0
"""nvidia-smi waits for ever on some GPUs that have failed."""


@dataclass(frozen=True)
class GPU:
    name: str
    total: float
    """GiB, 0 where it is not reported."""
    used: float
    """GiB"""
    driver: str


def list_gpus() -> list[GPU]:
    """The GPUs that nvidia-smi reports and CUDA_VISIBLE_DEVICES leaves; none where there is no nvidia-smi, or it
    does not answer."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shutil.which("nvidia-smi") is None or visible == "":
        return []
    query = "--query-gpu=name,memory.total,memory.used,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", *(["-i", visible] if visible else [])]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return []
    if result.returncode != 0:
        return []
    rows = [row for line in result.stdout.splitlines() if len(row := line.split(", ")) == 4]
    # A GPU that shares the main memory reports [N/A].
    sizes = [[int(text) / 1024 if text.isdecimal() else 0.0 for text in row[1:3]] for row in rows]
    return [GPU(row[0], total, used, row[3]) for row, (total, used) in zip(rows, sizes, strict=True)]


def cpu_flags() -> set[str]:
    match = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def main_memory() -> tuple[int, int]:
    """(available, total) bytes, within the container's limit where there is one."""
    import psutil

    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
        available = min(available, int(text) - int(used.read_text()))
    return available, total


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
