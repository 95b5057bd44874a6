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
"""Which problem each row of a validation asks: a file may hold a problem many times, once for each answer wanted.

verl gives each row a uid of its own. The dataloader hands the rows out in the order in which verl then counts the
answers that it expects of each uid, so remembering what was handed out is enough.
"""

from collections.abc import Iterable, Iterator

from recipe.common.query_ids import make_query_id


class RememberingLoader:
    """verl's validation dataloader, and the problems of its last pass.

    Args:
        loader: batches as dicts with `raw_prompt` and `reward_model`.
    """

    def __init__(self, loader):
        self.loader = loader
        self.problems: list[str] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict]:
        self.problems = []
        for batch in self.loader:
            self.problems += problems_of(batch)
            yield batch

    def by_uid(self, uids: Iterable[str]) -> dict[str, str]:
        """The problem of each uid.

        Args:
            uids: of all rows of the last pass, in its order.
        """
        return dict(zip(uids, self.problems, strict=True))


def problems_of(batch: dict) -> list[str]:
    """An id for each row: the same for the same messages with the same reference; where rows have a `task`, which an
    agent loop plays, for the same task: many of them may be put in the same words."""
    rewards = batch.get("reward_model", [None] * len(batch["raw_prompt"]))
    truths = [(reward or {}).get("ground_truth") for reward in rewards]
    asked = list(zip(truths, batch["task"], strict=True)) if "task" in batch else truths
    return [make_query_id(prompt, truth) for prompt, truth in zip(batch["raw_prompt"], asked, strict=True)]
