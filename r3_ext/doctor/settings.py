"""The recipe's and verl's rules on the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from r3_ext.data.check import path_fault
from r3_ext.doctor.finding import FAIL, OK, Finding
from r3_ext.recipes import BASELINE, RECIPES, recipe_of_config, rules_of

if TYPE_CHECKING:
    from omegaconf import DictConfig


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("trainer.total_epochs", "trainer.n_gpus_per_node", "trainer.nnodes", "reward.num_workers"),
    *(f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_max_token_len_per_gpu"),
    *(f"{ROLLOUT}.n", f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.agent.num_workers"),
    *(f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.val_kwargs.n"),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
)
COUNTS_OR_NULL = (
    *("trainer.total_training_steps", "trainer.max_actor_ckpt_to_keep", "data.gen_batch_size", "data.val_batch_size"),
    f"{ROLLOUT}.max_model_len",
)
INTEGERS = ("trainer.save_freq", "trainer.test_freq", "data.train_max_samples", "data.val_max_samples")
POSITIVE = (f"{ACTOR}.optim.lr", f"{ROLLOUT}.temperature", f"{ACTOR}.clip_ratio")
SHARES = (f"{ROLLOUT}.top_p", f"{ROLLOUT}.gpu_memory_utilization")


FILES = ("data.train_files", "data.val_files")
PATHS = (
    "actor_rollout_ref.model.path",
    "trainer.default_local_dir",
    *(key for r in RECIPES.values() for key in r.files),
)
TEXTS = (*PATHS, "data.prompt_key", "trainer.device", "trainer.v1.trainer_mode", "reward.reward_manager.name")
"""Neither null nor a list: verl and the doctor open a file, or look up a name, under them."""
SECTIONS_OR_NULL = ("reward.reward_kwargs",)
RESUME_MODES = ("auto", "disable", "resume_path")
NUMBERS_OR_TEXTS = ("algorithm.rollout_correction.rollout_is_threshold",)
"""verl's default is a number, and a text such as "0.5_5.0" is both bounds."""


def tree(config: DictConfig) -> dict[str, object]:
    """All settings, interpolations resolved. Raises ValueError where one names what there is not."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(str(error).replace("\n", ", ")) from error


@lru_cache(maxsize=4)
def known_values(engine: str, method: str) -> dict[str, object]:
    """What verl's and the recipe's own files hold: their types are the types of the settings.

    engine: verl's `model_engine`, a choice of files: each has settings of its own.
    """
    from r3_ext.settings.compose import compose_config  # imports hydra, without which the doctor says so

    return tree(compose_config([f"+method={method}", f"model_engine={engine}"]))


def method_like(config: DictConfig) -> str:
    """A method of the recipe whose trainer these settings name.

    Of a trainer of nobody's, such as verl's own: one of the recipe whose section they hold, else of the baselines.
    """
    from omegaconf import OmegaConf

    holders = (r for r in RECIPES.values() if r.node and OmegaConf.select(config, r.node) is not None)
    return (recipe_of_config(config) or next(holders, BASELINE)).methods[0]


def wrong_values(config: DictConfig) -> list[str]:
    """Settings that are gone, or of another kind than the known one, or that verl would trip over later.

    Each as "<full key> must <rule>, got <value>".
    """
    given = tree(config)
    return list(wrong_in(given, known_values(given.get("model_engine"), method_like(config))))


def wrong_in(given: dict, known: dict, prefix: str = "") -> Iterator[str]:
    """The problems of one section and of those in it; what is unknown was added, and is left to verl."""
    if missing := [prefix + name for name in known if name not in given]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield f"{', '.join(missing[:3])}{more} must be there, and an override has deleted it"
    for name, default in known.items():
        key = prefix + name
        if name not in given:
            continue
        if isinstance(default, dict) and default:
            if isinstance(given[name], dict):
                yield from wrong_in(given[name], default, f"{key}.")
            elif given[name] is not None or key not in SECTIONS_OR_NULL:
                yield f"{key} must be a section with settings, got {given[name]!r}"
        elif rule := broken_rule(key, given[name], default):
            yield f"{key} must {rule}, got {given[name]!r}"


def broken_rule(key: str, value, default) -> str | None:
    """What the value would have to be, or None where it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in COUNTS or (key in COUNTS_OR_NULL and value is not None):
        ok = is_number and isinstance(value, int) and value >= 1
        return None if ok else "be a whole number of at least 1" + (" or null" if key in COUNTS_OR_NULL else "")
    if key in INTEGERS:
        return None if is_number and isinstance(value, int) else "be a whole number (-1: never, or all)"
    if key in POSITIVE:
        return None if is_number and math.isfinite(value) and value > 0 else "be a number > 0"
    if key in SHARES:
        return None if is_number and 0 < value <= 1 else "be in (0, 1]"
    if key in TEXTS and not (isinstance(value, str) and value):
        return "be a text (a number in quotes is one: \"key='5'\")"
    if key in PATHS and (fault := path_fault(value)):
        return f"be a path that can be used ({fault})"
    if key == "trainer.resume_mode":
        return None if value in RESUME_MODES else f"be one of {', '.join(RESUME_MODES)}"
    if key in (*FILES, "trainer.logger"):
        texts = value if isinstance(value, list) else [value]
        ok = all(isinstance(text, str) for text in texts) and (texts or key not in FILES)
        if not ok:
            return "be a text or a list of texts"
        faults = [fault for text in texts if (fault := path_fault(text))] if key in FILES else []
        return f"be paths that can be used ({faults[0]})" if faults else None
    if isinstance(default, bool):
        return "be true or false" if isinstance(value, str | list | dict) else None
    if isinstance(default, int | float):
        ok = value is None or is_number or (key in NUMBERS_OR_TEXTS and isinstance(value, str))
        return None if ok else "be a number"
    if isinstance(default, str | list):
        return None if value is None or isinstance(value, str | list) else "be a text or a list"
    return None


def check_values(config: DictConfig) -> list[Finding]:
    """The first check, and the last where it fails: all others count on it."""
    try:
        problems = wrong_values(config)
    except ValueError as error:
        problems = [str(error)]
    return [Finding(FAIL, "config", problem, "correct the setting that the message names") for problem in problems]


def check_config(config: DictConfig) -> list[Finding]:
    """The rules of the recipe and of verl: those that its training command looks at, too."""
    broken = list(rules_of(config))
    if broken:
        otherwise = "correct the setting that the message names"
        return [Finding(FAIL, "config", one.told, one.advice or otherwise) for one in broken]
    found = f"trainer_mode={config.trainer.v1.trainer_mode}, {config.data.train_batch_size} prompts"
    return [Finding(OK, "config", f"{found} x {config.actor_rollout_ref.rollout.n} per step")]
