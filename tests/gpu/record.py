"""What a check saw, and the file that all of them are written to."""

import json
import platform
from datetime import datetime
from pathlib import Path

import torch

from r3_ext.host.hardware import PACKAGES, installed_version
from r3_ext.run.environment import git_says


class Record:
    """The checks of one run of the suite."""

    def __init__(self, path: Path, device: str, shapes):
        self.path, self.device, self.shapes, self.checks = path, device, shapes, []

    def check(self, name: str, figures: dict[str, float], limits: dict[str, float]) -> None:
        """Write the figures down, and fail with all of them where one is above its limit or not a number.

        limits: the most that a figure may be, for those that have a limit.
        """
        missed = [
            f"{key} = {figures[key]}, at most {limit}" for key, limit in limits.items() if not figures[key] <= limit
        ]
        self.checks.append({"check": name, "ok": not missed, "figures": figures, "limits": limits})
        self.save()
        assert not missed, f"{name}: {'; '.join(missed)}; all figures: {json.dumps(figures, indent=2)}"

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(
            json.dumps({**environment(self.device, self.shapes), "checks": self.checks}, indent=2) + "\n"
        )


def environment(device: str, shapes) -> dict:
    """Hardware, commit and versions; what is not installed is left out."""
    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    on_gpu = device == "cuda"
    return {
        "written": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {platform.machine()}",
        "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if on_gpu else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": versions,
        "commit": git_says("rev-parse", "HEAD"),
        "changes": git_says("status", "--porcelain"),
        "shapes": vars(shapes),
    }
