"""A run on an existing Ray cluster of two nodes: two raylets here, with one FSDP rank and one vLLM replica each."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from r3_ext.cpu.fork import environment as forks
from r3_ext.host import cluster
from r3_ext.record.folder import read_starts
from r3_ext.run.train import PY_EXECUTABLE

from .conftest import Run, command
from .crash import traces

pytestmark = pytest.mark.integration
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
NODE = ["--num-cpus", "8", "--num-gpus", "1", "--block", "--disable-usage-stats"]
OVERRIDES = ["trainer.nnodes=2", "trainer.save_freq=1", "trainer.total_training_steps=200"]


@contextmanager
def two_nodes(folder: Path):
    """Two raylets of one cluster on this machine; yields its address and the process of the second one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    head = ["--head", "--node-ip-address", "127.0.0.1", "--port", address.split(":")[1], "--include-dashboard", "false"]
    started = []
    try:
        for name, arguments in (("head", head), ("worker", ["--address", address])):
            log = open(folder / f"{name}.log", "w")
            started.append(subprocess.Popen([*RAY, "start", *arguments, *NODE], stdout=log, stderr=log))
            _wait_for_nodes(address, len(started))
        yield address, started[1]
    finally:
        family = [member for process in started for member in _family(process.pid)]
        for process in started:
            process.terminate()
        _, alive = psutil.wait_procs(family, timeout=15)
        for member in alive:
            member.kill()


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _wait_for_nodes(address: str, number: int) -> None:
    command = [sys.executable, "-m", "r3_ext.host.cluster", "wait", str(number)]
    deadline = time.monotonic() + 120
    while subprocess.run(command, env={**os.environ, "RAY_ADDRESS": address}, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"{number} nodes did not come"


def titled(process: psutil.Process, title: str) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(title)
    except psutil.NoSuchProcess:
        return False


def of_runs() -> set[int]:
    """Processes that only a run has: Ray's own and idle workers stay on the nodes."""
    names = (
        "ray::WorkerDict",
        "ray::TaskRunner",
        "ray::vLLM",
        "ray::AgentLoop",
        "ray::Reward",
        "VLLM::",
        "ray::Simple",
    )
    return {process.pid for process in psutil.process_iter() if any(titled(process, name) for name in names)}


class OnCluster:
    """Starts of one run on a cluster."""

    def __init__(self, outputs: Path, name: str, cache: Path, address: str, python: str):
        self.outputs, self.name, self.cache, self.python = outputs, name, cache, python
        self.folder = outputs / "test" / name
        self.env = {**forks.environment(), "RAY_ADDRESS": address, "COLUMNS": "120"}

    def start(self, *overrides: str) -> subprocess.Popen:
        # Forks for Ray's workers too: both nodes are on this machine, and two starts cost minutes otherwise.
        overrides = (*OVERRIDES, *overrides, f"+{PY_EXECUTABLE}={self.python}")
        line = command("r3", self.outputs, self.name, self.cache, *overrides, python=self.python)
        self.outputs.mkdir(exist_ok=True, parents=True)
        log = open(self.outputs / f"{self.name}.log", "a")
        return subprocess.Popen(line, env=self.env, stdout=log, stderr=log, start_new_session=True)

    @property
    def said(self) -> str:
        return (self.outputs / f"{self.name}.log").read_text()

    def steps(self) -> int:
        file = self.folder / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for_steps(self, process: subprocess.Popen, number: int) -> None:
        deadline = time.monotonic() + 400
        while self.steps() < number:
            assert process.poll() is None and time.monotonic() < deadline, Run(self.folder, -1, self.said).explain()
            time.sleep(0.5)

    def wait_for_end(self, process: subprocess.Popen, seconds: float) -> tuple[int, float]:
        """Exit code and seconds."""
        began = time.monotonic()
        code = process.wait(timeout=seconds)
        time.sleep(5)  # Ray ends the actors of a job that is gone
        return code, time.monotonic() - began - 5


def test_two_nodes_train_resume_refuse_a_second_run_and_end_when_one_dies(cache, python, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    before = traces()
    with two_nodes(tmp_path) as (address, second):
        run = OnCluster(tmp_path / "outputs", "first", cache, address, python)
        process = run.start()
        run.wait_for_steps(process, 2)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(cluster.ClusterBusy, match=f"in use by {run.folder} on "), cluster.held(tmp_path):
            pass
        monkeypatch.delenv("RAY_ADDRESS")
        process.send_signal(signal.SIGTERM)
        assert run.wait_for_end(process, 200)[0] == 75, run.said
        assert not of_runs()
        rows = Run(run.folder, 75, run.said).rows
        saved = len(rows)
        assert [row["step"] for row in rows] == list(range(1, saved + 1)) and saved >= 2
        assert all("actor/pg_loss" in row and row["generated/tokens"] > 0 for row in rows)
        assert (
            len(list((run.folder / "checkpoints" / f"global_step_{saved}" / "actor").glob("model_world_size_2_*"))) == 2
        )
        assert list((run.folder / "tensorboard").iterdir()), "events of the task runner"

        process = run.start()
        run.wait_for_steps(process, saved + 1)
        [raylet] = [member for member in _family(second.pid) if "raylet" in Path(member.cmdline()[0]).name]
        raylet.kill()
        code, seconds = run.wait_for_end(process, 200)
        assert code not in (0, 75) and seconds < 120
        assert "error: node " in run.said and " died" in run.said, run.said[-3000:]
        assert not of_runs()
        starts = [line for line in read_starts(run.folder) if line["event"] == "start"]
        assert starts[1]["step"] == saved, "it went on from the checkpoint of both ranks"
        assert json.loads((run.folder / "summary.json").read_text())["exit_code"] == code
    left = {path for path in traces() - before if "session" not in path}
    assert not left
