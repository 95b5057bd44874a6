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
"""PPO with RRL-style replay as thin subclasses of verl's v1 trainers of all three modes: hooks only.

_next_train_batch     restarts stand in for a share of the prompts                        (restarts.py, common/restart)
_compute_values       verl's; the critic's engine                                         (engine.py)
_compute_advantage    verl's GAE, 0 on what was not generated; states of failed and right
                      answers go into the buffer, and what became of restarts             (core_algos.py, collect.py)
_update_critic        states that may be drawn next are valued anew                       (scoring.py)
_save_checkpoint      pin the buffer's state; _load_checkpoint restores it                (states.py)
_compute_metrics      restarts apart from answers from the start                          (step_rows.py, alarms.py)

With algorithm.rrl.restarts.share=0 there is no buffer, and it is verl's PPO.
"""

import logging
import math
import os
import random

import numpy as np
from omegaconf import DictConfig
from tensordict import TensorDict

from recipe.common.checks import refuse
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.prompts import Prompts
from recipe.common.query_ids import with_query_ids
from recipe.common.queue import KVBatchMeta
from recipe.common.restart.agent_loop import HOOKS as AGENT_HOOKS
from recipe.common.restart.cuts import Cutter
from recipe.common.trainer.baseline import BaselineMixin
from recipe.common.trainer.finite import WatchedDetachActorWorker
from recipe.common.trainer.stored import StoredMixin
from recipe.rrl import engine
from recipe.rrl.advantages import put_advantages
from recipe.rrl.alarms import WARN_AFTER_STEPS, Comparison
from recipe.rrl.collect import states_of
from recipe.rrl.config.rrl_config import describe
from recipe.rrl.config.rrl_rules import too_late, validate_rrl_config
from recipe.rrl.data_checks import check_data
from recipe.rrl.restarts import Restarts, due, joined
from recipe.rrl.scoring import values_of
from recipe.rrl.states import StateBuffer
from recipe.rrl.step_rows import StepRow, answers_of, read_rows, restart_figures, tries_of
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


