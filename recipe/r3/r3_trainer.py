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

_next_train_batch     ISR   append reflection prompts of hard queries            (reflection.py)
replay buffer         CCR   append opposing trajectories to dead groups, store   (replay_buffer.py, history.py)
_balance_batch              every rescued group whole in one optimizer step      (mini_batches.py)
_compute_advantage    SERR  rank truncated rows of all-wrong groups; eq. (3)     (core_algos.py)
_update_actor               the configured number of optimizer steps, whatever was appended (workers.py counts)
_save_checkpoint            pin the history's state, _load_checkpoint restores it

What a mode needs of its own: the data collector (replay_buffer.py, ride_along.py) and the worker (workers.py).
"""

import logging
import math
import os
from contextlib import contextmanager

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta

from recipe.common.metrics import DeadGroupAlarm, LengthAlarm, group_ledger, series_metrics
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.outcome import Reading
from recipe.common.query_ids import check_query_ids, make_query_id
from recipe.common.trainer.measured import MeasuredMixin
from recipe.common.trainer.mini_batches import order_rows, rows_with_room
from recipe.common.trainer.resume import resume_step
from recipe.common.trainer.safe_loading import without_unpickling
from recipe.common.trainer.watchdog import WorkerWatch, deadline
from recipe.common.trainer.workers import ROWS_FOLDER, SPLIT_GROUPS, R3ActorRolloutRefWorker, R3DetachActorWorker
from recipe.r3 import core_algos
from recipe.r3.history.store import History, tokenizer_fingerprint
from recipe.r3.off_policy import off_policy_metrics, taper
from recipe.r3.r3_config import describe, validate_r3_config
from recipe.r3.reflection import ReflectionPlanner
from recipe.r3.replay.buffer import (
    R3ReplayBuffer,
    dead_outcome,
    groups_of,
    is_fresh,
    outcome_reward,
    plain_keys,
    rows_of,
)
from recipe.r3.replay.buffer_async import R3ReplayBufferAsync
from recipe.r3.replay.straggler import AbortMarkingClient
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
OWN = {"path": "pkg://recipe.r3.replay.buffer", "name": "R3ReplayBuffer"}
"""The custom sampler of r3.yaml: the recipe's."""


