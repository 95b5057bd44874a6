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
"""Cross-context replay on verl's data collector.

`ReplayBuffer.sample` hands the trainer the finished groups of a step, rewards included. The mixin reads them there,
tags every row (recipe/common/rows.py), appends stored answers of the opposite outcome to dead groups (draw.py), and
writes everything fresh into the history. A group is dead when its members are equally correct; their scores may differ
by the length bonus.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from recipe.common import queue
from recipe.common.modes import SYNC
from recipe.common.outcome import Reading, check_judged, lower_failed, outcome_reward
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import RowKey, RowTag, groups_of, is_reflection, plain_uid, tags_of, uid_of, versions_of
from recipe.common.trainer.discarded import CountDiscardedMixin
from recipe.common.trainer.watchdog import StallWatch
from recipe.r3.history.store import Sample
from recipe.r3.replay.asking import Asker, Snapshot
from recipe.r3.replay.draw import Replayer
from recipe.r3.replay.further import join_further
from recipe.r3.replay.holding import Holder, batch_with
from recipe.r3.replay.rows import Replay, replayed_row, replayed_tag, sample_of
from recipe.r3.replay.ways import Ways
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

FIELDS = ("query_id", "responses", "response_mask", "rm_scores", "extra_fields", "rollout_log_probs")


class CrossContextReplayMixin(CountDiscardedMixin):
    """Adds replay and history to a verl `ReplayBuffer`; `attach` must be called before the first training sample."""

    def attach(
        self, replayer: Replayer, stall: StallWatch, check_workers: Callable[[], None], reflection_cap: int = 0
    ) -> None:
        """Give the buffer what verl's constructor does not pass.

        Args:
            stall: ends a run whose rollout stopped moving.
            check_workers: raises when a process that takes part in the rollout is gone.
            reflection_cap: most reflection groups of a batch, where they are not waited for; and most that wait to be
                sampled, where they were asked at once.
        """
        self.replayer = replayer
        self.stall = stall
        self.check_workers = check_workers
        self.reflection_cap = reflection_cap
        self.reading = Reading()
        self.reflection_groups = 0
        self.asker: Asker | None = None
        self.holder: Holder | None = None
        self.ways: Ways | None = None
        self.may_hold = False
        """Whether another step follows, that a group could wait for."""
        # What `_describe` says of groups that left the queue without having been sampled.
        self._left: tuple[list[Sample], list[tuple[str, str]]] = [], []

    def step_metrics(self) -> dict[str, float]:
        """Counts over the batches of the last training step, of which verl would log the mean."""
        asked = self.asker.take_metrics() if self.asker else {}
        asked |= self.ways.take_metrics() if self.ways else {}
        return {"replay/passed_over_for_text": self.replayer.passed_over} | asked

    def waiting_reflections(self) -> int:
        """Reflection groups that were submitted and not sampled when the next ones are planned."""
        return 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """verl's `sample`, then replay. Validation passes through untouched."""
        self.stall.begin()
        self._step = global_steps
        if partition_id != queue.TRAIN:
            return super().sample(global_steps, partition_id, batch_size)
        self.replayer.begin(global_steps)
        # The reflection groups of the step are in flight beside the plain ones and must be consumed with them.
        batch, metrics = super().sample(global_steps, partition_id, batch_size + self.reflection_groups)
        samples, unfinished = self._describe(batch, global_steps)
        check_judged(tags_of(batch), global_steps)
        batch = self.holder.join(batch) if self.holder else batch
        if self.ways:
            self.ways.see(batch.keys, tags_of(batch), self.replayer.drawable(samples))
            batch = join_further(batch)
        replays = self.replayer.replays(batch.keys, tags_of(batch), samples)
        if self.holder:
            batch, replays = self._hold(self.holder, batch, replays, global_steps)
        tags = tags_of(batch)
        metrics |= self.replayer.metrics(samples)
        metrics |= {"groups/held": len(set(map(uid_of, self.holder.keys)))} if self.holder else {}
        if replays:
            batch = self._append(batch, replays, global_steps)
        drawn = [(sample, tags[replay.positions[0]].variant) for replay in replays for sample in replay.samples]
        (left, left_unfinished), self._left = self._left, ([], [])
        self.replayer.history.add(samples + left, global_steps, drawn, unfinished + left_unfinished)
        return batch, metrics

    def _ask_again(self, asker: Asker, step: int, late: Collection[str] = ()) -> set[str]:
        """Ask all-wrong groups again; returns the uids of plain groups that wait for what was asked.

        late: uids of groups that must not wait.
        """
        finished, failed = self.finished_keys[queue.TRAIN].difference(late), set(self.failure_keys[queue.TRAIN])
        unfinished = self.pending_keys[queue.TRAIN] | self.running_keys[queue.TRAIN]
        now = Snapshot(finished, failed, unfinished, self.partitions[queue.TRAIN])
        return asker.poll(now, step, self.reflection_cap, waits_for_all=self.trainer_mode == SYNC)

    def _hold(
        self, holder: Holder, batch: KVBatchMeta, replays: list[Replay], step: int
    ) -> tuple[KVBatchMeta, list[Replay]]:
        """`batch` without the groups that wait for the next one, and the replays with the positions in it."""
        keys = {batch.keys[replay.positions[0]]: replay for replay in replays}
        batch = holder.hold(batch, set(map(uid_of, keys)), step, self.reflection_cap if self.may_hold else 0)
        members = groups_of(batch.keys, tags_of(batch))
        return batch, [Replay(members[uid_of(key)], replay.samples) for key, replay in keys.items()]

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """verl polls for ever; a dead worker or a rollout that stopped moving must end the run instead."""
        self.check_workers()
        self.stall.see(len(self.partitions[partition_id]), len(self.finished_keys[partition_id]))
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> KVBatchMeta:
        # In the order of the prompts, whichever answer came first: verl records a step in the order of its batch, and
        # deals the recorded groups to the prompts in theirs (`skip.rollout_tq`).
        place = {uid: number for number, uid in enumerate(self.prompt_global_steps[partition_id])}
        if self.asker is not None:  # which asks in the order in which groups are finished
            uids = sorted(place, key=lambda uid: (is_reflection(uid), place.get(plain_uid(uid), place[uid])))
            place = {uid: number for number, uid in enumerate(uids)}
        keys = sorted(partition_snapshot, key=lambda key: (place.get(uid_of(key), -1), RowKey.parse(key).session))
        rows = {key: partition_snapshot[key] for key in keys}
        return super()._materialize_batch(partition_id, selected_prompt_uids, rows)

    def _describe(self, batch: KVBatchMeta, step: int) -> tuple[list[Sample], list[tuple[str, str]]]:
        """Tag the rows of a batch; returns the samples to store, and (query_id, variant) of attempts without one."""
        rows = queue.read(batch, FIELDS)
        found = []
        for key, verls, row in zip(batch.keys, batch.tags, rows, strict=True):
            tag = self.reading.tag(row, str(row["query_id"]))
            check_one_turn(key, row, tag.prefix_len)
            found.append(replace(tag, versions=versions_of(verls)))
        samples = [sample_of(*given, step) for given in zip(rows, found, batch.tags, strict=True)]
        unfinished = [(tag.group, tag.variant) for tag, sample in zip(found, samples, strict=True) if sample is None]
        self._put_tags(batch, found, rows)
        return [sample for sample in samples if sample is not None], unfinished

    def _put_tags(self, batch: KVBatchMeta, tags: list[RowTag], rows: list[dict]) -> None:
        """Write the tags, and the scores of answers on which the reward function failed, as their groups have them."""
        for positions in groups_of(batch.keys, tags).values():
            for position, tag in zip(positions, lower_failed([tags[p] for p in positions]), strict=True):
                tags[position] = tag
        failed = [position for position, tag in enumerate(tags) if tag.reward_error]
        if failed:
            # verl's `_compute_advantage` takes `rm_scores` for the rewards, as does its KL penalty before it.
            scores = [{"rm_scores": outcome_reward(rows[p]["rm_scores"], tags[p].score)} for p in failed]
            queue.write(batch.partition_id, [batch.keys[p] for p in failed], scores)
        for verls, tag in zip(batch.tags, tags, strict=True):
            verls.update(tag.to_tag())
        queue.write(batch.partition_id, batch.keys, tags=batch.tags)

    def _append(self, batch: KVBatchMeta, replays: list[Replay], step: int) -> KVBatchMeta:
        """`batch` with the replayed rows behind the fresh ones."""
        firsts = [batch.keys[replay.positions[0]] for replay in replays]
        templates = queue.read_keys(firsts, batch.partition_id)
        keys, tags, rows = [], [], []
        for replay, template in zip(replays, templates, strict=True):
            members = [RowKey.parse(batch.keys[position]) for position in replay.positions]
            free = 1 + max(member.session for member in members)
            for session, sample in enumerate(replay.samples, start=free):
                keys.append(str(RowKey(members[0].uid, session)))
                rows.append(replayed_row(template, sample, session, self.replayer.prompt_of(sample)))
                tags.append(replayed_tag(batch.tags[replay.positions[0]], sample, rows[-1], step))
        queue.write(batch.partition_id, keys, rows, tags)
        return batch_with(batch, [*batch.keys, *keys], [*batch.tags, *tags])


