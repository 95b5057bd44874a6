"""With the packages of a GPU machine every module is imported, and verl and the recipe take every composition."""

import importlib
import pkgutil

import pytest

from r3_ext.recipes import recipe_of, rules_of
from r3_ext.settings.compose import base_overrides, choices, compose_config
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name

PACKAGES = ("recipe.common", "recipe.r3", "r3_ext", "verl.workers.rollout.vllm_rollout")
NCCL = "verl.checkpoint_engine.nccl_checkpoint_engine"
"""The way of separate_async between GPUs."""
MISSING = {NCCL: "cupy", "recipe.hgpo.environments.alfworld_games": "alfworld"}
"""What a module wants that the set has not."""
SCRIPTS = ("r3_ext.cpu.fork.client", "r3_ext.export.__main__")
REFUSED = ("gpu_1x24gb", SEPARATE_ASYNC)
"""That profile's weights lie in main memory, of which the trainer cannot keep a copy for the GPU that generates."""


def modules() -> list[str]:
    found = [*PACKAGES, NCCL]
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        found += [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
    return sorted({*found} - {*SCRIPTS})


def test_every_module_is_imported():
    """But for those whose package is not in the set, which is an ImportError that names it."""
    found = {}
    for name in modules():
        try:
            importlib.import_module(name)
        except ImportError as error:
            found[name] = error.name
    assert {name: missing for name, missing in found.items() if MISSING.get(name) != missing} == {}


def test_vllm_takes_its_cuda_platform():
    from vllm.platforms import current_platform

    assert current_platform.is_cuda() and current_platform.get_device_capability().major == 9


@pytest.mark.parametrize("mode", [SYNC, COLOCATE_ASYNC, SEPARATE_ASYNC])
@pytest.mark.parametrize("method", choices("method"))
@pytest.mark.parametrize("profile", [name for name in choices("profile") if name.startswith("gpu_")])
def test_every_composition_is_valid_and_trains_with_the_recipes_engine(profile, method, mode):
    from recipe.common.trainer.engine import R3FSDP2Engine
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.engine import EngineRegistry

    trainer = f"trainer.v1.trainer_mode={trainer_name(recipe_of(method).name, mode)}"
    settings = [f"+mode={mode}"] if mode != SYNC else []
    config = compose_config([*base_overrides(profile, method), *settings, trainer])
    for module in recipe_of(method).modules:
        importlib.import_module(module)

    broken = list(rules_of(config))
    assert bool(broken) == ((profile, mode) == REFUSED), broken
    if not broken:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        assert get_trainer_cls(config.trainer.v1.trainer_mode)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert EngineRegistry.get_engine_cls("language_model", actor.engine.strategy) is R3FSDP2Engine