class R3Mixin(MeasuredMixin):
    """Replay, reflection and ranking rewards on a trainer of verl's; all three off is verl's GRPO."""

    BUFFER = R3ReplayBufferAsync
    WORKER = R3ActorRolloutRefWorker

    def __init__(self, config: DictConfig):
        self.r3 = validate_r3_config(config)
        bounds = self.r3.history.max_per_outcome, int(self.r3.history.max_gib * 2**30)
        self.history = History(self.r3.history.path, *bounds, seed=self.r3.seed)
        self.dead_group_alarm = DeadGroupAlarm(self.r3.warn_after_steps)
        self.length_alarm = LengthAlarm(self.r3.warn_after_steps)
        self.watch = WorkerWatch()
        self.planner: ReflectionPlanner | None = None
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
        buffer.attach(
            history=self.history,
            replay=self.r3.replay,
            seed=self.r3.seed,
            max_response_length=self.config.data.max_response_length,
            stall_timeout_s=self.r3.stall_timeout_s,
            check_workers=self.watch.check,
            rollout_deadline_s=self.r3.rollout_deadline_s,
            group_size=self.config.actor_rollout_ref.rollout.n,
            abort_rollouts=self._abort_rollouts,
            decode=lambda token_ids: self.tokenizer.decode(token_ids, skip_special_tokens=True),
            reflection_cap=-(-self.r3.reflection.cap(self.config.data.train_batch_size) // self.parameter_sync_step),
        )
        return buffer

    def get_llm_client(self):
        if self.r3.rollout_deadline_s is None:
            return super().get_llm_client()
        return self.llm_server_manager.get_client(client_cls=AbortMarkingClient)

    def _abort_rollouts(self) -> None:
        self.checkpoint_manager.abort_replicas()
        self.checkpoint_manager.resume_generation_replicas()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.WORKER)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.replay_buffer.reading = Reading.of(self.config, self.tokenizer)
        self._check_data()
        if self.r3.reflection.enable:
            self.planner = ReflectionPlanner(
                self.r3.reflection,
                self.history,
                self.tokenizer,
                template_kwargs=dict(self.config.data.get("apply_chat_template_kwargs") or {}),
                default_agent=self.config.actor_rollout_ref.rollout.agent.default_agent_loop,
                batch_size=self.config.data.train_batch_size,
                budget=self.r3.reflection.budget(self.config.data.max_prompt_length),
                seed=self.r3.seed,
            )

    def _check_data(self) -> None:
        """What would otherwise surface after the models are loaded, or as a crash in a rollout worker."""
        self._name_queries()
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"data.train_files: {len(self.train_dataset)} prompts of at most data.max_prompt_length="
                f"{self.config.data.max_prompt_length} tokens are fewer than data.train_batch_size="
                f"{self.config.data.train_batch_size}"
            )
        if self.tokenizer.chat_template is None:
            raise ValueError(
                f"actor_rollout_ref.model.path: {self.config.actor_rollout_ref.model.path} has no chat template; add "
                "one to the tokenizer or set actor_rollout_ref.model.custom_chat_template"
            )

    def _name_queries(self) -> None:
        """Make the column `query_id` where the files have none, and refuse one that does not tell problems apart."""
        rows = self.train_dataset.dataframe
        prompts = rows[self.config.data.prompt_key]
        if "query_id" in rows.column_names:
            try:
                check_query_ids(rows["query_id"], prompts)
            except ValueError as error:
                raise ValueError(f"data.train_files: {error}") from None
            return
        truths = [reward.get("ground_truth") for reward in rows["reward_model"]]
        ids = [make_query_id(prompt, truth) for prompt, truth in zip(prompts, truths, strict=True)]
        self.train_dataset.dataframe = rows.add_column("query_id", ids)
        logger.info(f"data.train_files: no column query_id; {len(set(ids))} ids were made from prompts and answers")

    def _load_checkpoint(self) -> None:
        resume_step(self.config.trainer)
        with without_unpickling():
            super()._load_checkpoint()
        identity = {
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "model": str(self.config.actor_rollout_ref.model.path),
            "max_per_outcome": str(self.r3.history.max_per_outcome),
            "max_gib": str(self.r3.history.max_gib),
        }
        for line in self.history.restore(self.global_steps, self.r3.history.restore, identity):
            logger.info(f"history {self.history.path}: {line}")

    def _save_checkpoint(self) -> None:
        # Before the checkpoint: one whose history could not be written must not come into being.
        self.history.pin(self.global_steps)
        super()._save_checkpoint()
        self.history.unpin(self._is_gone)

    def _is_gone(self, step: int) -> bool:
        """Whether verl deleted the checkpoint of a step: its settings say so, and there is none here."""
        trainer = self.config.trainer
        kept = 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get("max_actor_ckpt_to_keep")
        if not kept or step == 0 or step in self.history.pinned()[-kept:]:
            return False
        return not os.path.isdir(os.path.join(trainer.default_local_dir, f"global_step_{step}", "actor"))

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
            batch, self._reflection_metrics = self.planner.augment(batch, self.global_steps, waiting)
            if self.MODE == SYNC:  # elsewhere no batch waits for them
                self.replay_buffer.reflection_groups = len(batch) - prompts
        return batch

    def prepare_step(self) -> dict:
        metrics = super().prepare_step()
        if self.planner is not None:
            metrics.update(self._reflection_metrics)
        return metrics

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        # verl averages what its local updates report: counts are taken of all of them together.
        self._ranked: dict[str, list[float]] = {}
        self._taper: dict[str, torch.Tensor] = {}
        self._split = 0
        batch = super().step(metrics, timing_raw)
        ledger = group_ledger(batch, self._ranked)
        metrics.update(ledger)
        metrics.update(self.replay_buffer.step_metrics())
        metrics["groups/split"] = self._split
        self._sound(self.dead_group_alarm.update(ledger), "dead_groups", metrics)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows must split evenly over optimizer steps, data parallel ranks and fixed micro-batches, and no further.

        verl pads to whole mini-batches of the configured size, so one appended row would add an optimizer step.
        """
        self._ranks = dp_size
        actor, rollout, ref = (self.config.actor_rollout_ref[role] for role in ("actor", "rollout", "ref"))
        multiple = dp_size * self._optimizer_steps()
        if not actor.use_dynamic_bsz:
            multiple *= actor.ppo_micro_batch_size_per_gpu
        if not rollout.log_prob_use_dynamic_bsz:
            multiple = math.lcm(multiple, dp_size * rollout.log_prob_micro_batch_size_per_gpu)
        if self.use_reference_policy and not ref.log_prob_use_dynamic_bsz:
            multiple = math.lcm(multiple, dp_size * ref.log_prob_micro_batch_size_per_gpu)
        return multiple

    def _optimizer_steps(self) -> int:
        """Optimizer steps of one pass over a batch: the configured prompts per batch over those per mini-batch."""
        prompts = self.config.data.train_batch_size // self.parameter_sync_step
        return prompts // self.config.actor_rollout_ref.actor.ppo_mini_batch_size

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict, logging_prefix: str = "global_seqlen", **kwargs
    ) -> KVBatchMeta:
        """verl's padding and order; where groups were rescued, an order that trains each of them in one step."""
        place = {key: position for position, key in enumerate(batch.keys)}
        groups, steps = self._rescued_groups(batch), self._optimizer_steps()
        batch = super()._balance_batch(batch, metrics, logging_prefix, **kwargs)
        if not groups or steps == 1:
            return batch
        # Back to the order of the rollouts, padding last: in verl's, the rows of a group are scattered over the ranks.
        batch.reorder(sorted(range(len(batch)), key=lambda row: place.get(batch.keys[row], len(place))))
        multiple = self._get_required_batch_multiple(self._ranks)
        rows = rows_with_room([len(group) for group in groups], len(batch), steps, multiple)
        batch = upsample_batch_to_divisible_size(batch, rows, self.tokenizer.eos_token_id)
        lengths = [tag["seq_len"] for tag in batch.tags]
        order = order_rows(groups, calculate_workload(torch.tensor(lengths)).tolist(), self._ranks, steps)
        batch.reorder([row for rows in order for row in rows])
        metrics.update(log_seqlen_unbalance(lengths, order, logging_prefix))
        return batch

    def _rescued_groups(self, batch: KVBatchMeta) -> list[list[int]]:
        """Positions of the rows of each group that holds a replayed row or will be ranked."""
        ranked = self._ranked_groups(batch)
        return [
            positions
            for uid, positions in groups_of(batch).items()
            if uid in ranked or any("replay_age" in batch.tags[position] for position in positions)
        ]

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        replayed = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if "replay_age" in tag]
        if replayed and self.config.actor_rollout_ref.rollout.calculate_log_probs:
            self._compare_policies(batch.select_keys(replayed), metrics)
        if (self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
            return batch  # nothing was computed that could be described
        plain = plain_keys(batch)
        if len(plain) < sum(not tag.get("is_padding", False) for tag in batch.tags):
            self._describe_policy(batch.select_keys(plain), metrics)
        return batch

    def _describe_policy(self, plain: KVBatchMeta, metrics: dict) -> None:
        """verl's entropy and its comparison of trainer and rollout, of plain rows generated in this step alone."""
        fields = ["entropy", "response_mask"]
        if with_rollout := bool(self.config.actor_rollout_ref.rollout.calculate_log_probs):
            fields += ["responses", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(keys=plain.keys, partition_id=plain.partition_id, select_fields=fields)
        data = DataProto(batch=data.to_padded_tensor())
        actor = self.config.actor_rollout_ref.actor
        metrics["actor/entropy"] = agg_loss(
            loss_mat=data.batch["entropy"],
            loss_mask=data.batch["response_mask"],
            loss_agg_mode=actor.loss_agg_mode,
            loss_scale_factor=actor.loss_scale_factor,
        ).item()
        if with_rollout:
            metrics.update(calculate_debug_metrics(data))

    def _compare_policies(self, replayed: KVBatchMeta, metrics: dict) -> None:
        """Measure how far replayed rows are off policy; where they are not corrected for that, call them on policy."""
        fields = ["old_log_probs", "rollout_log_probs"]
        data = tq.kv_batch_get(keys=replayed.keys, partition_id=replayed.partition_id, select_fields=fields)
        rows, known = rows_of(data), [tag["stored_log_probs"] for tag in replayed.tags]
        compared = [row for row, is_known in zip(rows, known, strict=True) if is_known]
        ages = [tag["replay_age"] for tag in replayed.tags if tag["stored_log_probs"]]
        old, behavior = ([row[field].float() for row in compared] for field in fields)
        metrics.update(off_policy_metrics(old, behavior, ages))
        if self.r3.is_tapered:
            wrong = [is_known and not tag["correct"] for is_known, tag in zip(known, replayed.tags, strict=True)]
            keyed = zip(replayed.keys, rows, wrong, strict=True)
            self._taper = {key: taper(*(row[field] for field in fields)) for key, row, is_wrong in keyed if is_wrong}
            if self._taper:
                metrics["replay/taper/mean"] = torch.cat(list(self._taper.values())).mean().item()
        corrected = known if self.r3.replay.correction == "behavior" else [False] * len(rows)
        columns = ["rollout_log_probs" if is_corrected else "old_log_probs" for is_corrected in corrected]
        values = [row[column] for row, column in zip(rows, columns, strict=True)]
        _put(replayed.keys, replayed.partition_id, "rollout_log_probs", values)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        ranked, scores = self._rank_truncated(batch)
        self._ranked |= ranked
        batch = super()._compute_advantage(batch, metrics)
        if self._taper:
            self._taper_advantages(batch)
        if scores:
            # Whoever looks at rewards from here on, verl's metrics for one, is to see those of the answers.
            fields = [{"rm_scores": score} for score in scores.values()]
            if self.config.algorithm.use_kl_in_reward:  # verl reports rewards less the penalty, then
                names = ["rm_scores", "token_level_rewards"]
                data = tq.kv_batch_get(keys=list(scores), partition_id=batch.partition_id, select_fields=names)
                for field, row in zip(fields, rows_of(data), strict=True):
                    field["token_level_rewards"] = field["rm_scores"] + row["token_level_rewards"] - row["rm_scores"]
            fields = list_of_dict_to_tensordict(fields)
            tq.kv_batch_put(keys=list(scores), partition_id=batch.partition_id, fields=fields)
        return batch

    def _taper_advantages(self, batch: KVBatchMeta) -> None:
        """Multiply the advantages of wrong replayed rows; see `off_policy.taper`."""
        keys = list(self._taper)
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])
        values = [row["advantages"] * self._taper[key] for key, row in zip(keys, rows_of(data), strict=True)]
        _put(keys, batch.partition_id, "advantages", values)
        self._taper = {}

    def _sound(self, warning: str | None, name: str, metrics: dict) -> None:
        metrics[f"alarm/{name}"] = int(warning is not None)
        if warning:
            logger.warning(warning)

    def _ranked_groups(self, batch: KVBatchMeta) -> dict[str, tuple[list[str], list[str]]]:
        """Keys of the rows to rank and of the finished ones, for each all-wrong group that has rows to rank."""
        groups = {}
        for uid, positions in groups_of(batch).items() if self.r3.ranking.enable else ():
            if dead_outcome([batch.tags[position] for position in positions]) is not False:
                continue
            rows, finished = [], []
            for position in positions:
                if is_fresh(batch.tags[position]):
                    (rows if self._is_ranked(batch.tags[position]) else finished).append(batch.keys[position])
            if rows:
                groups[uid] = rows, finished
        return groups

    def _rank_truncated(self, batch: KVBatchMeta) -> tuple[dict[str, list[float]], dict[str, torch.Tensor]]:
        """SERR: overwrite the rewards of fresh rows in all-wrong groups with rows to rank.

        Returns:
            The new rewards by group uid, and what `rm_scores` held before, by key.
        """
        groups = self._ranked_groups(batch)
        if not groups:
            return {}, {}
        keys = [key for rows, finished in groups.values() for key in (*rows, *finished)]
        fields = ["entropy", "response_mask", "rm_scores", "uid"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        data = dict(zip(keys, rows_of(data), strict=True))
        ranked = {
            uid: core_algos.group_rewards(
                self._ranking_rewards([data[key] for key in rows]), len(finished), self.r3.ranking.finished_reward
            )
            for uid, (rows, finished) in groups.items()
        }
        rewards = [reward for group in ranked.values() for reward in group]
        fields = [
            {
                "rm_scores": outcome_reward(data[key]["rm_scores"], reward),
                "uid": data[key]["uid"] + core_algos.RANK_MARK,
            }
            for key, reward in zip(keys, rewards, strict=True)
        ]
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(fields))
        return ranked, {key: data[key]["rm_scores"] for key in keys}

    def _is_ranked(self, tag: dict) -> bool:
        return self.r3.ranking.scope == "failed" or tag["truncated"]

    def _ranking_rewards(self, rows: list[dict]) -> list[float]:
        """SERR of the ranked rows of one group."""
        return core_algos.structural_entropy_ranking_reward(
            pad_sequence([row["entropy"] for row in rows], batch_first=True),
            pad_sequence([row["response_mask"] for row in rows], batch_first=True),
            self.r3.ranking.top_ratio,
            self.r3.ranking.max_reward,
        ).tolist()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if self.r3.rows_folder is not None:
            update = f"_{self.local_trigger_step}" if self.parameter_sync_step > 1 else ""
            batch.extra_info[ROWS_FOLDER] = os.path.join(self.r3.rows_folder, f"step_{self.global_steps}{update}")
        with self._mini_batch_rows(len(batch) // self._optimizer_steps()):
            batch = super()._update_actor(batch, metrics)
        self._split += metrics.pop(f"actor/{SPLIT_GROUPS}")
        return batch

    @contextmanager
    def _mini_batch_rows(self, rows: int):
        """Let verl's `_update_actor`, which computes ppo_mini_batch_size * rollout.n, arrive at `rows`."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        configured = actor.ppo_mini_batch_size, rollout.n
        with open_dict(self.config):
            actor.ppo_mini_batch_size, rollout.n = rows, 1
            try:
                yield
            finally:
                actor.ppo_mini_batch_size, rollout.n = configured

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
        return deadline(self.r3.weight_sync_timeout_s, "weight sync (algorithm.r3.weight_sync_timeout_s)")

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        # verl's own series describe on-policy training: plain prompts, generated in this step.
        metrics.update(series_metrics(batch))
        self._sound(self.length_alarm.update(metrics), "length", metrics)
        super()._compute_metrics(batch.select_keys(plain_keys(batch)), metrics, timing_raw, global_steps, epoch)
        # The time of a step is that of all its rows.
        tokens, plain = sum(tag["seq_len"] for tag in batch.tags), metrics["perf/total_num_tokens"]
        metrics["perf/total_num_tokens"] = tokens
        metrics["perf/throughput"] *= tokens / plain
        metrics["history/write_s"] = self.history.write_seconds
        metrics["history/wait_s"] = self.history.wait_seconds
        metrics["history/live_bytes"] = self.history.live_bytes


@register_trainer(trainer_name("r3", SYNC))
class R3Trainer(R3Mixin, PPOTrainerSync):
    BUFFER = R3ReplayBuffer


@register_trainer(trainer_name("r3", COLOCATE_ASYNC))
class R3ColocateAsync(R3Mixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC


@register_trainer(trainer_name("r3", SEPARATE_ASYNC))
class R3SeparateAsync(R3Mixin, PPOTrainerSeparateAsync):
    MODE, WORKER = SEPARATE_ASYNC, R3DetachActorWorker


def _put(keys: list[str], partition_id: str, field: str, values: list[torch.Tensor]) -> None:
    """Write one field (L,) of some rows, each with its own L, to TransferQueue."""
    nested = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    fields = TensorDict({field: nested}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields)
