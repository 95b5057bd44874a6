"""`r3 probe`: is R^3 worth it for this model and these problems? Generates answers, trains nothing.

    r3 probe --model MODEL --data FILE                     about two steps' rollouts of the profile
    r3 probe --profile embedded                            the tiny model of `r3 run` on this machine, and its problems
    r3 probe --profile embedded --world mistaken=0 --seed 3    another world, as a cell of `r3 study` has it
    r3 probe check                                         the verdicts on the study's worlds against what training did

A sample of the problems is asked as two epochs would ask them, the hard ones again with a past wrong attempt. Told are
the groups that GRPO would learn from, what replay could draw, what reflection solves against asking again at equal
generated tokens, whether the ranking foresees success, and what all-wrong groups find when they are asked again sooner;
then for each on, off or unclear (verdicts.py and sooner.py have the rules), and the overrides for `r3 run`. Settings
are those of the profile, and anything after the options is a hydra override. The same command goes on with an
interrupted probe.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from r3_ext.data.check import may_be_any_truth
from r3_ext.doctor.settings import check_values
from r3_ext.evaluate import EvaluationError, plan
from r3_ext.evaluate import command as evaluation
from r3_ext.evaluate.score import grade_folder
from r3_ext.record.console import sayer
from r3_ext.settings.choose import default_profile
from r3_ext.settings.compose import CACHE, base_overrides, check_choice, compose_config
from r3_ext.settings.prepare import EMBEDDED, MODEL, TRAIN, model_and_data
from r3_ext.tiny.world import parse as parse_world
from recipe.common.checks import refuse
from recipe.common.config.reward_rules import can_be_asked, reward_manager

if TYPE_CHECKING:
    from recipe.r3.config.r3_config import R3Config

GROUP, LIMIT = "actor_rollout_ref.rollout.n", "data.max_response_length"
PROBLEMS = 128
"""With half of them not even a share of 0 has an interval below `verdicts.MATTERS`, so that nothing would be off."""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="r3 probe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder or hub id (default: MODEL; on the profile embedded the tiny model)")
    parser.add_argument("--data", help="training data: file, folder or hub id (default: DATA; the tiny model's)")
    parser.add_argument("--profile", help="file in r3_ext/settings/profile (default: R3_PROFILE, or by this machine)")
    parser.add_argument("--samples", type=int, help=f"answers of a group; two are asked for (default: {GROUP})")
    parser.add_argument("--problems", type=int, default=PROBLEMS, help=f"size of the sample (default: {PROBLEMS})")
    parser.add_argument("--max-tokens", type=int, help=f"response limit of the training (default: {LIMIT})")
    parser.add_argument("--seed", type=int, default=0, help="of sample and answers, and of the tiny model's world")
    parser.add_argument("--world", help="on embedded: what the tiny model knows and how it fails, such as mistaken=0")
    parser.add_argument("--out", type=Path, help="folder for the results (default: outputs/probe/NAME)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="prepared data and the tiny model")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, as of `r3 run`")
    args = parser.parse_intermixed_args(argv)
    args.model, args.data = args.model or os.environ.get("MODEL"), args.data or os.environ.get("DATA")
    return args


def settle(args: argparse.Namespace) -> DictConfig:
    """The configuration that a run would have; settles `args.profile` and `args.world`.

    Raises:
        ValueError: an option or a setting that cannot be taken.
    """
    args.profile = args.profile or os.environ.get("R3_PROFILE") or default_profile()
    check_choice("profile", args.profile)
    for name, least in {"samples": 2, "problems": 1, "max_tokens": 1, "seed": 0}.items():
        if (value := getattr(args, name)) is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    given = bool(args.model), bool(args.data)
    if any(given) != all(given) or (args.profile != EMBEDDED and not all(given)):
        missing = "--data" if args.model else "--model"
        where = "leave both out for the tiny model" if args.profile == EMBEDDED else "only embedded has its own"
        raise ValueError(f"{missing} is missing: a probe is of a model and of problems; {where}")
    if args.world and (all(given) or args.profile != EMBEDDED):
        raise ValueError("--world concerns the tiny model that the profile embedded builds; leave it out")
    args.world = None if all(given) else ",".join(filter(None, [args.world, f"seed={args.seed}"]))
    if args.world:
        parse_world(args.world)
    config = compose_config([*base_overrides(args.profile, "r3"), *args.overrides, *own_overrides(args)])
    if wrong := check_values(config):
        raise ValueError(wrong[0].found)
    return config


def own_overrides(args: argparse.Namespace) -> list[str]:
    return [f"{key}={value}" for key, value in {GROUP: args.samples, LIMIT: args.max_tokens}.items() if value]


def subject(args: argparse.Namespace, say: Callable) -> tuple[Path, str]:
    """Folder of the model and source of the data, built on the embedded profile where none is given."""
    if args.world:
        made = model_and_data(EMBEDDED, args.cache, {"world": parse_world(args.world)}, say)
        config = compose_config([*base_overrides(EMBEDDED, "r3"), *made])
        return Path(OmegaConf.select(config, MODEL)), str(OmegaConf.select(config, TRAIN))
    return plan.model_folder(args.model), args.data


def folder_of(args: argparse.Namespace) -> Path:
    """Of the results.

    Raises:
        ValueError: it holds files of others.
    """
    name = f"world_{args.world}".replace(",", "_") if args.world else Path(args.model).resolve().name
    folder = args.out or Path("outputs/probe") / name
    plain = folder / "plain"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder with --out")
    if folder.is_dir() and not plain.exists() and (found := sorted(path.name for path in folder.iterdir())):
        raise ValueError(f"{folder} holds {', '.join(found[:3])} and no probe, and stays as it is; name another --out")
    return folder


class GenerationFailed(Exception):
    """Generation ended with the exit code `args[0]`, and has said why."""


def probe(argv: list[str], console: Console, say: Callable) -> int:
    args = parse(argv)
    config, folder = settle(args), folder_of(args)
    gpus = evaluation.visible_gpus() if args.profile != EMBEDDED else []
    settings = engine_settings(config, bool(gpus))
    ranks = evaluation.rank_count("auto", gpus, settings)

    def answer(part: Path, total: int) -> None:
        if code := evaluation.answer(part, total, ranks, gpus, settings, ["r3", "probe", *argv], console, say):
            raise GenerationFailed(code)
        grade_folder(part, judge=judge)

    # verl tells of every engine that is not installed.
    warnings.filterwarnings("ignore", message=".* engine is not available", category=UserWarning)
    from r3_ext.r3.probe import ask, quantities, report, sooner  # import verl, which is slow
    from r3_ext.r3.probe.judge import asking

    r3 = checked(config)
    asked = as_asked(config)
    refuse([*reward_manager(asked), *can_be_asked(asked, registers_elsewhere=True)])
    model, source = subject(args, say)
    began = time.monotonic()  # a tiny model that had to be built is no part of what a probe costs
    chat = ask.Chat(model, bool(settings.get("trust_remote_code")), *template_of(config))
    asked = ask.sample(ask.read_problems(source), args.problems, args.seed, chat, config.data.max_prompt_length)
    identity = {"path": str(model), "fingerprint": plan.fingerprint(model)}
    with asking(config, [row for _, row in asked]) as judge, plan.only_writer(folder / ask.PLAIN):
        questions = ask.Questions(folder, config, r3, identity, source, asked, chat, args.seed, answer, judge)
        say(f"{model}: {len(asked):,} problems of {source}, {2 * questions.n} answers to each")
        plain = questions.ask_plainly()
        reflected = questions.ask_with_reflection(plain)
        of_run = plain, reflected, args.seed, r3, config.data.train_batch_size
        figures = quantities.measure(*of_run) | sooner.measure(*of_run)
        foresight = foresight_of(questions.plain_folder, model, questions.limit, r3.ranking.top_ratio)
        step = config.data.train_batch_size * questions.n * float(plain.tokens_PA.mean())
        spent = report.cost(questions.tokens(), step, time.monotonic() - began)
        about = {"model": identity, "data": source, "problems": len(asked), "group": questions.n}
        about["when"] = r3.reflection.when
        about |= {"limit": questions.limit, "reward": {"by": judge.name, "no_score": judge.failures}, **names_of(args)}
        found = report.content(about, plain, reflected, figures, foresight, spent)
        report.write(folder, found)
    say("\n".join(["", *report.text(found), f"written: {folder / 'probe.json'}, {folder / 'probe.png'}"]))
    return 0


def names_of(args: argparse.Namespace) -> dict:
    """What a person named, for probe.json."""
    names = {"profile": args.profile, "world": args.world, "seed": args.seed}
    overrides = [*args.overrides, *own_overrides(args)]
    return {"val_data": os.environ.get("VAL_DATA") or None, "overrides": overrides, **names}


def template_of(config: DictConfig) -> tuple[str | None, dict]:
    """The chat template in the place of the model's own, and what it is given."""
    kwargs = OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}))
    return config.actor_rollout_ref.model.get("custom_chat_template"), kwargs


