"""`tests/gpu -k "not runs"`, the part of the acceptance suite that needs neither vLLM nor a download."""

import json
import os
import subprocess
import sys

from .report import Report, arguments


def main() -> None:
    args = arguments(__doc__)
    report, results = Report(args.out), args.work / "acceptance.json"
    results.unlink(missing_ok=True)
    own = {"R3_GPU_RESULTS": str(results)} | ({"R3_GPU_SUITE": "small"} if args.device == "cpu" else {})
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "tests/gpu", "-k", "not runs"]
    command += ["--durations=5", f"--basetemp={args.work / 'pytest'}"]
    code = subprocess.run(command, env={**os.environ, **own}).returncode
    if results.exists():
        report.add(json.loads(results.read_text()))
    report.limit("pytest's exit code", code, 0)
    report.end()


if __name__ == "__main__":
    main()
