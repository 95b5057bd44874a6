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
"""What a problem is called in the history: its `query_id`, or an id made from its prompt and answer.

Replay takes what is stored under an id for answers to the same problem. An id that stands for two of them would train
one problem's answer as the right one of another.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

MAX_ID_BYTES = 1_024
"""Of a query id in UTF-8. One of megabytes, which no data set needs, would be in an index of every row."""


def make_query_id(prompt: list[dict] | str, ground_truth) -> str:
    """16 hex digits that depend on the messages and the answer alone, not on the file or the place in it."""
    text = json.dumps([prompt, ground_truth], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def check_query_ids(query_ids: Iterable, prompts: Iterable) -> None:
    """Raises ValueError when an id is missing or too long, or when one, as text, stands for different prompts."""
    first_prompt = {}
    for row, (query_id, prompt) in enumerate(zip(query_ids, prompts, strict=True)):
        if query_id is None or query_id != query_id or not str(query_id).strip():  # NaN differs from itself
            raise ValueError(
                f"query_id is {query_id!r} in row {row}; give each problem an id, or leave the column out, and ids are "
                "made from prompt and answer"
            )
        query_id = str(query_id)
        if (size := len(query_id.encode("utf-8", "surrogatepass"))) > MAX_ID_BYTES:
            raise ValueError(
                f"query_id {short(query_id)!r} in row {row} has {size:,} bytes, {MAX_ID_BYTES:,} at most; shorten it, "
                "or leave the column out, and ids are made from prompt and answer"
            )
        first = first_prompt.setdefault(query_id, prompt)
        if first is not prompt and first != prompt:
            raise ValueError(
                f"query_id {short(query_id)!r} stands for different prompts, {_last_words(first)!r} and "
                f"{_last_words(prompt)!r}: replay would train the answers of one as answers of the other; give each "
                "problem an id of its own, or leave the column out, and ids are made from prompt and answer"
            )


def _last_words(prompt) -> str:
    text = prompt if isinstance(prompt, str) else prompt[-1].get("content") if prompt else ""
    return short(str(text))


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def with_query_ids(rows, prompt_key: str):
    """A training set, a `datasets.Dataset`, with the column `query_id`: made where the files have none.

    Raises:
        ValueError: the column that is there does not tell problems apart.
    """
    prompts = rows[prompt_key]
    if "query_id" in rows.column_names:
        try:
            check_query_ids(rows["query_id"], prompts)
        except ValueError as error:
            raise ValueError(f"data.train_files: {error}") from None
        return rows
    truths = [reward.get("ground_truth") for reward in rows["reward_model"]]
    ids = [make_query_id(prompt, truth) for prompt, truth in zip(prompts, truths, strict=True)]
    logger.info(f"data.train_files: no column query_id; {len(set(ids))} ids were made from prompts and answers")
    return rows.add_column("query_id", ids)
