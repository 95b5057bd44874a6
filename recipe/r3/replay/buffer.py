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
"""Cross-Context Replay on verl's data collector.

`ReplayBuffer.sample` hands the trainer the finished groups of a step, rewards included. The mixin reads them there,
appends stored trajectories of the opposite outcome to dead groups, and writes everything fresh into the history.
A group is dead when its members are equally correct; their scores may differ by the length bonus.

What later stages need to know of a row travels in its TransferQueue tag:

    group     query id                     correct    answer correct
    variant   plain | reflection           truncated  response hit the limit
    score     reward before any ranking    versions  how many steps' weights wrote it
    grade     score before the length bonus: 1 or 0 unless a reward function grades
    reward_error  where the grader was late or the reward function failed: true. The answer counts as wrong
    replay_age  of a replayed row: by how many steps older than those of this step the weights were that began it
    stored_log_probs  of a replayed row: whether its behaviour log-probs are known, and finite
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from recipe.common.modes import SYNC
from recipe.common.outcome import Reading, check_judged
from recipe.r3.core_algos import REPLAY_MARK
from recipe.r3.history.store import PLAIN, REFLECTION, History, Sample, select
from recipe.r3.r3_config import ReplayConfig
from recipe.r3.replay.straggler import ABORTED
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.model import compute_position_id_with_mask
from verl.utils.tensordict_utils import list_of_dict_to_tensordict


@dataclass(frozen=True)
class Replay:
    """Stored samples that join a group: `positions` are the batch positions of its rows."""

    positions: list[int]
    samples: list[Sample]


REFLECTION_UID = "reflection-"
"""How the uid of a reflection group begins, so that the group is known by its prompt's mark in TransferQueue."""


def is_reflection(uid: str) -> bool:
    return uid.startswith(REFLECTION_UID)


def is_fresh(tag: dict) -> bool:
    """Whether the row was generated in this step: neither replayed nor verl's padding."""
    return "replay_age" not in tag and not tag.get("is_padding", False)


def group_of(key: str) -> str:
    """The uid of a row's group: keys read `{uid}_{session}_{index}`."""
    return key.split("_")[0]


def plain_keys(batch: KVBatchMeta) -> list[str]:
    """Keys of the rows that were generated in this step from plain prompts."""
    rows = zip(batch.keys, batch.tags, strict=True)
    return [key for key, tag in rows if is_fresh(tag) and tag["variant"] == PLAIN]


def dead_outcome(tags: list[dict]) -> bool | None:
    """The outcome that all fresh rows of a group share (True: all correct), or None for a group that is not dead.

    The score before the length bonus decides, which is 1 or 0 unless a reward function grades. Rows with correct =
    [1, 1, 1] and scores [1.9, 1.8, 1.7] by their lengths are dead: True. Wrong ones with grades [0.2, 0.5, 0.2] are
    not. An answer without a score is wrong, and has no part in this comparison of grades.
    """
    fresh = [tag for tag in tags if is_fresh(tag)]
    outcomes = {bool(tag["correct"]) for tag in fresh}
    grades = {tag.get("grade", float(tag["correct"])) for tag in fresh if "reward_error" not in tag}
    return outcomes.pop() if len(outcomes) == 1 and len(grades) <= 1 else None


def lower_failed(tags: list[dict]) -> None:
    """Give the answers of a group on which the reward function failed the lowest score of the others, at most 0.

    Where wrong answers score below 0, making the function fail would pay otherwise: of scores [-1, -1, -1] and one
    failed, 0, eq. (3) would make advantages -0.5 three times and 1.5. All four score -1, and the group is dead.
    """
    for name in ("score", "grade"):
        lowest = min([0.0, *(tag[name] for tag in tags if "reward_error" not in tag)])
        for tag in tags:
            if "reward_error" in tag:
                tag[name] = lowest


def groups_of(batch: KVBatchMeta) -> dict[str, list[int]]:
    """Positions of the rows of each group, in batch order, padding left out."""
    groups = defaultdict(list)
    for position, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if not tag.get("is_padding", False):
            groups[group_of(key)].append(position)
    return dict(groups)


