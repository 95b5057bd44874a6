"""The recipe's and verl's rules on the configuration."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, Finding
from r3_ext.recipes import BASELINE, RECIPES, recipe_of_config, rules_of
from recipe.common.config import value_rules

if TYPE_CHECKING:
    from omegaconf import DictConfig


PATHS = (*value_rules.PATHS, *(key for r in RECIPES.values() for key in r.files))


@lru_cache(maxsize=4)
def known_values(engine: str, method: str) -> dict[str, object]:
    """What verl's and the recipe's own files hold: their types are the types of the settings.

    engine: verl's `model_engine`, a choice of files: each has settings of its own.
    """
    from r3_ext.settings.compose import compose_config  # imports hydra, without which the doctor says so

    return value_rules.tree(compose_config([f"+method={method}", f"model_engine={engine}"]))


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
    given = value_rules.tree(config)
    known = known_values(given.get("model_engine"), method_like(config))
    return [told for _, told, _ in value_rules.wrong_in(given, known, PATHS)]


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
