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
"""verl's own trainers, measured as the recipes' are and with a watch over their workers: what to compare a recipe with.

`trainer.v1.trainer_mode=baseline`, `baseline_colocate_async` or `baseline_separate_async`.
"""

from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.rivals import ngrpo  # noqa: F401  registers itself
from recipe.common.rivals.rl_zvp import RLZVPMixin
from recipe.common.trainer import engine, grpo_live  # noqa: F401  register themselves
from recipe.common.trainer.finite import WatchedDetachActorWorker
from recipe.common.trainer.measured import LedgerMixin, MeasuredMixin
from recipe.common.trainer.watchdog import WorkerWatch
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync


class BaselineMixin(RLZVPMixin, MeasuredMixin, LedgerMixin):
    """A trainer of verl's that trains as it always does."""

    def on_train_begin(self) -> None:
        super().on_train_begin()
        WorkerWatch.over(self)


@register_trainer(trainer_name("baseline", SYNC))
class BaselineTrainer(BaselineMixin, PPOTrainerSync):
    pass


@register_trainer(trainer_name("baseline", COLOCATE_ASYNC))
class BaselineColocateAsync(BaselineMixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("baseline", SEPARATE_ASYNC))
class BaselineSeparateAsync(BaselineMixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, WatchedDetachActorWorker
