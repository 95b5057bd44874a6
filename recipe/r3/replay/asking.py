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
"""All-wrong groups that are asked again at once, under reflection, while their batch is still being generated.

With `reflection.when=at_once` a data collector shows every poll to an `Asker`. It reads the groups that are newly
finished and submits a reflection prompt for those that are all wrong, with one of their own answers as the attempt.
The collector holds such a group until its reflection group is there, and hands out both together; replay does the rest
(`replay.same_step`).
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDict

from recipe.common import queue
from recipe.common.outcome import Reading
from recipe.common.rows import RowKey, is_reflection, plain_uid, reflection_uid, uid_of
from recipe.r3.replay.all_wrong import AllWrong, all_wrong, due, place


@dataclass(frozen=True)
class Snapshot:
    """What TransferQueue holds of the training partition: uids of prompts by verl's status, and its tags of rows."""

    finished: set[str]
    failed: set[str]
    unfinished: set[str]
    rows: dict[str, dict]

    def __contains__(self, uid: str) -> bool:
        return uid in self.finished or uid in self.failed or uid in self.unfinished


class Asker:
    """Asks all-wrong groups of the training partition again.

    Args:
        prompts: makes the reflection prompts of groups, by their uids; leaves out what does not fit.
        submit: hands prompts to the rollout workers.
        is_known: whether the history can rescue a query already.
        seed: of the order of the groups and of the choice of attempts.
    """

    def __init__(
        self,
        prompts: Callable[[dict[str, AllWrong], int], TensorDict | None],
        submit: Callable[[TensorDict], int],
        is_known: Callable[[str], bool],
        seed: int,
        reading: Reading,
    ):
        self.prompts, self.submit, self.is_known, self.seed = prompts, submit, is_known, seed
        self.reading = reading
        self._query: dict[str, str] = {}
        """Query id by uid of what was submitted."""
        self._found: dict[str, AllWrong | None] = {}
        """By uid of a plain group that is finished. None: there is nothing to ask."""
        self._asked: set[str] = set()
        self._since: float | None = None
        self.count, self.wait_s = 0, 0.0

    def take_metrics(self) -> dict[str, float]:
        """Prompts asked at once since the last call, and how long finished plain groups were held for them."""
        metrics = {"reflection/at_once/prompts": self.count, "reflection/at_once/wait_s": self.wait_s}
        self.count, self.wait_s, self._since = 0, 0.0, None
        return metrics

    def poll(self, now: Snapshot, step: int, cap: int, waits_for_all: bool) -> set[str]:
        """Submit what is due; returns the uids of plain groups whose reflection group is not there yet.

        Args:
            step: the training step that waits for a batch.
            cap: most reflection groups that are not sampled yet, planned ones included.
            waits_for_all: whether all prompts come into the batch, so that the choice need not depend on who is first.
        """
        ready = now.finished | now.failed
        plain = {uid for uid in ready | now.unfinished if not is_reflection(uid)}
        self._forget(plain)
        self._read(plain & ready - self._found.keys(), now, step)
        open_ = self._open(plain, now)
        hard = {uid: found is not None for uid, found in self._found.items() if uid in open_}
        order = open_ if waits_for_all else [uid for uid in hard if hard[uid]]
        order = sorted(order, key=lambda uid: place(self.seed, step, self._query[uid]))
        outstanding = {plain_uid(uid) for uid in ready | now.unfinished if is_reflection(uid)} | self._asked
        new: set[str] = set()
        while chosen := due(order, hard, cap - len(outstanding | new)):
            new |= self._ask(chosen, step)
            hard |= dict.fromkeys(chosen, False)  # the place of one whose prompt does not fit is the next one's
        waiting = {uid for uid in plain if reflection_uid(uid) in now and reflection_uid(uid) not in ready} | new
        self._clock(waiting, is_done=not plain & now.unfinished)
        return waiting

    def remember(self, batch: TensorDict) -> None:
        """Prompts are submitted: which queries they ask."""
        self._query |= dict(zip(map(str, batch["uid"]), map(str, batch["query_id"]), strict=True))

    def _open(self, plain: set[str], now: Snapshot) -> set[str]:
        """The plain groups that may be asked. Of equal problems the first that was submitted, and none of a problem
        that is asked already."""
        asked = {self._query.get(uid) for uid in plain if uid in self._asked or reflection_uid(uid) in now}
        firsts = {query: uid for uid, query in reversed(self._query.items()) if query not in asked}
        return plain.intersection(firsts.values())

    def _forget(self, plain: set[str]) -> None:
        self._query = {uid: query for uid, query in self._query.items() if uid in plain}
        self._found = {uid: found for uid, found in self._found.items() if uid in plain}
        self._asked &= plain

    def _read(self, uids: set[str], now: Snapshot, step: int) -> None:
        """Find out which of the finished plain groups are all wrong."""
        keys = defaultdict(list)
        for key in sorted(now.rows, key=lambda key: RowKey.parse(key).session):
            if uid_of(key) in uids:
                keys[uid_of(key)].append(key)
        self._found |= dict.fromkeys(uids)
        for uid, members in keys.items():
            rows = queue.read_keys(members)
            self._query[uid] = str(rows[0]["query_id"])
            if uid in now.finished and not self.is_known(self._query[uid]):
                tags = [self.reading.tag(row, self._query[uid]) for row in rows]
                self._found[uid] = all_wrong(rows, tags, [now.rows[key] for key in members], self.seed, step)

    def _ask(self, uids: list[str], step: int) -> set[str]:
        """Submit the reflection prompts of these groups; returns the uids of those that have one."""
        chosen: dict[str, AllWrong] = {uid: found for uid in uids if (found := self._found[uid])}
        self._found |= dict.fromkeys(uids)  # asked, or without a prompt that fits
        batch = self.prompts(chosen, step) if chosen else None
        if batch is None:
            return set()
        self.submit(batch)
        asked = {plain_uid(str(uid)) for uid in batch["uid"]}
        self._asked |= asked
        self.count += len(asked)
        return asked

    def _clock(self, waiting: set[str], is_done: bool) -> None:
        if not is_done:
            self._since = None
            return
        now = time.monotonic()
        if self._since is not None:
            self.wait_s += now - self._since
        self._since = now if waiting else None