class RRLMixin(StoredMixin, BaselineMixin):
    """Restarts from kept states on a trainer of verl's."""

    HOOKS = AGENT_HOOKS | engine.HOOKS

    def __init__(self, config: DictConfig):
        self.rrl = validate_rrl_config(config)
        self.buffer: StateBuffer | None = None
        if self.rrl.is_on:
            states = self.rrl.states
            bounds = states.max_per_query, states.max_states
            self.buffer = StateBuffer(states.path, *bounds, states.easy, states.easy_after, states.hopeless_after)
        self.comparison = Comparison(WARN_AFTER_STEPS)
        self.asked: int | None = None
        """Prompts that were asked for before."""
        super().__init__(config)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.buffer is None:
            return
        data, rollout = self.config.data, self.config.actor_rollout_ref.rollout
        if not self.config.trainer.val_only:
            refuse(too_late(self.rrl, self.total_training_steps))
        check_data(self.train_dataset.dataframe, self.rrl.states)
        self.train_dataset.dataframe = rows = with_query_ids(self.train_dataset.dataframe, data.prompt_key)
        kwargs = dict(data.get("apply_chat_template_kwargs") or {})
        self.prompts = Prompts(rows, data.prompt_key, self.tokenizer, kwargs, data.max_prompt_length)
        states = self.rrl.states
        cuts = states.room, states.earliest, states.latest
        self.cutter = Cutter.of(self.tokenizer, *cuts, max_length=data.max_response_length)
        collate, agent = self.train_dataloader.collate_fn, rollout.agent.default_agent_loop
        most = self.cutter.max_length - self.cutter.room
        self.restarts = Restarts(self.rrl, self.buffer, self.train_dataset, collate, agent, data.seed, most)

    # checkpoints

    def _store(self) -> StateBuffer | None:
        return self.buffer

    def _limits(self) -> dict[str, str]:
        return {name: str(getattr(self.rrl.states, name)) for name in ("max_per_query", "max_states")}

    def _saved_beside(self) -> list[Comparison]:
        return [self.comparison] if self.rrl.is_on else []

    # a step

    def on_train_begin(self) -> None:
        super().on_train_begin()
        logger.info(f"RRL-style: {'; '.join(describe(self.rrl))}")

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        if self.buffer is None:
            return super()._next_train_batch(num_prompts)
        size, share = self.config.data.train_batch_size, self.rrl.restarts.share
        before = (self.global_steps - 1) * size if self.asked is None else self.asked
        prompts = size if num_prompts is None else num_prompts
        self.asked, states = before + prompts, []
        if (number := due(share, prompts, before)) and self.global_steps > self.rrl.restarts.after:
            states = self.restarts.draw(number, "restart", before)
        plain = super()._next_train_batch(prompts - len(states)) if len(states) < prompts else None
        if plain is not None:
            self.restarts.mark(plain)
        return joined(plain, self.restarts.prompts(states) if states else None, self.global_steps)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        rows = read_rows(self._described(batch), self.use_critic) if self.buffer is not None else []
        has_restarts = any(row.tag.is_restart for row in rows)
        if self.use_critic and (has_restarts or self.rrl.lam_value is not None):
            algorithm = self.config.algorithm
            lam_value = algorithm.lam if self.rrl.lam_value is None else self.rrl.lam_value
            put_advantages(batch, algorithm.gamma, algorithm.lam, lam_value, algorithm.use_kl_in_reward)
        if rows:
            self._keep_books(rows)
        return batch

    def _keep_books(self, rows: list[StepRow]) -> None:
        """What became of restarts, and new states."""
        assert self.buffer is not None
        answers = answers_of(rows)
        for answer in answers:
            self.comparison.add_fresh(answer.query_id, answer.is_right)
        self.comparison.add_restarts((row.query_id, row.tag.correct) for row in rows if row.is_tried)
        if tries := tries_of(rows):
            ids = self.buffer.ids_of((query_id, np.array(tokens)) for query_id, tokens in tries)
            found = [(at, *counts) for at, counts in zip(ids, tries.values(), strict=True) if at is not None]
            self.buffer.tried(found, self.global_steps)
        if self.global_steps > self.rrl.collect_after:
            rng = random.Random(f"{self.config.data.seed}/states/{self.global_steps}/{self.local_trigger_step}")
            solution = self._solution if self.rrl.states.reference else None
            rules = self.rrl.states, self.cutter, self.global_steps, rng, self.buffer.aimed, solution
            states = states_of(answers, *rules)
            self.buffer.add(states, self.global_steps)

    def _solution(self, query_id: str) -> list[int]:
        text = str(self.restarts.column(self.rrl.states.reference, query_id) or "")
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._update_critic(batch, metrics)
        if self.buffer is not None:
            self._value_anew(self.buffer)
        return batch

    def _value_anew(self, buffer: StateBuffer) -> None:
        """Here and not before a draw: vLLM holds the GPU's memory then."""
        # Up: where a step has less than one restart, its states grow old all the same.
        slots = math.ceil(self.rrl.restarts.share * self.config.data.train_batch_size)
        number = self.rrl.restarts.shortlist * slots
        if not (number and self.rrl.restarts.temperature is not None and self.global_steps > self.rrl.collect_after):
            return
        states = self.restarts.draw(number, "shortlist", self.global_steps)
        if states:
            prompts = [self.prompts[state.query_id].tolist() for state in states]
            prefixes = [state.tokens.tolist() for state in states]
            temperature = self.config.actor_rollout_ref.rollout.temperature
            values = values_of(self.critic_wg, prompts, prefixes, temperature, self.tokenizer.eos_token_id)
            found = [(state.id, *pair) for state, pair in zip(states, values, strict=True)]
            buffer.revalue(found, self.global_steps)

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        if self.buffer is not None:
            metrics.update(self.comparison.close())
            warning = self.comparison.warning()
            metrics["alarm/restarts"] = int(warning is not None)
            if warning:
                logger.warning(warning)
            metrics.update(self.buffer.metrics())
        return batch

    def on_step_end(self) -> None:
        if self.buffer is not None:  # a failed write must end the run, after the last step too
            self.buffer.flush()
        super().on_step_end()

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args, **kwargs) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        if self.buffer is not None:
            is_bypassed = bool((self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"))
            metrics.update(restart_figures(read_rows(self._described(batch), self.use_critic), is_bypassed))


@register_trainer(trainer_name("rrl", SYNC))
class RRLTrainer(RRLMixin, PPOTrainerSync):
    pass


@register_trainer(trainer_name("rrl", COLOCATE_ASYNC))
class RRLColocateAsync(RRLMixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("rrl", SEPARATE_ASYNC))
class RRLSeparateAsync(RRLMixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, WatchedDetachActorWorker
