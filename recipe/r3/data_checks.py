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
"""The training set and the chat template: what would otherwise surface after the models are loaded, or as a crash in a
rollout worker."""

from omegaconf import DictConfig

from recipe.common.rows import REFLECTION
from recipe.r3.config.r3_config import NEXT_VISIT
from recipe.r3.text_alone import check_text_alone

TAKEN = ("__rollout_n__", "__do_sample__")
"""Columns that verl's rollout worker takes out of a prompt, so that no row of its group has them."""


def check_data(rows, config: DictConfig, tokenizer, processor) -> None:
    """Raises ValueError, with the full key, for what cannot be trained on.

    Args:
        rows: the training set, a `datasets.Dataset`.
        processor: the model's, as verl made it; None for a model of text.
    """
    data, path = config.data, config.actor_rollout_ref.model.path
    check_text_alone(rows, config, processor)
    reflection = config.algorithm.r3.reflection
    ask, when = reflection.ask, reflection.when
    sooner = reflection.enable and when != NEXT_VISIT
    if sooner and (taken := [name for name in TAKEN if name in rows.column_names]):
        raise ValueError(
            f"algorithm.r3.reflection.when: {when} asks again with the columns of a group's rows, and verl takes "
            f"{taken[0]} of data.train_files out of them: set algorithm.r3.reflection.when={NEXT_VISIT}, or leave that "
            "column out"
        )
    if sooner and ask != REFLECTION and "agent_name" in rows.column_names:
        raise ValueError(
            f"algorithm.r3.reflection.ask: {ask} asks again with the default agent loop, and the rows of "
            "data.train_files name their own in agent_name: set algorithm.r3.reflection.ask=reflection, or leave that "
            "column out"
        )
    if len(rows) < data.train_batch_size:
        raise ValueError(
            f"data.train_files: {len(rows)} prompts of at most data.max_prompt_length={data.max_prompt_length} tokens "
            f"are fewer than data.train_batch_size={data.train_batch_size}"
        )
    if tokenizer.chat_template is None:
        raise ValueError(
            f"actor_rollout_ref.model.path: {path} has no chat template; add one to the tokenizer or set "
            "actor_rollout_ref.model.custom_chat_template"
        )
