"""`r3 doctor`: what would otherwise fail minutes into a run, checked before Ray starts.

    r3 doctor                                    the largest profile that the GPUs allow, or embedded
    r3 doctor --profile gpu_4x80gb data.train_files=train.parquet
    DATA=rows.parquet MODEL=folder r3 doctor     the same files that `r3 run` would take
    r3 doctor --json                             for programs

Exit code 1 when a check failed; a warning does not count. `r3 run` makes the same checks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.data import check as rows
from r3_ext.doctor.cluster import check_cluster
from r3_ext.doctor.data_files import check_data, check_worlds
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, passed, report_json
from r3_ext.doctor.gpus import check_device, check_gpus
from r3_ext.doctor.installation import check_packages, check_platform, check_python, check_weight_sync
from r3_ext.doctor.machine import (
    check_compiler,
    check_cores,
    check_foreign_sockets,
    check_home,
    check_instructions,
    check_memory,
    check_open_files,
    check_shared_memory,
    check_windows,
)
from r3_ext.doctor.model_files import check_model, check_tokenizer
from r3_ext.doctor.network import check_network, check_tracker
from r3_ext.doctor.prompts import check_prompts
from r3_ext.doctor.settings import check_config, check_values
from r3_ext.doctor.sizes import check_sizes, sized
from r3_ext.doctor.speed import check_attention, check_log_probs
from r3_ext.doctor.storage import check_disk, check_output
from r3_ext.host import cluster
from r3_ext.recipes import DEFAULT_METHOD, check_kind, recipe_of
from r3_ext.settings.choose import attention_override, default_profile

if TYPE_CHECKING:
    from omegaconf import DictConfig

CHECKS: list[Callable[[DictConfig], list[Finding]]] = [
    check_python,
    check_packages,
    check_platform,
    check_weight_sync,
    check_windows,
    check_instructions,
    check_compiler,
    check_cores,
    check_memory,
    check_shared_memory,
    check_home,
    check_open_files,
    check_foreign_sockets,
    check_device,
    check_network,
    check_tracker,
    check_cluster,
    check_gpus,
    check_attention,
    check_log_probs,
    check_config,
    check_output,
    check_disk,
    check_model,
    check_sizes,
    check_tokenizer,
    check_data,
    check_worlds,
    check_prompts,
]


def diagnose(config: DictConfig) -> list[Finding]:
    """The findings of all checks on a composed config; of the values alone where some cannot be."""
    if wrong := check_values(config):
        return wrong
    return [finding for check in CHECKS for finding in check(config)]


def summary(findings: list[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in (FAIL, WARN, OK)}
    return f"{counts[FAIL]} failed, {counts[WARN]} warning{'' if counts[WARN] == 1 else 's'}, {counts[OK]} ok"


def report(findings: list[Finding]) -> bool:
    """Print the findings as a table; returns whether nothing failed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    for finding in findings:
        text = Text(finding.found)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style=styles[finding.level])
        table.add_row(Text(finding.level, style=styles[finding.level]), finding.check, text)
    console.print(table, width=min(console.width, 100))
    console.print(Text(summary(findings), style="green" if passed(findings) else "bold red"))
    return passed(findings)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="r3 doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default=DEFAULT_METHOD, help="method to train with (default: %(default)s)")
    parser.add_argument("--world", help="textworld: sessions in a text world, where the method does not ask for them")
    parser.add_argument("--profile", default=os.environ.get("R3_PROFILE"), help="file in r3_ext/settings/profile")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cache", type=Path, help="where `r3 run` prepares DATA and VAL_DATA")
    parser.add_argument("overrides", nargs="*", help="hydra overrides")
    return parser.parse_intermixed_args(argv)


def examine(
    profile: str, method: str, overrides: list[str], cache: Path | None, world: str | None = None
) -> list[Finding]:
    """Compose the configuration with DATA, VAL_DATA and MODEL and check it; what does not compose is a finding.

    world: as --world has it; None: that of the method.
    """
    from r3_ext.settings.compose import CACHE, base_overrides, check_choice, compose_config
    from r3_ext.settings.prepare import model_and_data
    from r3_ext.tiny.world import parse

    findings, given, told = [], [], []
    try:
        check_choice("profile", profile)
        world = recipe_of(method).world if world is None else world
        check_kind(method, world)
        groups = [*base_overrides(profile, method, world), *attention_override(profile), *cluster.overrides()]
        config = compose_config([*groups, *overrides])
        if wrong := check_values(config):  # told before any file is read
            return wrong
        any_truth = rows.may_be_any_truth(config)
        try:
            given = model_and_data(
                profile,
                cache or CACHE,
                {"world": parse(world)},
                told.append,
                overrides,
                build=False,
                any_truth=any_truth,
            )
        except ValueError as error:
            findings = [Finding(FAIL, "data", str(error), "correct DATA, VAL_DATA or MODEL")]
        _, config = sized(lambda given: [*groups, *given, *overrides], given)
    except ValueError as error:
        advice = "correct the override or the file that the message names"
        return [Finding(FAIL, "config", str(error), advice)]
    return findings + [Finding(OK, "data", text) for text in told] + diagnose(config)


def main(argv: list[str]) -> int:
    args = parse(argv)
    say = report_json if args.json else report
    try:
        profile = args.profile or default_profile()
    except ValueError as error:
        return 0 if say([Finding(FAIL, "profile", str(error), "r3 doctor --profile NAME")]) else 1
    if profile == "embedded":
        os.environ["VERL_PLATFORM"] = "cpu"
    return 0 if say(examine(profile, args.method, args.overrides, args.cache, args.world)) else 1
