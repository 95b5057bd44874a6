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
"""V of stored states under the present critic: one forward past TransferQueue."""

from collections.abc import Sequence

import torch
from tensordict import TensorDict

from verl.utils import tensordict_utils as tu


def values_of(critic, prompts: Sequence[list[int]], prefixes: Sequence[list[int]], temperature: float, filler: int):
    """(V(s_c), V(s_0)) of each state.

    Args:
        critic: verl's worker group of it, that has computed values before.
        prompts, prefixes: token ids.
        filler: any token id; a row has to end with one that is asked for.
    """
    ranks = 1 + max(critic._dispatch_info["train"])
    asked = [(p, c) for p, c in zip(prompts, prefixes, strict=True)]
    padded = asked + asked[:1] * (-len(asked) % ranks)
    values = critic.infer_batch(_rows(padded, temperature, filler)).get()["values"]
    rows = list(values.unbind())[: len(asked)]
    return [(row[-2].item(), row[len(prompt) - 1].item()) for row, (prompt, _) in zip(rows, asked, strict=True)]


def _rows(asked: Sequence[tuple[list[int], list[int]]], temperature: float, filler: int) -> TensorDict:
    """As verl's rows are: a prompt, which is the state's here, and a response of one token, which nobody looks at."""
    ids = [torch.tensor([*prompt, *prefix, filler]) for prompt, prefix in asked]
    ones = _jagged([torch.ones(1, dtype=torch.long) for _ in ids])
    data = TensorDict(
        {
            "input_ids": _jagged(ids),
            "position_ids": _jagged([torch.arange(len(row)) for row in ids]),
            "prompts": _jagged([row[:-1] for row in ids]),
            "responses": _jagged([row[-1:] for row in ids]),
            "response_mask": ones,
            "loss_mask": ones,
        },
        batch_size=len(ids),
    )
    tu.assign_non_tensor(data, compute_loss=False, temperature=temperature)
    return data


def _jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
