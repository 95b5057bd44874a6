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
"""R^3 as thin subclasses of verl's v1 trainers of all three modes: hooks only, in the order of Algorithm 1.

_next_train_batch     append reflection prompts of hard queries                    (reflection.py)
replay buffer         append opposing answers to dead groups, store what is fresh  (replay/, history/)
_balance_batch        every rescued group whole in one optimizer step              (common/trainer/fixed_steps.py)
_compute_advantage    rank truncated rows of all-wrong groups; eq. (3)             (ranking.py, core_algos.py)
_update_actor         the configured number of optimizer steps, whatever was appended
_save_checkpoint      pin the history's state; _load_checkpoint restores it

What a mode needs of its own: the data collector (replay/buffer.py, replay/buffer_async.py) and the worker
(common/trainer/workers.py).
"""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from omegaconf import DictConfig
from tensordict import TensorDict

from recipe.common.metrics import add_all_work, group_ledger, series_metrics
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.outcome import Reading
from recipe.common.prompts import Prompts
from recipe.common.query_ids import with_query_ids
from recipe.common.queue import KVBatchMeta
from recipe.common.restart.cuts import Cutter
from recipe.common.rows import Origin, groups_of, plain_keys, tags_of
from recipe.common.trainer.fixed_steps import FixedStepsMixin
from recipe.common.trainer.measured import MeasuredMixin
from recipe.common.trainer.stored import StoredMixin
from recipe.common.trainer.watchdog import StallWatch, WorkerWatch, deadline
from recipe.common.trainer.workers import (
    SPLIT_GROUPS,
    CountingActorRolloutRefWorker,
    CountingDetachActorWorker,
)
from recipe.r3.alarms import WARN_AFTER_STEPS, DeadGroupAlarm, LengthAlarm
from recipe.r3.config.r3_config import ANY_PROMPT, AT_ONCE, NEXT_STEP, NEXT_VISIT, RESTARTS, describe
from recipe.r3.config.r3_rules import validate_r3_config
from recipe.r3.data_checks import check_data
from recipe.r3.history.store import History
from recipe.r3.off_policy_rows import compare_policies, describe_policy, taper_advantages
from recipe.r3.ranking import put_back, rank, ranked_groups
from recipe.r3.reflection import HOOKS as REFLECTION_HOOKS
from recipe.r3.reflection import ReflectionPlanner
from recipe.r3.replay.asking import Asker
from recipe.r3.replay.buffer import R3ReplayBuffer
from recipe.r3.replay.buffer_async import HOOKS as BUFFER_HOOKS
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync
from recipe.r3.replay.draw import Replayer
from recipe.r3.replay.holding import FILE as HELD
from recipe.r3.replay.holding import Holder
from recipe.r3.replay.ways import Ways
from recipe.r3.restarts import LEAST, MOST, Restarter
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
OWN = {"path": "pkg://recipe.r3.replay.buffer", "name": "R3ReplayBuffer"}
"""The custom sampler of r3.yaml: the recipe's."""
WAITS = f"algorithm.r3.reflection.when={NEXT_STEP}"
WEIGHT_SYNC_S = 600.0
"""A weight sync that takes longer will never end: it waits inside Ray for an answer that does not come."""


@dataclass
class StepState:
    """What the hooks of one training step tell each other. verl's separate mode has several updates in a step."""

    ranked: dict[str, list[float]] = field(default_factory=dict)
    """By group uid: rewards of the rows of groups that were ranked."""
    factors: dict[str, torch.Tensor] = field(default_factory=dict)
    """By key: what the advantages of a row are multiplied by. Of this update alone."""
    split: int = 0
    """Rescued groups whose rows did not all train in one optimizer step."""


