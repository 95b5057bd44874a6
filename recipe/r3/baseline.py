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
"""What a fair comparison needs and verl does not log, for R^3 and for verl's own trainer alike.

`MeasuredMixin` adds to a trainer of any mode: unbiased validation figures (`val/`), and every token that was
generated for training (`generated/tokens`, once its group is done with), those of groups that dynamic sampling threw
away included. A run that is
asked to end saves first (stop.py). `BaselineTrainer` is verl's synchronous trainer with this and a watch over its
workers: `trainer.v1.trainer_mode=baseline`; `baseline_colocate_async` and `baseline_separate_async` are the others.
"""

import shutil
from pathlib import Path

import transfer_queue as tq
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from .metrics import group_ledger, series_metrics
from .modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from .outcome import Reading, check_judged
from .replay_buffer import group_of, is_reflection, rows_of, versions_of
from .stop import StoppableMixin
from .validation import validation_metrics
from .watchdog import WorkerWatch


class MeasuredMixin(StoppableMixin):
    """Measurements on a trainer of verl's; the training itself is untouched."""

    MODE = SYNC
    """verl's name for the mode of the trainer below."""

    def __init__(self, config: DictConfig):
        # The registered name chose this class. verl finds the settings of its own mode under verl's name.
        config.trainer.v1.trainer_mode = self.MODE
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = buffer.sampler_kwargs.get("poll_interval", buffer.poll_interval)
        self._discarded = count_discarded(buffer)
        return buffer

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.MODE == SYNC:
            return
        # verl saves the queue before it clears the rows that the step trained, and nobody clears them afterwards.
        tags = tq.kv_list("train").get("train", {})
        prompts = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
        if orphans := [key for key in tags if group_of(key) not in prompts]:
            tq.kv_clear(keys=orphans, partition_id="train")
        # verl fetches fewer prompts ahead by as many as were restored; reflection prompts do not stand for others.
        self._restored_tq_prompt_count = sum(not is_reflection(uid) for uid in prompts)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        # Of a checkpoint that it no longer keeps, verl deletes the weights only.
        for queue in Path(self.config.trainer.default_local_dir).glob("global_step_*/transfer_queue"):
            if not (queue.parent / "actor").is_dir():
                shutil.rmtree(queue)

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ) -> dict:
        found = data_sources, sample_uids, reward_extra_infos_dict, sample_turns
        metrics = super()._val_metrics_update(*found, expected_acc_counts=expected_acc_counts)
        names = [name for name in reward_extra_infos_dict if name != "reward"]
        values = zip(*(reward_extra_infos_dict[name] for name in names), strict=True)
        infos = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in values]
        rows = zip(data_sources, sample_uids, reward_extra_infos_dict["reward"], infos, strict=False)
        # A failed rollout has no row, or nothing was reported of it.
        rows = [row for row in rows if row[3]]
        if not rows:
            return metrics
        check_judged([info for *_, info in rows], self.global_steps, "the validation of step")
        if errors := sum(bool(info.get("reward_error")) for *_, info in rows):
            metrics["val/reward_errors"] = errors
        reading, unknown = Reading.of(self.config, self.tokenizer), float("nan")
        columns = [
            (
                source,
                uid,
                reading.judge(info, score, uid)[0],
                info.get("truncated", unknown),
                info.get("response_length", unknown),
            )
            for source, uid, score, info in rows
        ]
        return metrics | validation_metrics(*zip(*columns, strict=True), expected=expected_acc_counts)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        kept = metrics["fresh/tokens"] + metrics["reflection/tokens"] + metrics.get("rollout/aborted_tokens", 0)
        metrics["generated/tokens"] = kept + self._discarded["tokens"]
        metrics["generated/discarded_tokens"] = self._discarded["tokens"]
        self._discarded["tokens"] = 0


def count_discarded(buffer: ReplayBuffer) -> dict[str, int]:
    """A count, under `tokens`, of the response tokens that `buffer` throws away from now on.

    verl drops groups without signal, and the surplus of dynamic sampling, in one place and logs their number only.
    """
    discarded, clear = {"tokens": 0}, buffer._clear_groups

    def counting(partition_id: str, uids: set[str]) -> None:
        rows = buffer.partitions[partition_id].items()
        discarded["tokens"] += sum(tag["response_len"] for key, tag in rows if group_of(key) in uids)
        clear(partition_id, uids)

    buffer._clear_groups = counting
    return discarded


class LedgerMixin:
    """The ledger and the series of a trainer whose data collector does not tag outcomes."""

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        batch_rows = zip(batch.keys, batch.tags, strict=True)
        kept = {key: tag for key, tag in batch_rows if not tag.get("is_padding", False)}
        fields, reading = ["extra_fields", "rm_scores", "responses"], Reading.of(self.config, self.tokenizer)
        data = tq.kv_batch_get(keys=list(kept), partition_id=batch.partition_id, select_fields=fields)
        rows = zip(kept.items(), rows_of(data), strict=True)
        tags = [{**tag, **reading.tag(row, group_of(key)), "versions": versions_of(tag)} for (key, tag), row in rows]
        check_judged(tags, global_steps)
        described = KVBatchMeta(partition_id=batch.partition_id, keys=list(kept), tags=tags)
        metrics.update(group_ledger(described, {}))
        metrics.update(series_metrics(described))
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)


@register_trainer(trainer_name("baseline", SYNC))
class BaselineTrainer(MeasuredMixin, LedgerMixin, PPOTrainerSync):
    """verl's synchronous trainer, measured as R^3 is."""

    def on_train_begin(self) -> None:
        super().on_train_begin()
        WorkerWatch.over(self)


@register_trainer(trainer_name("baseline", COLOCATE_ASYNC))
class BaselineColocateAsync(MeasuredMixin, LedgerMixin, PPOTrainerColocateAsync):
    MODE = COLOCATE_ASYNC

    def on_train_begin(self) -> None:
        super().on_train_begin()
        WorkerWatch.over(self)


@register_trainer(trainer_name("baseline", SEPARATE_ASYNC))
class BaselineSeparateAsync(MeasuredMixin, LedgerMixin, PPOTrainerSeparateAsync):
    MODE = SEPARATE_ASYNC

    def on_train_begin(self) -> None:
        super().on_train_begin()
        WorkerWatch.over(self)