def check_one_turn(key: str, row: dict, prefix_len: int) -> None:
    """Raises ValueError for an answer that holds tokens of a tool or of an environment.

    prefix_len: tokens of a stored answer that it goes on from.
    """
    if not row["response_mask"][prefix_len:].all():
        raise ValueError(
            f"answer {key} holds tokens that the model did not write: R^3 stores and replays answers of one "
            "turn, so name no agent loop of several turns in the column agent_name or in "
            "actor_rollout_ref.rollout.agent.default_agent_loop"
        )


class R3ReplayBuffer(CrossContextReplayMixin, ReplayBuffer):
    """verl's synchronous data collector with cross-context replay (`trainer.v1.sampler.custom_sampler`)."""

    def __init__(self, trainer_mode: str, *args, **kwargs):
        if trainer_mode != SYNC:
            raise ValueError(
                f"trainer.v1.sampler.custom_sampler={type(self).__name__} is for the synchronous mode, not for "
                f"{trainer_mode}: derive it from R3ReplayBufferAsync, or leave it out with verl's own trainers"
            )
        super().__init__(trainer_mode, *args, **kwargs)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: tuple) -> set[str]:
        uids = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        if partition_id != queue.TRAIN or self.asker is None:
            return uids
        waiting = self._ask_again(self.asker, self._step)
        is_done = not waiting and not self.pending_keys[partition_id] | self.running_keys[partition_id]
        return uids if is_done else set()

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        if partition_id == queue.TRAIN and self.asker is not None:  # with the groups that were asked on the way
            batch_size = len(sampleable_keys)
        return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
