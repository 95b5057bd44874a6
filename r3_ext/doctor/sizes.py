"""Sizes that follow from the model where there is no GPU: taken where nobody chose, checked where somebody did."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_cpu
from r3_ext.doctor.gpus import generating_gpus
from r3_ext.doctor.model_files import model_architecture
from r3_ext.doctor.settings import check_values
from r3_ext.host.cluster import ADDRESS

if TYPE_CHECKING:
    from omegaconf import DictConfig


def sized(arrange: Callable[[list[str]], list[str]], given: list[str]) -> tuple[list[str], DictConfig]:
    """All overrides, with the sizes that the model asks for, and their config.

    arrange: puts a start's own overrides around those that are given; its own go before the sizes.
    """
    from r3_ext.settings import sizing_cpu
    from r3_ext.settings.compose import compose_config

    overrides = arrange(given)
    config = compose_config(overrides)
    if check_values(config) or not is_cpu(config) or (architecture := model_architecture(config)) is None:
        return overrides, config
    if found := sizing_cpu.overrides(config, architecture):
        overrides = arrange([*given, *found])
        config = compose_config(overrides)
    return overrides, config


def check_sizes(config: DictConfig) -> list[Finding]:
    """What a weight and a row need; verl and vLLM find out after everything is loaded."""
    if not is_cpu(config) or (architecture := model_architecture(config)) is None:
        return []
    from omegaconf import OmegaConf

    from r3_ext.settings import sizing_cpu

    findings = []
    for key, least in sizing_cpu.too_small(config, architecture).items():
        found = f"{key} must be at least {least} for this model, got {OmegaConf.select(config, key)}"
        findings.append(Finding(FAIL, "sizes", found, f"set {key}={least}, or leave it out"))
    return findings


def main_memory(config: DictConfig, tokens: int | None = None) -> dict[str, float]:
    """GiB of main memory by part, where no GPU is used: the model's, and that of the processes beside it.

    tokens: of a micro-batch; those of the settings where none are named.
    """
    from r3_ext.settings import sizing_cpu

    ranks, generating = config.trainer.n_gpus_per_node, generating_gpus(config)
    each = sizing_cpu.PROCESSES_GIB + sizing_cpu.RANK_GIB * (ranks + generating)
    # On a cluster the processes are no forks, and each has the libraries for itself.
    parts = {"processes": 5 + 4 * ranks if os.environ.get(ADDRESS) else each}
    if architecture := model_architecture(config):
        tokens = tokens or sizing_cpu.micro_batch_tokens(config)
        parts |= sizing_cpu.main_memory(config, architecture, tokens, generating)
    return parts


def memory_findings(config: DictConfig, available: float, total: float, where: str) -> list[Finding]:
    """That need against the GiB of a machine; refused where even a micro-batch of one row is too much for it."""
    from r3_ext.settings import sizing_cpu

    parts, least = main_memory(config), sizing_cpu.longest_row(config)
    needed, smallest = sum(parts.values()), sum(main_memory(config, least).values())
    said = ", ".join(f"{size:.1f} {name}" for name, size in parts.items() if size >= 0.1)
    found = f"{where}{available:.0f} of {total:.0f} GiB free, about {needed:.0f} needed ({said})"
    if total < smallest:
        return [Finding(FAIL, "memory", found, "take a smaller model, or a machine with more memory")]
    if available < needed:
        lower = f", or set {sizing_cpu.TOKENS}={least}" if smallest < needed else ""
        return [Finding(WARN, "memory", found, f"the kernel may end processes of the run; close other programs{lower}")]
    return [Finding(OK, "memory", found)]
