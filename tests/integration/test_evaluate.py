"""`r3 eval` with vLLM on the CPU: interrupted and continued, with the answers that an uninterrupted run would give."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from r3_ext.evaluate import plan

pytestmark = pytest.mark.integration
LIMIT, N = 8, 8


def r3_eval(*arguments) -> list[str]:
    return [sys.executable, "-m", "r3_ext.cli", "eval", *map(str, arguments)]


def run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def rows(folder) -> dict:
    """The generations by key; none may come twice."""
    found = [row for part in plan.parts(folder) for row in pq.read_table(part).to_pylist()]
    by_key = {(row["benchmark"], row["index"], row["sample"]): row for row in found}
    assert len(by_key) == len(found)
    return by_key


def interrupt(command: list[str], folder) -> tuple[int, str]:
    """Ctrl-C once a fifth of the answers is there."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    progress, deadline = folder / "progress-0.json", time.monotonic() + 240
    while not progress.exists() or json.loads(progress.read_text())["finished"] < 2 * LIMIT * N // 5:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    return process.returncode, output


def test_an_interrupted_evaluation_goes_on_where_it_was(warm_start, tmp_path):
    # Two benchmarks with the same problems have the same seeds: what `late` gives after the restart must be what
    # `early` gave before it.
    shutil.copy(warm_start / "val.parquet", tmp_path / "copy.parquet")
    files = f"early={warm_start / 'val.parquet'},late={tmp_path / 'copy.parquet'}"
    out = tmp_path / "out"
    command = r3_eval(
        *("--model", warm_start / "model", "--benchmarks", files, "--limit", LIMIT, "--n", N, "--max-tokens", 96),
        *("--engine-arg", "max_num_seqs=1", "--out", out),
    )
    code, output = interrupt(command, out)
    assert code == 130 and "answers are kept; the same command goes on" in output, output
    kept = rows(out)
    assert 2 * LIMIT * N // 5 <= len(kept) < 2 * LIMIT * N
    assert not (out / "scores.parquet").exists()
    assert run(r3_eval("score", out))[0] == 2, "half an evaluation was scored"

    code, output = run(command)
    assert code == 0 and "Pass@8" in output, output
    everything = rows(out)
    assert len(everything) == 2 * LIMIT * N and kept.items() <= everything.items()
    pairs = [(everything[key], everything[("late", *key[1:])]) for key in everything if key[0] == "early"]
    assert all(first["seed"] == second["seed"] for first, second in pairs)
    assert all(first["response"] == second["response"] for first, second in pairs)
    assert len({first["response"] for first, _ in pairs}) > LIMIT

    results = json.loads((out / "results.json").read_text())
    early, late = (results["benchmarks"][name] for name in ("early", "late"))
    assert early["hash"] == late["hash"] and early["metrics"]["pass@1"][0] == late["metrics"]["pass@1"][0] > 0
    assert early["metrics"]["tokens/all"][0] <= 96

    began = {part: os.stat(part).st_mtime_ns for part in plan.parts(out)}
    assert run(r3_eval("score", out))[0] == 0
    assert json.loads((out / "results.json").read_text()) == results
    assert {part: os.stat(part).st_mtime_ns for part in plan.parts(out)} == began, "scoring generated"

    code, output = run([*command, "--seed", "1"])
    assert code == 2 and "sampling.seed (0 there, 1 asked for)" in output and "--out" in output
