"""Memory that a run takes, sampled while it trains: memory.jsonl in its folder, a line per sample.

    {"t": 1790000000.5, "main": {"ray::WorkerDict": 1.2, "VLLM::EngineCore": 0.9}, "gpus": [61.2, 61.1]}

`main` is the main memory of the run's processes on this machine in GiB, by title; memory that several of them share is
divided among them (the kernel's PSS), so that the sum is what the run takes. `gpus` is what nvidia-smi shows of each
GPU, vLLM's share and everybody else's included.
"""

import json
import time
from collections import defaultdict
from pathlib import Path

import psutil

from r3_ext.doctor.gpus import list_gpus
from r3_ext.summary import read_metrics

FILE = "memory.jsonl"
LIGHT, CLOSE = 0.01, 0.1
"""Shares of a core that the sampling may take: beside a training run, and in a rehearsal."""
LEAST_S = 0.5
KIB_OF_GIB = 2**20


class MemoryLog:
    """Writes a sample at each `poll`, as often as `share` of a core allows: the kernel walks all pages for one."""

    def __init__(self, folder: Path, share: float = LIGHT):
        self.file, self.share = folder / FILE, share
        self.has_gpus = bool(list_gpus())
        self.next = 0.0

    def poll(self) -> None:
        if time.monotonic() < self.next:
            return
        begin = time.thread_time()
        main = main_memory(psutil.Process().children(recursive=True))
        sample = {"t": round(time.time(), 2), "main": {title: round(gib, 4) for title, gib in main.items()}}
        if self.has_gpus:
            sample["gpus"] = [round(gpu.used, 3) for gpu in list_gpus()]
        with open(self.file, "a") as file:
            file.write(json.dumps(sample) + "\n")
        self.next = time.monotonic() + max(LEAST_S, (time.thread_time() - begin) / self.share)


def main_memory(processes: list[psutil.Process]) -> dict[str, float]:
    """GiB of main memory by title of the processes; what has none, or is gone, is left out."""
    taken = defaultdict(float)
    for process in processes:
        try:
            words = process.cmdline()
            size = proportional(process)
        except (psutil.Error, OSError):  # it ended meanwhile
            continue
        if size:
            taken[title(words)] += size
    return dict(taken)


def proportional(process: psutil.Process) -> float:
    """GiB of a process, shared pages by their share; where the kernel does not tell that, all that is resident."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except PermissionError:
        return process.memory_info().rss / 2**30
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / KIB_OF_GIB


def title(words: list[str]) -> str:
    """`ray::WorkerDict.actor_rollout_update_actor`: ray::WorkerDict; a path: its last name."""
    first = " ".join(words).split(" ")[0] if words else ""
    return first.rsplit("/", 1)[-1] if first.startswith("/") else first.split(".")[0] or "?"


def read(folder: Path) -> list[dict]:
    """The samples of a run, oldest first."""
    return read_metrics(folder / FILE)


def peak(samples: list[dict]) -> dict:
    """The most that any sample shows: `main` in all, `gpus` each for itself; {} without samples."""
    if not samples:
        return {}
    gpus = [sample["gpus"] for sample in samples if sample.get("gpus")]
    found = {"main": round(max(sum(sample["main"].values()) for sample in samples), 3)}
    return found | ({"gpus": [max(column) for column in zip(*gpus, strict=True)]} if gpus else {})
