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
"""Which row trains in which optimizer step, on which rank: pure functions on row numbers, no Ray, no TransferQueue.

A rescued group gets its signal from the contrast between its fresh rows and the replayed ones, or between ranked rows.
In an optimizer step that holds only its fresh rows, all of them are pushed the same way. verl keeps the order of the
batch within each rank and cuts it into mini-batches, so the order decides; here, whole groups are placed first.
"""

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice


def _step_of_groups(sizes: Sequence[int], steps: int) -> list[int]:
    """The optimizer step of each group: the largest first, each into the step with the fewest rows so far."""
    loads = [(0, step) for step in range(steps)]
    placed = [0] * len(sizes)
    for group in sorted(range(len(sizes)), key=lambda group: -sizes[group]):
        load, step = heapq.heappop(loads)
        placed[group] = step
        heapq.heappush(loads, (load + sizes[group], step))
    return placed


def rows_with_room(sizes: Sequence[int], rows: int, steps: int, multiple: int) -> int:
    """The least number of rows, padding included, of which `steps` equal parts take groups of these sizes whole.

    Three groups of 5 rows in 2 steps: 20, for two of them share a step.

    Args:
        sizes: rows of each group that has to stay whole.
        rows: rows of the batch, at least the sum of `sizes`.
        multiple: what the result must be a multiple of; a multiple of `steps`.
    """
    loads = [0] * steps
    for size, step in zip(sizes, _step_of_groups(sizes, steps), strict=True):
        loads[step] += size
    least = max(rows, steps * max(loads))
    return -(-least // multiple) * multiple


def order_rows(groups: Sequence[Sequence[int]], workloads: Sequence[int], ranks: int, steps: int) -> list[list[int]]:
    """The rows of each rank in the order they train in: `steps` equal parts, each group within one part of all ranks.

    Rows of no group fill the steps in the order of the batch. Within a step the ranks get equal numbers of rows and
    nearly equal work, over all steps so far.

    Groups [0, 4] and [1, 5] of 6 rows, 1 rank, 2 steps: [0, 2, 4] and then [1, 3, 5].

    Args:
        groups: row numbers of each group that has to stay whole, disjoint.
        workloads: one per row of the batch, padding included.

    Returns:
        `ranks` lists of len(workloads) / ranks row numbers.

    Raises:
        ValueError: the rows cannot be dealt evenly, or a step has no room for its groups; see `rows_with_room`.
    """
    rows = len(workloads)
    if rows % (ranks * steps):
        raise ValueError(f"{rows} rows cannot be dealt evenly to {ranks} ranks and {steps} optimizer steps")
    room = rows // steps
    parts: list[list[int]] = [[] for _ in range(steps)]
    for group, step in zip(groups, _step_of_groups([len(group) for group in groups], steps), strict=True):
        parts[step].extend(group)
    if max(map(len, parts)) > room:
        raise ValueError(f"whole groups need {max(map(len, parts))} rows in an optimizer step of {room}")
    whole = {row for group in groups for row in group}
    others = (row for row in range(rows) if row not in whole)
    for part in parts:
        part.extend(islice(others, room - len(part)))
    return _deal(parts, workloads, ranks)


def _deal(parts: Iterable[list[int]], workloads: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal the rows of each step to the ranks, in equal numbers and so that their work grows alike.

    The heaviest `ranks` rows are dealt first, the heaviest of them to the rank with the least work so far, and so on:
    in the end no two ranks differ by more than two rows that were dealt together.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    work = [0] * ranks
    for part in parts:
        begin = len(dealt[0])
        heaviest_first = sorted(part, key=workloads.__getitem__, reverse=True)
        for first in range(0, len(part), ranks):
            idlest_first = sorted(range(ranks), key=work.__getitem__)
            for row, rank in zip(heaviest_first[first : first + ranks], idlest_first, strict=True):
                dealt[rank].append(row)
                work[rank] += workloads[row]
        for rows in dealt:
            rows[begin:] = sorted(rows[begin:])
    return dealt
