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
"""All-wrong groups that wait one step for their reflection group (`reflection.when=next_step`).

In the synchronous mode a step waits for its last answer, so asking at once makes it longer. Here the reflection prompts
of a step's all-wrong groups ride in the next batch from its start. The rows of such a group stay in TransferQueue that
long and train with that batch, together with what was found, or alone where nothing was. No group waits twice, and none
after the last step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, RowTag, groups_of, tags_of, uid_of
from recipe.common.trainer.checkpoints import left_behind
from recipe.r3.replay.all_wrong import AllWrong, all_wrong, due, place

FILE = "held.pt"
"""In a checkpoint: the rows that were waiting, as tensors and plain values."""


@dataclass
class Holder:
    """The groups that wait.

    Args:
        seed: of the choice of groups and attempts.
        fits: whether the reflection prompt of a group fits.
    """

    seed: int
    fits: Callable[[AllWrong], bool]
    keys: list[str] = field(default_factory=list)
    tags: list[dict] = field(default_factory=list)
    since: int = 0
    """Step that generated them."""

    def join(self, batch: KVBatchMeta) -> KVBatchMeta:
        """`batch` and the rows that waited for it."""
        keys, tags, self.keys, self.tags = self.keys, self.tags, [], []
        return batch_with(batch, [*batch.keys, *keys], [*batch.tags, *tags])

    def hold(self, batch: KVBatchMeta, rescued: set[str], step: int, cap: int) -> KVBatchMeta:
        """`batch` without the groups that wait for the next one: all wrong, plain, of this step, not asked in it.

        Args:
            rescued: uids of groups that get a stored answer.
            cap: most groups that wait.
        """
        tags = tags_of(batch)
        groups = groups_of(batch.keys, tags)
        asked = {tag.group for tag in tags if tag.variant != PLAIN or tag.again}
        plain = {
            tags[positions[0]].group: (uid, positions)
            for uid, positions in groups.items()
            if tags[positions[0]].variant == PLAIN
            and uid not in rescued
            and not any(tags[position].waited for position in positions)
        }
        order = sorted(plain.keys() - asked, key=lambda query: place(self.seed, step, query))
        hard = {}
        for query in order:
            if sum(hard.values()) == cap:
                break
            members = [batch.keys[position] for position in plain[query][1]]
            found = self._all_wrong(members, [batch.tags[position] for position in plain[query][1]], step)
            hard[query] = found is not None and self.fits(found)
        most = sum(any(tags[position].is_plain for position in positions) for positions in groups.values()) - 1
        waiting = {plain[query][0] for query in due(order, hard, min(cap, most))}
        rows = list(zip(batch.keys, batch.tags, strict=True))
        held = [(key, _waits(tag)) for key, tag in rows if uid_of(key) in waiting]
        self.keys, self.tags, self.since = [key for key, _ in held], [tag for _, tag in held], step
        if held:
            queue.write(queue.TRAIN, self.keys, tags=self.tags)  # verl reads them there again
        stays = [(key, tag) for key, tag in rows if uid_of(key) not in waiting]
        return batch_with(batch, [key for key, _ in stays], [tag for _, tag in stays])

    def groups(self) -> dict[str, AllWrong]:
        """The waiting groups by their uids, in the order of their places."""
        members: dict[str, list[int]] = groups_of(self.keys, map(RowTag.from_tag, self.tags))
        found = {}
        for uid, positions in members.items():
            keys, tags = [self.keys[p] for p in positions], [self.tags[p] for p in positions]
            if group := self._all_wrong(keys, tags, self.since):
                found[uid] = group
        return dict(sorted(found.items(), key=lambda item: place(self.seed, self.since, item[1].attempt.query_id)))

    def _all_wrong(self, keys: list[str], tags: list[dict], step: int) -> AllWrong | None:
        return all_wrong(queue.read_keys(keys), list(map(RowTag.from_tag, tags)), tags, self.seed, step)

    def save(self, checkpoint: Path) -> None:
        """Write the waiting rows into a checkpoint; verl saves its queue in the asynchronous modes only. Older ones
        without weights lose theirs."""
        file = checkpoint / FILE
        file.unlink(missing_ok=True)
        for old in left_behind(checkpoint.parent, FILE):
            old.unlink()
        if not self.keys:
            return
        rows = queue.read_keys(self.keys)
        checkpoint.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "keys": self.keys,
                "tags": list(map(_plain, self.tags)),
                "since": self.since,
                "rows": list(map(_plain, rows)),
            },
            file,
        )

    def load(self, checkpoint: Path) -> None:
        """Take up what `save` wrote. Call it where `torch.load` is kept from running what a file names."""
        if (file := checkpoint / FILE).exists():
            kept = torch.load(file, weights_only=True)
            queue.write(queue.TRAIN, kept["keys"], kept["rows"], kept["tags"])
            self.keys, self.tags, self.since = kept["keys"], kept["tags"], kept["since"]


def _waits(tag: dict) -> dict:
    return tag | replace(RowTag.from_tag(tag), waited=True).to_tag()


def _plain(value: Any) -> Any:
    """The value in types that torch loads without running anything."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)  # of an enum its value
    if isinstance(value, np.ndarray):  # also of dicts, as pandas has nested columns
        return _plain(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def batch_with(batch: KVBatchMeta, keys: list[str], tags: list[dict]) -> KVBatchMeta:
    """`batch` with these rows in place of its own."""
    return KVBatchMeta(partition_id=batch.partition_id, keys=keys, tags=tags, extra_info=batch.extra_info)
