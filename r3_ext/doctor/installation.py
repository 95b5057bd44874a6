"""Python, packages and their pins, verl's platform."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, INSTALL, OK, WARN, Finding, is_cpu
from r3_ext.host.hardware import DISTRIBUTION, installed_version

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from packaging.requirements import Requirement


CUPY = "cupy-cuda13x==14.0.1"
"""What verl's checkpoint engine nccl imports, as verl's extra cupy-cu130 has it."""


def requirements(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for with an extra, as the installed distribution knows it."""
    from packaging.requirements import Requirement

    lines = metadata.requires(DISTRIBUTION) or []
    parsed = (Requirement(line) for line in lines)
    return [pin for pin in parsed if pin.name != DISTRIBUTION and _is_asked_for(pin, extra)]


def _is_asked_for(pin: Requirement, extra: str) -> bool:
    """The extras cpu and gpu are made of `verl` and what only they need."""
    return pin.marker is None or any(pin.marker.evaluate({"extra": name}) for name in (extra, "verl"))


def check_python(config: DictConfig | None = None) -> list[Finding]:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        return [Finding(FAIL, "python", found, "needed is Python 3.11 or 3.12; then " + INSTALL)]
    if platform.system() != "Linux":
        return [Finding(FAIL, "python", found, "vLLM needs Linux")]
    return [Finding(OK, "python", found)]


def check_packages(config: DictConfig) -> list[Finding]:
    return package_findings("cpu" if is_cpu(config) else "gpu")


def package_findings(extra: str) -> list[Finding]:
    """Versions against the pins of `extra`. Other versions of verl and TransferQueue fail: the recipe overrides their
    methods; other versions of anything else are a warning."""
    if installed_version(DISTRIBUTION) is None:
        return [Finding(FAIL, "packages", f"{DISTRIBUTION} is not installed in {sys.prefix}", INSTALL)]
    pins = requirements(extra)
    versions = {pin.name: installed_version(pin.name) for pin in pins}
    findings = []
    missing = [str(pin.name) for pin in pins if versions[pin.name] is None]
    if missing:
        findings.append(Finding(FAIL, "packages", "missing: " + ", ".join(missing), INSTALL))
    for pin in pins:
        version = versions[pin.name]
        if version is not None and not pin.specifier.contains(version, prereleases=True):
            level = FAIL if pin.name in ("verl", "TransferQueue") else WARN
            findings.append(Finding(level, "packages", f"{pin.name} {version}, pinned {pin.specifier}", INSTALL))
    if extra == "cpu":
        findings += cuda_builds()
    if findings:
        return findings
    named = ", ".join(f"{name} {versions[name]}" for name in versions if re.match("verl|torch|vllm|transformers", name))
    return [Finding(OK, "packages", f"all {len(pins)} as pinned: {named}")]


def cuda_builds() -> list[Finding]:
    """torchvision and its like from PyPI, which break `import transformers` next to a CPU torch."""
    names = ("torchvision", "torchaudio", "torchcodec")
    stray = [name for name in names if (version := installed_version(name)) and not version.endswith("+cpu")]
    if not stray:
        return []
    found = f"CUDA builds beside a CPU torch: {', '.join(stray)}"
    return [Finding(FAIL, "packages", found, f"pip uninstall -y {' '.join(stray)}")]


def check_platform(config: DictConfig) -> list[Finding]:
    """verl picks its platform from VERL_PLATFORM; the profile has to agree."""
    chosen = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if is_cpu(config) and chosen != "cpu":
        advice = "export VERL_PLATFORM=cpu (`r3 run` does it)"
        return [Finding(WARN, "platform", "trainer.device=cpu, but VERL_PLATFORM is not cpu", advice)]
    if not is_cpu(config) and chosen == "cpu":
        advice = "unset VERL_PLATFORM, or choose the profile embedded"
        return [Finding(FAIL, "platform", f"trainer.device={config.trainer.device}, but VERL_PLATFORM=cpu", advice)]
    return [Finding(OK, "platform", "CPU" if is_cpu(config) else config.trainer.device)]


def check_weight_sync(config: DictConfig) -> list[Finding]:
    """verl finds out that it cannot import the checkpoint engine of separate_async after everything is loaded."""
    engine = config.actor_rollout_ref.rollout.checkpoint_engine.backend
    if engine != "nccl" or find_spec("cupy"):
        return []
    found = "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl needs the package cupy, which is not installed"
    return [Finding(FAIL, "weight sync", found, f"pip install {CUPY}")]
