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
"""Cross-Context Replay on verl's asynchronous data collector, where rollouts go on while the trainer trains.

A batch has its number of plain groups, whatever else is finished. Reflection groups are extra: those that are finished
ride along, oldest first, at most `reflection_cap` of them. None is replaced, or waited for, but as verl waits for any
prompt that is too old (`max_off_policy_strategy=wait`). Fewer are planned while more wait than a step takes
(reflection.py), so that none pile up. Groups that verl evicts (too old, or a rollout failed) leave their answers in the
history.

A plain group that is asked at once waits for its reflection group, as long as that does not make it too old, and each
rides with its own.
"""

from recipe.common.queue import TRAIN, KVBatchMeta
from recipe.common.rows import is_reflection, reflection_uid, uid_of
from recipe.common.verl_hooks import V1
from recipe.r3.replay.buffer import CrossContextReplayMixin
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

HOOKS = {
    f"{V1}.replay_buffer.ReplayBufferAsync": {
        "wait_for_sampleable": ("global_steps", "partition_id", "target_count"),
        "_sampleable_terminal_keys": ("partition_id", "eviction_reasons"),
        "_select_prompt_uids": ("partition_id", "sampleable_keys", "batch_size"),
        "_evict_terminal_groups": ("global_steps", "partition_id", "eviction_reasons"),
        "_sync_metadata_from_transfer_queue": (),
    },
}
"""Methods of verl's that are extended here (recipe/common/verl_hooks.py)."""


class R3ReplayBufferAsync(CrossContextReplayMixin, ReplayBufferAsync):
    """verl's asynchronous data collector with cross-context replay and reflection groups that ride along."""

    def attach(self, *args, **kwargs) -> None:
        super().attach(*args, **kwargs)
        self._evicted = {"groups": 0, "reflection/groups": 0}
        self._waiting: set[str] = set()
        """Plain groups that are finished and wait for what was asked at once."""

    def step_metrics(self) -> dict[str, float]:
        """And groups evicted since the last call, and those that are in flight or finished and were not sampled."""
        metrics = super().step_metrics() | {f"{kind}/evicted": count for kind, count in self._evicted.items()}
        self._evicted = dict.fromkeys(self._evicted, 0)
        reflections = self.waiting_reflections()
        metrics["groups/outstanding"] = len(self.prompt_global_steps[TRAIN]) - reflections
        return metrics | {"reflection/groups/outstanding": reflections}

    def waiting_reflections(self) -> int:
        self._sync_metadata_from_transfer_queue()
        return sum(map(is_reflection, self.prompt_global_steps[TRAIN]))

    def wait_for_sampleable(self, global_steps: int, partition_id: str, target_count: int) -> tuple[set[str], dict]:
        self.stall.begin()  # nobody looked while the step before trained
        return super().wait_for_sampleable(global_steps, partition_id, target_count)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: tuple) -> set[str]:
        uids = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        return {uid for uid in uids - self._waiting if not is_reflection(uid)}

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        uids, rows, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        if partition_id == TRAIN:
            ready, own = sorted(filter(is_reflection, self.finished_keys[partition_id]), key=steps.__getitem__), []
            if self.asker is not None:  # each rides with its plain group; the others' plain groups are gone
                with_own, others = set(map(reflection_uid, uids)), set(map(reflection_uid, set(steps) - set(uids)))
                own = [uid for uid in ready if uid in with_own]
                ready = [uid for uid in ready if uid not in with_own | others]
            uids = [*uids, *own, *ready[: max(0, self.reflection_cap - len(own))]]
        return uids, rows, steps

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: tuple
    ) -> tuple[set[str], int, int, dict]:
        leaving = set().union(*eviction_reasons[:3])  # too old, without signal, failed
        if rows := {key: tag for key, tag in self.partitions[partition_id].items() if uid_of(key) in leaving}:
            batch = KVBatchMeta(partition_id=partition_id, keys=list(rows), tags=list(rows.values()))
            samples, unfinished = self._describe(batch, global_steps)
            self._left = self._left[0] + samples, self._left[1] + unfinished
        evicted, *counts = super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)
        plain = {uid for uid in evicted if not is_reflection(uid)}
        self._evicted["groups"] += len(plain)
        self._evicted["reflection/groups"] += len(evicted) - len(plain)
        if partition_id == TRAIN and self.asker is not None:
            self._waiting = self._ask_again(self.asker, global_steps, self._last_chance(global_steps))
        return plain, *counts  # verl submits as many prompts again

    def _last_chance(self, step: int) -> set[str]:
        """Plain groups that would be too old for the step after this one."""
        most = self.max_off_policy_threshold
        submitted = self.prompt_global_steps[TRAIN].items() if most is not None else ()
        return {uid for uid, begun in submitted if step + 1 - begun >= most and not is_reflection(uid)}
