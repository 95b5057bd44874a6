"""Parts of a configuration, for the tests of the settings."""

from omegaconf import DictConfig, OmegaConf

from recipe.common.config.reward_rules import LEGACY


def part(config: DictConfig) -> DictConfig:
    """A copy of the sections that the checks read; copying all of verl's configuration takes most of a second."""
    names = "algorithm", "actor_rollout_ref", "critic", "data", "ray_kwargs", "reward", "trainer"
    return OmegaConf.masked_copy(config, [*names, *LEGACY])
