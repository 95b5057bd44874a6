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
"""What kind of value a setting takes: the kind of verl's own, and for some a range. All other rules count on it."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.common.checks import Broken, is_count, is_number, leaves, setting
from recipe.common.config import engines
from recipe.common.config.lengths import ACTOR, ROLLOUT

COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("trainer.total_epochs", "trainer.n_gpus_per_node", "trainer.nnodes", "reward.num_workers"),
    *(f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_max_token_len_per_gpu"),
    *(f"{ROLLOUT}.n", f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.agent.num_workers"),
    *(f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.val_kwargs.n"),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
)
COUNTS_OR_NULL = (
    *("trainer.total_training_steps", "trainer.max_actor_ckpt_to_keep", "data.gen_batch_size", "data.val_batch_size"),
    f"{ROLLOUT}.max_model_len",
)
INTEGERS = ("trainer.save_freq", "trainer.test_freq", "data.train_max_samples", "data.val_max_samples")
POSITIVE = (f"{ACTOR}.optim.lr", f"{ROLLOUT}.temperature", f"{ACTOR}.clip_ratio")
SHARES = (f"{ROLLOUT}.top_p", f"{ROLLOUT}.gpu_memory_utilization")
FILES = ("data.train_files", "data.val_files")
MODEL = "actor_rollout_ref.model.path"
PATHS = (MODEL, "trainer.default_local_dir")
TEXTS = ("data.prompt_key", "trainer.device", "trainer.v1.trainer_mode", "reward.reward_manager.name")
"""As paths, neither null nor a list: a name is looked up under them."""
SECTIONS_OR_NULL = ("reward.reward_kwargs", f"{ROLLOUT}.qat")
"""The second follows the actor of another engine, which may have none."""
KL_LOSSES = tuple(kind + end for kind in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3") for end in ("", "+"))
ONE_OF = {"trainer.resume_mode": ("auto", "disable", "resume_path"), f"{ACTOR}.kl_loss_type": KL_LOSSES}
NUMBERS_OR_TEXTS = ("algorithm.rollout_correction.rollout_is_threshold",)
"""verl's default is a number, and a text such as "0.5_5.0" is both bounds."""


def kinds(config: DictConfig) -> Iterator[Broken]:
    """Settings of verl's that are of another kind than its own files', or out of range; verl would trip over them.

    One without a way out: the other rules cannot be looked at.
    """
    try:
        given = tree(config)
    except ValueError as error:
        yield Broken(str(error), out=naming(config, str(error)))
        return
    known = engines.verl_settings()
    for section in () if engines.is_fsdp(config) else engines.SECTIONS:  # those of another engine have other keys
        parent, _, name = section.rpartition(".")
        (known[parent] if parent else known).pop(name)
    for key, told, default in wrong_in(given, known):
        is_choice = key in (MODEL, *FILES)  # verl's own are examples
        fits = not is_choice and default not in (None, "???") and broken_rule(key, default, default) is None
        yield Broken(told, (setting(key, default),) if fits and not isinstance(default, Mapping) else ())


def naming(config: DictConfig, told: str) -> tuple[str, ...]:
    """The settings that name what there is not, by OmegaConf's sentence about it."""
    missing = re.search("Interpolation key '([^']+)'", told)
    values = leaves(OmegaConf.to_container(config), "")
    return tuple(key[1:] for key, value in values if missing and f"${{{missing[1]}}}" in str(value))


def tree(config: DictConfig) -> dict:
    """All settings, interpolations resolved. Raises ValueError where one names what there is not."""
    try:
        return OmegaConf.to_container(config, resolve=True)  # pyright: ignore[reportReturnType]
    except OmegaConfBaseException as error:
        raise ValueError(str(error).replace("\n", ", ")) from error


def wrong_in(
    given: Mapping, known: Mapping, paths: Collection[str] = PATHS, prefix: str = ""
) -> Iterator[tuple[str, str, object]]:
    """The problems of one section and of those in it, as (full key, "<full key> must <rule>, got <value>", default).

    What is unknown was added, and is left to verl.

    paths: settings that name a file or a folder.
    """
    if missing := [prefix + name for name in known if name not in given]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield missing[0], f"{', '.join(missing[:3])}{more} must be there, and an override has deleted it", None
    for name, default in known.items():
        key = prefix + name
        if name not in given:
            continue
        if isinstance(default, dict) and default:
            if isinstance(given[name], dict):
                yield from wrong_in(given[name], default, paths, f"{key}.")
            elif given[name] is not None or key not in SECTIONS_OR_NULL:
                yield key, f"{key} must be a section with settings, got {given[name]!r}", default
        elif rule := broken_rule(key, given[name], default, paths):
            yield key, f"{key} must {rule}, got {given[name]!r}", default


def broken_rule(key: str, value: Any, default: Any, paths: Collection[str] = PATHS) -> str | None:
    """What the value would have to be, or None where it is."""
    if key in (*COUNTS, *COUNTS_OR_NULL):
        may_be_null = key in COUNTS_OR_NULL
        ok = is_count(value, 1) or (may_be_null and value is None)
        return None if ok else "be a whole number of at least 1" + " or null" * may_be_null
    if key in INTEGERS:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return None if is_whole else "be a whole number (-1: never, or all)"
    if key in POSITIVE:
        return None if is_number(value) and value > 0 else "be a number > 0"
    if key in SHARES:
        return None if is_number(value) and 0 < value <= 1 else "be in (0, 1]"
    if key in (*paths, *TEXTS) and not (isinstance(value, str) and value):
        return "be a text (a number in quotes is one: \"key='5'\")"
    if key in paths and (fault := path_fault(value)):
        return f"be a path that can be used ({fault})"
    if key in ONE_OF:
        return None if value in ONE_OF[key] else f"be one of {', '.join(ONE_OF[key])}"
    if key in (*FILES, "trainer.logger"):
        texts = value if isinstance(value, list) else [value]
        ok = all(isinstance(text, str) and text for text in texts) and (texts or key not in FILES)
        if not ok:
            return "be a text or a list of texts"
        faults = [fault for text in texts if (fault := path_fault(text))] if key in FILES else []
        return f"be paths that can be used ({faults[0]})" if faults else None
    if isinstance(default, bool):
        return "be true or false" if isinstance(value, str | list | dict) else None
    if isinstance(default, int | float):
        ok = value is None or is_number(value) or (key in NUMBERS_OR_TEXTS and isinstance(value, str))
        return None if ok else "be a number"
    if isinstance(default, str | list):
        return None if value is None or isinstance(value, str | list) else "be a text or a list"
    return None


def path_fault(path: str) -> str | None:
    """Why no file can have this path or be looked at under it; pathlib raises of it. None where there may be one."""
    full = os.path.expanduser(path)
    if full.startswith("~"):
        return "there is no such home"
    try:
        os.stat(full)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror
    return None
