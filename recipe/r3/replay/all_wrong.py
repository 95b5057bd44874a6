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
"""All-wrong groups that are asked again without waiting for the next visit of their query (`reflection.when`).

The paper's Algorithm 1 asks again an epoch later. Here the prompt shows an answer of the group itself.

Picking groups by failure changes what the gradient estimates: a right answer that is rare under the plain prompt
weighs more than its probability. So it is with every answer that replay adds.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from recipe.common.outcome import dead_outcome
from recipe.common.rows import RowTag
from recipe.r3.history.store import Sample
from recipe.r3.replay.rows import sample_of


@dataclass(frozen=True)
class AllWrong:
    """A finished plain group without a right answer."""

    row: dict
    """Every field of one of its rows, the data set's columns among them."""
    attempt: Sample
    """The wrong answer that its reflection prompt shows."""


def all_wrong(rows: list[dict], tags: Sequence[RowTag], verls: list[dict], seed: int, step: int) -> AllWrong | None:
    """The group of these rows if it is dead, all wrong, and has an attempt to show.

    Args:
        rows: of a group, in the order of their sessions.
        verls: verl's tags of the rows.
        seed, step: with the query they decide which attempt is shown.
    """
    if dead_outcome(tags) is not False:
        return None
    attempts = [sample for given in zip(rows, tags, verls, strict=True) if (sample := sample_of(*given, step))]
    rng = random.Random(f"{seed}/attempt/{step}/{tags[0].group}")
    return AllWrong(rows[0], rng.choice(attempts)) if attempts else None


def place(seed: int, step: int, query_id: str) -> str:
    """Of a query in the order in which the groups of a step get the places that there are."""
    return hashlib.sha256(f"{seed}/again/{step}/{query_id}".encode()).hexdigest()


def due(order: Sequence[str], is_hard: dict[str, bool], cap: int) -> list[str]:
    """Of the groups in `order` the first `cap` hard ones, as far as those before them are known: the choice depends on
    the order alone, whichever group is finished first.

    order a b c, cap 1, b hard: nothing while a is unknown; b once a is known to be easy; nothing if a is hard, but a.

    Args:
        is_hard: of the groups that are known.
    """
    slots = [uid for uid in order if is_hard.get(uid, True)][: max(0, cap)]
    return [uid for uid in slots if uid in is_hard]
