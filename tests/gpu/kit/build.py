"""Builds the kit, where there is a network and this project's environment: see `tests.gpu.kit`."""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from r3_ext.run.environment import git_says
from r3_ext.settings.compose import ROOT

from . import training

PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_28"
TAUGHT_STEPS = "140"
"""Of the tiny model: right and wrong answers, as in tests/integration."""
NOT_TAKEN = ("torch", "vllm", "wandb")
"""torch is there; vLLM is 3 GB with what it asks for; W&B is imported only where it logs."""
BROUGHT_BY_VLLM = ("cachetools", "fastapi", "uvicorn")
"""What verl imports without asking for it."""
SLIM = (
    *("bin", "tests", "ray/jars", "ray/dashboard/client", "ray/rllib", "ray/serve", "ray/data", "ray/tune"),
    *("ray/train", "ray/llm"),
)
"""Folders that no run imports."""


def requirements() -> list[str]:
    """What pyproject.toml asks for on a GPU, and pytest, without `NOT_TAKEN`; and what comes with that otherwise."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [line for line in extras["test"] if line.startswith("pytest")]
    lines = [*project["dependencies"], *extras["verl"], *extras["gpu"], *tests, *BROUGHT_BY_VLLM]
    return [line for line in lines if name_of(line) not in (*NOT_TAKEN, project["name"])]


def name_of(requirement: str) -> str:
    """ "TransferQueue==0.1.11": transferqueue, as pip and uv compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def carried(resolved: Iterable[str], there: Iterable[str]) -> list[str]:
    """Of what is needed, what is not there: ["a==1", "b==2", "c==3"] and ["a==1", "b==1", "c"] leave ["b==2"]."""
    known = {(name_of(line), line.partition("==")[2].strip()) for line in there}
    pairs = {line: (name_of(line), line.partition("==")[2].strip()) for line in resolved}
    return [line for line, (name, version) in pairs.items() if not {(name, version), (name, "")} & known]


def uv(*arguments: str | Path) -> None:
    options = subprocess.run(
        [sys.executable, ROOT / "examples" / "uv_options.py"], capture_output=True, text=True, check=True
    )
    command = 'eval "$1"; shift; exec "$@" "${uv_options[@]}" --index-strategy unsafe-best-match --quiet'
    program = shutil.which("uv", path=Path(sys.executable).parent) or "uv"
    subprocess.run(["bash", "-c", command, "uv", options.stdout, program, *map(str, arguments)], check=True)


def resolve(there: list[str], folder: Path) -> list[str]:
    """The versions of all that is needed, those that are there wherever they will do."""
    asked, others, found = (folder / name for name in ("asked.txt", "others.txt", "found.txt"))
    asked.write_text("\n".join(requirements()))
    # A requirement that is needed nowhere takes the package's place, and ray comes without its dashboard's.
    ray = next(line for line in requirements() if name_of(line) == "ray")
    others.write_text("\n".join([*(f'{name}; sys_platform == "never"' for name in NOT_TAKEN), ray]))
    found.write_text("\n".join(line for line in there if "==" in line))  # uv prefers what its output says already
    target = ("--python-version", PYTHON, "--python-platform", PLATFORM)
    uv(*("pip", "compile", *target, "--no-header", "--no-annotate", "--overrides", others, asked, "-o", found))
    return found.read_text().split("\n")


def fill(folder: Path, pins: list[str]) -> None:
    """Packages, the tiny model with its problems, a recording of its rollouts, and what the kit is."""
    site = folder / "site"
    target = ("--python-version", PYTHON, "--python-platform", PLATFORM)
    uv("pip", "install", "--no-deps", "--target", site, *target, *pins)
    for name in SLIM:
        shutil.rmtree(site / name, ignore_errors=True)
    for cache in [*site.rglob("__pycache__")]:
        shutil.rmtree(cache)
    with tempfile.TemporaryDirectory() as cache:
        teach = [sys.executable, "-m", "r3_ext.tiny.warm_start", "--cache", cache, "--steps", TAUGHT_STEPS]
        told = subprocess.run(teach, check=True, capture_output=True, text=True, cwd=ROOT)
        shutil.copytree(Path(told.stdout.splitlines()[-1]).parent, folder / "tiny")
    training.record(folder / training.RECORDING, folder / "tiny")
    about = {"commit": git_says("rev-parse", "HEAD"), "changes": git_says("status", "--porcelain"), "packages": pins}
    (folder / "about.json").write_text(json.dumps(about, indent=2))


def pack(folder: Path, output: Path, part_bytes: int) -> list[Path]:
    """The folder as one archive, cut into files of at most that size, which say how many they are.

    Returns:
        the files, such as kit.1of2.
    """
    archive = folder.with_suffix(".tar.xz")
    with tarfile.open(archive, "w:xz", preset=3) as tar:
        tar.add(folder, arcname=".")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    number = -(-archive.stat().st_size // part_bytes)
    parts = [output / f"kit.{part}of{number}" for part in range(1, number + 1)]
    with archive.open("rb") as whole:
        for part in parts:
            part.write_bytes(whole.read(part_bytes))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="folder for the parts; what is in it is replaced")
    parser.add_argument("--there", type=Path, help="what `python3 -m pip freeze` prints on that machine")
    parser.add_argument("--part-mib", type=float, default=58, help="most of one part: 64 with the checkout beside it")
    args = parser.parse_args()
    there = args.there.read_text().split("\n") if args.there else []
    with tempfile.TemporaryDirectory() as scratch:
        pins = carried(filter(None, resolve(there, Path(scratch))), filter(None, there))
        folder = Path(scratch) / "kit"
        folder.mkdir()
        fill(folder, pins)
        for part in pack(folder, args.output, int(args.part_mib * 2**20)):
            digest = hashlib.sha256(part.read_bytes()).hexdigest()[:16]
            print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB, sha256 {digest}")
    print(f"{len(pins)} packages: {' '.join(pins)}")


if __name__ == "__main__":
    main()
