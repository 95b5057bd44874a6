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
"""Which checkpoint a start goes on from. verl's tracker file, which says so, is not written atomically."""

import json
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recipe.common.modes import is_async

PARTS = ("data.pt", "actor")
"""The first is the last that a checkpoint gets. Of one that verl no longer keeps, actor is gone."""
CRITIC = "critic"
"""A further one of those whose writer has one, as it says in this file of the checkpoint:"""
WRITER = "trainer.json"
ASYNC_PARTS = ("transfer_queue", "data.pt", "actor")
"""The asynchronous modes save last what is in flight; the folder gets its name when it is complete."""


def resume_step(trainer: DictConfig) -> int:
    """The step that training will go on from, -1 for a start from scratch; makes verl's tracker file agree with it.

    Raises:
        ValueError: a checkpoint that is named and not there, or a tracker file without any complete checkpoint.
    """
    tracker = _tracker(trainer)
    if trainer.resume_mode == "disable":
        return -1
    parts = _parts(trainer)
    if trainer.resume_mode == "resume_path":
        named = Path(str(trainer.resume_from_path))
        if not (_is_complete(named, parts) and _has_critic(named)):
            raise ValueError(
                f"trainer.resume_from_path={trainer.resume_from_path}: no complete checkpoint there; name a folder "
                f"global_step_N that holds {' and '.join(parts)}"
            )
        step = _step_of(named)
    else:
        text = tracker.read_text(errors="replace").strip() if tracker.exists() else ""
        complete = _whole_steps(tracker.parent, parts)
        if text.isdecimal() and int(text) in complete:
            return int(text)
        if not complete and not tracker.exists():
            return -1
        if not complete:
            what = "" if parts == PARTS else " with transfer_queue: a run keeps its trainer mode"
            found = f"{tracker} holds {text!r} and there is no complete checkpoint{what}"
            raise ValueError(f"{found}; delete the file to begin anew")
        step = max(complete)
    if (tracker.parent / f"global_step_{step}").is_dir():
        # Training will overwrite the later checkpoints: a crash while it does must not resume from one of them.
        _point_to(tracker, step)
    return step


def checkpoint_of(trainer: DictConfig, step: int) -> Path:
    """The folder of the checkpoint of `step`, from which a start goes on."""
    if trainer.resume_mode == "resume_path":
        return Path(str(trainer.resume_from_path))
    return Path(trainer.default_local_dir) / f"global_step_{step}"


def go_back_to(trainer: DictConfig, step: int) -> Path | None:
    """The newest complete checkpoint up to that step, from which the next start goes on; None where there is none."""
    tracker = _tracker(trainer)
    steps = [saved for saved in _whole_steps(tracker.parent, _parts(trainer)) if saved <= step]
    if not steps:
        return None
    _point_to(tracker, steps[-1])
    return tracker.parent / f"global_step_{steps[-1]}"


def saved_steps(folder: Path, parts: tuple[str, ...]) -> list[int]:
    """Steps of the checkpoints that have these parts, in order."""
    return sorted(_step_of(path) for path in folder.glob("global_step_*") if _is_complete(path, parts))


def _whole_steps(folder: Path, parts: tuple[str, ...]) -> list[int]:
    return [step for step in saved_steps(folder, parts) if _has_critic(folder / f"global_step_{step}")]


def _tracker(trainer: DictConfig) -> Path:
    return Path(trainer.default_local_dir) / "latest_checkpointed_iteration.txt"


def _parts(trainer: DictConfig) -> tuple[str, ...]:
    return ASYNC_PARTS if is_async(OmegaConf.select(trainer, "v1.trainer_mode") or "") else PARTS


def _point_to(tracker: Path, step: int) -> None:
    partial = tracker.with_suffix(".partial")
    partial.write_text(str(step))
    partial.replace(tracker)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("global_step_"))


def _is_complete(checkpoint: Path, parts: tuple[str, ...]) -> bool:
    name = checkpoint.name.removeprefix("global_step_")
    return name.isdecimal() and all((checkpoint / part).exists() for part in parts)


def _has_critic(checkpoint: Path) -> bool:
    """Or needs none."""
    return (checkpoint / CRITIC).exists() or not told_of(checkpoint).get(CRITIC, False)


def told_of(checkpoint: Path) -> dict:
    """What its writer wrote about itself; nothing of one that no trainer of a recipe signed."""
    file = checkpoint / WRITER
    return json.loads(file.read_text()) if file.is_file() else {}
