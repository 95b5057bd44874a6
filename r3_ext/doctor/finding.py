"""What a check of the doctor says, and what all checks ask of a configuration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from r3_ext.recipes import R3, recipe_of_config

if TYPE_CHECKING:
    from omegaconf import DictConfig

OK, WARN, FAIL = "ok", "warn", "fail"
INSTALL = "run examples/install.sh"


@dataclass(frozen=True)
class Finding:
    level: str
    """`ok`, `warn` or `fail`."""
    check: str
    found: str
    advice: str = ""
    """What to do; empty for `ok`."""


def is_cpu(config: DictConfig) -> bool:
    return config.trainer.device == "cpu"


def is_r3(config: DictConfig) -> bool:
    return recipe_of_config(config) is R3


def not_set(check: str, key: str) -> Finding:
    return Finding(WARN, check, f"{key} is not set", f"set {key}=...; `r3 run` fills it in")


def passed(findings: list[Finding]) -> bool:
    return all(finding.level != FAIL for finding in findings)


def report_json(findings: list[Finding]) -> bool:
    print(json.dumps({"ok": passed(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    return passed(findings)
