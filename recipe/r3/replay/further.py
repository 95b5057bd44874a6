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
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, RowKey, groups_of, plain_uid, tags_of
from recipe.r3.replay.holding import batch_with


def join_further(batch: KVBatchMeta) -> KVBatchMeta:
    """`batch` with the rows of groups that were asked again plainly under the keys of the groups that they were asked
    for; one whose group is not in the batch is a group of its own.

    a_0, a_1 and reflection-a_0 (of the plain prompt): a_0, a_1, a_2.
    """
    tags = tags_of(batch)
    groups, moved = groups_of(batch.keys, tags), {}
    for uid, positions in groups.items():
        plain = plain_uid(uid)
        own = groups.get(plain, positions)
        if own is not positions and tags[positions[0]].variant == PLAIN:
            free = 1 + max(RowKey.parse(batch.keys[position]).session for position in own)
            moved |= {position: (RowKey(plain, free + i), own[0]) for i, position in enumerate(positions)}
    if not moved:
        return batch
    keys, verls = list(batch.keys), list(batch.tags)
    old = [keys[position] for position in moved]
    firsts = list(dict.fromkeys(first for _, first in moved.values()))
    own = queue.read_keys([batch.keys[first] for first in firsts], str(batch.partition_id))
    uids = {first: row["uid"] for first, row in zip(firsts, own, strict=True)}
    rows = queue.read_keys(old, str(batch.partition_id))
    for (position, (key, first)), row in zip(moved.items(), rows, strict=True):
        keys[position] = str(key)
        verls[position] = batch.tags[position] | replace(tags[position], again=True).to_tag()
        row.update(uid=uids[first], session_id=key.session)
    queue.write(str(batch.partition_id), [keys[p] for p in moved], rows, [verls[p] for p in moved])
    queue.clear(str(batch.partition_id), old)
    return batch_with(batch, keys, verls)
