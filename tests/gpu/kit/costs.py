"""What the ranking reward, the advantage and the history cost the processor of that machine: the benchmarks' lines."""

import subprocess
import sys

from .report import Report, arguments

BENCHMARKS = {
    "maths": {"cuda": ("--rows", "512", "--repeats", "3"), "cpu": ("--rows", "32", "--repeats", "1")},
    "history": {"cuda": ("--queries", "2000", "--steps", "3"), "cpu": ("--queries", "200", "--steps", "1")},
    "log_probs": {"cuda": ("--repeats", "3"), "cpu": ("--rows", "1024", "--repeats", "1")},
}
"""Their arguments: short ones, and as little as shows that it works."""


def main() -> None:
    args = arguments(__doc__)
    report = Report(args.out)
    for name, options in BENCHMARKS.items():
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *options[args.device]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        report.add({name: done.stdout.splitlines()})
        if args.device == "cuda" or name != "maths":  # of 32 rows its bounds mean nothing
            report.limit(f"exit code of {name}", done.returncode, 0)
    report.end()


if __name__ == "__main__":
    main()