class CrossContextReplayMixin:
    """Adds replay and history to a verl `ReplayBuffer`; `attach` must be called before the first training sample."""

    def attach(
        self,
        history: History,
        replay: ReplayConfig,
        seed: int,
        max_response_length: int,
        stall_timeout_s: float,
        check_workers: Callable[[], None],
        rollout_deadline_s: float | None = None,
        group_size: int = 0,
        abort_rollouts: Callable[[], None] | None = None,
        decode: Callable[[list[int]], str] | None = None,
        reflection_cap: int = 0,
    ) -> None:
        """Give the buffer what verl's constructor does not pass.

        Args:
            replay: `algorithm.r3.replay`.
            max_response_length: stored responses longer than this are passed over.
            stall_timeout_s: longest wait for a rollout to finish anywhere before the run is ended.
            check_workers: raises when a process that takes part in the rollout is gone.
            rollout_deadline_s: seconds from the start of a collection to calling `abort_rollouts`; None: never.
            group_size: members of a group when none was aborted.
            abort_rollouts: makes the rollout servers return what they are generating.
            decode: text of token ids; needed by `replay.reflected_unless`.
            reflection_cap: most reflection groups of a batch, where they are not waited for.
        """
        self.history = history
        self.replay = replay
        self.seed = seed
        self.max_response_length = max_response_length
        self.stall_timeout_s = stall_timeout_s
        self.check_workers = check_workers
        self.rollout_deadline_s = rollout_deadline_s
        self.group_size = group_size
        self.abort_rollouts = abort_rollouts
        self.decode = decode
        self.reflection_cap = reflection_cap
        self.reading = Reading()
        self.reflection_groups = 0
        # What `_describe` says of groups that left the queue without having been sampled.
        self._left: tuple[list[Sample], list[tuple[str, str]]] = [], []
        self._began = self._last_progress = time.monotonic()
        self._last_counts = None
        self._step, self._batch, self._passed_over = None, 0, 0

    def step_metrics(self) -> dict[str, int]:
        """Counts over the batches of the last training step, of which verl would log the mean."""
        return {"replay/passed_over_for_text": self._passed_over}

    def waiting_reflections(self) -> int:
        """Reflection groups that were submitted and not sampled when the next ones are planned."""
        return 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """verl's `sample`, then replay. Validation passes through untouched."""
        self._began = self._last_progress = time.monotonic()
        self._last_counts = None
        if partition_id != "train":
            return super().sample(global_steps, partition_id, batch_size)
        self._step, self._batch = global_steps, self._batch + 1 if self._step == global_steps else 0
        # The reflection groups of the step are in flight beside the plain ones and must be consumed with them.
        batch, metrics = super().sample(global_steps, partition_id, batch_size + self.reflection_groups)
        rows, tokens = len(batch), sum(tag["response_len"] for tag in batch.tags)
        batch, samples, unfinished = self._describe(batch, global_steps)
        check_judged(batch.tags, global_steps)
        if self.rollout_deadline_s is not None:
            metrics["rollout/aborted_rows"] = rows - len(batch)
            metrics["rollout/aborted_tokens"] = tokens - sum(tag["response_len"] for tag in batch.tags)
        if self.replay.reflected_unless:
            found = [sample for sample in samples if sample.variant == REFLECTION and sample.correct]
            if found:
                spoken = sum(map(self._speaks_of_attempt, found))
                metrics["reflection/speaks_of_attempt/mean"] = spoken / len(found)
        if self._batch == 0:
            self._passed_over = 0
        replays = self._draw(batch, global_steps, samples) if self.replay.enable else []
        metrics["replay/passed_over_for_text"] = self._passed_over
        if replays:
            batch = self._append(batch, replays, global_steps)
        drawn = [(s, batch.tags[r.positions[0]]["variant"]) for r in replays for s in r.samples]
        (left, left_unfinished), self._left = self._left, ([], [])
        self.history.add(samples + left, global_steps, drawn, unfinished + left_unfinished)
        return batch, metrics

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """verl polls for ever; a dead worker or a rollout that stopped moving must end the run instead."""
        self.check_workers()
        if partition_id == "train" and self.rollout_deadline_s is not None and self.partitions[partition_id]:
            # Only once something is finished: a step without any row cannot train.
            if time.monotonic() - self._began > self.rollout_deadline_s:
                self.abort_rollouts()
        counts = (len(self.partitions[partition_id]), len(self.finished_keys[partition_id]))
        if counts != self._last_counts:
            self._last_counts, self._last_progress = counts, time.monotonic()
        elif time.monotonic() - self._last_progress > self.stall_timeout_s:
            raise TimeoutError(
                f"no rollout finished for algorithm.r3.stall_timeout_s={self.stall_timeout_s:g} s "
                f"({counts[0]} responses of {counts[1]} finished groups so far); raise it if responses take longer"
            )
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _describe(self, batch: KVBatchMeta, step: int) -> tuple[KVBatchMeta, list[Sample], list[tuple[str, str]]]:
        """The batch without its aborted rows, every row tagged with what the later stages read; the samples to store;
        (query_id, variant) of the attempts that left none."""
        fields = ["query_id", "responses", "response_mask", "rm_scores", "extra_fields", "rollout_log_probs"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        samples, unfinished, kept, aborted, failed = [], [], [], [], {}
        for key, tag, row in zip(batch.keys, batch.tags, rows_of(data), strict=True):
            query_id, variant = str(row["query_id"]), row["extra_fields"].get("prompt_variant", PLAIN)
            if row["extra_fields"].get(ABORTED, False):
                aborted.append(key)
                unfinished.append((query_id, variant))
                continue
            if not row["response_mask"].all():
                raise ValueError(
                    f"answer {key} holds tokens that the model did not write: R^3 stores and replays answers of one "
                    "turn, so name no agent loop of several turns in the column agent_name or in "
                    "actor_rollout_ref.rollout.agent.default_agent_loop"
                )
            kept.append(key)
            tag.update(self.reading.tag(row, query_id), versions=versions_of(tag))
            if "reward_error" in tag:
                failed[key] = row["rm_scores"]
            if not len(row["responses"]) or "reward_error" in tag:  # right or wrong, nobody knows
                unfinished.append((query_id, variant))
                continue
            log_probs, version = row.get("rollout_log_probs"), tag.get("min_global_steps")
            if version is not None:  # verl stamps recorded rollouts with the step itself, whose weights wrote none
                version = min(version, step - 1)
            sample = Sample(
                query_id=query_id,
                tokens=row["responses"].numpy(),
                correct=tag["correct"],
                score=tag["score"],
                truncated=tag["truncated"],
                step=step,
                variant=variant,
                log_probs=None if log_probs is None else log_probs.numpy(),
                version=version,
                versions=tag["versions"],
            )
            samples.append(sample)
        if aborted:
            tq.kv_clear(keys=aborted, partition_id=batch.partition_id)
            batch = batch.select_keys(kept)
        assert kept, "rollouts are aborted only once one is finished"
        if failed:
            for positions in groups_of(batch).values():
                lower_failed([batch.tags[position] for position in positions])
            # verl's `_compute_advantage` takes `rm_scores` for the rewards, as does its KL penalty before it.
            tags = dict(zip(batch.keys, batch.tags, strict=True))
            fields = [{"rm_scores": outcome_reward(old, tags[key]["score"])} for key, old in failed.items()]
            fields = list_of_dict_to_tensordict(fields)
            tq.kv_batch_put(keys=list(failed), partition_id=batch.partition_id, fields=fields)
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, tags=batch.tags)
        return batch, samples, unfinished

    def _append(self, batch: KVBatchMeta, replays: list[Replay], step: int) -> KVBatchMeta:
        """`batch` with the replayed rows behind the fresh ones."""
        first_keys = [batch.keys[replay.positions[0]] for replay in replays]
        templates = rows_of(tq.kv_batch_get(keys=first_keys, partition_id=batch.partition_id))
        keys, tags, rows = [], [], []
        for replay, template in zip(replays, templates, strict=True):
            first = replay.positions[0]
            uid = group_of(batch.keys[first])
            # Above every session of the group, those of aborted members included.
            session = max(self.group_size, 1 + max(int(batch.keys[p].split("_")[1]) for p in replay.positions))
            for offset, sample in enumerate(replay.samples):
                keys.append(f"{uid}_{session + offset}_0")
                rows.append(replayed_row(template, sample, session + offset))
                tags.append(replayed_tag(batch.tags[first], sample, rows[-1], step))
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(rows), tags=tags)
        return KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[*batch.keys, *keys],
            tags=[*batch.tags, *tags],
            extra_info=batch.extra_info,
        )

    def _draw(self, batch: KVBatchMeta, step: int, new: list[Sample]) -> list[Replay]:
        """Opposing samples for every dead group and, where members were aborted, samples in their place."""
        rng = random.Random(f"{self.seed}/replay/{step}" + (f"/{self._batch}" if self._batch else ""))
        replays, drawn = [], Counter()
        # Ordered by query id: uids are random, and drawing in their order would make equal runs differ.
        for positions in sorted(groups_of(batch).values(), key=lambda positions: _order(batch.tags[positions[0]])):
            tags = [batch.tags[position] for position in positions]
            if tags[0]["variant"] == REFLECTION and not self.replay.reflection_groups:
                continue
            outcome = dead_outcome(tags)
            is_rescued = outcome is not None and self.replay.outcome in ("both", "wrong" if outcome else "correct")
            samples = self._draw_for(tags, not outcome, self.replay.k, rng, step, drawn, new) if is_rescued else []
            missing = max(0, self.group_size - len(positions)) if self.rollout_deadline_s is not None else 0
            if missing > len(samples):
                others = self._draw_for(tags, None, missing, rng, step, drawn)
                known = {sample.id for sample in samples}
                samples += [other for other in others if other.id not in known][: missing - len(samples)]
            drawn.update(sample.id for sample in samples if sample.id is not None)
            if samples:
                replays.append(Replay(positions, samples))
        return replays

    def _draw_for(
        self,
        tags: list[dict],
        correct: bool | None,
        k: int,
        rng: random.Random,
        step: int,
        drawn: Counter,
        new: Iterable[Sample] = (),
    ) -> list[Sample]:
        """At most `k` samples with that outcome for the group of these tags, by `algorithm.r3.replay`: stored ones, and
        where they are too few, right ones among the `new` that reflection found."""
        replay, query_id = self.replay, tags[0]["group"]
        # Another answer to a reflection prompt would speak of the attempt that its own prompt showed.
        reflected = tags[0]["variant"] == PLAIN and replay.reflected_to_plain
        variants = (PLAIN, REFLECTION) if reflected else (PLAIN,)
        if replay.other_queries:
            query_id = self.history.draw_other_query(query_id, correct, rng, variants)
        accepts = self._fits_plain_prompt if reflected and replay.reflected_unless else None
        near_length = sum(tag["response_len"] for tag in tags) / len(tags)
        samples = self.history.draw(
            query_id,
            correct,
            k,
            rng,
            variants=variants,
            selection=replay.selection,
            max_length=self.max_response_length,
            min_version=-1 if replay.max_age is None else step - 1 - replay.max_age,
            max_replays=replay.max_replays,
            replays=drawn,
            near_length=near_length,
            accepts=accepts,
        )
        if not (replay.same_step and reflected and correct and len(samples) < k):
            return samples
        found = [s for s in new if s.variant == REFLECTION and s.correct and s.query_id == query_id]
        found = sorted(filter(accepts, found), key=lambda sample: sample.tokens.tolist())  # they arrive in any order
        rows = [(index, len(sample.tokens), step, entropy_of(sample)) for index, sample in enumerate(found)]
        chosen = select(rows, k - len(samples), rng, replay.selection, near_length)
        return samples + [found[row[0]] for row in chosen]

    def _fits_plain_prompt(self, sample: Sample) -> bool:
        """Whether the text of an answer born under reflection speaks of nothing that only its own prompt showed."""
        speaks = sample.variant == REFLECTION and self._speaks_of_attempt(sample)
        self._passed_over += speaks
        return not speaks

    def _speaks_of_attempt(self, sample: Sample) -> bool:
        return self.replay.speaks_of_attempt(self.decode(sample.tokens.tolist()))


