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
"""What a fair comparison needs and verl does not log, for a recipe's trainer and for verl's own alike.

`MeasuredMixin` adds to a trainer of any mode: unbiased validation figures (`val/`), and every token that was
generated for training (`generated/tokens`, once its group is done with), those of groups that dynamic sampling threw
away included. A run that is asked to end saves first (stop.py).
"""

import logging
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from recipe.common import queue
from recipe.common.checks import Broken, refuse
from recipe.common.metrics import add_all_work, group_ledger, series_metrics
from recipe.common.modes import SYNC
from recipe.common.outcome import NO_SCORE, Reading, check_judged
from recipe.common.queue import KVBatchMeta
from recipe.common.reward.judge import source_faults, verls_faults
from recipe.common.rows import is_reflection, sessions_of, tags_of, uid_of, versions_of
from recipe.common.trainer.checkpoints import check_loadable, keep, left_behind, sign, told_foreign
from recipe.common.trainer.discarded import watched
from recipe.common.trainer.finite import FiniteMixin
from recipe.common.trainer.stop import StoppableMixin
from recipe.common.trainer.val_problems import RememberingLoader
from recipe.common.validation import by_problem, validation_metrics
from recipe.common.verl_hooks import TRAINER_HOOKS, Hooks, check_hooks
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
JUDGED_BY = ("data_source", "extra_info", "ability")
"""Columns that tell who judges a row."""

MEASURED = ("length_bonus", "truncated", "response_length", "reward_error")
"""What the recipe's reward manager tells of an answer besides its scores. `val/` has figures of it, but for the bonus:
that is the reward less the score."""


class MeasuredMixin(FiniteMixin, StoppableMixin):
    """Measurements on a trainer of verl's; the training itself is untouched."""

    MODE = SYNC
    """verl's name for the mode of the trainer below."""
    HOOKS: Hooks = {}
    """Methods of verl that the trainer extends, besides those of all."""

    def __init__(self, config: DictConfig):
        speak_beside_verl()
        check_hooks({**TRAINER_HOOKS, **self.HOOKS})
        check_loadable(config)
        if told := told_foreign(config.trainer):
            logger.warning(told)
        self._name = config.trainer.v1.trainer_mode
        # The registered name chose this class. verl finds the settings of its own mode under verl's name.
        config.trainer.v1.trainer_mode = self.MODE
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = buffer.sampler_kwargs.get("poll_interval", buffer.poll_interval)
        return watched(buffer)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        for key, dataset in (("train_files", self.train_dataset), ("val_files", self.val_dataset)):
            refuse(Broken(f"data.{key}: {fault}") for fault in source_faults(rows_to_judge(dataset), self.config))
        self.val_dataloader = RememberingLoader(self.val_dataloader)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.MODE == SYNC:
            return
        # verl saves the queue before it clears the rows that the step trained, and nobody clears them afterwards.
        prompts, rows = queue.prompts_and_rows()
        if orphans := [key for key in rows if uid_of(key) not in prompts]:
            queue.clear(queue.TRAIN, orphans)
        # verl fetches fewer prompts ahead by as many as were restored; reflection prompts do not stand for others.
        self._restored_tq_prompt_count = sum(not is_reflection(uid) for uid in prompts)

    def _keeps_store(self) -> bool:
        """Whether there is a file beside the checkpoints without which none of them is whole."""
        return False

    def _save_checkpoint(self) -> None:
        folder, step = Path(self.config.trainer.default_local_dir), self.global_steps
        if self._may_save():
            # First: a crash may come at any time.
            sign(folder / f"global_step_{step}", self._name, self.use_critic, self._keeps_store())
        super()._save_checkpoint()
        if self._may_save():
            keep(self.config.trainer, step)
        for saved in left_behind(folder, "transfer_queue"):
            shutil.rmtree(saved)

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts=None
    ) -> dict:
        columns = reward_extra_infos_dict
        # verl resamples every column a thousand times for each problem, while the GPUs wait.
        left_out = MEASURED if "length_bonus" in columns else ()
        resampled = {name: values for name, values in columns.items() if name not in left_out}
        found = data_sources, sample_uids, resampled, sample_turns
        metrics = super()._val_metrics_update(*found, expected_acc_counts=expected_acc_counts)
        scores = columns.get("reward", [])
        if not scores:
            return metrics
        infos = reported(columns)
        failed = [
            bool(info.get("reward_error")) or not math.isfinite(score)
            for score, info in zip(scores, infos, strict=True)
        ]
        if any(failed):
            metrics["val/reward_errors"] = sum(failed)
        if all(failed) and self.global_steps == 0:  # Later an outage is no reason to lose what was trained.
            raise RuntimeError(
                "the validation before the first step: no answer got a score, to data of "
                f"{', '.join(sorted(set(map(str, data_sources))))}; {NO_SCORE}. Mend it, or name data that it can "
                "judge (VAL_DATA, data.val_files)"
            )
        reading, unknown = Reading.of(self.config, self.tokenizer), float("nan")
        correct, truncated, lengths = [], [], []
        for uid, score, info in zip(sample_uids, scores, infos, strict=True):
            correct.append(reading.judge(info, score, uid)[0])
            truncated.append(bool(info["truncated"]) if "truncated" in info else unknown)
            # The recipe's manager counts tokens; what others mean by that name is theirs.
            lengths.append(info.get("response_length", unknown) if "length_bonus" in info else unknown)
        asked = [uid for _, uid in expected_acc_counts or ()]
        problem = self.val_dataloader.by_uid(asked)
        rows = data_sources, [problem[uid] for uid in sample_uids], correct, truncated, lengths
        return metrics | validation_metrics(*rows, expected=by_problem(expected_acc_counts or {}, problem))

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        discarded, discarded_prompts = self.replay_buffer.take_discarded()
        for name, thrown in (("tokens", discarded), ("prompt_tokens", discarded_prompts)):
            kept = sum(metrics.get(f"{series}/{name}", 0) for series in ("fresh", "reflection", "restart"))
            metrics[f"generated/{name}"] = kept + thrown
        metrics["generated/discarded_tokens"] = discarded