def as_asked(config: DictConfig) -> DictConfig:
    """Whoever asks for rewards in training, here they are asked for as R^3's manager does."""
    asked = {"reward_manager": {"source": "importlib", "name": "R3RewardManager"}, "sandbox_fusion": {"url": None}}
    return OmegaConf.merge(config, {"reward": asked})


def checked(config: DictConfig) -> "R3Config":
    """The recipe's settings. Raises ValueError with the full key."""
    from recipe.r3.config.r3_config import NEXT_VISIT
    from recipe.r3.config.r3_rules import validate_r3_config

    r3, n = validate_r3_config(config), config.actor_rollout_ref.rollout.n
    if n < r3.reflection.min_attempts and r3.reflection.when == NEXT_VISIT:
        raise ValueError(
            f"{GROUP}={n} is below algorithm.r3.reflection.min_attempts={r3.reflection.min_attempts}: no problem is "
            "hard after one epoch; set --samples, or the other"
        )
    for key, only in {"data.prompt_key": "prompt", "actor_rollout_ref.rollout.top_k": -1}.items():
        if (value := OmegaConf.select(config, key)) != only:
            raise ValueError(f"{key}={value}: a probe knows {only} only; leave it out to probe without it")
    named, manager = config.reward.get("custom_reward_function") or {}, config.reward.reward_manager
    if may_be_any_truth(config) and not named.get("path"):
        raise ValueError(
            f"reward.reward_manager.name={manager.name}: a probe asks the recipe's grader or a function. For verl's "
            "own add reward.custom_reward_function.path=pkg://verl.utils.reward_score and "
            "reward.custom_reward_function.name=default_compute_score"
        )
    return r3