def entropy_of(sample: Sample) -> float | None:
    """Mean of -log_prob over its tokens, as the history has it for `lowest_entropy`; None where it is unknown."""
    known = sample.log_probs is not None and len(sample.log_probs) and not np.isnan(sample.log_probs).any()
    return -float(np.mean(sample.log_probs)) if known else None


def rows_of(data: TensorDict) -> list[dict]:
    """The rows of a TensorDict from TransferQueue as dicts; jagged tensors do not support row indexing."""
    columns = {name: column(data[name]) for name in data.keys()}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(data))]


def column(values) -> list:
    """The values of one field of a TensorDict, a row each."""
    if isinstance(values, torch.Tensor):
        return list(values.unbind())
    # A column of non-tensors is a NonTensorStack or a plain list, depending on what it holds.
    return values.tolist() if hasattr(values, "tolist") else list(values)


def outcome_reward(old: torch.Tensor, reward: float) -> torch.Tensor:
    """Zeros like `old` (L,) with the reward on the last token, where verl puts an outcome reward."""
    new = torch.zeros_like(old)
    new[-1:] = reward  # also of a response without tokens
    return new


def replayed_row(template: dict, sample: Sample, session: int) -> dict:
    """Every field of a row that holds the stored response under the prompt of `template`, a fresh row of the group.

    The `uid` field, by which advantages are grouped, is the fresh row's: it differs from the uid in the key where verl
    replays recorded rollouts (`skip.rollout_tq`).
    """
    row, prompts = dict(template), template["prompts"]
    responses = torch.from_numpy(sample.tokens.astype("int64"))
    input_ids = torch.cat([prompts, responses])
    mask = torch.ones_like(responses)
    scores = outcome_reward(torch.zeros(len(responses), dtype=row["rm_scores"].dtype), sample.score)
    row.update(
        uid=template["uid"] + REPLAY_MARK,
        session_id=session,
        responses=responses,
        input_ids=input_ids,
        position_ids=compute_position_id_with_mask(torch.ones_like(input_ids).unsqueeze(0)).squeeze(0),
        response_mask=mask,
        loss_mask=mask,
        rm_scores=scores,
    )
    if "attention_mask" in row:
        row["attention_mask"] = torch.ones_like(input_ids)
    if "rollout_log_probs" in row:
        stored = sample.log_probs
        row["rollout_log_probs"] = torch.zeros(len(responses)) if stored is None else torch.from_numpy(stored.copy())
    return row


