"""`r3 study`: R^3, its parts and its baselines at equal generated tokens, several seeds, one run folder per cell.

    r3 study                                    the default arms, five seeds, on this machine's profile
    r3 study --arms grpo r3 --seeds 0 1 2       some of them
    r3 study --plan FILE [--only NAME ...]      the experiments of a plan, and the verdict on each of its hypotheses
    r3 study --plan FILE --seeds 13 14          only these of its worlds: another machine takes the others
    r3 study --summarise                        tables and figures of what there is, without training

A cell (one arm, one seed) is an ordinary `r3 run` in OUT/ARM/seed_N, of a plan in OUT/FOLDER/ARM/seed_N. On the
embedded profile a seed is a world of its own: model, facts, problems. It ends at the first validation after --tokens
generated tokens. Cells that are complete are skipped, one that SIGTERM ended goes on (the study then exits with 75),
others start anew: call it again after an interruption.
OUT/curves.csv and ledger.csv are the record of the complete ones: their run folders may be deleted, or the two files
and study.json taken to another machine to go on there. Everything after the options is a hydra override for every cell.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from r3_ext.data.check import may_be_any_truth
from r3_ext.doctor.gpus import default_profile
from r3_ext.doctor.settings import check_values
from r3_ext.host import supervise
from r3_ext.record.folder import claim, held, is_run, read_starts
from r3_ext.record.summary import read_metrics
from r3_ext.run.command import EMBEDDED as EMBEDDED_PROFILE
from r3_ext.run.command import ROOT, STOPPED
from r3_ext.settings.compose import check_choice, compose_config
from r3_ext.settings.prepare import VARIABLES, model_and_data
from r3_ext.study import arms, figure, hypotheses, record, tables, text
from r3_ext.study.design import Design, choices, read_design
from r3_ext.study.outcome import compare, curve_of, in_common
from r3_ext.study.plan import PLAN, check_plan, plan_of, read_plan
from r3_ext.tiny.world import parse as parse_world

FREE = {"arms": arms.DEFAULT, "seeds": range(5), "tokens": 60_000, "world": ""}
"""Options of a study without a plan, and their defaults."""
KEPT = "plan.yaml"
WIDTH = max(map(len, arms.ARMS)) + 1
"""Of a column of arms."""
SEED = re.compile(r"seed_(0|-?[1-9][0-9]*)")


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
    parser.add_argument("--profile", default=os.environ.get("R3_PROFILE"))
    parser.add_argument("--world", help="what the cells' worlds have in common, such as mistaken=0,stuck=0")
    parser.add_argument("--plan", type=Path, help="YAML file with experiments and hypotheses (r3_ext/study/design.py)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="experiments of the plan to train")
    parser.add_argument("--out", type=Path, default=Path("outputs/study"))
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache")
    parser.add_argument("--summarise", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", help="hydra overrides for every cell")
    args = parser.parse_intermixed_args(argv)
    given = [f"--{name}" for name in FREE if name != "seeds" and getattr(args, name) is not None] + args.overrides
    if args.plan and given:
        parser.error(f"{given[0]} is what --plan says: leave one of them out")
    if args.only and not args.plan:
        parser.error("--only names experiments of a plan: give --plan")
    args.tuned, args.is_tuned, args.worlds = {}, False, args.seeds
    for name, value in FREE.items():
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    if args.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {args.tokens}")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        profile = args.profile or default_profile()
        design = read_design(args.plan) if args.plan else None
        studies = [args] if design is None else studies_of(args, design)
        if design:
            keep(args.plan, args.out)
        for study in studies:
            check(study, profile)
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2
    failed = []
    if not args.summarise:
        with shared_interpreter(profile) as (python, env):
            for study in studies:
                try:
                    begin(study, profile, design)
                except ValueError as error:
                    failed.append(f"{study.out.name}, {error}")
                    continue
                try:
                    failed += train(study, profile, console, python, env)
                except Stopped as stopped:
                    say(f"{stopped}: call the same command again to go on")
                    return STOPPED
                record.update(study.out, complete_cells(study.out, study.tokens, say), tuple(arms.ARMS))
    found = {}
    for out in dict.fromkeys(study.out for study in studies if (study.out / PLAN).exists()):
        found[out.name] = summarise(out, read_plan(out), say)
        tables.show(found[out.name], console, out.name if design else "")
    if design:
        judged = verdicts(args.out, design)
        tables.show_verdicts(design, judged, console)
        if args.only is None and args.worlds is None:
            (args.out / "results.md").write_text(text.results(design, found, judged))
    for cell in failed:
        console.print(f"failed: {cell}; call the same command again to repeat it", soft_wrap=True, highlight=False)
    return 1 if failed else 0


def keep(plan: Path, out: Path) -> None:
    """Keep the plan beside the cells that follow it.

    Raises:
        ValueError: they follow another.
    """
    kept = out / KEPT
    if kept.exists() and kept.read_bytes() != plan.read_bytes():
        raise ValueError(f"{out} follows another plan than {plan}, its own is {kept}: take that one, or another --out")
    out.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        shutil.copyfile(plan, kept)


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
            if not generates(profile, args.overrides):
                raise ValueError("--world concerns the problems that the profile embedded generates; leave it out")
        check_choice("profile", profile)
        for arm in args.arms:
            own = [f"+profile={profile}", f"+method={arms.ARMS[arm].method}"]
            config = compose_config([*own, *settings_of(args, profile, arm, seed=0)])
            if wrong := check_values(config):
                raise ValueError(wrong[0].found)
        any_truth = may_be_any_truth(config)
        model_and_data(profile, args.cache, {}, lambda text: None, args.overrides, build=False, any_truth=any_truth)
        for arm in args.arms:
            for seed in args.seeds:
                claim((args.out / arm / f"seed_{seed}").absolute())
        if not args.is_tuned:
            check_plan(args.out, plan_of(args, profile))
    record.read_curves(args.out), record.read_ledger(args.out)


@contextmanager
def shared_interpreter(profile: str):
    """The Python that starts the cells, and its environment; on the embedded profile one start imports for them all."""
    if profile != EMBEDDED_PROFILE:
        yield sys.executable, None
        return
    from r3_ext.cpu.fork import server as forkserver

    with supervise.scratch_folder() as folder, forkserver.serving(folder) as python:
        yield str(python), forkserver.environment()


class Stopped(Exception):
    """A cell saved and ended on SIGTERM, and the study with it."""


def train(args: argparse.Namespace, profile: str, console: Console, python: str, env: dict | None) -> list[str]:
    """Run the cells that are not complete, seed by seed so that every arm has some early; returns those that failed.

    Raises:
        Stopped: on SIGTERM, which the cell gets too.
    """
    recorded = record.read_curves(args.out)
    cells = [(arm, seed) for seed in args.seeds for arm in args.arms if seed not in recorded.get(arm, ())]
    columns = TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    failed = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("cells", total=len(cells))

        for arm, seed in cells:
            folder = args.out / arm / f"seed_{seed}"
            if not is_complete(folder, args.tokens):
                try:
                    if not goes_on(folder):
                        remove(folder)
                except ValueError as error:
                    failed.append(f"{arm} seed {seed}, {error}")
                    continue
                said = args.out / arm / f"run_{seed}.log"
                said.parent.mkdir(parents=True, exist_ok=True)
                with open(said, "wb") as log:
                    code = run_cell([python, *cell_command(args, profile, arm, seed)], env, log)
                if code == STOPPED:
                    raise Stopped(f"{arm} seed {seed} was saved on SIGTERM")
                if code or not is_complete(folder, args.tokens):
                    failed.append(f"{arm} seed {seed}, see {said}")
            progress.console.print(describe(arm, seed, folder), highlight=False)
            progress.advance(bar)
    return failed


def run_cell(command: list[str], env: dict | None, log) -> int:
    """The exit code; SIGTERM to the study is one to the cell, which saves and ends."""
    with subprocess.Popen(command, env=env, stdout=log, stderr=log) as cell:
        before = signal.signal(signal.SIGTERM, lambda *_: cell.send_signal(signal.SIGTERM))
        try:
            return cell.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def goes_on(folder: Path) -> bool:
    """Whether the cell saved and ended on SIGTERM."""
    starts = read_starts(folder)
    return bool(starts) and starts[-1].get("exit_code") == STOPPED


def remove(folder: Path) -> None:
    """Make room for a cell that starts anew.

    Raises:
        ValueError: another study is training it.
    """
    if is_run(folder):
        with held(folder):
            shutil.rmtree(folder)


def cell_command(args: argparse.Namespace, profile: str, arm: str, seed: int) -> list[str]:
    """Arguments of Python."""
    chosen = arms.ARMS[arm]
    return [
        *("-m", "r3_ext.cli", "run", "--method", chosen.method, "--profile", profile),
        *("--outputs", str(args.out), "--experiment", arm, "--run", f"seed_{seed}", "--cache", str(args.cache)),
        *("--until-tokens", str(args.tokens), "--no-report"),
        *world_of(args, profile, seed),
        *settings_of(args, profile, arm, seed),
    ]


def generates(profile: str, overrides: list[str]) -> bool:
    """Whether the cells have a model and problems of their own, made from the seed."""
    named = {override.lstrip("+").partition("=")[0] for override in overrides}
    given = {key for name, key in VARIABLES.items() if os.environ.get(name)} | named
    return profile == EMBEDDED_PROFILE and not given & set(VARIABLES.values())


def world_of(args: argparse.Namespace, profile: str, seed: int) -> list[str]:
    """On generated problems a seed is a world: a model, facts and problems of its own."""
    if not generates(profile, args.overrides):
        return []
    return ["--world", ",".join(filter(None, [args.world, f"seed={seed}"]))]


def settings_of(args: argparse.Namespace, profile: str, arm: str, seed: int) -> list[str]:
    """Hydra overrides of a cell."""
    chosen = arms.ARMS[arm]
    return [
        *((*arms.EMBEDDED, *chosen.embedded) if profile == EMBEDDED_PROFILE else ()),
        # data.seed follows it; the engine's seed is its own.
        *(f"algorithm.r3.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"),
        *chosen.overrides,
        *args.overrides,
        *args.tuned.get(arm, ()),
    ]


def is_complete(folder: Path, tokens: int) -> bool:
    """Whether the cell ended well and its last validation lies behind the budget; a damaged one starts anew."""
    try:
        return record.read_cell(folder, tokens) is not None
    except ValueError:
        return False


def describe(arm: str, seed: int, folder: Path) -> str:
    cell = f"{arm:<{WIDTH}}seed {seed} "
    tokens, accuracy = curve_of(read_metrics(folder / "metrics.jsonl"))
    if not len(tokens):
        return f"{cell} no validation"
    if not (folder / "summary.json").exists():
        return f"{cell} was killed"
    seconds = json.loads((folder / "summary.json").read_text())["seconds"]["total"]
    return f"{cell} val {accuracy[0]:.3f} to {accuracy[-1]:.3f}, {tokens[-1]:,.0f} tokens, {seconds:.0f} s"


def complete_cells(out: Path, tokens: int, say) -> dict[tuple[str, int], record.Cell]:
    """The complete cells by arm and seed; what is no cell, or a damaged one, is said."""
    cells = {}
    for arm in arms.ARMS:
        for folder in sorted((out / arm).glob("seed_*")):
            try:
                if not SEED.fullmatch(folder.name):
                    raise ValueError(f"{folder} is not the folder of a seed")
                if found := record.read_cell(folder, tokens):
                    cells[arm, int(folder.name.removeprefix("seed_"))] = found
            except ValueError as error:
                say(f"left out: {error}")
    return cells


def summarise(out: Path, plan: dict, say) -> dict:
    """Compare the complete cells; writes the record, results.json and the figures into the study's folder."""
    record.update(out, complete_cells(out, plan["tokens"], say), tuple(arms.ARMS))
    # From the record, whose figures are rounded: it gives the same results again, on any machine.
    curves, ledger = record.read_curves(out), record.read_ledger(out)
    results = {**plan, "comparisons": []}
    commits = {row.get(record.COMMIT) for rows in ledger.values() for row in rows.values()} - {None}
    if commits:
        results["commits"] = sorted(commits)
    for compared in in_common(curves, plan["tokens"]):
        found = compare(compared, plan["tokens"])
        for arm, cells in compared.items():
            rows = [ledger.get(arm, {}).get(seed, {}) for seed in cells]
            if kept := [key for key in record.COUNTS if all(key in row for row in rows)]:
                found[arm]["ledger"] = {key: sum(row[key] for row in rows) for key in kept}
        results["comparisons"].append({"seeds": [*next(iter(compared.values()))], "arms": found})
    (out / "results.json").write_text(json.dumps(to_json(results), indent=2) + "\n")
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
    """What the record says of each hypothesis; writes verdicts.json and a figure of each family."""
    curves = recorded_curves(out, design)
    found = hypotheses.judge(design.hypotheses, curves, design.budgets, design.worlds)
    values = [hypotheses.values_of(one, curves, design.budgets, design.worlds) for one in design.hypotheses]
    figure.write_families(out, list(zip(design.hypotheses, values, found.values(), strict=True)))
    written = {name: verdict and dataclasses.asdict(verdict) for name, verdict in found.items()}
    (out / "verdicts.json").write_text(json.dumps(to_json(written), indent=2) + "\n")
    return found


def recorded_curves(out: Path, design: Design) -> record.Curves:
    """By FOLDER/ARM and world."""
    return {
        f"{folder}/{arm}": cells for folder in design.budgets for arm, cells in record.read_curves(out / folder).items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