def engine_settings(config: DictConfig, on_gpu: bool) -> dict:
    """Of vLLM: as `r3 eval` has them, with what the run's configuration says of the model."""
    settings = evaluation.engine_args([], on_gpu)
    if config.actor_rollout_ref.model.get("trust_remote_code"):
        settings["trust_remote_code"] = True
    if on_gpu:
        settings["tensor_parallel_size"] = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    return settings


def foresight_of(folder: Path, model: Path, limit: int, top_ratio: float) -> dict | None:
    """None where no problem has a cut-off answer that became right and one that did not."""
    from r3_ext.evaluate import rank  # imports torch and verl, which are slow

    if not rank.with_both_outcomes(folder, limit):
        return None
    return rank.foresight(rank.ranked_groups(folder, str(model), limit, top_ratio))


def check_command(argv: list[str], console: Console, say: Callable) -> int:
    from r3_ext.r3.probe import check  # imports the study

    return check.main(argv, say)


def main(argv: list[str]) -> int:
    console = Console()

    say = sayer(console)
    try:
        if argv[:1] == ["check"]:
            return check_command(argv[1:], console, say)
        return probe(argv, console, say)
    except KeyboardInterrupt:
        return 130
    except GenerationFailed as failed:
        return failed.args[0]
    except (EvaluationError, ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
