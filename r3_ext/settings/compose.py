"""The settings of a run: composed as the training command will see them, flat for comparison, quoted for hydra."""

import difflib
import os
import re
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from r3_ext.recipes import DEFAULT_METHOD, RECIPES, SESSIONS, Recipe, methods, recipe_of, told_gone
from r3_ext.tiny.world import TEXTWORLD, is_text
from recipe.common.config import value_rules
from recipe.common.config.verl_rules import MODULES

ROOT = Path(__file__).resolve().parents[2]
OWN_CONFIG = Path(__file__).resolve().parent
"""Where the profiles and modes lie."""
IS_CHECKOUT = (ROOT / "examples" / "install.sh").is_file()
"""False where the packages were installed from a wheel: ROOT is site-packages then, which is not ours to write to."""
USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
CACHE = ROOT / ".cache" if IS_CHECKOUT else USER_CACHE / "r3-recipe"


EMBEDDED = "embedded"
"""The profile without a GPU."""
PLATFORM = "r3_ext.cpu.plugin"
HYDRA = re.compile(r"[+~]*hydra[./]")
"""hydra's own settings: they are for the command."""


def choices(group: str) -> list[str]:
    """The files of a group of settings: `profile`, `mode` or `world`; of `method`, what the recipes have."""
    return methods() if group == "method" else sorted(path.stem for path in (OWN_CONFIG / group).glob("*.yaml"))


def check_choice(group: str, name: str) -> None:
    """Refuse a profile or a method that there is not.

    Raises:
        ValueError: with those that there are.
    """
    known = choices(group)
    if name not in known:
        raise ValueError(f"--{group} must be one of {', '.join(known)}, got {name!r}")


def quoted(value: str | Path) -> str:
    r"""A string for the right-hand side of a hydra override, whatever stands in it.

    `it's` becomes `'it\'s'`: within quotes hydra escapes quotes, and backslashes only in front of them.

    Raises:
        ValueError: it holds `${`, which is an interpolation even within quotes, or a line break.
    """
    text = str(value)
    if "${" in text or any(ord(char) < 32 for char in text):
        raise ValueError(f"{text!r} holds ${{ or a control character, which the settings cannot hold: rename it")
    return QuotedString(text, Quote.single).with_quotes()


def searchpath() -> str:
    """The override that tells hydra where verl's configuration, the recipes' and the profiles lie.

    verl's part is read from its files: hydra would import verl for `pkg://verl.trainer.config`, which is slow.
    """
    verl_config = Path(find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"
    folders = (verl_config, *(recipe.folder for recipe in RECIPES.values()), OWN_CONFIG)
    return f"hydra.searchpath=[{','.join(quoted(f'file://{folder}') for folder in folders)}]"


def method_of(overrides: list[str]) -> str:
    """The method that overrides name."""
    return next((text.partition("=")[2] for text in overrides if text.startswith("+method=")), DEFAULT_METHOD)


def base_overrides(profile: str, method: str, world: str | None = None) -> list[str]:
    """What every run with that profile and method begins with. world: None: that of the method's recipe."""
    groups, modules = [f"+profile={profile}", f"+method={method}"], recipe_of(method).modules
    if profile in choices(own := recipe_of(method).name):  # what the profile has for this recipe alone
        groups.insert(1, f"+{own}={profile}")
    if is_text(recipe_of(method).world if world is None else world):
        own = f"{profile}_{TEXTWORLD}"
        groups.append(f"+world={own if own in choices('world') else TEXTWORLD}")
        modules = tuple(dict.fromkeys((*modules, SESSIONS)))
    if profile == EMBEDDED:
        # verl imports these before it looks for platform plugins, and a recipe needs the platform to be there.
        modules = (PLATFORM, *modules)
    elif modules == recipe_of(method).modules:
        return groups
    return [*groups, f"{MODULES}={quoted(','.join(modules))}"]


def compose_config(overrides: list[str]) -> DictConfig:
    """The config that the training command will see.

    Raises:
        ValueError: an override that hydra cannot read, or that sets what there is not; a method that there is not.
    """
    settings = [override for override in overrides if not HYDRA.match(override)]
    recipe = recipe_of(method_of(settings))
    try:
        return _composed(recipe, settings)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(_sentence(error, recipe, settings)) from error


def _composed(recipe: Recipe, settings: list[str]) -> DictConfig:
    with initialize_config_dir(str(recipe.folder), version_base=None):
        return compose(recipe.base, overrides=[searchpath(), *settings])


def _sentence(error: Exception, recipe: Recipe, overrides: list[str]) -> str:
    """What is wrong with the overrides: the first one that hydra cannot read, or the key that there is not."""
    for text in overrides:
        if not parse_override(text).key_or_group:
            return f"{text!r} is not a setting: expected key=value"
    first = str(error).split("\n")[0].strip()
    changed = [text for text in overrides if parse_override(text).type == OverrideType.CHANGE]
    cause = next((text for text in changed if f"'{parse_override(text).key_or_group}'" in first), None)
    if cause is None:
        return first
    key = parse_override(cause).key_or_group
    if sentence := told_gone(key):
        return sentence
    near = difflib.get_close_matches(key, _known_keys(recipe, overrides, key), n=1, cutoff=0.6)
    return f"there is no setting {key}" + (f"; the nearest one is {near[0]}" if near else "; see --help")


def _known_keys(recipe: Recipe, overrides: list[str], wrong: str) -> list[str]:
    """The keys of the settings without those overrides that change a value."""
    kept = [text for text in overrides if parse_override(text).type != OverrideType.CHANGE]
    keys = flat(OmegaConf.to_container(_composed(recipe, kept), resolve=False))
    # A whole section may be meant: algorithm.r3.replay for algorithm.r3.repaly.
    sections = {key.rsplit(".", depth)[0] for key in keys for depth in (1, 2)}
    return sorted({*keys, *sections})


def parse_override(text: str) -> Override:
    """
    Raises:
        ValueError: hydra cannot read it.
    """
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ValueError(
            f"{text!r} is not a setting: expected key=value, with quotes inside of the shell's around a value "
            "that holds any of , = : ( ) [ ] { } or a space: \"key='a=b'\""
        ) from error


def flat(tree: dict, prefix: str = "") -> dict[str, object]:
    """Dotted keys of the leaves; a list is a leaf, and so is an empty section."""
    leaves = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def resolved(config: DictConfig) -> dict[str, object]:
    """All settings by dotted key, interpolations resolved.

    Raises:
        ValueError: an interpolation of something that there is not.
    """
    return flat(value_rules.tree(config))
