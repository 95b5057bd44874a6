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
"""PPO with RRL-style replay as thin subclasses of verl's v1 trainers of all three modes: hooks only."""

import logging
import os

from omegaconf import DictConfig

from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.trainer.baseline import BaselineMixin
from recipe.common.trainer.finite import WatchedDetachActorWorker
from recipe.common.trainer.resume import resume_step
from recipe.common.trainer.safe_loading import without_unpickling
from recipe.rrl import engine  # noqa: F401  registers itself
from recipe.rrl.config.rrl_config import describe
from recipe.rrl.config.rrl_rules import validate_rrl_config
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


class RRLMixin(BaselineMixin):
    """Restarts from kept states on a trainer of verl's; with `restarts.share` 0 it is verl's PPO."""

    def __init__(self, config: DictConfig):
        self.rrl = validate_rrl_config(config)
        super().__init__(config)

    def _load_checkpoint(self) -> None:
        resume_step(self.config.trainer)
        with without_unpickling():
            super()._load_checkpoint()

    def on_train_begin(self) -> None:
        super().on_train_begin()
        logger.info(f"RRL-style: {'; '.join(describe(self.rrl))}")


@register_trainer(trainer_name("rrl", SYNC))
class RRLTrainer(RRLMixin, PPOTrainerSync):
    pass


@register_trainer(trainer_name("rrl", COLOCATE_ASYNC))
class RRLColocateAsync(RRLMixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("rrl", SEPARATE_ASYNC))
class RRLSeparateAsync(RRLMixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, WatchedDetachActorWorker
