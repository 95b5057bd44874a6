"""What a later start of a run changes, and whether that makes it another run."""

import json
import re
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from r3_ext.recipes import RECIPES, recipe_of
from r3_ext.settings.compose import flat, parse_override
from r3_ext.settings.prepare import VARIABLES

FREE = re.compile(
    r"trainer\.(total_epochs|total_training_steps|save_freq|test_freq|val_before_train|logger|log_val_generations|"
    r"rollout_data_dir|validation_data_dir|max_actor_ckpt_to_keep|max_critic_ckpt_to_keep|"
    r"project_name|experiment_name)|"
    r"actor_rollout_ref\.rollout\.trace\.\w+|"
    r"(ray_kwargs|global_profiler)\..*|"
    r"--(until-tokens|until-turns|wandb|private|cache)|DATA|VAL_DATA|MODEL"
)
"""What may change in mid-run, beside `Recipe.free`: how long it goes on and what it writes down. DATA, VAL_DATA and
MODEL are compared by what comes of them."""
TARGET = "._target_"
ONCE = ("trainer.resume_mode", "trainer.resume_from_path")
"""Settings of a single start: from which checkpoint it goes on."""
PREPARED = tuple(VARIABLES.values())
"""What the preparation of model and data finds."""
OPTIONS = (
    *("method", "mode", "profile", "warm_start_steps", "world", "until_tokens", "until_turns"),
    *("wandb", "private", "cache"),
)
"""Options of `r3 run` that a run keeps, beside its overrides."""
SOURCES = VARIABLES
"""Variables of the environment that a run keeps, and the settings that they stand for."""
MORE = ("trainer.total_epochs", "trainer.total_training_steps", "--until-tokens", "--until-turns")
"""What makes a run longer when it rises."""

Changes = dict[str, tuple[object, object]]
"""Old and new value by dotted key."""


def merged(stored: dict, given: dict) -> dict:
    """The arguments of a later start: those of the last one, and what is given now.

    given: `options` without those that were not given, `sources` that are set, `overrides`.
    """
    # What is named anew takes the place of what the run kept, in whichever of the two ways that was named.
    named = {_key(text) for text in given["overrides"]}
    sources = {name: value for name, value in stored["sources"].items() if SOURCES[name] not in named}
    sourced = {SOURCES[name] for name in given["sources"]}
    options = stored["options"] | given["options"]
    others = _sections_of_others(options["method"])
    kept = [text for text in stored["overrides"] if _key(text) not in sourced and not _key(text).startswith(others)]
    return {
        "options": options,
        "sources": sources | given["sources"],
        "overrides": _joined(kept, given["overrides"]),
    }


def _sections_of_others(method: str) -> tuple[str, ...]:
    """Beginnings of the keys that are another recipe's: a run that changes its method leaves them behind."""
    own = recipe_of(method).node
    return tuple(f"{recipe.node}." for recipe in RECIPES.values() if recipe.node and recipe.node != own)


def _joined(old: list[str], new: list[str]) -> list[str]:
    """The overrides of both, each key once: `+a=1` and then `a=2` are `++a=2`."""
    keys = {_key(text) for text in new}
    added = {_key(text) for text in old if text.startswith("+")}
    kept = [text for text in old if _key(text) not in keys]
    new = [text for text in new if not (text.startswith("~") and _key(text) in added)]
    return kept + [f"++{text}" if _key(text) in added and text[0] != "+" else text for text in new]


def _key(override: str) -> str:
    return parse_override(override).key_or_group


def without_once(overrides: list[str]) -> list[str]:
    return [text for text in overrides if _key(text) not in ONCE]


def stored_settings(folder: Path) -> dict[str, object]:
    """The settings of a run's last start by dotted key, from its config.yaml.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    file = folder / "config.yaml"
    try:
        return flat(OmegaConf.to_container(OmegaConf.load(file), resolve=False))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        first = str(error).split("\n")[0]
        raise ValueError(f"{file} cannot be read ({first}): the run cannot go on with its settings") from None


def between(old: dict[str, object], new: dict[str, object]) -> Changes:
    """The settings that differ; one that there is not counts as None.

    The section of another recipe is no setting of this run: those of a baseline once held R^3's, which nothing read.
    Where the class of a section lies is none either.
    """
    sections = [f"{recipe.node}." for recipe in RECIPES.values() if recipe.node]
    others = tuple(section for section in sections if not any(key.startswith(section) for key in new))
    keys = [
        key for key in {**old, **new} if key not in ONCE and not key.startswith(others) and not key.endswith(TARGET)
    ]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def bound(changes: Changes) -> Changes:
    """Those that make the run another one."""
    free = {key for recipe in RECIPES.values() for key in recipe.free}
    return {key: values for key, values in changes.items() if key not in free and not FREE.fullmatch(key)}


def is_longer(changes: Changes) -> bool:
    """Whether a run that came to its end has more to do now."""
    found = [changes[key] for key in MORE if key in changes]
    return any(new is None or (old is not None and new > old) for old, new in found)


def lines(changes: Changes, most: int = 15) -> list[str]:
    """The changes for people, those that need --change first."""
    binding = bound(changes)
    shown = [
        f"  {key}: {_short(old)} -> {_short(new)}" + ("   (another run: needs --change)" if key in binding else "")
        for key, (old, new) in sorted(changes.items(), key=lambda item: item[0] not in binding)
    ]
    return shown[:most] + ([f"  and {len(shown) - most} more"] if len(shown) > most else [])


def _short(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 120 else text[:119] + "…"
