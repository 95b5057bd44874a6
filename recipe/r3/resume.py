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

from pathlib import Path

from omegaconf import DictConfig


def resume_step(trainer: DictConfig) -> int:
    """The step that training will go on from, -1 for a start from scratch; makes verl's tracker file agree with it.

    Raises:
        ValueError: a tracker file that a crash cut short, and no complete checkpoint to name instead.
    """
    tracker = Path(trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
    if trainer.resume_mode == "disable":
        return -1
    if trainer.resume_mode == "resume_path":
        step = int(str(trainer.resume_from_path).rstrip("/").split("global_step_")[-1])
    elif not tracker.exists():
        return -1
    elif (text := tracker.read_text().strip()).isdecimal():
        return int(text)
    else:
        # data.pt is the last file of a checkpoint.
        complete = [int(path.parent.name.split("_")[-1]) for path in tracker.parent.glob("global_step_*/data.pt")]
        if not complete:
            raise ValueError(f"{tracker} holds {text!r} and there is no complete checkpoint; delete the file")
        step = max(complete)
    if (tracker.parent / f"global_step_{step}").is_dir():
        # Training will overwrite the later checkpoints: a crash while it does must not resume from one of them.
        partial = tracker.with_suffix(".partial")
        partial.write_text(str(step))
        partial.replace(tracker)
    return step
