"""Crashes: a run that is killed again and again equals the run that never was.

    python -m tests.integration.crash --moments 30 --steps 40 --folder DIR       the long version
    python -m tests.integration.crash --sigterm --moments 10 --folder DIR        a preemptible cluster's warnings
    python -m tests.integration.crash --guard --moments 10 --folder DIR          SIGKILL and SIGHUP to the command alone
    python -m tests.integration.crash --mode separate_async --moments 5 --folder DIR
    pytest tests/integration/test_crash.py                                       two moments

The victim replays what the other run records of its rollouts, since vLLM is not deterministic. After every kill the
history must be whole; after the last one every step's metrics, the final weights and the history's state at every
checkpoint must be those of the uninterrupted run, bit for bit.

With --mode the rollouts are real, and those in flight at a kill are begun anew, so no two runs are equal. What must
hold is counted instead: in_flight.py.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from omegaconf import OmegaConf

from r3_ext.record.folder import INTERRUPTED, STOPPED, read_starts
from recipe.common.modes import MODES
from recipe.common.trainer.resume import resume_step

from .conftest import Run, command, rows_override, skip_overrides
from .equal_runs import OF_RECORDED, assert_equal_runs, check_history
from .in_flight import IN_FLIGHT, account, assert_all_accounted_for

EVERYTHING, CTRL_C, SIGTERM, SIGHUP, GUARD = "everything", "Ctrl-C", "SIGTERM", "SIGHUP", "SIGKILL of the command"
SIGNALS = {CTRL_C: signal.SIGINT, SIGTERM: signal.SIGTERM, SIGHUP: signal.SIGHUP, GUARD: signal.SIGKILL}
VICTIMS = {
    "trainer": "ray::TaskRunner",
    "FSDP worker": "ray::WorkerDict",
    "vLLM server": "VLLM::EngineCore",
    "storage of the queue": "ray::SimpleStorageUnit",
    EVERYTHING: "",
    **dict.fromkeys(SIGNALS),
}
MOMENTS = ("start-up", "rollout or training", "history write", "checkpoint")
# Small bounds, so that samples are evicted, reflection from the first failure on, and groups that wait.
SETTINGS = [
    "trainer.save_freq=1",
    "algorithm.r3.history.max_per_outcome=4",
    "algorithm.r3.reflection.threshold=1.0",
    "algorithm.r3.reflection.min_attempts=1",
    "algorithm.r3.reflection.when=next_step",
    "algorithm.r3.reflection.ask=adaptive",
    "algorithm.r3.replay.outcome=both",
]


@dataclass
class Crash:
    """A victim run in `folder`, its overrides, and the generator of its misfortunes."""

    outputs: Path
    name: str
    cache: Path
    overrides: list[str]
    rng: random.Random
    patience: float
    """Seconds for a run to end by itself after a worker was killed; then everything is killed."""
    apart: int = 1
    """Steps that a start must end before a moment counts, but for start-up's."""
    overdue: list[str] = field(default_factory=list)
    """Victims after which it did not."""
    method: str = "r3"

    @property
    def folder(self) -> Path:
        return self.outputs / "test" / self.name

    @property
    def log(self) -> Path:
        """Beside the run's folder: one with a file that no run wrote is refused."""
        return self.folder.with_suffix(".log")

    def start(self, *overrides: str) -> subprocess.Popen:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = open(self.log, "a")
        line = command(self.method, self.outputs, self.name, self.cache, *self.overrides, *overrides)
        return subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)

    def strike(self, victim: str, moment: str) -> str | None:
        """One start and one kill; what happened in a sentence, or None when the run ended before its moment came."""
        before = traces()
        process = self.start()
        if not self._wait_for(process, moment):
            assert process.returncode == 0, self.log.read_text()[-3000:]
            return None
        step = self.last_step()
        family = psutil.Process(process.pid).children(recursive=True)
        if victim in SIGNALS:
            process.send_signal(SIGNALS[victim])
            told = victim
        else:
            killed = kill(process, VICTIMS[victim])
            told = f"{killed} of {victim}"
            if not killed:
                kill(process, "")
                raise AssertionError(f"no process is the {victim}")
        try:
            code = process.wait(timeout=self.patience)
        except subprocess.TimeoutExpired:
            self.overdue.append(victim)
            kill(process, "")
            code = process.wait()
        if victim == GUARD:
            begin, code = time.monotonic(), INTERRUPTED  # as the summary has it: the guard cannot say it any more
            psutil.wait_procs(family, timeout=self.patience)
            told += f", gone after {time.monotonic() - begin:.1f} s,"
        if victim in SIGNALS and [line.get("exit_code") for line in read_starts(self.folder)[-1:]] == [0]:
            return None  # it came in the last step, which ends the run anyway, or behind it
        assert code != 0, "a killed run must not end as if all were well"
        if victim == SIGTERM:
            assert code == STOPPED, f"exit code {code}"
            trainer = OmegaConf.load(self.folder / "config.yaml").trainer
            assert resume_step(trainer) == self.last_step() > 0, "the step that it was in is saved"
        if victim != EVERYTHING:
            self.assert_nothing_is_left(code, family, before)
        wait_for_silence()
        check_history(self.folder / "history.sqlite")
        return f"{told} during {moment} after step {step}"

    def assert_nothing_is_left(self, code: int, family: list[psutil.Process], before: set[str]) -> None:
        """Of a run that ended by itself: neither process nor file, and its summary says how it ended."""
        summary = self.folder / "summary.json"  # none before the first training
        assert not summary.exists() or json.loads(summary.read_text())["exit_code"] == code
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive
        assert traces() - before == set()

    def finish(self, *overrides: str) -> Run:
        process = self.start(*overrides)
        code = process.wait(timeout=900)
        run = Run(self.folder, code, self.log.read_text())
        assert code == 0, run.explain()
        return run

    def last_step(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    def _wait_for(self, process: subprocess.Popen, moment: str) -> bool:
        """True when the moment has come, False when the run ended before."""
        if moment == "start-up":
            return not ended(process, self.rng.uniform(5, 60))
        begin, before = time.monotonic(), self.last_step()
        while self.last_step() < before + self.apart or time.monotonic() - begin < 5:
            if ended(process, 0.2):
                return False
            # A resumed run first drops the rows after its checkpoint.
            before = min(before, self.last_step())
        if moment == "rollout or training":
            return not ended(process, self.rng.uniform(0, 6))
        seen = self._trace(moment)
        while self._trace(moment) == seen:
            if ended(process, 0.001):
                return False
        return not ended(process, self.rng.choice([0, 0.001, 0.01, 0.05]))

    def _trace(self, moment: str) -> object:
        if moment == "checkpoint":
            return {path.name for path in (self.folder / "checkpoints").glob("global_step_*")}
        wal = self.folder / "history.sqlite-wal"
        return wal.stat().st_mtime_ns if wal.exists() else None


def traces() -> set[str]:
    """What a run puts outside its folder: shared memory and its sockets' folder."""
    return {str(path) for path in (*Path("/dev/shm").iterdir(), *Path(tempfile.gettempdir()).glob("r3-*"))}


def ended(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill(process: subprocess.Popen, prefix: str) -> int:
    """kill -9 of the processes of a run whose command line starts so; the number of them."""
    try:
        family = [process_of_run for process_of_run in psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    targets = []
    for member in family:
        try:
            if " ".join(member.cmdline()).startswith(prefix):
                targets.append(member)
        except psutil.NoSuchProcess:
            continue
    if not prefix:
        targets.append(psutil.Process(process.pid))
    for target in targets:
        try:
            target.kill()
        except psutil.NoSuchProcess:
            continue
    return len(targets)


def wait_for_silence() -> None:
    """Ray's processes of a run whose supervisor was killed with it notice within seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(is_of_ray(process) for process in psutil.process_iter()):
        time.sleep(0.5)


def is_of_ray(process: psutil.Process) -> bool:
    try:
        return any(word in " ".join(process.cmdline()) for word in ("ray::", "raylet", "gcs_server", "VLLM::"))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def overrides_for(steps: int, recording: Path) -> list[str]:
    return [*SETTINGS, f"trainer.total_training_steps={steps}", *skip_overrides(recording, steps)]


def survive(victim: Crash, plan: list[tuple[str, str]], say) -> list[str]:
    """Strike as planned; the run is restarted after each and goes on from its checkpoint."""
    told = []
    for number, (who, when) in enumerate(plan, 1):
        sentence = victim.strike(who, when)
        if sentence is None:
            break
        told.append(sentence)
        say(f"{number}/{len(plan)}: {sentence}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sigterm", action="store_true", help="SIGTERM only, and no other checkpoint than its own")
    parser.add_argument("--guard", action="store_true", help="SIGKILL and SIGHUP in turn, to the command alone")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds for a run to end by itself")
    parser.add_argument("--mode", choices=MODES[1:], help="trainer mode, with rollouts that are in flight at a kill")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cache, overrides = args.folder / "cache", overrides_for(args.steps, args.folder / "recording")

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    if args.mode:
        plan = [(rng.choice(sorted(VICTIMS)), MOMENTS[1 + i % 3]) for i in range(args.moments)]
        overrides = [*IN_FLIGHT, "--mode", args.mode, f"trainer.total_training_steps={args.steps}"]
        overrides.append(rows_override(args.folder / "rows"))
        victim = Crash(args.folder, args.mode, cache, overrides, rng, args.patience)
        told = survive(victim, plan, say)
        final = victim.finish()
        found = account(final, args.folder / "rows")
        assert_all_accounted_for(found, args.steps)
        say(f"{len(told)} kills survived; {found.summary()}")
        return

    say(f"whole: {args.steps} steps without a kill")
    whole = Crash(args.folder, "whole", cache, overrides, rng, args.patience).finish()
    plan = [(rng.choice(sorted(VICTIMS)), MOMENTS[1 + i % 3] if i % 8 else MOMENTS[0]) for i in range(args.moments)]
    if args.sigterm:
        plan = [(SIGTERM, MOMENTS[1 + i % 2]) for i in range(args.moments)]
        overrides = [*overrides, f"trainer.save_freq={args.steps}"]
    if args.guard:
        plan = [((GUARD, SIGHUP)[i % 2], rng.choice(MOMENTS)) for i in range(args.moments)]
    victim = Crash(args.folder, "victim", cache, overrides, rng, args.patience)
    told = survive(victim, plan, say)
    final = victim.finish()
    assert_equal_runs(whole, final, args.steps, kills=len(told), but=OF_RECORDED)
    say(f"{len(told)} kills survived; {args.steps} steps, weights and history equal to the uninterrupted run")
    if len(told) < args.moments:
        sys.exit("the run ended before all moments had come: use more --steps")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with Ctrl-C ignored
    main()
