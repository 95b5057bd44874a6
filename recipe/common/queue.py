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
"""TransferQueue, where verl keeps the rows of a step: every call of this repository is one of these.

A verl with another queue, or a facade of its own, is met here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transfer_queue
from tensordict import NonTensorData, NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta as KVBatchMeta

from verl.utils.tensordict_utils import list_of_dict_to_tensordict

TRAIN = "train"
"""verl's partition of the rows to train on."""
FAILED = "failed_sessions"
"""Partition of ours: of each session that left no row, a key `{uid}_{session}` whose tag says why."""


def read_table(batch: KVBatchMeta, fields: Sequence[str] | None = None) -> TensorDict:
    """Some fields of the rows of a batch, or all; tensors of unequal lengths are jagged."""
    named = None if fields is None else list(fields)
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=str(batch.partition_id), select_fields=named)


def read(batch: KVBatchMeta, fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The same as a dict a row."""
    return rows_of(read_table(batch, fields))


def read_keys(keys: Sequence[str], partition_id: str = TRAIN) -> list[dict[str, Any]]:
    """Every field of the rows with these keys."""
    return read(KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=[{} for _ in keys]))


def write(
    partition_id: str, keys: Sequence[str], rows: Sequence[dict[str, Any]] = (), tags: Sequence[dict] | None = None
) -> None:
    """Write fields and tags of rows; of rows that there are already, the named fields only."""
    given = {"fields": list_of_dict_to_tensordict(list(rows))} if rows else {}
    given |= {} if tags is None else {"tags": list(tags)}
    transfer_queue.kv_batch_put(keys=list(keys), partition_id=partition_id, **given)


def write_column(partition_id: str, keys: Sequence[str], field: str, values: Sequence[torch.Tensor]) -> None:
    """Write one field (L,) of rows, each with its own L."""
    nested = torch.nested.as_nested_tensor(list(values), layout=torch.jagged)
    fields = TensorDict({field: nested}, batch_size=len(keys))
    transfer_queue.kv_batch_put(keys=list(keys), partition_id=partition_id, fields=fields)


def set_column(batch: TensorDict, name: str, values: Sequence[Any]) -> None:
    """Give the rows of a batch of prompts a value each, of any kind."""
    batch[name] = NonTensorStack.from_list([NonTensorData(value) for value in values])


def clear(partition_id: str, keys: Sequence[str]) -> None:
    transfer_queue.kv_clear(keys=list(keys), partition_id=partition_id)


async def tell_failed(session: str, why: str) -> None:
    """Write down why a session leaves no row; to be awaited before its rollout worker gives it up."""
    await transfer_queue.async_kv_put(key=session, partition_id=FAILED, tag={"why": why})


def prompts_and_rows(partition_id: str = TRAIN) -> tuple[dict[str, dict], dict[str, dict]]:
    """The tags of the prompts in a partition by uid, and those of its rows by key."""
    tags: Mapping[str, dict] = transfer_queue.kv_list(partition_id).get(partition_id, {})
    prompts = {key: tag for key, tag in tags.items() if tag.get("is_prompt", False)}
    return prompts, {key: tag for key, tag in tags.items() if key not in prompts}


def rows_of(data: TensorDict) -> list[dict[str, Any]]:
    """The rows of a TensorDict from TransferQueue as dicts; jagged tensors do not support row indexing."""
    columns = {name: column(data[name]) for name in data.keys()}
    return [{str(name): values[row] for name, values in columns.items()} for row in range(len(data))]


def column(values) -> list:
    """The values of one field of a TensorDict, a row each."""
    if isinstance(values, torch.Tensor):
        return list(values.unbind())
    # A column of non-tensors is a NonTensorStack or a plain list, depending on what it holds.
    return values.tolist() if hasattr(values, "tolist") else list(values)
