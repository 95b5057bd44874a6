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
"""What is found by asking verl itself and by loading what the user names: once, before Ray, by every entry point.

The first broken rule of each of verl's own checks is what it says; the recipes' rules, which say all, come before.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.common.checks import Broken, leaves, remedy, setting
from recipe.common.config import engines, lengths, value_rules, verl_rules
from recipe.common.config.reward_rules import can_be_asked, migrated, model_is_served, no_legacy
from recipe.common.config.row_rules import rows_of_text
from recipe.common.config.verl_rules import ACTOR, CORRECTION, MODULES, ROLLOUT

BROKEN = ValueError, TypeError, AssertionError, NotImplementedError, HydraException, OmegaConfBaseException
"""What verl's checks raise."""
Rules = Callable[[DictConfig], Iterator[Broken]]


def of_any_method(config: DictConfig) -> Iterator[Broken]:
    """All rules, of a trainer whose recipe has none of its own."""
    yield from after_kinds(config, _of_any_method)


def after_kinds(config: DictConfig, rules: Rules) -> Iterator[Broken]:
    """Kinds of values, and the rules that count on them, which read the config as it is once these are followed."""
    kinds = list(value_rules.kinds(config))
    yield from kinds
    if all(one.ways for one in kinds):
        yield from rules(followed(config, kinds))


def of_recipe(config: DictConfig, rules: Rules, of_rows: Rules = lambda config: iter(())) -> Iterator[Broken]:
    """Kinds of values, the rules of a recipe on FSDP workers, and what is found by asking verl and loading what the
    user names; where all that is right, what the recipe asks of the rows."""

    def asked(config: DictConfig) -> Iterator[Broken]:
        told = list(rules(config))
        yield from told
        yield from at_start(followed(migrated(engines.as_fsdp(config)), told))

    told = list(after_kinds(config, asked))
    yield from told
    if not told:
        yield from of_rows(config)


def _of_any_method(config: DictConfig) -> Iterator[Broken]:
    told, new = [*no_legacy(config)], migrated(config)
    told += [*verl_rules.of_any_method(new), *model_is_served(new)]
    yield from told
    yield from at_start(followed(new, told))


def at_start(config: DictConfig) -> Iterator[Broken]:
    elsewhere = registers_elsewhere(config)
    yield from can_be_asked(config, elsewhere)
    if not elsewhere:
        yield from _told(_policy_loss, config, (f"{ACTOR}.policy_loss.loss_mode=vanilla",))
    rollout = config.actor_rollout_ref.rollout
    wanting = [f"{ROLLOUT}.name=vllm"] if OmegaConf.is_missing(rollout, "name") else []
    wanting += [f"{ROLLOUT}.mode=async"] if rollout.get("mode") == "sync" else []
    yield from _told(_rollout, config, (" ".join(wanting),) if wanting else ())
    off = f"{CORRECTION}.rollout_is=null {CORRECTION}.rollout_rs=null"
    yield from _told(_correction, config, (off,))
    yield from models_read(config)
    told = list(lengths.micro_batches(config))
    yield from told
    yield from _told(_validate, followed(config, told), ())
    yield from rows_of_text(config)


def registers_elsewhere(config: DictConfig) -> bool:
    """Whether modules that only the workers import may bring names which nobody knows here."""
    modules = str(OmegaConf.select(config, MODULES) or "").split(",")
    # verl's plugins are imported with it; a recipe's modules register no name that is looked up here.
    return any(module and not module.startswith("recipe.") and module not in sys.modules for module in modules)


def followed(config: DictConfig, broken: Collection[Broken]) -> DictConfig:
    """The config with the first way out of each: what is found in it would be told next time."""
    if not broken:
        return config
    new, parser = deepcopy(config), OverridesParser.create()
    for override in parser.parse_overrides(remedy(broken)[1]):
        OmegaConf.update(new, override.key_or_group, override.value(), force_add=True)
    return new


def _told(check: Callable[[DictConfig], object], config: DictConfig, ways: tuple[str, ...]) -> Iterator[Broken]:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            check(config)
    except BROKEN as error:
        yield Broken(" ".join(str(error).split()), ways)


def _policy_loss(config: DictConfig) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)


def _rollout(config: DictConfig) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


def _correction(config: DictConfig) -> None:
    """verl looks at the thresholds when the first batch is there: it is given one of a token."""
    import torch

    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    correction = config.algorithm.get("rollout_correction") or {}
    if not (correction.get("rollout_is") or correction.get("rollout_rs")):
        return
    names = "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold"
    given = {name: correction[name] for name in names if name in correction}
    token = torch.zeros(1, 1)
    try:
        compute_rollout_correction_and_rejection_mask(token, token, torch.ones(1, 1), **given)
    except ValueError as error:
        raise ValueError(f"{CORRECTION}: {error}") from error


def models_read(config: DictConfig) -> Iterator[Broken]:
    """Added keys of a model, which verl's workers would trip over."""
    from verl.trainer.ppo.utils import need_critic
    from verl.workers.config import HFModelConfig

    known = {"_target_", *(field.name for field in fields(HFModelConfig))}
    for key in (verl_rules.MODEL, *(["critic.model"] if need_critic(config) else [])):
        model: Any = OmegaConf.to_container(OmegaConf.select(config, key), resolve=True)
        if not str(model.get("_target_")).endswith(f".{HFModelConfig.__name__}"):
            continue
        for name in (name for name in model if name not in known):
            # Where the critic's engine had its settings before verl 0.8.
            moved = leaves(model[name], "critic.fsdp") if f"{key}.{name}" == "critic.model.fsdp_config" else ()
            ways = [setting(place, value) for place, value in moved if place in engines.verl_defaults()]
            told = f"{key}.{name} is no setting of verl 0.9.1"
            yield Broken(told, (" ".join(ways),) if ways else (), (f"{key}.{name}",))


def _validate(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    if need_critic(config):  # of whose model verl would fetch the files
        config = deepcopy(config)
        OmegaConf.update(config, "critic.model", None)
    validate_config(config, need_reference_policy(config), need_critic(config))
