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
"""Tokens of answers that a data collector throws away untrained, and of their prompts.

verl drops groups without signal, groups that are too old and the surplus of dynamic sampling in one method,
`_clear_groups`, and logs the number of groups only.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a data collector of verl's, which has the attributes.

from collections.abc import Iterable

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import REFLECTION_UID, RESTART_UID, uid_of
from recipe.common.trainer.failed import FailedSessionsMixin
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class CountDiscardedMixin:
    """On a verl `ReplayBuffer` or a subclass."""

    discarded = 0, 0

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        rows = {key: tag for key, tag in self.partitions[partition_id].items() if uid_of(key) in uids}
        tokens, prompt_tokens = (sum(tag[name] for tag in rows.values()) for name in ("response_len", "prompt_len"))
        given = given_tokens(partition_id, rows)
        self.discarded = self.discarded[0] + tokens - given, self.discarded[1] + prompt_tokens
        super()._clear_groups(partition_id, uids)

    def take_discarded(self) -> tuple[int, int]:
        """Generated tokens thrown away since the last call, and tokens of their prompts, once for each answer."""
        taken, self.discarded = self.discarded, (0, 0)
        return taken


def given_tokens(partition_id: str, keys: Iterable[str]) -> int:
    """Tokens that restarts among these rows began with, which nobody generated for them."""
    own = [key for key in keys if uid_of(key).startswith((RESTART_UID, REFLECTION_UID))]
    if not own:
        return 0
    rows = queue.read(KVBatchMeta(partition_id=partition_id, keys=own, tags=[{} for _ in own]), ["extra_fields"])
    return sum(row["extra_fields"].get("prefix_len", 0) for row in rows)


def watched(buffer: ReplayBuffer) -> ReplayBuffer:
    """`buffer`, as one that counts and that tells of failed sessions.

    verl chooses the class of its own buffer and what it is built with, and no setting names another class that filters
    groups as well: so the object that verl built becomes one of a subclass of its class.
    """
    added = [mixin for mixin in (CountDiscardedMixin, FailedSessionsMixin) if not isinstance(buffer, mixin)]
    verls = type(buffer)
    buffer.__class__ = type(f"Watched{verls.__name__}", (*added, verls), {})
    return buffer
