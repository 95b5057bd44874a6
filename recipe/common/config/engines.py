# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""From verl's other training engines to FSDP: what to leave out of the settings, and what says the same there.

verl names the engine by `model_engine`, which chooses files of settings: those of actor, reference policy and critic
have other keys then. Which keys, and with what values, is read from verl's own files.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from recipe.common.checks import Broken, leaves, setting

SECTIONS = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
STRATEGY = "actor_rollout_ref.actor.strategy"
FSDP = ("fsdp", "fsdp2")
OTHERS = ("megatron", "veomni", "torchtitan")
"""Engines that have a section of their own name."""
SAME: dict[str, str] = dict.fromkeys(
    ("context_parallel_size", "ulysses_parallel_size"), "ulysses_sequence_parallel_size"
)
"""Keys of other engines by another name than FSDP's: the GPUs that share a row."""


@lru_cache(maxsize=8)
def _of_verl(engine: str) -> DictConfig:
    """All of verl's settings, interpolations as they stand; none of an engine that verl has no file of."""
    root = Path(next(iter(find_spec("verl").submodule_search_locations)))  # pyright: ignore
    name = "" if engine in ("", "dp") else f"{engine}_"
    file = root / "trainer" / "config" / f"_generated_ppo_{name}trainer.yaml"
    return OmegaConf.load(file) if file.is_file() else OmegaConf.create()  # pyright: ignore[reportReturnType]


def verl_settings() -> dict:
    """verl's sections and settings."""
    return OmegaConf.to_container(_of_verl(""), resolve=True)  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=8)
def verl_defaults(engine: str = "") -> dict[str, object]:
    """verl's settings of actor, reference policy and critic by full key, interpolations as they stand; {} of an engine
    that verl has no file of."""
    config = _of_verl(engine)
    return {key: value for section in SECTIONS for key, value in _leaves(config, section)} if config else {}


def _leaves(config: DictConfig | ListConfig, section: str) -> list[tuple[str, object]]:
    node = OmegaConf.select(config, section)
    plain = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    return list(leaves(plain, section))


def engine_of(config: DictConfig) -> str | None:
    """Another engine than FSDP whose settings these are. FSDP's strategy may stand among them, from a profile."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy not in FSDP:
        return str(actor.strategy)
    return None if "fsdp_config" in actor else next((name for name in OTHERS if name in actor), None)


def is_fsdp(config: DictConfig) -> bool:
    return engine_of(config) is None


def set_here(config: DictConfig) -> dict[str, object]:
    """What the settings of another engine's actor, reference policy and critic have that is not its default."""
    known = verl_defaults(engine_of(config) or "")
    found = (pair for section in SECTIONS for pair in _leaves(config, section))
    return {key: value for key, value in found if key not in known or known[key] != value}


def translated(config: DictConfig) -> tuple[list[str], dict[str, object]]:
    """Of another engine's settings: those that FSDP has not, as the sections that hold them; and what says the same."""
    known, changed, out, put = verl_defaults(), set_here(config), [], {}
    theirs = verl_defaults(engine_of(config) or "")
    sections = {key.rpartition(".")[0] for key in known}
    parents = {part for key in sections for part in _parents(key)}
    for key, value in (pair for section in SECTIONS for pair in _leaves(config, section)):
        # A recipe adds settings of its critic's.
        if key in known or (key.startswith("critic.") and key not in theirs):
            continue
        outermost = next(part for part in [*reversed(_parents(key)), key] if part not in parents)
        # An override that says what the engine does anyway is in the way as well, and cannot be seen here.
        may_be_given = outermost != key and not key.startswith("critic.")
        if (key in changed or may_be_given) and outermost not in out:
            out.append(outermost)
        name = key.rpartition(".")[2]
        fsdp = f"{outermost.rpartition('.')[0]}.fsdp_config.{SAME[name] if name in SAME else name}"
        is_same = fsdp in known and not name.startswith("_") and name != "strategy"
        if key in changed and outermost != key and is_same:
            put[fsdp] = value
    return out, put


def _parents(key: str) -> list[str]:
    """a.b.c: a.b.c, a.b, a."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def fsdp_workers(config: DictConfig, who: str) -> Iterator[Broken]:
    """Of a recipe whose workers are verl's FSDP workers."""
    if (engine := engine_of(config)) is None:
        return
    strategy = config.actor_rollout_ref.actor.strategy
    out, put = translated(config)
    if "fsdp_config" in config.actor_rollout_ref.actor:
        out, chosen = [], ()
    else:
        chosen = ("model_engine",)
    ways = [] if strategy in FSDP else [f"{STRATEGY}=fsdp"]
    ways += [setting(key, value) for key, value in put.items()]
    told = f"{STRATEGY}: {who} trains with fsdp or fsdp2, got {engine!r}"
    yield Broken(told, (" ".join(ways),) if ways else (), (*chosen, *out))


def as_fsdp(config: DictConfig) -> DictConfig:
    """The config as it is once `fsdp_workers` is followed, so that the other rules can be told in the same answer."""
    if is_fsdp(config):
        return config
    new, (_, put) = deepcopy(config), translated(config)
    known = verl_defaults()
    kept = {key: value for key, value in set_here(config).items() if key in known}
    with open_dict(new):
        for section in SECTIONS:
            OmegaConf.update(new, section, {}, merge=False)
        for key, value in {**known, **kept, **put, STRATEGY: FSDP[0]}.items():
            OmegaConf.update(new, key, value, force_add=True)
    return new
