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
"""R^3 stores, replays and asks again what was said in words. What it would get wrong of pictures is refused.

Two rows with the same words and answer under two pictures would share a query id, and replay would train the answers
to one as answers to the other. A model of pictures also counts positions in four rows, of which a stored answer has
one.
"""

from collections.abc import Iterable, Mapping

from omegaconf import DictConfig

WAY_OUT = "leave such rows out, or train them with verl's GRPO (python -m verl.trainer.main_ppo)"


def check_text_alone(rows, config: DictConfig, processor) -> None:
    """Raises ValueError, with key and row, for what R^3 cannot train on.

    Args:
        rows: the training set, a `datasets.Dataset`.
        processor: the model's, as verl made it; None for a model of text.
    """
    if config.algorithm.r3.replay.enable:
        check_positions(processor, config.actor_rollout_ref.model.path)
    try:
        check_media(rows, config.data)
        check_words(rows[config.data.prompt_key])
    except ValueError as error:
        raise ValueError(f"data.train_files, {error}") from None


def check_words(prompts: Iterable[list[dict]]) -> None:
    """Raises ValueError for the first prompt with a message in parts, as pictures among the words are given."""
    for row, prompt in enumerate(prompts):
        for message in prompt:
            if not isinstance(message["content"], str):
                raise ValueError(
                    f"row {row}: the {message['role']} message is in parts, and R^3 replays answers to text alone; "
                    f"give the content as one text, or {WAY_OUT}"
                )


def check_media(rows, data_config: Mapping) -> None:
    """Raises ValueError for the first row that holds an image, a video or a sound.

    Args:
        rows: a `datasets.Dataset`; nothing of it is decoded.
        data_config: `data`, which names the columns.
    """
    for medium in ("image", "video", "audio"):
        name = data_config.get(f"{medium}_key") or f"{medium}s"
        if name not in rows.column_names:
            continue
        row = 0
        for batch in rows.select_columns([name]).with_format("arrow").iter(1000):
            for value in batch[name]:
                if is_filled(value):
                    raise ValueError(
                        f"row {row}: {name} is not empty, and R^3 replays answers to text alone: two rows with the "
                        f"same words and other {name} would share their answers; {WAY_OUT}"
                    )
                row += 1


def is_filled(value) -> bool:
    """Whether an Arrow scalar is there and, where it is a list, holds something."""
    return value.is_valid and (not hasattr(value, "values") or value.values is None or len(value.values) > 0)


def check_positions(processor, model_path: str) -> None:
    """Raises ValueError where verl gives each token of a model, also of text, positions in four rows."""
    if hasattr(processor, "get_rope_index"):
        raise ValueError(
            f"actor_rollout_ref.model.path: {model_path} counts positions in four rows (its processor is "
            f"{type(processor).__name__}), and a replayed answer has them in one; take a model of text, or set "
            "algorithm.r3.replay.enable=False"
        )
