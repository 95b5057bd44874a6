"""The settings of a run: composed as the training command will see them, flat for comparison, quoted for hydra."""

import difflib
import re
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

ROOT = Path(__file__).resolve().parents[2]
RECIPE_CONFIG = ROOT / "recipe" / "r3" / "config"
COMMON_CONFIG = ROOT / "recipe" / "common" / "config"
OWN_CONFIG = ROOT / "r3_ext" / "settings"
CACHE = ROOT / ".cache"


HYDRA = re.compile(r"[+~]*hydra[./]")
"""hydra's own settings: they are for the command."""


def choices(group: str) -> list[str]:
    """The files of a group of settings: `profile`, `mode` or `method`."""
    folders = (RECIPE_CONFIG, COMMON_CONFIG, OWN_CONFIG)
    return sorted(path.stem for folder in folders for path in (folder / group).glob("*.yaml"))


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
    body = ""
    backslashes = 0
    for char in text:
        body += "\\" * (backslashes + 1) + "'" if char == "'" else char
        backslashes = backslashes + 1 if char == "\\" else 0
    return f"'{body}{chr(92) * backslashes}'"


def searchpath() -> str:
    """The override that tells hydra where verl's configuration and the profiles lie.

    verl's part is read from its files: hydra would import verl for `pkg://verl.trainer.config`, which is slow.
    """
    verl_config = Path(find_spec("verl").submodule_search_locations[0]) / "trainer" / "config"
    folders = ",".join(quoted(f"file://{folder}") for folder in (verl_config, COMMON_CONFIG, OWN_CONFIG))
    return f"hydra.searchpath=[{folders}]"


def compose_config(overrides: list[str]) -> DictConfig:
    """The config that the training command will see.

    Raises:
        ValueError: an override that hydra cannot read, or that sets what there is not.
    """
    settings = [override for override in overrides if not HYDRA.match(override)]
    try:
        with initialize_config_dir(str(RECIPE_CONFIG), version_base=None):
            return compose("r3_trainer", overrides=[searchpath(), *settings])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(_sentence(error, settings)) from error


def _sentence(error: Exception, overrides: list[str]) -> str:
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
    near = difflib.get_close_matches(key, _known_keys(overrides, key), n=1, cutoff=0.6)
    return f"there is no setting {key}" + (f"; the nearest one is {near[0]}" if near else "; see --help")


def _known_keys(overrides: list[str], wrong: str) -> list[str]:
    """The keys of the settings without those overrides that change a value."""
    kept = [text for text in overrides if parse_override(text).type != OverrideType.CHANGE]
    with initialize_config_dir(str(RECIPE_CONFIG), version_base=None):
        config = compose("r3_trainer", overrides=[searchpath(), *kept])
    keys = flat(OmegaConf.to_container(config, resolve=False))
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
    try:
        return flat(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise ValueError(str(error).replace("\n", ", ")) from error
