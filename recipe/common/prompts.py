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
"""Prompts of the training set by query, as the rollout worker tokenizes them: what stored tokens go on from."""

import torch

from verl.utils.tokenizer.chat_template import apply_chat_template


class Prompts:
    """
    Args:
        rows: the training set, a `datasets.Dataset` with the column `query_id`.
        template_kwargs: `data.apply_chat_template_kwargs`.
        max_length: `data.max_prompt_length`; verl cuts longer prompts from the left.
    """

    def __init__(self, rows, prompt_key: str, tokenizer, template_kwargs: dict, max_length: int):
        self._rows, self._key = rows, prompt_key
        self._row_of = {str(query_id): row for row, query_id in enumerate(rows["query_id"])}
        self._tokenizer, self._kwargs, self._max_length = tokenizer, template_kwargs, max_length

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._row_of

    def __getitem__(self, query_id: str) -> torch.Tensor:
        """(P,) int64 ids of the prompt of a query."""
        messages = list(self._rows[self._row_of[query_id]][self._key])
        ids = apply_chat_template(self._tokenizer, messages, **self._kwargs)
        return torch.tensor(ids[-self._max_length :])
