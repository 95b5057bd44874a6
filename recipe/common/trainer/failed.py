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
"""Sessions that left no row, and why: told in the log, and where a whole batch has none, as the end of the run.

verl trains a group with the sessions that are left. With none in the batch its message does not say what happened, and
in validation it is one about an empty list.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a data collector of verl's.

import logging
import os
from collections import Counter
from collections.abc import Collection

from recipe.common import queue
from recipe.common.rows import uid_of

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))
REASONS_TOLD = 3


def told(reasons: Collection[str]) -> str:
    """The most frequent reasons with their numbers: "30 x the environment hung; 2 x its process ended"."""
    counts = Counter(reasons).most_common()
    parts = [f"{count} x {why}" for why, count in counts[:REASONS_TOLD]]
    if more := sum(count for _, count in counts[REASONS_TOLD:]):
        parts.append(f"{more} for other reasons")
    return "; ".join(parts)


class FailedSessionsMixin:
    """On a verl `ReplayBuffer` or a subclass, where an agent loop tells of failed sessions (`queue.tell_failed`)."""

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict], dict[str, int]]:
        """
        Raises:
            RuntimeError: every session of the batch failed.
        """
        selected = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        uids, rows, _ = selected
        chosen = set(uids)
        tags = self.partitions.get(queue.FAILED, {}).items()
        failed = {session: tag["why"] for session, tag in tags if uid_of(session) in chosen}
        if not failed:
            return selected
        if not any(uid_of(key) in chosen for key in rows):
            what = "train on" if partition_id == queue.TRAIN else "validate"
            raise RuntimeError(f"all {len(failed)} sessions of a batch to {what} failed: {told(failed.values())}")
        logger.warning(f"{partition_id}: {len(failed)} sessions failed: {told(failed.values())}")
        queue.clear(queue.FAILED, [*failed])
        return selected
