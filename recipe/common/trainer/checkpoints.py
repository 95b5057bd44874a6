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
"""What lies beside the weights of a checkpoint: who wrote it, and how many of them are kept."""

import json
import shutil
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recipe.common.config.engines import FSDP
from recipe.common.trainer.resume import CRITIC, WRITER, checkpoint_of, resume_step, saved_steps, told_of

STORE = "store"


def sign(checkpoint: Path, trainer: str, with_critic: bool = False, with_store: bool = False) -> None:
    """Write down who writes the checkpoint, by its `trainer.v1.trainer_mode`, whether it will have a critic, and
    whether its trainer keeps a store in a file of its own."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    told = {"trainer": trainer, STORE: with_store} | ({CRITIC: True} if with_critic else {})
    (checkpoint / WRITER).write_text(json.dumps(told) + "\n")


def writer_of(checkpoint: Path) -> str | None:
    """None of one that no trainer of a recipe signed."""
    return told_of(checkpoint).get("trainer")


def had_store(checkpoint: Path, trainer: str, is_named: bool) -> bool:
    """Whether a checkpoint that `trainer` goes on from has to have a state of that trainer's store.

    is_named: whether the settings name the checkpoint (resume_from_path). One that nobody signed may be of a version
        that did not sign; it is taken for another trainer's only where it is named.
    """
    told = told_of(checkpoint)
    if not told:
        return not is_named
    return _recipe(told["trainer"]) == _recipe(trainer) and told.get(STORE, True)


def _recipe(trainer: str) -> str:
    """Of a name by recipe.common.modes.trainer_name, whatever the mode."""
    return trainer.partition("_")[0]


def told_foreign(trainer: DictConfig) -> str | None:
    """A sentence where the checkpoint that a start goes on from is another trainer's; `trainer` are its settings.

    Raises:
        ValueError: see `resume_step`.
    """
    step, name = resume_step(trainer), OmegaConf.select(trainer, "v1.trainer_mode")
    if step < 0:
        return None
    checkpoint = checkpoint_of(trainer, step)
    if (writer := writer_of(checkpoint)) == name:
        return None
    by = f"the trainer {writer}" if writer else "verl's own trainer, or by a recipe's before checkpoints were signed"
    return (
        f"{checkpoint} was written by {by}, and {name} goes on from it: weights, optimizer and place in the data are "
        "taken, and nothing else of that run; with trainer.resume_mode=disable and another trainer.default_local_dir "
        "training begins at the model"
    )


def check_loadable(config: DictConfig) -> None:
    """verl would find out after minutes, in its workers.

    Raises:
        ValueError: the checkpoint that a start goes on from has parts for other ranks or another FSDP, or no critic
            where the run trains one; and see `resume_step`.
    """
    if (step := resume_step(config.trainer)) < 0:
        return
    checkpoint = checkpoint_of(config.trainer, step)
    if told := _other_parts(config, checkpoint) or _no_critic(config, checkpoint):
        raise ValueError(
            f"{told}begin at its weights with trainer.resume_mode=disable, another trainer.default_local_dir and "
            "actor_rollout_ref.model.path=FOLDER, made by `python -m verl.model_merger merge --backend fsdp "
            f"--local_dir {checkpoint}/actor --target_dir FOLDER`"
        )


def _no_critic(config: DictConfig, checkpoint: Path) -> str:
    from verl.trainer.ppo.utils import need_critic  # loads torch, which a launcher must not have

    lacks = need_critic(config) and not (checkpoint / CRITIC).exists()
    return f"{checkpoint} has no {CRITIC}, which this run trains (critic.enable): " if lacks else ""


def _other_parts(config: DictConfig, checkpoint: Path) -> str:
    """verl's FSDP workers write a part a rank, and load those of their own number and kind alone."""
    file = checkpoint / "actor" / "fsdp_config.json"
    strategy = config.actor_rollout_ref.actor.strategy
    if not file.is_file() or strategy not in FSDP:
        return ""
    try:
        saved = json.loads(file.read_text())
        was, number = FSDP[saved["FSDP_version"] - 1], saved["world_size"]
    except (ValueError, KeyError, TypeError, IndexError):  # verl does not read it when it loads
        return ""
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    ways = [f"actor_rollout_ref.actor.strategy={was}"] if was != strategy else []
    ways += [f"trainer.nnodes times n_gpus_per_node of {number}"] if number != ranks else []
    if not ways:
        return ""
    return (
        f"{checkpoint} has the parts of {number} ranks under {was}, and this run has {ranks} under {strategy}: go on "
        f"with {' and '.join(ways)}, or "
    )


def is_gone(trainer: DictConfig, step: int, known: list[int]) -> bool:
    """Whether the actor of a step's checkpoint was deleted: the settings say so, and there is none here.

    known: steps with a checkpoint, as far as they are remembered, in their order.
    """
    kept = _kept(trainer, "actor")
    named = Path(OmegaConf.select(trainer, "resume_from_path") or "")
    if not kept or step == 0 or step in known[-kept:] or (named.name == f"global_step_{step}" and named.is_dir()):
        return False
    return not Path(trainer.default_local_dir, f"global_step_{step}", "actor").is_dir()


def left_behind(folder: Path, name: str) -> list[Path]:
    """What is called `name` in checkpoints that are no longer kept: of these verl deletes the weights only.

    folder: that holds the checkpoints.
    """
    return [path for path in folder.glob(f"global_step_*/{name}") if not (path.parent / "actor").is_dir()]


def _kept(trainer: DictConfig, role: str) -> int | None:
    return 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get(f"max_{role}_ckpt_to_keep")


def keep(trainer: DictConfig, step: int) -> list[Path]:
    """Delete what is more than the settings keep, once the checkpoint of `step` is written; returns what went.

    verl counts those of its own process, so each start would keep as many again. Those that no recipe's trainer signed
    stay, and so do later ones, from which a start went back.
    """
    gone = []
    for role in ("actor", "critic"):
        kept = _kept(trainer, role)
        if not kept or kept < 0:
            continue
        folder = Path(trainer.default_local_dir)
        steps = [saved for saved in saved_steps(folder, (role, WRITER)) if saved <= step]
        gone += [folder / f"global_step_{old}" / role for old in steps[:-kept]]
    for weights in gone:
        shutil.rmtree(weights)
    return gone
