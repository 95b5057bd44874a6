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
"""A stored answer as a row of a dead group, and a fresh row as an answer to store: pure functions on rows."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from recipe.common.outcome import outcome_reward
from recipe.common.rows import Origin, RowTag, TrainedUid
from recipe.r3.history.store import Sample
from verl.utils.model import compute_position_id_with_mask


@dataclass(frozen=True)
class Replay:
    """Stored samples that join a group: `positions` are the batch positions of its rows."""

    positions: list[int]
    samples: list[Sample]


def sample_of(row: dict, tag: RowTag, verls: dict, step: int) -> Sample | None:
    """What the history stores of a fresh row; None of an answer without tokens, or of which nobody knows whether it is
    right.

    Args:
        verls: verl's tag of the row.
        step: training step that generated it.
    """
    if not len(row["responses"]) or tag.reward_error:
        return None
    log_probs, version = row.get("rollout_log_probs"), verls.get("min_global_steps")
    if version is not None:  # verl stamps recorded rollouts with the step itself, whose weights wrote none
        version = min(version, step - 1)
    return Sample(
        query_id=tag.group,
        tokens=row["responses"].numpy(),
        correct=tag.correct,
        score=tag.score,
        truncated=tag.truncated,
        step=step,
        variant=tag.variant,
        log_probs=None if log_probs is None else log_probs.numpy(),
        version=version,
        versions=tag.versions,
    )


def replayed_row(template: dict, sample: Sample, session: int, prompts: torch.Tensor | None = None) -> dict:
    """Every field of a row that holds the stored response under the prompt of `template`, a fresh row of the group, or
    under `prompts`, the (P,) ids of another.

    The `uid` field, by which advantages are grouped, is the fresh row's: it differs from the uid in the key where verl
    replays recorded rollouts (`skip.rollout_tq`).
    """
    row, prompts = dict(template), template["prompts"] if prompts is None else prompts
    responses = torch.from_numpy(sample.tokens.astype("int64"))
    input_ids = torch.cat([prompts, responses])
    mask = torch.ones_like(responses)
    scores = outcome_reward(torch.zeros(len(responses), dtype=row["rm_scores"].dtype), sample.score)
    row.update(
        uid=str(replace(TrainedUid.parse(template["uid"]), is_replayed=True)),
        session_id=session,
        prompts=prompts,
        responses=responses,
        input_ids=input_ids,
        position_ids=compute_position_id_with_mask(torch.ones_like(input_ids).unsqueeze(0)).squeeze(0),
        response_mask=mask,
        loss_mask=mask,
        rm_scores=scores,
    )
    if "attention_mask" in row:
        row["attention_mask"] = torch.ones_like(input_ids)
    if "rollout_log_probs" in row:
        stored = sample.log_probs
        row["rollout_log_probs"] = torch.zeros(len(responses)) if stored is None else torch.from_numpy(stored.copy())
    return row


def replayed_tag(fresh: dict, sample: Sample, row: dict, step: int) -> dict:
    """The tag of a replayed row, from that of a fresh row of its group; lengths are those of `row`."""
    group = RowTag.from_tag(fresh)
    own = RowTag(
        group=group.group,
        origin=Origin.REPLAYED,
        variant=group.variant,
        correct=sample.correct,
        truncated=sample.truncated,
        score=sample.score,
        versions=sample.versions,
        replay_age=sample.age(step),
        stored_log_probs=sample.log_probs is not None and bool(np.isfinite(sample.log_probs).all()),
    )
    prompt_len, response_len = len(row["prompts"]), len(row["responses"])
    lengths = {"prompt_len": prompt_len, "response_len": response_len, "seq_len": prompt_len + response_len}
    return {name: value for name, value in fresh.items() if name != "grade"} | own.to_tag() | lengths