class LedgerMixin:
    """The ledger and the series of a trainer whose data collector does not tag outcomes."""

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int):
        described = self._described(batch)
        metrics.update(group_ledger(described, {}))
        metrics.update(series_metrics(described))
        # verl's own series describe answers from the start; of a step that has none, which few prompts and a large
        # share of restarts make, what there is: verl has no figures of no rows.
        restarts = {key for key, tag in zip(described.keys, tags_of(described), strict=True) if tag.is_restart}
        is_mixed = 0 < len(restarts) < len(described.keys)
        whole = batch.select_keys([key for key in batch.keys if key not in restarts]) if is_mixed else batch
        super()._compute_metrics(whole, metrics, timing_raw, global_steps, epoch)
        if restarts:
            add_all_work(metrics, batch)
        sessions = sessions_of(described.keys)
        if len(sessions) < len(described.keys):
            metrics.update(self._of_sessions(described, [rows[-1] for rows in sessions.values()]))

    def _of_sessions(self, described: KVBatchMeta, lasts: list[int]) -> dict[str, float]:
        """Means that verl takes over rows, of sessions: the last row of each has what its session earned."""
        rows = queue.read(described.select_keys([described.keys[at] for at in lasts]), ["num_turns"])
        turns, score = (
            np.mean([int(row["num_turns"]) for row in rows]),
            np.mean([described.tags[at]["score"] for at in lasts]),
        )
        means = {"num_turns/mean": turns, "training/num_turns/mean": turns, "critic/score/mean": score}
        if not self.config.algorithm.use_kl_in_reward:
            means["critic/rewards/mean"] = score
        return {name: float(value) for name, value in means.items()}

    def _described(self, batch: KVBatchMeta) -> KVBatchMeta:
        """The rows of the batch that are no padding, with tags that say what became of each."""
        kept = batch.select_keys(
            [k for k, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        )
        reading = Reading.of(self.config, self.tokenizer)
        rows = queue.read(kept, ["extra_fields", "rm_scores", "responses"])
        found = [reading.tag(row, uid_of(key)) for key, row in zip(kept.keys, rows, strict=True)]
        for positions in sessions_of(kept.keys).values():
            versions = versions_of(*(kept.tags[at] for at in positions))
            for at in positions:
                found[at] = replace(found[at], versions=versions)
        check_judged(found, self.global_steps)
        tags = [tag | own.to_tag() for tag, own in zip(kept.tags, found, strict=True)]
        return KVBatchMeta(partition_id=batch.partition_id, keys=kept.keys, tags=tags)


def speak_beside_verl() -> None:
    """Let lines of the recipes go where verl's own go: in the trainer's process everybody else's are warnings only."""
    verls, own = logging.getLogger("verl"), logging.getLogger(__name__.partition(".")[0])
    if verls.handlers:
        own.handlers, own.propagate = [*verls.handlers], verls.propagate


def rows_to_judge(dataset) -> list[dict]:
    """What tells of each row of a dataset who judges it; nothing where no data source in it could be at fault."""
    table = getattr(dataset, "dataframe", None)  # a class of the user's may keep its rows elsewhere
    if table is None or not any([*verls_faults(str(source), 0.0)] for source in table.unique("data_source")):
        return []
    return table.select_columns([name for name in JUDGED_BY if name in table.column_names]).to_list()


def reported(columns: dict[str, list]) -> list[dict]:
    """What the reward manager told of each row besides `reward`; verl has None for what it did not tell of one."""
    told = {name: values for name, values in columns.items() if name != "reward"}
    return [
        {name: values[row] for name, values in told.items() if values[row] is not None}
        for row in range(len(columns["reward"]))
    ]
