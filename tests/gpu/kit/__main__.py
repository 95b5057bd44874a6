"""Runs the kit on the machine with the GPU: see `tests.gpu.kit`. Needs nothing but Python's own library to begin.

Writes gpu_kit.json after every stage, and the stages' logs beside it. Exit code: 0 where every stage passed, 1 where
one did not, 3 where a part is missing.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PART = re.compile(r"kit\.(\d+)of(\d+)")
FAILED, PARTS_MISSING = 1, 3


@dataclass(frozen=True)
class Stage:
    name: str
    module: str
    least_s: int
    """With less time left it is not begun."""


# What nobody has seen comes first.
STAGES = (
    Stage("attention", "tests.gpu.kit.attention", 15),
    Stage("suite", "tests.gpu.kit.suite", 45),
    Stage("training", "tests.gpu.kit.training", 90),
    Stage("memory", "tests.gpu.kit.memory", 45),
    Stage("costs", "tests.gpu.kit.costs", 20),
)


def unpack(source: Path, work: Path) -> list[str]:
    """Keep the parts in `source` and unpack all of them into `work`/kit once they are complete.

    Returns:
        the parts that are missing.
    """
    if (work / "kit" / "about.json").exists():
        return []
    kept = work / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for part in source.glob("kit.*of*"):
        shutil.copy(part, kept)
    names = {path.name for path in kept.iterdir()}
    if not names:
        return [f"{source}/kit.1of..."]
    number = int(PART.fullmatch(min(names)).group(2))
    wanted = [f"kit.{part}of{number}" for part in range(1, number + 1)]
    if missing := [name for name in wanted if name not in names]:
        return missing
    with (work / "kit.tar.xz").open("wb") as whole:
        for name in wanted:
            with (kept / name).open("rb") as part:
                shutil.copyfileobj(part, whole)
    with tarfile.open(work / "kit.tar.xz") as tar:
        tar.extractall(work / "partial", filter="data")
    (work / "partial").rename(work / "kit")
    return []


def environment(work: Path, device: str) -> dict[str, str]:
    """This checkout before the kit's packages, and those before the machine's."""
    own = {
        "PYTHONPATH": f"{ROOT}:{work / 'kit' / 'site'}",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_TMPDIR": str(work),
        "TMPDIR": str(work),
        "TOKENIZERS_PARALLELISM": "true",
    }
    if device == "cpu":
        own |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "r3_ext.cpu.plugin"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("R3_", "VERL_", "RAY_"))}
    return {**inherited, **own}


def run(stage: Stage, work: Path, device: str, left_s: float) -> dict:
    """Its figures, or why there are none; its output goes to `work`/logs."""
    if left_s < stage.least_s:
        return {"ok": False, "why": f"not begun: {left_s:.0f} s were left, it takes at least {stage.least_s}"}
    found, log = work / f"{stage.name}.json", work / "logs" / f"{stage.name}.log"
    command = [sys.executable, "-m", stage.module, "--out", found, "--device", device, "--work", work]
    found.unlink(missing_ok=True)
    log.parent.mkdir(exist_ok=True)
    begin, why = time.monotonic(), None
    with log.open("w") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=ROOT,
            env=environment(work, device),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=left_s)
            why = None if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            why = "the time was up"
    figures = json.loads(found.read_text()) if found.exists() else {}
    tail = {"log_ends": log.read_text(errors="replace")[-3000:]} if why else {}
    return {"ok": why is None, "seconds": round(time.monotonic() - begin, 1), "why": why, **tail, "figures": figures}


def machine(work: Path, device: str) -> dict:
    """What the figures are of."""
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], env=environment(work, device), capture_output=True, text=True
    )
    look = (
        "import json, torch; gpu = torch.cuda.is_available(); print(json.dumps({'torch': torch.__version__, 'cuda': "
        "torch.version.cuda, 'cudnn': torch.backends.cudnn.version() if gpu else None, 'device': "
        "torch.cuda.get_device_name() if gpu else None, 'gib': torch.cuda.get_device_properties(0).total_memory / "
        "2**30 if gpu else None}))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", look], env=environment(work, device), capture_output=True, text=True, check=True
    )
    return {
        **json.loads((work / "kit" / "about.json").read_text()),
        **json.loads(seen.stdout),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "pip_check": check.stdout.splitlines()[-50:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kit", type=Path, help="folder with the parts, or with one of them")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for gpu_kit.json and the logs")
    parser.add_argument("--work", type=Path, default=Path("/tmp/r3kit"), help="a short path: Ray's sockets lie in it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal, at small sizes")
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--only", choices=[stage.name for stage in STAGES], nargs="+")
    args = parser.parse_args()
    begin = time.monotonic()
    if missing := unpack(args.kit, args.work):
        print(f"{', '.join(missing)} still to come: bring it to this machine and run this again")
        sys.exit(PARTS_MISSING)
    found = {"machine": machine(args.work, args.device), "unpacked_s": round(time.monotonic() - begin, 1), "stages": {}}
    args.out.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        if args.only and stage.name not in args.only:
            continue
        done = run(stage, args.work, args.device, args.seconds - (time.monotonic() - begin))
        found["stages"][stage.name] = done
        (args.out / "gpu_kit.json").write_text(json.dumps(found, indent=2) + "\n")
        print(f"{stage.name}: {'passed' if done['ok'] else done['why']}, {done.get('seconds', 0)} s", flush=True)
        with tarfile.open(args.out / "logs.tar.gz", "w:gz") as tar:
            tar.add(args.work / "logs", arcname="logs")
    sys.exit(0 if all(done["ok"] for done in found["stages"].values()) else FAILED)


if __name__ == "__main__":
    main()
