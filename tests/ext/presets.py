"""The profiles as they are shipped."""

from functools import cache

from omegaconf import DictConfig

from r3_ext.settings.compose import base_overrides, compose_config

PROFILES = [
    *("embedded", "gpu_1x24gb", "gpu_1x80gb", "gpu_2x8x80gb", "gpu_4x80gb"),
    *("gpu_8x40gb", "gpu_8x80gb", "gpu_8x80gb_7b"),
]
DEFAULT = "gpu_8x80gb"


def preset(profile: str, method: str = "r3", *world: str) -> DictConfig:
    return _composed(profile, method, *world).copy()


@cache
def _composed(*chosen: str) -> DictConfig:
    return compose_config(base_overrides(*chosen))
