"""The recipes that the commands know, one entry each. A new one needs its folder under recipe/ and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.tiny.world import is_text as is_text_world
from recipe.common.modes import MODES, trainer_name

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from recipe.common.checks import Broken


@dataclass(frozen=True)
class Recipe:
    name: str
    """Also the family of its trainers' names; see `recipe.common.modes.trainer_name`."""
    title: str
    """What texts call it."""
    entry: str
    """Module of the training command."""
    config: str
    """Package of its settings, with a folder `method`."""
    base: str
    """Settings in that package that a run starts from."""
    methods: tuple[str, ...]
    """Files in its folder `method`: what `--method` takes."""
    modules: tuple[str, ...]
    """What verl imports in every process, where trainers and agent loops are looked up by name."""
    node: str | None = None
    """Key of its own section of the settings."""
    validator: str | None = None
    """`module:function` of (config) that returns its typed settings, or raises ValueError."""
    rules: str | None = None
    """`module:function` of (config) that yields every rule which the settings break, as its training command tells."""
    describer: str | None = None
    """`module:function` of its typed settings that returns lines which say what is on."""
    world: str = ""
    """What it trains on where nobody says, as `--world` has it; "": problems of one turn."""
    of_sessions: tuple[str, ...] = ()
    """Those of its methods that can train on sessions of several turns, too; where `world` is of sessions, all do."""
    prompts_added: str | None = None
    """`module:function` of (config): most prompts of a step that it adds to those of the data."""
    gone: str | None = None
    """Module about settings that it had once: `told(key)`, by full key, is a sentence or None."""
    rehearsal: str | None = None
    """Package with `plan` and `trainer` of its rehearsal (r3_ext/rehearse); None: it is not rehearsed."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Settings that name a file of the run's folder, and the file's name."""
    free: tuple[str, ...] = ()
    """Settings of its own that may change in mid-run."""

    @property
    def folder(self) -> Path:
        """Where its settings lie."""
        return Path(next(iter(find_spec(self.config).submodule_search_locations)))

    @property
    def trainers(self) -> dict[str, str]:
        """verl's mode by the name of each trainer (`trainer.v1.trainer_mode`)."""
        return {trainer_name(self.name, mode): mode for mode in MODES}

    def validate(self, config: DictConfig) -> object:
        """Its typed settings; None where it has none.

        Raises:
            ValueError: the settings break a rule of the recipe.
        """
        return _function(self.validator)(config) if self.validator else None

    def extra_prompts(self, config: DictConfig) -> int:
        """Most prompts of a step besides those of the data."""
        return _function(self.prompts_added)(config) if self.prompts_added else 0

    def describe(self, config: DictConfig) -> list[str]:
        """What is on, a line each."""
        return _function(self.describer)(self.validate(config)) if self.describer else []