def replayed_tag(fresh: dict, sample: Sample, row: dict, step: int) -> dict:
    """The tag of a replayed row, from the tag of a fresh row of its group."""
    prompt_len, response_len = len(row["prompts"]), len(row["responses"])
    return {
        **{name: value for name, value in fresh.items() if name not in ("grade", "reward_error")},
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "correct": sample.correct,
        "truncated": sample.truncated,
        "score": sample.score,
        "versions": sample.versions,
        "replay_age": sample.age(step),
        "stored_log_probs": sample.log_probs is not None and bool(np.isfinite(sample.log_probs).all()),
    }


def versions_of(tag: dict) -> int:
    """How many steps' weights wrote a fresh row; 1 where the rollout server does not say."""
    first, last = tag.get("min_global_steps"), tag.get("max_global_steps")
    return 1 if first is None or last is None else last - first + 1


def _order(tag: dict) -> tuple[str, str]:
    return tag["group"], tag["variant"]


class R3ReplayBuffer(CrossContextReplayMixin, ReplayBuffer):
    """verl's synchronous data collector with cross-context replay (`trainer.v1.sampler.custom_sampler`)."""

    def __init__(self, trainer_mode: str, *args, **kwargs):
        if trainer_mode != SYNC:
            raise ValueError(
                f"trainer.v1.sampler.custom_sampler={type(self).__name__} is for the synchronous mode, not for "
                f"{trainer_mode}: derive it from R3ReplayBufferAsync, or leave it out with verl's own trainers"
            )
        super().__init__(trainer_mode, *args, **kwargs)
