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
"""HGPO as thin subclasses of verl's v1 trainers of all three modes: hooks only.

agent loop            a session in an environment, one row a turn              (agent_loop.py)
_compute_advantage    verl's GRPO over sessions, then that of nested groups    (advantages.py, core_algos.py)
_update_actor         the configured number of optimizer steps, however many turns (common/trainer/fixed_steps.py)
_compute_metrics      sessions, and what the nested groups are like            (turns.py)
"""

import logging
import math
import os

from omegaconf import DictConfig

from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.queue import KVBatchMeta
from recipe.common.trainer.baseline import BaselineMixin
from recipe.common.trainer.fixed_steps import FixedStepsMixin
from recipe.common.trainer.workers import CountingActorRolloutRefWorker, CountingDetachActorWorker
from recipe.hgpo import episodes
from recipe.hgpo.advantages import put_advantages, turns_of
from recipe.hgpo.config.hgpo_rules import validate_hgpo_config
from recipe.hgpo.turns import no_command, session_metrics
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


class HGPOMixin(FixedStepsMixin, BaselineMixin):
    """Advantages of nested groups on a trainer of verl's; step_weight 0 and episode_weight 1 is verl's GRPO,
    except that tasks whose sessions do not differ get 0."""

    WORKER = CountingActorRolloutRefWorker

    def __init__(self, config: DictConfig):
        self.hgpo = validate_hgpo_config(config)
        super().__init__(config)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args, **kwargs) -> KVBatchMeta:
        self.rows = len(batch)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _optimizer_steps(self) -> int:
        if self.hgpo.rows_per_step is None:
            return super()._optimizer_steps()
        return math.ceil(self.rows / self.hgpo.rows_per_step)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        metrics.update(put_advantages(batch, self.hgpo))
        episodes.write_down(batch, self.hgpo, self.tokenizer, self.global_steps, self.config.trainer.test_freq)
        return batch

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args, **kwargs) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        # Of all updates of a step at once: verl would average them by their rows.
        asked = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        figures = session_metrics(turns_of(batch)[1], asked)
        if told := no_command(figures):
            logger.warning(f"step {self.global_steps}: {told}")
        metrics.update(figures)


@register_trainer(trainer_name("hgpo", SYNC))
class HGPOTrainer(HGPOMixin, PPOTrainerSync):
    pass


@register_trainer(trainer_name("hgpo", COLOCATE_ASYNC))
class HGPOColocateAsync(HGPOMixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("hgpo", SEPARATE_ASYNC))
class HGPOSeparateAsync(HGPOMixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, CountingDetachActorWorker
