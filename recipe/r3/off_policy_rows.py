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
"""Replayed rows against the current policy, in the batch of a step: measured, tapered, called on policy."""

import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import tags_of
from recipe.r3.off_policy import off_policy_metrics, taper
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.debug.metrics import calculate_debug_metrics


def describe_policy(plain: KVBatchMeta, actor, with_rollout: bool) -> dict[str, float]:
    """verl's entropy and its comparison of trainer and rollout, of plain rows generated in this step alone.

    Args:
        actor: `actor_rollout_ref.actor`.
        with_rollout: whether the rollout's log-probs are there.
    """
    fields = ["entropy", "response_mask"]
    if with_rollout:
        fields += ["responses", "rollout_log_probs", "old_log_probs"]
    data = DataProto(batch=queue.read_table(plain, fields).to_padded_tensor())
    entropy = agg_loss(
        loss_mat=data.batch["entropy"],
        loss_mask=data.batch["response_mask"],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
    ).item()
    return {"actor/entropy": entropy} | (calculate_debug_metrics(data) if with_rollout else {})


def compare_policies(replayed: KVBatchMeta, is_tapered: bool) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """How far the replayed rows are off policy, and the factors (L,) of the advantages of wrong ones, by key.

    The log-probs of the rollout become those of the trainer, so that verl's ratio of the two is 1 for these rows.

    is_tapered: whether there are factors; see `off_policy.taper`.
    """
    rows, tags = queue.read(replayed, ["old_log_probs", "rollout_log_probs"]), tags_of(replayed)
    compared = [row for row, tag in zip(rows, tags, strict=True) if tag.stored_log_probs]
    ages = [tag.replay_age for tag in tags if tag.stored_log_probs]
    old, behavior = ([row[field].float() for row in compared] for field in ("old_log_probs", "rollout_log_probs"))
    metrics, factors = off_policy_metrics(old, behavior, ages), {}
    if is_tapered:
        for key, row, tag in zip(replayed.keys, rows, tags, strict=True):
            if tag.stored_log_probs and not tag.correct:
                factors[key] = taper(row["old_log_probs"], row["rollout_log_probs"])
        if factors:
            metrics["replay/taper/mean"] = torch.cat(list(factors.values())).mean().item()
    # verl's are bf16 where they are not fused, and the column of the rollout's is fp32.
    values = [row["old_log_probs"].float() for row in rows]
    queue.write_column(replayed.partition_id, replayed.keys, "rollout_log_probs", values)
    return metrics, factors


def taper_advantages(batch: KVBatchMeta, factors: dict[str, torch.Tensor]) -> None:
    """Multiply the advantages of rows by their factors, by key."""
    if not factors:
        return
    part = batch.select_keys(list(factors))
    values = [
        row["advantages"] * factors[key] for key, row in zip(part.keys, queue.read(part, ["advantages"]), strict=True)
    ]
    queue.write_column(batch.partition_id, part.keys, "advantages", values)