class R3Mixin(StoredMixin, FixedStepsMixin, MeasuredMixin):
    """Replay, reflection and ranking rewards on a trainer of verl's; all three off is verl's GRPO."""

    BUFFER = R3ReplayBufferAsync
    WORKER = CountingActorRolloutRefWorker
    HOOKS = REFLECTION_HOOKS | BUFFER_HOOKS

    def __init__(self, config: DictConfig):
        self.r3 = validate_r3_config(config)
        bounds = self.r3.history.max_per_outcome, int(self.r3.history.max_gib * 2**30)
        self.history = History(self.r3.history.path, *bounds, seed=config.data.seed)
        self.dead_group_alarm = DeadGroupAlarm(WARN_AFTER_STEPS)
        self.length_alarm = LengthAlarm(WARN_AFTER_STEPS)
        self.watch = WorkerWatch()
        self.planner: ReflectionPlanner | None = None
        self.planned: dict[str, float] = {}
        """Metrics of the reflection prompts that were planned last."""
        self.columns: list[str] = []
        """Of the prompts that were submitted last."""
        self.step_state = StepState()
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        sampler = self.config.trainer.v1.sampler
        if sampler.custom_sampler == OWN:  # the default, of whichever mode
            sampler.custom_sampler = {"path": f"pkg://{self.BUFFER.__module__}", "name": self.BUFFER.__name__}
        buffer = super()._build_replay_buffer()
        if not isinstance(buffer, self.BUFFER):
            raise ValueError(
                f"trainer.v1.sampler.custom_sampler must name a {self.BUFFER.__name__} with mode {self.MODE}, got "
                f"{type(buffer).__name__}; use path={OWN['path']} name={OWN['name']}, which stands for either"
            )
        replayer = Replayer(
            self.history,
            self.r3.replay,
            seed=self.config.data.seed,
            max_response_length=self.config.data.max_response_length,
            decode=lambda token_ids: self.tokenizer.decode(token_ids, skip_special_tokens=True),
        )
        buffer.attach(
            replayer,
            StallWatch(self.r3.stall_timeout_s, "algorithm.r3.stall_timeout_s"),
            self.watch.check,
            reflection_cap=-(-self.r3.reflection.cap(self.config.data.train_batch_size) // self.parameter_sync_step),
        )
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.replay_buffer.reading = Reading.of(self.config, self.tokenizer)
        rows = self.train_dataset.dataframe
        check_data(rows, self.config, self.tokenizer, self.processor)
        self.train_dataset.dataframe = rows = with_query_ids(rows, self.config.data.prompt_key)
        data, kwargs = self.config.data, dict(self.config.data.get("apply_chat_template_kwargs") or {})
        if self.r3.replay.outcome == ANY_PROMPT:
            of_rows = Prompts(rows, data.prompt_key, self.tokenizer, kwargs, data.max_prompt_length)
            self.replay_buffer.replayer.prompts = of_rows
        if self.r3.reflection.enable:
            self.planner = ReflectionPlanner(
                self.r3.reflection,
                self.history,
                self.tokenizer,
                template_kwargs=kwargs,
                default_agent=self.config.actor_rollout_ref.rollout.agent.default_agent_loop,
                batch_size=data.train_batch_size,
                budget=data.max_prompt_length,
                seed=data.seed,
            )
            self._ask_sooner(self.planner)

    def _ask_sooner(self, planner: ReflectionPlanner) -> None:
        seed = self.config.data.seed
        if self.r3.reflection.when != NEXT_VISIT:
            planner.ways = self.replay_buffer.ways = Ways(self.r3.reflection.ask, seed)
        if self.r3.reflection.when == NEXT_STEP:
            self.replay_buffer.holder = Holder(seed, planner.fits)
        elif self.r3.reflection.when == AT_ONCE:
            replayer, restarter = self.replay_buffer.replayer, None
            if self.r3.reflection.ask == RESTARTS:
                cutter = Cutter.of(self.tokenizer, MOST, LEAST, MOST, self.config.data.max_response_length)
                planner.restarter = restarter = Restarter(self.history, cutter, seed)
            self.replay_buffer.asker = Asker(
                lambda groups, step: planner.again(groups, self.columns, step),
                super()._submit_batch_to_rollout,
                lambda query_id: replayer.is_known(query_id) and not (restarter and restarter.can(query_id)),
                seed=seed,
                reading=self.replay_buffer.reading,
            )

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        if self.replay_buffer.asker:
            self.columns = [str(name) for name in batch.keys()]
            self.replay_buffer.asker.remember(batch)
        return super()._submit_batch_to_rollout(batch)

    def _store(self) -> History:
        return self.history

    def _limits(self) -> dict[str, str]:
        return {name: str(getattr(self.r3.history, name)) for name in ("max_per_outcome", "max_gib")}

    def _saved_beside(self) -> list[Holder | Ways]:
        return [part for part in (self.replay_buffer.holder, self.replay_buffer.ways) if part]

    def _load_beside(self, checkpoint: Path) -> None:
        super()._load_beside(checkpoint)
        if not self.replay_buffer.holder and (checkpoint / HELD).exists():
            logger.warning(f"{checkpoint / HELD}: these groups waited, and will not train; they would with {WAITS}")

    def on_train_begin(self) -> None:
        super().on_train_begin()
        logger.info(f"R^3: {'; '.join(describe(self.r3))}")
        self.watch.add(self)

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        batch = super()._next_train_batch(num_prompts)
        if self.planner is None:
            return batch
        self.planner.name_agents(batch)
        if num_prompts is None:  # else they are fetched ahead, or in place of others
            prompts = len(batch)
            waiting = self.replay_buffer.waiting_reflections()
            held = self.replay_buffer.holder.groups() if self.replay_buffer.holder else {}
            batch, self.planned = self.planner.augment(batch, self.global_steps, waiting, held)
            if self.MODE == SYNC:  # elsewhere no batch waits for them
                self.replay_buffer.reflection_groups = len(batch) - prompts
        return batch

    def prepare_step(self) -> dict:
        metrics = super().prepare_step()
        metrics.update(self.planned)
        return metrics

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        # verl averages what its local updates report: counts are taken of all of them together.
        self.step_state = state = StepState()
        self.replay_buffer.may_hold = self.global_steps < self.total_training_steps
        batch = super().step(metrics, timing_raw)
        ledger = group_ledger(batch, state.ranked)
        metrics.update(ledger)
        metrics.update(self.replay_buffer.step_metrics())
        if "reflection/prompts" in metrics:  # of the plan
            metrics["reflection/prompts"] += metrics.get("reflection/at_once/prompts", 0)
        metrics["groups/split"] = state.split
        self._sound(self.dead_group_alarm.update(ledger), "dead_groups", metrics)
        return batch

    def _whole_groups(self, batch: KVBatchMeta) -> list[list[int]]:
        """Groups that hold a replayed row, that further answers joined, or that will be ranked."""
        ranked, tags = ranked_groups(batch, self.r3.ranking), tags_of(batch)
        return [
            positions
            for uid, positions in groups_of(batch.keys, tags).items()
            if uid in ranked or any(tags[position].is_replayed or tags[position].again for position in positions)
        ]

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        self._end_if_blind(metrics)
        tags, with_rollout = tags_of(batch), bool(self.config.actor_rollout_ref.rollout.calculate_log_probs)
        replayed = [key for key, tag in zip(batch.keys, tags, strict=True) if tag.is_replayed]
        if replayed and with_rollout:
            found, self.step_state.factors = compare_policies(batch.select_keys(replayed), self.r3.is_tapered)
            metrics.update(found)
        if (self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
            return batch  # nothing was computed that could be described
        plain = [key for key, tag in zip(batch.keys, tags, strict=True) if tag.is_plain and not tag.waited]
        if 0 < len(plain) < sum(tag.origin is not Origin.PADDING for tag in tags):
            actor = self.config.actor_rollout_ref.actor
            metrics.update(describe_policy(batch.select_keys(plain), actor, with_rollout))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        ranked = rank(batch, self.r3.ranking)
        self.step_state.ranked |= ranked.rewards
        batch = super()._compute_advantage(batch, metrics)
        taper_advantages(batch, self.step_state.factors)
        self.step_state.factors = {}
        put_back(batch, ranked, with_penalty=self.config.algorithm.use_kl_in_reward)
        return batch

    def _sound(self, warning: str | None, name: str, metrics: dict) -> None:
        metrics[f"alarm/{name}"] = int(warning is not None)
        if warning:
            logger.warning(warning)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        self.step_state.split += metrics.pop(f"actor/{SPLIT_GROUPS}")
        return batch

    def on_init_end(self) -> None:
        with self._weight_sync_deadline():
            super().on_init_end()

    def on_validate_begin(self) -> None:
        with self._weight_sync_deadline():  # where training ranks generate as well, they get the weights here
            super().on_validate_begin()

    def on_step_end(self) -> None:
        # The step's samples were written while it trained; a failed write must end the run, after the last step too.
        self.history.flush()
        with self._weight_sync_deadline():
            super().on_step_end()

    def _weight_sync_deadline(self):
        return deadline(WEIGHT_SYNC_S, "weight sync")

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        # verl's own series describe on-policy training: plain prompts.
        metrics.update(series_metrics(batch))
        self._sound(self.length_alarm.update(metrics), "length", metrics)
        super()._compute_metrics(batch.select_keys(plain_keys(batch)), metrics, timing_raw, global_steps, epoch)
        add_all_work(metrics, batch)
        metrics.update(self.history.metrics())


@register_trainer(trainer_name("r3", SYNC))
class R3Trainer(R3Mixin, PPOTrainerSync):
    BUFFER = R3ReplayBuffer


@register_trainer(trainer_name("r3", COLOCATE_ASYNC))
class R3ColocateAsync(R3Mixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("r3", SEPARATE_ASYNC))
class R3SeparateAsync(R3Mixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, CountingDetachActorWorker
