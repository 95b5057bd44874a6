"""study.json: what the cells of a study share, and by which a folder is known as that of a study."""

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path

from r3_ext.evaluate.plan import fingerprint
from r3_ext.host.files import write_text
from r3_ext.settings.prepare import EMBEDDED, VARIABLES, digest
from r3_ext.study import arms

PLAN = "study.json"


def read_plan(out: Path) -> dict:
    file = out / PLAN
    if not file.exists():
        raise ValueError(f"{out} holds no study; --out names its folder")
    try:
        plan = json.loads(file.read_text())
        if plan["tokens"] > 0:
            return plan
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError(f"{file} is not the plan of a study")


def plan_of(args: argparse.Namespace, profile: str) -> dict:
    """What the cells of a study share. Cells of another plan do not compare with them."""
    plan = {"tokens": args.tokens, "profile": profile, "overrides": args.overrides}
    plan |= {name: source_of(name, os.environ[name]) for name in VARIABLES if os.environ.get(name)}
    if profile == EMBEDDED:
        plan |= {"settings": list(arms.embedded(args.arms)), "warm_start": warm_start_version(args.arms)}
    if args.world:
        plan["world"] = args.world
    if args.tuned:
        plan["tuned"] = args.tuned
    return plan


def warm_start_version(chosen: Iterable[str]) -> int:
    """Of what makes these arms' model, which imports torch, and is slow for that."""
    if arms.unit_of(chosen) == arms.TURNS:
        from r3_ext.worlds import warm_start
    else:
        from r3_ext.tiny import warm_start
    return warm_start.VERSION


def source_of(name: str, value: str) -> dict[str, str]:
    """What DATA, VAL_DATA or MODEL stands for: its absolute path, or name on the hub, and a digest of what it holds."""
    path = Path(value).expanduser()
    if not path.exists():
        return {"path": value, "digest": digest([value])}
    return {"path": str(path.resolve()), "digest": fingerprint(path) if name == "MODEL" else digest([value])}


def without_place(value):
    """A value of a plan as another machine would have it, where DATA may lie elsewhere."""
    return value.get("digest") if isinstance(value, dict) else value


def check_plan(out: Path, plan: dict) -> None:
    """Write the plan of a new study.

    Raises:
        ValueError: the one in `out` is another, or there is none among files of others.
    """
    file = out / PLAN
    if file.exists():
        known = read_plan(out)
        changed = [key for key in {**known, **plan} if without_place(known.get(key)) != without_place(plan.get(key))]
        differences = "; ".join(f"{key} {known.get(key)}, here {plan.get(key)}" for key in changed)
        if changed:
            raise ValueError(f"{out} holds a study of other cells, {differences}; take another --out")
        return
    out.mkdir(parents=True, exist_ok=True)
    if found := sorted(path.name for path in out.iterdir()):
        raise ValueError(f"{out} holds {', '.join(found[:3])} and no study, and stays as it is; take another --out")
    write_text(file, json.dumps(plan, indent=2) + "\n")
