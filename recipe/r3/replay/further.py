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
"""Further answers to the plain prompt of an all-wrong group become rows of it, before anything is decided."""

from dataclasses import replace

from recipe.common import queue
from recipe.common.outcome import lower_failed, outcome_reward
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, RowKey, groups_of, is_reflection, plain_uid, tags_of
from recipe.r3.replay.holding import batch_with


def join_further(batch: KVBatchMeta) -> KVBatchMeta:
    """`batch` with the rows of groups that were asked again plainly under the keys of the groups that they were asked
    for; one whose group is not in the batch is a group of its own.

    a_0, a_1 and reflection-a_0 (of the plain prompt): a_0, a_1, a_2.
    """
    tags, partition = tags_of(batch), str(batch.partition_id)
    groups, moved, alone = groups_of(batch.keys, tags), {}, []
    for uid, positions in groups.items():
        if not is_reflection(uid) or tags[positions[0]].variant != PLAIN:
            continue
        own = groups.get(plain_uid(uid))
        if own is None:
            alone += positions
        elif tags[own[0]].group == tags[positions[0]].group:  # recorded rollouts come under any uid of their step
            free = 1 + max(RowKey.parse(batch.keys[position]).session for position in own)
            moved |= {position: (RowKey(plain_uid(uid), free + i), own[0]) for i, position in enumerate(positions)}
    if not (moved or alone):
        return batch
    keys, verls = list(batch.keys), list(batch.tags)
    for position in (*moved, *alone):
        verls[position] = batch.tags[position] | replace(tags[position], again=True).to_tag()
    if alone:
        queue.write(partition, [keys[p] for p in alone], tags=[verls[p] for p in alone])
    if moved:
        firsts = list(dict.fromkeys(first for _, first in moved.values()))
        own = queue.read_keys([batch.keys[first] for first in firsts], partition)
        uids = {first: row["uid"] for first, row in zip(firsts, own, strict=True)}
        old = [keys[position] for position in moved]
        rows = queue.read_keys(old, partition)
        for (position, (key, first)), row in zip(moved.items(), rows, strict=True):
            keys[position] = str(key)
            row.update(uid=uids[first], session_id=key.session)
        queue.write(partition, [keys[p] for p in moved], rows, [verls[p] for p in moved])
        queue.clear(partition, old)
    batch = batch_with(batch, keys, verls)
    _lower_failed(batch)
    return batch


def _lower_failed(batch: KVBatchMeta) -> None:
    """The scores that answers on which the reward function failed have in the groups that they form now."""
    tags, lowered = tags_of(batch), {}
    for positions in groups_of(batch.keys, tags).values():
        if any(tags[position].again for position in positions):
            own = [tags[position] for position in positions]
            lowered |= {p: new for p, old, new in zip(positions, own, lower_failed(own), strict=True) if new != old}
    if not lowered:
        return
    keys = [batch.keys[position] for position in lowered]
    scores = [row["rm_scores"] for row in queue.read(batch.select_keys(keys), ["rm_scores"])]
    for position, tag in lowered.items():
        batch.tags[position] |= tag.to_tag()
    changed = [{"rm_scores": outcome_reward(s, tag.score)} for s, tag in zip(scores, lowered.values(), strict=True)]
    queue.write(str(batch.partition_id), keys, changed, [batch.tags[position] for position in lowered])
