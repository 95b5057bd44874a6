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
"""verl's FSDP actor, rollout and reference worker, and what each optimizer step of it received.

The trainer plans which rows train together; only the worker knows which did. It counts the rescued groups that were
split over several optimizer steps, and writes down the rows of each step into the folder that the trainer names.
"""

import json
import os
from collections import defaultdict

import torch
from tensordict import TensorDict

from recipe.common.queue import column
from recipe.common.rows import TrainedUid
from recipe.common.trainer import engine  # noqa: F401  registers itself
from recipe.common.trainer.finite import WatchedTrainingWorker
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker

ROWS_FOLDER, OPTIMIZER_STEPS = "rows_folder", "optimizer_steps"
"""What the trainer may tell the worker with a batch: where to write rows down, and how many optimizer steps to take."""
SPLIT_GROUPS = "split_groups"


def split_groups(steps: list[list[str]]) -> int:
    """Rescued groups whose rows are not all in one step.

    [["a", "a#replay"], ["b"]]: 0. [["a"], ["a", "a#replay"]]: 1. [["a"], ["a"]]: 0, for nothing was rescued.

    Args:
        steps: the `uid` field of the rows of each optimizer step, all ranks together; marked where rescued.
    """
    steps_of, rescued = defaultdict(set), set()
    for step, uids in enumerate(steps):
        for uid in uids:
            row = TrainedUid.parse(uid)
            steps_of[row.group].add(step)
            if row.is_rescued:
                rescued.add(row.group)
    return sum(len(steps_of[group]) > 1 for group in rescued)


class CountingTrainingWorker(WatchedTrainingWorker):
    """verl's training worker, which takes a number of optimizer steps and keeps count of the rows of each."""

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        passes = tu.get(data, key="epochs", default=1)
        folder = tu.pop(data, key=ROWS_FOLDER, default=None)
        if (steps := tu.pop(data, key=OPTIMIZER_STEPS, default=None)) is not None:
            # verl's trainer gives rows per step, and would take more steps when rows were added; its worker divides.
            tu.pop(data, key="mini_batch_size", default=None)
            tu.assign_non_tensor(data, num_mini_batch=steps)
        self._received, self._described = [], None if folder is None else []
        output = super().train_mini_batch(data=data)
        split = self._split_groups(passes)
        if output is not None:
            tu.get(output, key="metrics")[SPLIT_GROUPS] = [split]
            if folder is not None:
                self._write_down(folder)
        return output

    def train_batch(self, data: TensorDict) -> TensorDict:
        self._received.append(column(data["uid"]))
        if self._described is not None:
            self._described.append(describe_rows(data))
        # What sums over rows are divided by. verl's number counts its empty padding rows: with appended rows there are
        # some in most steps, and with fixed micro-batches many.
        tu.assign_non_tensor(data, global_batch_size=self._trained_rows(data))
        return super().train_batch(data)

    def _trained_rows(self, data: TensorDict) -> int:
        """Rows with a token to train in this optimizer step, of all ranks; at least 1, as it divides."""
        rows = torch.tensor(trained_rows(data), device=get_device_id())
        torch.distributed.all_reduce(rows, group=self.engine.get_data_parallel_group())
        return max(1, rows.item())

    def _split_groups(self, passes: int) -> int:
        """`split_groups` of the steps that all ranks together took, pass by pass."""
        ranks = [None] * self.engine.get_data_parallel_size()
        torch.distributed.all_gather_object(ranks, self._received, group=self.engine.get_data_parallel_group())
        steps = [[uid for uids in step for uid in uids] for step in zip(*ranks, strict=True)]
        in_pass = len(steps) // passes
        return sum(split_groups(steps[begin : begin + in_pass]) for begin in range(0, len(steps), in_pass))

    def _write_down(self, folder: str) -> None:
        """A line per optimizer step, in a file per rank."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"rank_{self.engine.get_data_parallel_rank()}.jsonl"), "w") as file:
            file.writelines(json.dumps(rows) + "\n" for rows in self._described)


def trained_rows(data: TensorDict) -> int:
    """Rows of which a token is trained: loss masks [1, 1] and [0, 0] give 1."""
    return sum(bool(mask.any()) for mask in column(data["loss_mask"]))


def describe_rows(data: TensorDict) -> list[dict]:
    """Of each row of a mini-batch: its `uid` field, session, trained tokens and the advantage of each of them."""
    names = ("uid", "session_id", "response_mask", "advantages")
    return [
        {
            "uid": uid,
            "session": int(session),
            "tokens": int(mask.sum()),
            "advantage": float(advantage.sum() / mask.sum().clamp(min=1)),
        }
        for uid, session, mask, advantage in zip(*(column(data[name]) for name in names), strict=True)
    ]


class CountingActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's worker with `CountingTrainingWorker` inside."""

    actor_worker_cls = CountingTrainingWorker


class CountingDetachActorWorker(DetachActorWorker):
    """The same of the worker for verl's separate mode, which keeps copies of the weights."""

    actor_worker_cls = CountingTrainingWorker