def _function(name: str) -> Callable:
    """Imported when it is called: rules import verl, which is slow."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


BASELINE = Recipe(
    name="baseline",
    title="verl",
    entry="verl.trainer.main_ppo",
    config="recipe.common.config",
    base="baseline_trainer",
    methods=("grpo", "dapo", "ngrpo", "rl_zvp"),
    modules=("recipe.common.trainer.baseline",),
    of_sessions=("grpo",),
)
R3 = Recipe(
    name="r3",
    title="R^3",
    entry="recipe.r3.main_r3",
    config="recipe.r3.config",
    base="r3_trainer",
    methods=("grpo_extra", "r3", "r3_paper"),
    modules=("recipe.r3.r3_trainer", "recipe.r3.reflection"),
    node="algorithm.r3",
    validator="recipe.r3.config.r3_rules:validate_r3_config",
    rules="recipe.r3.config.r3_rules:all_rules",
    describer="recipe.r3.config.r3_config:describe",
    prompts_added="recipe.r3.config.r3_config:reflection_prompts",
    gone="recipe.r3.config.gone",
    rehearsal="r3_ext.r3.rehearse",
    files={"algorithm.r3.history.path": "history.sqlite"},
    free=("algorithm.r3.stall_timeout_s",),
)
HGPO = Recipe(
    name="hgpo",
    title="HGPO",
    entry="recipe.hgpo.main_hgpo",
    config="recipe.hgpo.config",
    base="hgpo_trainer",
    methods=("gigpo", "hgpo", "hgpo_release"),
    modules=("recipe.hgpo.hgpo_trainer", "recipe.hgpo.agent_loop"),
    node="algorithm.hgpo",
    validator="recipe.hgpo.config.hgpo_rules:validate_hgpo_config",
    rules="recipe.hgpo.config.hgpo_rules:all_rules",
    describer="recipe.hgpo.config.hgpo_config:describe",
    world="textworld",
    rehearsal="r3_ext.hgpo.rehearse",
    files={"algorithm.hgpo.episodes": "episodes.jsonl"},
    free=("algorithm.hgpo.episodes",),
)
RRL = Recipe(
    name="rrl",
    title="RRL-style",
    entry="recipe.rrl.main_rrl",
    config="recipe.rrl.config",
    base="rrl_trainer",
    methods=("ppo", "rrl"),
    modules=("recipe.rrl.rrl_trainer", "recipe.common.restart.agent_loop"),
    node="algorithm.rrl",
    validator="recipe.rrl.config.rrl_rules:validate_rrl_config",
    rules="recipe.rrl.config.rrl_rules:all_rules",
    describer="recipe.rrl.config.rrl_config:describe",
    rehearsal="r3_ext.rrl.rehearse",
    files={"algorithm.rrl.states.path": "states.sqlite"},
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (BASELINE, R3, HGPO, RRL)}
SESSIONS = "recipe.hgpo.agent_loop"
"""What plays sessions in an environment, for any method."""
SESSION_SETTINGS = "actor_rollout_ref.rollout.custom.session"
"""Where they are set: a run that has them trains on sessions."""
DEFAULT_METHOD = "r3"
ANY_RULES = "recipe.common.config.start_rules:of_any_method"
"""As `Recipe.rules`, of a trainer whose recipe has none."""


def methods() -> list[str]:
    """What `--method` takes."""
    return sorted(method for recipe in RECIPES.values() for method in recipe.methods)


def recipe_of(method: str) -> Recipe:
    """
    Raises:
        ValueError: no recipe has that method.
    """
    for recipe in RECIPES.values():
        if method in recipe.methods:
            return recipe
    raise ValueError(f"--method must be one of {', '.join(methods())}, got {method!r}")


def plays_sessions(config: DictConfig) -> bool:
    """Whether a run of these settings trains on sessions of several turns."""
    from omegaconf import OmegaConf

    return OmegaConf.select(config, SESSION_SETTINGS) is not None


def check_kind(method: str, world: str) -> None:
    """Raise ValueError where a method is of no use in a world, as --world has it."""
    recipe, is_text = recipe_of(method), is_text_world(world)
    if is_text and not recipe.world and method not in recipe.of_sessions:
        raise ValueError(
            f"--world {world}: {method} trains on answers of one turn; leave --world out, or take --method hgpo, gigpo "
            "or grpo"
        )
    if recipe.world and not is_text:
        raise ValueError(f"--world {world}: {method} trains on sessions of several turns; take --world {recipe.world}")


def rules_of(config: DictConfig) -> Iterator[Broken]:
    """Every rule that the settings break: those of the recipe whose trainer they name, else those of any method."""

    recipe = recipe_of_config(config)
    yield from _function(recipe.rules if recipe and recipe.rules else ANY_RULES)(config)


def told_gone(key: str) -> str | None:
    """A sentence about a setting that a recipe had once; None of any other."""
    return next(filter(None, (_function(f"{r.gone}:told")(key) for r in RECIPES.values() if r.gone)), None)


def recipe_of_trainer(trainer_mode: object) -> Recipe | None:
    """The recipe of a `trainer.v1.trainer_mode`; None of one of verl's own, or of somebody else's."""
    return next((recipe for recipe in RECIPES.values() if trainer_mode in recipe.trainers), None)


def recipe_of_config(config: DictConfig) -> Recipe | None:
    """The recipe whose trainer these settings name."""
    from omegaconf import OmegaConf  # without which the doctor says so

    return recipe_of_trainer(OmegaConf.select(config, "trainer.v1.trainer_mode"))
