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
"""Restarts among the prompts of a step: how many, from which states, and the rows that rollout workers get."""

import math
import random
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensordict import TensorDict

from recipe.common.queue import set_column
from recipe.common.restart.agent_loop import AGENT_NAME, PREFIX
from recipe.common.rows import RESTART_UID
from recipe.rrl.config.rrl_config import RRLConfig
from recipe.rrl.states import FAILED, REFERENCE, RIGHT, State, StateBuffer
from verl.utils import tensordict_utils as tu


def due(share: float, prompts: int, before: int) -> int:
    """Restarts among the next prompts, so that all so far have `share` of them.

    share 0.25 and prompts one by one: 0, 0, 0, 1, 0, 0, 0, 1.

    Args:
        before: prompts before these.
    """
    return math.floor(share * (before + prompts)) - math.floor(share * before)


class Restarts:
    """Draws states of the buffer and makes prompts of them.

    Args:
        dataset: verl's training set, its rows with `query_id`.
        collate: verl's function that makes a batch of such rows.
        default_agent: agent loop of prompts whose row names none.
        max_cut: most tokens of a state, so that there is room for the rest.
    """

    def __init__(
        self, config: RRLConfig, buffer: StateBuffer, dataset, collate, default_agent: str, seed: int, max_cut: int
    ):
        self.config, self.max_cut = config.restarts, max_cut
        # A run may go on with other settings than those that its buffer was filled by.
        states = config.states
        taken = {FAILED: states.takes_failed, RIGHT: states.takes_right, REFERENCE: states.reference is not None}
        self.origins = tuple(origin for origin, is_taken in taken.items() if is_taken)
        self.buffer, self.dataset, self.collate = buffer, dataset, collate
        self.default_agent, self.seed = default_agent, seed
        ids = dataset.dataframe["query_id"]
        self.place = {str(query_id): row for row, query_id in reversed(list(enumerate(ids)))}

    def draw(self, number: int, purpose: str, step: int) -> list[State]:
        """At most so many states of those that the settings take: of their origins, with room for the rest, and none of
        a problem that this training set does not have."""
        rng = random.Random(f"{self.seed}/{purpose}/{step}")
        temperature = math.inf if self.config.temperature is None else self.config.temperature
        return self.buffer.draw(number, rng, temperature, self.place, self.origins, self.max_cut)

    def prompts(self, states: Sequence[State]) -> TensorDict:
        """A prompt a state, with the columns of those that a dataloader gives, and those of `mark`."""
        rows = self.collate([self.dataset[self.place[state.query_id]] for state in states])
        rows["uid"] = np.array([RESTART_UID + str(uuid.uuid4()) for _ in states], dtype=object)
        batch = tu.get_tensordict(rows)
        set_column(batch, "agent_name", [AGENT_NAME] * len(batch))
        set_column(batch, PREFIX, [state.tokens for state in states])
        return batch

    def mark(self, batch: TensorDict) -> None:
        """Give plain prompts the columns of restarts: verl takes prompts of a batch that have the same ones."""
        if "agent_name" not in batch:
            set_column(batch, "agent_name", [self.default_agent] * len(batch))
        else:  # as rows of one kind, so that they can be joined
            set_column(batch, "agent_name", list(batch["agent_name"]))
        set_column(batch, PREFIX, [np.zeros(0, dtype=np.int32)] * len(batch))

    def column(self, name: str, query_id: str) -> Any:
        """Of a problem's row in the data."""
        return self.dataset.dataframe[self.place[query_id]][name]


def joined(plain: TensorDict | None, restarts: TensorDict | None, step: int) -> TensorDict:
    """One batch of both."""
    parts = [part for part in (plain, restarts) if part is not None]
    for part in parts:
        if "global_steps" in part:  # of the whole batch, which cannot be joined
            del part["global_steps"]
    batch = parts[0] if len(parts) == 1 else tu.concat_tensordict(parts)
    tu.assign_non_tensor_data(batch, "global_steps", step)
    return batch
