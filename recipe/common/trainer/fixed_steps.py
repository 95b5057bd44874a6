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
"""The configured number of optimizer steps, whatever a recipe adds to a batch, and groups that train in one of them.

verl pads a batch to whole mini-batches of the configured size, so one row more would add an optimizer step.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's, which has the attributes.

import math
import os

import torch

from recipe.common.queue import KVBatchMeta
from recipe.common.trainer.mini_batches import order_rows, rows_with_room
from recipe.common.trainer.workers import OPTIMIZER_STEPS, ROWS_FOLDER
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

ROWS_VARIABLE = "R3_ROWS_FOLDER"
"""Environment variable: a folder in which the workers write down the rows of every optimizer step, for tests."""


class FixedStepsMixin:
    """On a trainer of verl's whose workers are those of workers.py."""

    def _whole_groups(self, batch: KVBatchMeta) -> list[list[int]]:
        """Positions of the rows of each group that must train in one optimizer step."""
        return []

    def _optimizer_steps(self) -> int:
        """Optimizer steps of one pass over a batch: the configured prompts per batch over those per mini-batch."""
        prompts = self.config.data.train_batch_size // self.parameter_sync_step
        return prompts // self.config.actor_rollout_ref.actor.ppo_mini_batch_size

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows must split evenly over optimizer steps, data parallel ranks and fixed micro-batches, and no further."""
        actor, rollout, ref = (self.config.actor_rollout_ref[role] for role in ("actor", "rollout", "ref"))
        multiple = dp_size * self._optimizer_steps()
        if not actor.use_dynamic_bsz:
            multiple *= actor.ppo_micro_batch_size_per_gpu
        if not rollout.log_prob_use_dynamic_bsz:
            multiple = math.lcm(multiple, dp_size * rollout.log_prob_micro_batch_size_per_gpu)
        if self.use_reference_policy and not ref.log_prob_use_dynamic_bsz:
            multiple = math.lcm(multiple, dp_size * ref.log_prob_micro_batch_size_per_gpu)
        return multiple

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict, logging_prefix: str = "global_seqlen", **kwargs
    ) -> KVBatchMeta:
        """verl's padding and order; where groups have to stay whole, an order that trains each of them in one step."""
        place = {key: position for position, key in enumerate(batch.keys)}
        groups, steps = self._whole_groups(batch), self._optimizer_steps()
        batch = super()._balance_batch(batch, metrics, logging_prefix, **kwargs)
        if not groups or steps == 1:
            return batch
        # Back to the order of the rollouts, padding last: in verl's, the rows of a group are scattered over the ranks.
        batch.reorder(sorted(range(len(batch)), key=lambda row: place.get(batch.keys[row], len(place))))
        ranks = 1 + max(self.actor_rollout_wg._dispatch_info["actor"])  # verl asked for them in `super`
        multiple = self._get_required_batch_multiple(ranks)
        rows = rows_with_room([len(group) for group in groups], len(batch), steps, multiple)
        batch = upsample_batch_to_divisible_size(batch, rows, self.tokenizer.eos_token_id)
        lengths = [tag["seq_len"] for tag in batch.tags]
        order = order_rows(groups, calculate_workload(torch.tensor(lengths)).tolist(), ranks, steps)
        batch.reorder([row for rows in order for row in rows])
        metrics.update(log_seqlen_unbalance(lengths, order, logging_prefix))
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        assert batch.extra_info is not None, "verl makes it with every batch"
        batch.extra_info[OPTIMIZER_STEPS] = self._optimizer_steps()
        if folder := os.environ.get(ROWS_VARIABLE):
            update = f"_{self.local_trigger_step}" if self.parameter_sync_step > 1 else ""
            batch.extra_info[ROWS_FOLDER] = os.path.join(folder, f"step_{self.global_steps}{update}")
        return super()._update_actor(batch, metrics)
