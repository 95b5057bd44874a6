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
"""The last step of a run: the first of its limits, or when a scheduler asks it to end; it is saved.

The request is a file `stop` beside the checkpoints: `touch DEFAULT_LOCAL_DIR/stop`. The trainer deletes
it when it has done so, and the same command goes on from the checkpoint.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's, which has the attributes.

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from recipe.common.queue import KVBatchMeta

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


def stop_file(trainer: DictConfig) -> Path:
    """The file that asks the run with these settings (`trainer`) to end."""
    return Path(trainer.default_local_dir) / "stop"


def last_step(trainer: DictConfig, steps_per_epoch: int) -> int:
    """The last step that will come: epochs end a run too where `total_training_steps` is larger.

    Two steps an epoch: 1 epoch and 5 steps end after step 2, 3 epochs and 5 steps after step 5.
    """
    by_epochs = steps_per_epoch * trainer.total_epochs
    return min(by_epochs, trainer.total_training_steps or by_epochs)


class StoppableMixin:
    """Ends a trainer after the step in which it is asked to, with a checkpoint of that step."""

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        # verl saves and validates its last step by this number, and ends before it where there are fewer epochs.
        last = last_step(self.config.trainer, self.steps_per_epoch)
        if last < self.total_training_steps:
            epochs = self.config.trainer.total_epochs
            logger.info(f"the last step is {last}: trainer.total_epochs={epochs} comes before total_training_steps")
            self.total_training_steps = last

    def on_train_begin(self) -> None:
        super().on_train_begin()
        if self._is_asked():  # before the first step: nothing changed, nothing to save
            self.total_training_steps = self.global_steps - 1

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        if self._is_asked():
            # verl's loop saves, syncs, logs and finds that this was the last step.
            self.config.trainer.save_freq = 1
            self.total_training_steps = self.global_steps
        return batch

    def _is_asked(self) -> bool:
        stop = stop_file(self.config.trainer)
        if not stop.exists():
            return False
        stop.unlink()
        logger.warning(f"asked to end by {stop}: saving; the same command goes on from here")
        return True
