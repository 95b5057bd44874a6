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
"""Restarts of all-wrong groups from a part of a stored right answer (`reflection.ask=restart`).

Replay hands on the stored answer as it is. Here the policy writes the end itself, under the plain prompt: what it
learns from is its own. The restarts are a group of their own, as they begin elsewhere; a right one is replayed into the
plain group in the place of the stored answer (`Replayer`).
"""

import random
from typing import Any, NamedTuple

import numpy as np

from recipe.common.restart.agent_loop import AGENT_NAME, PREFIX, PREFIX_LOG_PROBS
from recipe.common.restart.cuts import Cutter, random_cut
from recipe.common.rows import PLAIN, RESTART
from recipe.r3.history.store import History, Sample

LEAST, MOST = 0.25, 0.5
"""Share of the right answer that is kept. With less the group is as wrong as before, with more it is all right."""
NOTHING = {PREFIX: np.zeros(0, np.int32), PREFIX_LOG_PROBS: np.zeros(0, np.float32)}
"""The columns of a prompt that is asked from its start: all prompts of a batch have the same ones."""


class Beginning(NamedTuple):
    """The part of a stored answer that a restart goes on from."""

    tokens: np.ndarray
    """(c,) int32 ids."""
    log_probs: np.ndarray
    """(c,) float32, of the policy that wrote them."""

    def columns(self) -> dict[str, Any]:
        """Of its prompt, those that are not the plain one's."""
        return {"agent_name": AGENT_NAME, PREFIX: self.tokens, PREFIX_LOG_PROBS: self.log_probs}


class Restarter:
    """
    Args:
        cutter: where answers may be cut.
        seed: of the choice of answer and cut.
    """

    def __init__(self, history: History, cutter: Cutter, seed: int):
        self.history, self.cutter, self.seed = history, cutter, seed

    def beginning(self, query_id: str, step: int) -> Beginning | None:
        """For an all-wrong group that `step` generated; None where no right answer is stored that can be cut."""
        rng = random.Random(f"{self.seed}/restart/{step}/{query_id}")
        found = self.history.draw(query_id, True, 1, rng, variants=(PLAIN, RESTART), accepts=self._can_be_cut)
        if not found or found[0].log_probs is None:
            return None
        cut = random_cut(self.cutter.points(found[0].tokens), rng)
        return Beginning(found[0].tokens[:cut], found[0].log_probs[:cut])

    def can(self, query_id: str) -> bool:
        return self.beginning(query_id, 0) is not None

    def _can_be_cut(self, sample: Sample) -> bool:
        return sample.log_probs is not None and len(self.cutter.points(sample.tokens)) > 0
