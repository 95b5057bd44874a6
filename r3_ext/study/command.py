"""`r3 study`: methods, their parts and their baselines at equal cost, several seeds, one run folder per cell.

    r3 study                                    the default arms, five seeds, on this machine's profile
    r3 study --arms grpo r3 --seeds 0 1 2       some of them
    r3 study --arms hgpo gigpo grpo_sessions --turns 8000     methods on sessions, for equal turns
    r3 study --plan FILE [--only NAME ...]      the experiments of a plan, and the verdict on each of its hypotheses
    r3 study --plan FILE --seeds 13 14          only these of its worlds: another machine takes the others
    r3 study --summarise                        tables and figures of what there is, without training

A cell (one arm, one seed) is an ordinary `r3 run` in OUT/ARM/seed_N, of a plan in OUT/FOLDER/ARM/seed_N. On the
embedded profile a seed is a world of its own: model, facts, problems. It ends at the first validation after --tokens
generated tokens. Cells that are complete are skipped, one that SIGTERM ended goes on (the study then exits with 75),
others start anew: call it again after an interruption.
OUT/curves.csv and ledger.csv are the record of the complete ones: their run folders may be deleted, or the two files
and study.json taken to another machine to go on there. A plan has both in OUT, too, for all of its experiments: from
them alone --summarise makes tables, figures and verdicts again, and without it the cells that they lack are trained.
Everything after the options is a hydra override for every cell.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

from rich.console import Console

from r3_ext.data.check import may_be_any_truth
from r3_ext.doctor.settings import check_values
from r3_ext.host.files import write_text
from r3_ext.recipes import check_kind
from r3_ext.record.console import sayer
from r3_ext.record.folder import STOPPED, claim
from r3_ext.settings.choose import default_profile
from r3_ext.settings.compose import CACHE, base_overrides, check_choice, compose_config
from r3_ext.settings.prepare import model_and_data
from r3_ext.study import arms, cells, figure, hypotheses, record, tables, text
from r3_ext.study.cells import WIDTH, Stopped, generates, settings_of
from r3_ext.study.design import Design, choices, read_design
from r3_ext.study.outcome import compare, in_common
from r3_ext.study.plan import PLAN, check_plan, plan_of, read_plan
from r3_ext.tiny.world import is_text
from r3_ext.tiny.world import parse as parse_world

FREE = {"arms": arms.DEFAULT, "seeds": range(5), "tokens": 60_000, "world": ""}
"""Options of a study without a plan, and their defaults."""
KEPT = "plan.yaml"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="r3 study", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = "\n".join(f"  {name:<{WIDTH}}{arm.title}" for name, arm in arms.ARMS.items())
    parser.add_argument("--arms", nargs="+", choices=arms.ARMS, metavar="ARM", help=names)
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="default: 0 1 2 3 4; with --plan its own, or of them only these"
    )
    parser.add_argument("--tokens", type=int, help="budget of generated tokens of a cell (default: 60,000)")
    parser.add_argument("--turns", type=int, help="the same in turns, of arms that train on sessions")
    parser.add_argument("--profile", default=os.environ.get("R3_PROFILE"))
    parser.add_argument("--world", help="what the cells' worlds have in common, such as mistaken=0,stuck=0")
    parser.add_argument("--plan", type=Path, help="YAML file with experiments and hypotheses (r3_ext/study/design.py)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="experiments of the plan to train")
    parser.add_argument("--out", type=Path, default=Path("outputs/study"))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--summarise", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", help="hydra overrides for every cell")
    args = parser.parse_intermixed_args(argv)
    given = [f"--{name}" for name in FREE if name != "seeds" and getattr(args, name) is not None] + args.overrides
    if args.plan and given:
        parser.error(f"{given[0]} is what --plan says: leave one of them out")
    if args.only and not args.plan:
        parser.error("--only names experiments of a plan: give --plan")
    args.tuned, args.is_tuned, args.worlds = {}, False, args.seeds
    if told := settle_budget(args):
        parser.error(told)
    for name, value in FREE.items():
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    if args.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {args.tokens}")
    return args


def settle_budget(args: argparse.Namespace) -> str | None:
    """Put --turns, the budget of arms that train on sessions, in its place; returns what is wrong with it."""
    chosen, is_turns = args.arms or FREE["arms"], args.turns is not None
    unit = arms.unit_of(chosen)
    if is_turns and args.plan:
        return "--turns is what --plan says: leave one of them out"
    if is_turns and args.tokens is not None:
        return "--turns and --tokens are two budgets: leave one of them out"
    if not args.plan and not args.summarise and is_turns != (unit == arms.TURNS):
        return f"--arms {' '.join(chosen)}: their budget counts {unit}, give --{unit}"
    args.tokens = args.turns if is_turns else args.tokens
    return None


def main(argv: list[str]) -> int:
    args = parse(argv)
    console = Console()

    say = sayer(console)
    try:
        profile = args.profile or default_profile()
        design = read_design(args.plan) if args.plan else None
        studies = follow(args, design) if design else [args]
        for study in studies:
            check(study, profile)
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    failed = []
    if not args.summarise:
        with cells.shared_interpreter(profile) as (python, env):
            for study in studies:
                try:
                    begin(study, profile, design)
                    if design and (taken := record.lay(args.out, study.out.name)):
                        say(f"{study.out.name}: {taken} cells are taken from {args.out / record.CURVES}")
                except ValueError as error:
                    failed.append(f"{study.out.name}, {error}")
                    continue
                try:
                    failed += cells.train(study, profile, console, python, env)
                except Stopped as stopped:
                    say(f"{stopped}: call the same command again to go on")
                    return STOPPED
                record.update(study.out, cells.complete_cells(study.out, study.tokens, say), tuple(arms.ARMS))
    found = {}
    for out in dict.fromkeys(study.out for study in studies if (study.out / PLAN).exists()):
        found[out.name] = summarise(out, read_plan(out), say)
        tables.show(found[out.name], console, out.name if design else "")
    if design:
        judged = verdicts(args.out, design)
        tables.show_verdicts(design, judged, console)
        if args.only is None and args.worlds is None:
            write_text(args.out / "results.md", text.results(design, found, judged))
    for cell in failed:
        console.print(f"failed: {cell}; call the same command again to repeat it", soft_wrap=True, highlight=False)
    return 1 if failed else 0


def follow(args: argparse.Namespace, design: Design) -> list[argparse.Namespace]:
    """`studies_of` the plan, which is kept beside the cells that follow it.

    Raises:
        ValueError: the cells there follow another plan, or none, or are a record of nobody knows which.
    """
    out, plan = args.out, args.plan
    kept = out / KEPT
    if (out / PLAN).exists():
        raise ValueError(f"{out} holds a study without a plan; take another --out")
    if kept.exists() and kept.read_bytes() != plan.read_bytes():
        raise ValueError(f"{out} follows another plan than {plan}, its own is {kept}: take that one, or another --out")
    if (out / record.CURVES).exists() and not kept.exists():
        raise ValueError(f"{out / record.CURVES} is a record without its plan: put its {KEPT} beside it")
    if args.summarise:
        record.unpack(out, design.budgets, PLAN)
    studies = studies_of(args, design)
    out.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        shutil.copyfile(plan, kept)
    return studies


def studies_of(args: argparse.Namespace, design: Design) -> list[argparse.Namespace]:
    """The arguments of each experiment; to be summarised, of those that have begun.

    Raises:
        ValueError: --only names none of them, --seeds leaves none of their worlds, nothing has begun, or the tuning of
            one is not complete.
    """
    names = [experiment.name for experiment in design.experiments]
    if unknown := sorted(set(args.only or ()) - set(names)):
        raise ValueError(f"--only {unknown[0]}: {args.plan} has the experiments {', '.join(names)}")
    studies = []
    for chosen in design.experiments:
        out = args.out / chosen.folder
        if args.summarise and not out.exists():
            continue
        seeds = [seed for seed in chosen.seeds if args.worlds is None or seed in args.worlds]
        if seeds and (args.only is None or chosen.name in args.only):
            values = {name: getattr(chosen, name) for name in ("arms", "tokens", "world")}
            values |= {"out": out, "seeds": seeds, "overrides": [*chosen.overrides], "is_tuned": chosen.tuned}
            studies.append(argparse.Namespace(**vars(args) | values))
    if args.only and not args.summarise and not set(design.tuning.candidates if design.tuning else ()) & set(args.only):
        for study in studies:
            tune(study, design)
    if not studies and not args.summarise:
        seeds = " ".join(map(str, args.worlds))
        raise ValueError(f"--seeds {seeds}: none of them is a world of {' or '.join(args.only or ['this plan'])}")
    if not studies:
        raise ValueError(f"{args.out} holds no experiment of {args.plan}; --out names its folder")
    return studies


def tune(study: argparse.Namespace, design: Design | None) -> None:
    """Give a tuned experiment the overrides that did best; raises ValueError while the tuning is not complete."""
    if design and study.is_tuned:
        picked = choices(design, recorded_curves(study.out.parent, design))
        study.tuned = {arm: [*candidate.overrides] for arm, candidate in picked.items()}


def begin(study: argparse.Namespace, profile: str, design: Design | None) -> None:
    """Write the plan of a new study, or raise ValueError where the one that is there is another."""
    tune(study, design)
    check_plan(study.out, plan_of(study, profile))


def check(args: argparse.Namespace, profile: str) -> None:
    """Refuse what could not be trained or summarised.

    Raises:
        ValueError: an option, a setting of an arm, data, a record that cannot be read, or a folder of others.
        OSError: a folder that cannot be made.
    """
    if args.summarise:
        read_plan(args.out)
    else:
        if args.world:
            # Its seed is the cell's.
            parse_world(f"{args.world},seed=0")
            if not generates(profile, args.overrides) and not is_text(args.world):
                raise ValueError("--world concerns the problems that the profile embedded generates; leave it out")
        check_choice("profile", profile)
        by_unit = {arms.unit_of([arm]): arm for arm in args.arms}
        if len(by_unit) > 1:
            one, other = by_unit[arms.TURNS], by_unit[arms.TOKENS]
            told = f"the budget of {one} counts turns, that of {other} tokens: leave one of them out"
            raise ValueError(f"{told}; GRPO on sessions is the arm grpo_sessions")
        for arm in args.arms:
            world = args.world or cells.own_world(arm)
            check_kind(arms.ARMS[arm].method, world)
            own = base_overrides(profile, arms.ARMS[arm].method, world)
            config = compose_config([*own, *settings_of(args, profile, arm, seed=0)])
            if wrong := check_values(config):
                raise ValueError(wrong[0].found)
        any_truth = may_be_any_truth(config)
        made = {"world": parse_world(world)}
        model_and_data(profile, args.cache, made, lambda text: None, args.overrides, build=False, any_truth=any_truth)
        for arm in args.arms:
            for seed in args.seeds:
                claim((args.out / arm / f"seed_{seed}").absolute())
        if not args.is_tuned:
            check_plan(args.out, plan_of(args, profile))
    record.read_curves(args.out), record.read_ledger(args.out)


def summarise(out: Path, plan: dict, say) -> dict:
    """Compare the complete cells; writes the record, results.json and the figures into the study's folder."""
    record.update(out, cells.complete_cells(out, plan["tokens"], say), tuple(arms.ARMS))
    # From the record, whose figures are rounded: it gives the same results again, on any machine.
    curves, ledger = record.read_curves(out), record.read_ledger(out)
    results = {**plan, "comparisons": []}
    commits = {row.get(record.COMMIT) for rows in ledger.values() for row in rows.values()} - {None}
    if commits:
        results["commits"] = sorted(commits)
    for compared in in_common(curves, plan["tokens"]):
        found = compare(compared, plan["tokens"])
        for arm, seeds in compared.items():
            rows = [ledger.get(arm, {}).get(seed, {}) for seed in seeds]
            if kept := [key for key in record.COUNTS if all(key in row for row in rows)]:
                found[arm]["ledger"] = {key: sum(row[key] for row in rows) for key in kept}
        results["comparisons"].append({"seeds": [*next(iter(compared.values()))], "arms": found})
    write_text(out / "results.json", json.dumps(to_json(results), indent=2) + "\n")
    figure.write(out, curves, plan["tokens"])
    return results


def to_json(value):
    """NaN is not JSON: null."""
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


def verdicts(out: Path, design: Design) -> dict[str, hypotheses.Verdict | None]:
    """What the record says of each hypothesis; writes it as one, verdicts.json and a figure of each family."""
    record.pack(out, design.budgets)
    curves = recorded_curves(out, design)
    found = hypotheses.judge(design.hypotheses, curves, design.budgets, design.worlds)
    values = [hypotheses.values_of(one, curves, design.budgets, design.worlds) for one in design.hypotheses]
    figure.write_families(out, list(zip(design.hypotheses, values, found.values(), strict=True)))
    written = {name: verdict and dataclasses.asdict(verdict) for name, verdict in found.items()}
    write_text(out / "verdicts.json", json.dumps(to_json(written), indent=2) + "\n")
    return found


def recorded_curves(out: Path, design: Design) -> record.Curves:
    """By FOLDER/ARM and world, from the record of the plan and those of its experiments."""
    return record.read_curves(out) | {
        f"{folder}/{arm}": seeds for folder in design.budgets for arm, seeds in record.read_curves(out / folder).items()
    }
