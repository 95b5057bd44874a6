"""Memory that a run takes, sampled while it trains: memory.jsonl in its folder, a line per sample.

    {"t": 1790000000.5, "main": {"ray::WorkerDict": 1.2, "VLLM::EngineCore": 0.9}, "gpus": [61.2, 61.1]}

`main` is the main memory of the run's processes on this machine in GiB, by title; memory that several of them share is
divided among them (the kernel's PSS), so that the sum is what the run takes. `gpus` is what nvidia-smi shows of each
GPU, vLLM's share and everybody else's included.
"""

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil

from r3_ext.host.hardware import list_gpus
from r3_ext.host.units import GIB
from r3_ext.record.summary import read_rows

FILE = "memory.jsonl"
CLOSE_S = 0.5
"""Between two lines of a rehearsal, whose phases take seconds."""
CORE_SHARE = 0.01
"""Of a core, for reading what processes share: the kernel walks all their pages for that."""


@dataclass
class Seen:
    """A process when it was last read in full."""

    title: str
    created: float
    proportional: float
    """GiB"""
    private: float
    """GiB that were its own or its parent's, at that time: what it takes since is told by how this grows."""


class MemoryLog:
    """Takes a sample at each `poll` and writes the highest of the last `every_s` seconds."""

    def __init__(self, folder: Path, every_s: float = 10.0):
        self.file, self.every_s = folder / FILE, every_s
        self.gpus = [gpu.used for gpu in list_gpus()]
        self.seen: dict[int, Seen] = {}
        self.read_at = self.gpus_at = self.written = float("-inf")  # the clock begins at the boot of the machine
        self.highest: dict | None = None

    def poll(self) -> None:
        now = time.monotonic()
        sample = {"t": round(time.time(), 2), "main": self._main(now)}
        if self.gpus and now >= self.gpus_at:
            self.gpus = [round(gpu.used, 3) for gpu in list_gpus()]
            self.gpus_at = now + max(self.every_s, 10 * (time.monotonic() - now))
        if self.gpus:  # the last reading stands until the next one
            sample["gpus"] = self.gpus
        self.highest = sample if self.highest is None else higher(self.highest, sample)
        if now - self.written >= self.every_s:
            self.close()
            self.written = now

    def close(self) -> None:
        """Write the highest sample that is not written yet."""
        if self.highest is not None:
            with open(self.file, "a") as file:
                file.write(json.dumps(self.highest) + "\n")
            self.highest = None

    def _main(self, now: float) -> dict[str, float]:
        """GiB by title of all processes below this one; in full as often as `CORE_SHARE` allows."""
        if is_due := now >= self.read_at:
            self.seen.clear()
        begin, taken = time.thread_time(), defaultdict(float)
        for process in psutil.Process().children(recursive=True):
            try:
                known = self.seen.get(process.pid)
                if known is None or known.created != process.create_time():
                    known = self.seen[process.pid] = read_process(process)
                taken[known.title] += max(0.0, known.proportional + private(process) - known.private)
            except (psutil.Error, OSError):  # it ended meanwhile
                continue
        if is_due:
            self.read_at = now + (time.thread_time() - begin) / CORE_SHARE
        return {title: round(gib, 4) for title, gib in taken.items() if gib}


def higher(one: dict, other: dict) -> dict:
    """The sample with more main memory, with the most that either shows of each GPU."""
    chosen = max(one, other, key=lambda sample: sum(sample["main"].values()))
    gpus = [sample["gpus"] for sample in (one, other) if "gpus" in sample]
    return chosen | ({"gpus": [max(column) for column in zip(*gpus, strict=True)]} if gpus else {})


def read_process(process: psutil.Process) -> Seen:
    return Seen(title(process.cmdline()), process.create_time(), proportional(process), private(process))


def private(process: psutil.Process) -> float:
    """GiB of a process that are no file's and no shared memory's."""
    info = process.memory_info()
    return (info.rss - info.shared) / GIB


def proportional(process: psutil.Process) -> float:
    """GiB of a process, shared pages by their share; where the kernel does not tell that, all that is resident."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except PermissionError:
        return process.memory_info().rss / GIB
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024 / GIB


def title(words: list[str]) -> str:
    """`ray::WorkerDict.actor_rollout_update_actor`: ray::WorkerDict; a path: its last name."""
    first = " ".join(words).split(" ")[0] if words else ""
    return first.rsplit("/", 1)[-1] if first.startswith("/") else first.split(".")[0] or "?"


def read(folder: Path) -> list[dict]:
    """The samples of a run, oldest first."""
    return read_rows(folder / FILE)


def peak(samples: list[dict]) -> dict:
    """The most that any sample shows: `main` in all, `gpus` each for itself; {} without samples."""
    if not samples:
        return {}
    gpus = [sample["gpus"] for sample in samples if sample.get("gpus")]
    found = {"main": round(max(sum(sample["main"].values()) for sample in samples), 3)}
    return found | ({"gpus": [max(column) for column in zip(*gpus, strict=True)]} if gpus else {})
