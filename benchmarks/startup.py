"""How long a run of the embedded profile takes from the command to its first step, in turns with another way to start.

    python benchmarks/startup.py --folder DIR                      against the same run without forks
    python benchmarks/startup.py --folder DIR --other CHECKOUT     against another checkout, with the .venv in it

Model and data are prepared beforehand. Prints seconds to the first step of every start, their median, and CPU seconds
up to then by process, of the median start; then the ratio of the medians. Starts vary by a third on a busy machine: let
nothing else run.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from r3_ext.record.summary import read_metrics  # noqa: E402
from r3_ext.run.command import PY_EXECUTABLE  # noqa: E402

ONE_STEP = ["trainer.total_training_steps=1", "trainer.val_before_train=False", "trainer.test_freq=-1"]
POLL_S = 0.25


def command(python: Path, folder: Path, cache: Path, *overrides: str) -> list[str]:
    options = ["--profile", "embedded", "--outputs", str(folder), "--experiment", "startup", "--run", "run"]
    options += ["--cache", str(cache), "--no-report"]
    return [str(python), "-m", "r3_ext.cli", "run", *options, *ONE_STEP, "trainer.save_freq=-1", *overrides]


def measure(line: list[str], checkout: Path, folder: Path) -> tuple[float, dict[str, float]]:
    """Seconds to the first step of one start, and CPU seconds up to then by process."""
    shutil.rmtree(folder / "startup", ignore_errors=True)
    metrics, began, seen, first = folder / "startup" / "run" / "metrics.jsonl", time.monotonic(), {}, None
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(line, cwd=checkout, stdout=output, stderr=output)
        while process.poll() is None:
            if first is None:
                sample(psutil.Process(process.pid), seen)
                if metrics.exists() and any("training/global_step" in row for row in read_metrics(metrics)):
                    first = time.monotonic() - began
            time.sleep(POLL_S)
    if process.returncode or first is None:
        sys.exit(f"exit code {process.returncode}, see {folder / 'output'}")
    by_name = defaultdict(float)
    for name, seconds in seen.values():
        by_name[name] += seconds
    return first, by_name


def sample(root: psutil.Process, seen: dict[int, tuple[str, float]]) -> None:
    """Note name and CPU seconds of a process and all its descendants by process id."""
    for process in (root, *root.children(recursive=True)):
        try:
            with process.oneshot():
                times, title = process.cpu_times(), [word for word in process.cmdline() if word]
        except psutil.Error:
            continue
        seen[process.pid] = name_of(title) or seen.get(process.pid, ("",))[0], times.user + times.system


def name_of(title: list[str]) -> str:
    """What a person calls the process of this command line."""
    if not title:
        return ""
    if "::" in title[0]:
        return title[0].split(".")[0]
    words = " ".join(title)
    for part in ("fork_client", "main_r3", "r3_ext.cli run", "raylet", "gcs_server", "cc1plus"):
        if part in words:
            return part
    return Path(title[0].split()[0]).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--other", type=Path, help="checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    folder = args.folder.resolve()
    plain = ["other", Path(sys.executable), ROOT, [f"+{PY_EXECUTABLE}={sys.executable}"]]
    if args.other:
        plain = ["other", args.other.resolve() / ".venv" / "bin" / "python", args.other.resolve(), []]
    found = defaultdict(list)
    for number in range(args.rounds + 1):
        for name, python, checkout, overrides in (plain, ["this", Path(sys.executable), ROOT, []]):
            line = command(python, folder, folder / f"cache-{name}", *overrides)
            seconds, by_name = measure(line, checkout, folder)
            print(
                f"round {number}, {name}: {seconds:.1f} s" + ("" if number else " (warms up, not counted)"), flush=True
            )
            if number:
                found[name].append((seconds, by_name))
    medians = {}
    for name, starts in found.items():
        medians[name] = median(seconds for seconds, _ in starts)
        _, by_name = min(starts, key=lambda start: abs(start[0] - medians[name]))
        print(f"\n{name}: median {medians[name]:.1f} s, {sum(by_name.values()):.0f} CPU s")
        for process, seconds in sorted(by_name.items(), key=lambda item: -item[1]):
            if seconds >= 0.5:
                print(f"  {process:<32}{seconds:6.1f}")
    print(f"\nratio {medians['this'] / medians['other']:.2f}")


if __name__ == "__main__":
    main()
