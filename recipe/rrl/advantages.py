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
"""The advantages and returns of a step, put in place of verl's where these say nothing, or have one lambda for both."""

import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.rrl.core_algos import gae
from verl.workers.utils.padding import response_to_nested


def put_advantages(batch: KVBatchMeta, gamma: float, lam_policy: float, lam_value: float, with_penalty: bool) -> None:
    """Compute `core_algos.gae` of a batch whose rewards, values and masks verl has written, and write it.

    Args:
        with_penalty: whether rewards hold verl's KL penalty (algorithm.use_kl_in_reward).
    """
    rewards = "token_level_rewards" if with_penalty else "rm_scores"
    table = queue.read_table(batch, [rewards, "values", "response_mask"])
    mask = table["response_mask"]
    padded = table.to_padded_tensor()
    found = gae(padded[rewards], padded["values"], padded["response_mask"], gamma, lam_policy, lam_value)
    for name, values in zip(("advantages", "returns"), found, strict=True):
        rows: list[torch.Tensor] = list(response_to_nested(values, mask).unbind())
        queue.write_column(str(batch.partition_id), batch.keys, name, rows)
