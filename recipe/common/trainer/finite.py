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
"""Gradients and weights that are no finite numbers any more: counted, told, and the end of a run that cannot learn.

verl skips an optimizer step whose gradient is not finite, prints a line and goes on: a run whose weights are broken
skips every step from then on, and saves the broken weights. Here the worker counts the skipped steps and looks at the
weights after each update. The trainer saves nothing from the first step without any finite gradient on. After
`PATIENCE` of these, after as many that skipped a part of their optimizer steps, or at once where weights are not
finite, it ends the run and names the last good checkpoint.

Good is a checkpoint whose weights gave a finite gradient afterwards. Weights that are finite may still be broken: an
update that is far too large shows in the next step only.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's, which has the attributes.

import logging
import math
import os
from dataclasses import dataclass, field

import ray
import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor

from recipe.common.queue import KVBatchMeta
from recipe.common.trainer.resume import go_back_to
from recipe.common.trainer.safe_loading import without_unpickling
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import MAGIC_ATTR, register
from verl.trainer.ppo.utils import Role
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

PATIENCE = 3
"""Steps one after the other that skip optimizer steps. Rows that make a single one are no reason to end."""
TAKEN, SKIPPED, BROKEN = "optimizer_steps", "skipped_steps", "broken_weights"
"""What the worker tells of an update: optimizer steps with a finite gradient, those without, and whether weights of any
rank are not finite."""
ALARM = "alarm/not_finite"
OPTIM = {"actor": "actor_rollout_ref.actor.optim", "critic": "critic.optim"}
LOWER = "with a lower {}.lr or a lower clip_grad beside it"
OTHER = (
    "with another actor_rollout_ref.model.override_config.attn_implementation (flash_attention_2, eager): as other "
    "gradients were finite, kernels or rows are at fault and not the weights"
)


def has_broken(module: torch.nn.Module) -> bool:
    """Whether a trained weight, of this rank's share, is not finite."""
    trained = (p.detach() for p in module.parameters() if p.requires_grad and p.is_floating_point())
    shares = [p.to_local() if isinstance(p, DTensor) else p for p in trained]
    # The largest magnitude is NaN where a value is, and needs no copy of the weights.
    largest = [torch.linalg.vector_norm(share, math.inf).float() for share in shares if share.numel()]
    return bool(largest) and not bool(torch.stack(largest).isfinite().all())


class WatchedTrainingWorker(TrainingWorker):
    """verl's training worker, which tells of gradients and weights that are not finite, and runs nothing that a
    checkpoint names."""

    # A critic is called from the trainer, as verl's method says; an actor from the worker around it.
    @register(**getattr(TrainingWorker.train_mini_batch, MAGIC_ATTR))
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        output = super().train_mini_batch(data=data)
        if output is not None:
            metrics = tu.get(output, key="metrics")
            taken = sum(map(math.isfinite, metrics["grad_norm"]))
            metrics |= {TAKEN: [taken], SKIPPED: [len(metrics["grad_norm"]) - taken], BROKEN: [self._broken]}
        return output

    def train_batch(self, data: TensorDict) -> TensorDict:
        is_last = tu.get(data, key="update_lr_scheduler", default=False)
        output = super().train_batch(data)
        if is_last:  # here the weights are still where they are trained
            self._broken = self._any_rank_broken()
        return output

    @register(**getattr(TrainingWorker.load_checkpoint, MAGIC_ATTR))
    def load_checkpoint(self, *args, **kwargs) -> None:
        with without_unpickling():
            super().load_checkpoint(*args, **kwargs)

    def _any_rank_broken(self) -> int:
        modules = self.engine.module if isinstance(self.engine.module, list) else [self.engine.module]
        broken = torch.tensor(int(any(map(has_broken, modules))), device=get_device_id())
        torch.distributed.all_reduce(broken, op=torch.distributed.ReduceOp.MAX)
        return int(broken.item())


class WatchedActorRolloutRefWorker(ActorRolloutRefWorker):
    actor_worker_cls = WatchedTrainingWorker


class WatchedDetachActorWorker(DetachActorWorker):
    actor_worker_cls = WatchedTrainingWorker


