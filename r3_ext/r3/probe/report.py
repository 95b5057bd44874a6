"""What a probe found: probe.json for programs, the text on the console, probe.png."""

import dataclasses
import json
import math
import shlex
from pathlib import Path

import numpy as np

from r3_ext.host.files import write_text
from r3_ext.r3.probe import figure, sooner, verdicts
from r3_ext.r3.probe.quantities import Figure, Plain, Reflected
from r3_ext.r3.probe.verdicts import OFF, percent
from recipe.r3.config.r3_config import KEY, NEXT_VISIT

FORMAT = 1
MEANS = ": there is work for it; whether that pays for its tokens, training decides"


def cost(parts: dict[str, dict[str, int]], step: float, seconds: float) -> dict:
    """What the probe took. parts: tokens of each folder. step: tokens that a training step generates."""
    generated = sum(part["generated"] for part in parts.values())
    return {"tokens": parts, "generated": generated, "step": step, "steps": generated / step, "seconds": seconds}


def content(
    settings: dict,
    plain: Plain,
    reflected: Reflected,
    figures: dict[str, Figure],
    foresight: dict | None,
    spent: dict,
) -> dict:
    """Content of probe.json."""
    judged = verdicts.judge(figures, int(reflected.asked_P.sum()), foresight)
    asked = int((sooner.all_wrong(plain) & reflected.asked_P).sum())
    earlier = sooner.judge(figures, asked, plain.n, settings["when"])
    followed = judged if settings["when"] == NEXT_VISIT else judged | {"reflection": earlier}
    ask = [] if settings["when"] == NEXT_VISIT or earlier.ask is None else [f"{KEY}.reflection.ask={earlier.ask}"]
    return {
        "format": FORMAT,
        "settings": settings,
        "verdicts": {name: dataclasses.asdict(verdict) for name, verdict in judged.items()},
        "sooner": dataclasses.asdict(earlier),
        "r3": verdicts.overall(followed),
        "unclear": [name for name, verdict in followed.items() if verdict.verdict == verdicts.UNCLEAR],
        "overrides": verdicts.overrides(followed) + ask,
        "figures": {n: [end if math.isfinite(end) else None for end in value] for n, value in figures.items()},
        "foresight": foresight,
        "right_answers": histogram(plain, reflected),
        "asked_again": int(reflected.asked_P.sum()),
        "cost": spent,
        "interval": "95 %, Wilson's over problems for shares, a bootstrap over problems for the others",
    }


def histogram(plain: Plain, reflected: Reflected) -> dict[str, list[int]]:
    """Problems by number of right answers, 0 to 2n, and how many of them are hard."""
    right_P = plain.correct_PA.sum(1)
    size = 2 * plain.n + 1
    counts = [np.bincount(right_P[rows], minlength=size).tolist() for rows in (slice(None), reflected.hard_P)]
    return dict(zip(("problems", "hard"), counts, strict=True))


def write(folder: Path, found: dict) -> None:
    figure.write(folder / "probe.png", found)
    write_text(folder / "probe.json", json.dumps(found, indent=1) + "\n")


def text(found: dict) -> list[str]:
    """Lines for the console."""
    figures, settings = found["figures"], found["settings"]
    shown = {name: percent(value) if None not in value else "-" for name, value in figures.items()}
    lines = [
        f"{settings['problems']} problems, {2 * settings['group']} answers each, as two epochs with groups of "
        f"{settings['group']} and {settings['limit']:,} tokens; per cent, with 95 % intervals over problems",
        f"  answers     right {shown['pass@1']}, cut off {shown['cut_off']}",
        f"  groups      mixed {shown['mixed']}, all right {shown['all_right']}, all wrong {shown['all_wrong']}",
        f"  GRPO        learns from the mixed groups, which have {shown['tokens_in_mixed']} of the generated tokens",
    ]
    for name, verdict in (found["verdicts"] | {"sooner": found["sooner"]}).items():
        first, *others = verdict["reasons"]
        ask = f", reflection.ask={verdict['ask']}" if verdict.get("ask") else ""
        lines.append(f"{name + ':':<12}{verdict['verdict'].upper()}{ask}: {first}")
        lines += [f"{'':<12}{reason}" for reason in others]
    if reward := settings["reward"]["no_score"]:
        lines.append(f"{settings['reward']['by']} gave no score for {reward:,} answers, which count as wrong")
    lines.append(f"{'R^3:':<12}{found['r3'].upper()}{MEANS if found['r3'] == verdicts.ON else ''}")
    return [*lines, f"{'use:':<12}{command(found)}", spent(found["cost"])]


def command(found: dict) -> str:
    """What to train with."""
    settings = found["settings"]
    # A run validates on a file of its own, which a probe has no need of.
    val = settings["val_data"] or "FILE"
    sources = {"MODEL": settings["model"]["path"], "DATA": settings["data"], "VAL_DATA": val}
    sources = {} if settings["world"] else sources
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in sources.items())
    base = ["r3", "run", "--profile", settings["profile"]]
    base += ["--world", settings["world"]] if settings["world"] else []
    if found["r3"] == OFF:
        return given + shlex.join([*base, "--method", "grpo", *settings["overrides"]])
    told = f"    ({', '.join(found['unclear'])}: as the recipe has it)" if found["unclear"] else ""
    return given + shlex.join([*base, *settings["overrides"], *found["overrides"]]) + told


def spent(cost: dict) -> str:
    """Prompt tokens are told apart: a reflection prompt is long, and costs less than generating as much."""
    parts = [f"{name} {part['generated']:,} (prompts of {part['prompts']:,})" for name, part in cost["tokens"].items()]
    return (
        f"took {cost['seconds'] / 60:.1f} min and {cost['generated']:,} generated tokens, as many as "
        f"{cost['steps']:.1f} training steps of {cost['step']:,.0f}: {', '.join(parts)}"
    )
