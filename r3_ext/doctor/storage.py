"""Where checkpoints and history go, and whether they fit."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_r3
from r3_ext.doctor.model_files import model_architecture
from r3_ext.host.units import GIB, human
from r3_ext.recipes import recipe_of_config

if TYPE_CHECKING:
    from omegaconf import DictConfig


STORES = {"algorithm.r3.history.path": "history", "algorithm.rrl.states.path": "state buffer"}
"""Settings that name a database."""


def existing_parent(path: Path) -> Path:
    """`path` itself or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def check_output(config: DictConfig) -> list[Finding]:
    from omegaconf import OmegaConf

    folders = {"trainer.default_local_dir": Path(config.trainer.default_local_dir)}
    if recipe := recipe_of_config(config):
        folders |= {key: Path(OmegaConf.select(config, key)).parent for key in recipe.files}
    for key, folder in folders.items():
        parent = existing_parent(folder)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return [Finding(FAIL, "output", f"no right to write below {parent}", f"set {key} to another folder")]
        if key in STORES and (reason := refuses_locks(parent)):
            advice = f"set {key} to another file system; Lustre takes locks when it is mounted with -o flock"
            return [Finding(FAIL, STORES[key], f"{parent}: its file system takes no locks ({reason})", advice)]
    found = os.path.relpath(folders["trainer.default_local_dir"].expanduser())
    tracker = folders["trainer.default_local_dir"].expanduser() / "latest_checkpointed_iteration.txt"
    if tracker.exists() and config.trainer.resume_mode == "auto":
        found += f", resumes after step {tracker.read_text().strip()}"
    return [Finding(OK, "output", found), *_far_away(folders)]


def refuses_locks(folder: Path) -> str:
    """Why a file in that folder cannot be locked, as a database's is; empty where it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _far_away(folders: dict[str, Path]) -> Iterator[Finding]:
    """Databases on a network file system."""
    from recipe.common.store.lock import network_file_system

    for key, name in STORES.items():
        if key in folders and (kind := network_file_system(str(existing_parent(folders[key])))):
            advice = f"it works, but nobody can read it during the run; {key} may name a local disk"
            yield Finding(WARN, name, f"on a network file system ({kind})", advice)


def _bytes_each(checkpoint: DictConfig) -> int:
    """Of a parameter."""
    sizes = {"model": 4, "optimizer": 8, "hf_model": 4}
    return sum(sizes.get(content, 0) for content in checkpoint.save_contents)


def check_disk(config: DictConfig) -> list[Finding]:
    """Checkpoints: 4 bytes per parameter for fp32 weights and 8 for Adam's moments, of actor and critic, as far as
    `checkpoint.save_contents` of each names them, times those kept (at least 2: with one to keep, verl deletes the old
    one after the new one is written). History: 6 bytes per response token (id and log-prob) at full length."""
    free = shutil.disk_usage(existing_parent(Path(config.trainer.default_local_dir))).free
    data, rollout, actor = config.data, config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    parts, needed, least = [f"{human(free)} free"], 0, GIB
    architecture = model_architecture(config)
    if config.trainer.save_freq > 0 and architecture is not None:
        checkpoint = _bytes_each(actor.checkpoint) * architecture.parameters
        if config.critic.enable:
            checkpoint += _bytes_each(config.critic.checkpoint) * architecture.critic_parameters
        keep = config.trainer.max_actor_ckpt_to_keep
        parts.append(f"a checkpoint takes {human(checkpoint)}" + (f", {keep} kept" if keep else ", all kept"))
        needed += checkpoint * max(keep or 5, 2)
        least = max(least, checkpoint)
    if is_r3(config):
        history = 100 * data.train_batch_size * rollout.n * data.max_response_length * 6
        parts.append(f"the history at most {human(history)} per 100 steps")
        needed += history
    if free < needed:
        advice = "free some space, or set trainer.default_local_dir, save_freq or max_actor_ckpt_to_keep"
        return [Finding(FAIL if free < least else WARN, "disk", "; ".join(parts), advice)]
    return [Finding(OK, "disk", "; ".join(parts))]