@dataclass
class Finiteness:
    """What is known of a run's gradients and weights."""

    proven: int
    """The last step after which the weights gave a finite gradient."""
    bad_steps: int = 0
    """Steps up to now, one after the other, in which actor or critic learned nothing for that reason."""
    lossy_steps: int = 0
    """Steps up to now, one after the other, in which actor or critic skipped an optimizer step or more."""
    fault: str | None = None
    """Why the run is to end."""
    mend: str = LOWER.format(OPTIM["actor"])
    """How to begin again after the fault."""
    step: dict[str, dict[str, int]] = field(default_factory=dict)
    """By role, TAKEN, SKIPPED and BROKEN of the step that goes on, all its updates together."""

    @property
    def is_good(self) -> bool:
        return not self.bad_steps and self.fault is None

    def note(self, role: str, metrics: dict) -> None:
        """Take what the worker told of an update out of verl's metrics."""
        counts = self.step.setdefault(role, {TAKEN: 0, SKIPPED: 0, BROKEN: 0})
        for name in counts:
            counts[name] += round(metrics.pop(f"{role}/{name}"))

    def close(self, step: int) -> dict[str, int]:
        """Judge the step; returns its metrics."""
        counts, self.step = self.step, {}
        idle = [role for role, found in counts.items() if found[SKIPPED] and not found[TAKEN]]
        lossy = [role for role, found in counts.items() if found[SKIPPED]]
        broken = [role for role, found in counts.items() if found[BROKEN]]
        self.bad_steps = self.bad_steps + 1 if idle else 0
        self.lossy_steps = self.lossy_steps + 1 if lossy else 0
        if not idle:
            self.proven = step - 1
        if at_fault := broken or idle:
            self.mend = LOWER.format(OPTIM[at_fault[0]])
        if broken:
            self.fault = f"weights of the {' and '.join(broken)} are not finite after step {step}"
        elif self.bad_steps >= PATIENCE:
            self.fault = f"no gradient of the {' and '.join(idle)} was finite in {PATIENCE} steps up to step {step}"
        elif self.lossy_steps >= PATIENCE:
            role = " and ".join(lossy)
            self.fault = f"gradients of the {role} were not finite in each of {PATIENCE} steps up to step {step}"
            self.mend = OTHER
        metrics = {f"{role}/{name}": found[name] for role, found in counts.items() for name in (TAKEN, SKIPPED)}
        return metrics | {ALARM: int(bool(broken or lossy))}


class FiniteMixin:
    """Ends a trainer whose gradients or weights are not finite any more, and saves none of that."""

    WORKER, CRITIC = WatchedActorRolloutRefWorker, WatchedTrainingWorker

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.WORKER)
        if Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(self.CRITIC)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.finiteness = Finiteness(proven=self.global_steps - 1)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        self.finiteness.note("actor", metrics)
        return batch

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._update_critic(batch, metrics)
        self.finiteness.note("critic", metrics)
        return batch

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        found = self.finiteness.close(self.global_steps)
        metrics.update(found)
        if found[ALARM]:
            logger.warning(f"step {self.global_steps}: gradients or weights were not finite, {found}")
        if self.finiteness.fault:
            self.config.trainer.test_freq = -1  # there is nothing to measure; the step's metrics are still logged
        return batch

    def _may_save(self) -> bool:
        """A last step is saved all the same, as long as its weights are finite."""
        finite = self.finiteness
        return finite.is_good or (finite.fault is None and self.global_steps >= self.total_training_steps)

    def _save_checkpoint(self) -> None:
        if self._may_save():
            super()._save_checkpoint()
        else:
            logger.warning(f"step {self.global_steps} is not saved: its weights may be broken")

    def on_step_begin(self) -> None:
        self._end_if_broken()
        super().on_step_begin()

    def fit(self, agent_loop_manager) -> None:
        super().fit(agent_loop_manager)
        self._end_if_broken()

    def _end_if_broken(self) -> None:
        if fault := self.finiteness.fault:
            raise FloatingPointError(f"{fault}; {self._way_out()}")

    def _end_if_blind(self, metrics: dict) -> None:
        """For a recipe that needs log-probs: where they are not finite, the weights before the step were not good."""
        if not math.isfinite(metrics.get("actor/entropy", 0.0)):
            self.logger.log(data={ALARM: 1}, step=self.global_steps)  # the step has no other metrics
            self.finiteness.fault = f"log-probs are not finite in step {self.global_steps}"
            self._end_if_broken()

    def _way_out(self) -> str:
        good = go_back_to(self.config.trainer, self.finiteness.proven)
        mend = self.finiteness.mend
        if good is None:
            return f"no checkpoint from before is there: begin anew {mend}"
        return f"the last good checkpoint is {good}, from which the next start goes on: begin it {mend}"
