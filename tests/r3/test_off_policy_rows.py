"""Replayed rows against the current policy, in TransferQueue."""

import pytest
import torch
from tagged import REPLAYED_RIGHT

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.r3.off_policy_rows import compare_policies


@pytest.mark.usefixtures("transfer_queue")
def test_the_rollouts_log_probs_keep_their_type_where_verls_are_bf16():
    """verl's are, in a run in bf16 without fused log-probs or flash-attn; the queue tells of two types in a column."""
    keys, behavior = ["a_0_0", "a_1_0#replay"], torch.tensor([-1.5, -0.3])
    old = torch.tensor([-1.0, -0.5], dtype=torch.bfloat16)
    fields = {"old_log_probs": old, "rollout_log_probs": behavior}
    queue.write(queue.TRAIN, keys, [fields, fields], [{}, {}])
    replayed = KVBatchMeta(partition_id=queue.TRAIN, keys=keys[1:], tags=[{**REPLAYED_RIGHT, "stored_log_probs": True}])
    metrics, factors = compare_policies(replayed, is_tapered=True)
    assert metrics and not factors
    [fresh], [row] = ([row["rollout_log_probs"] for row in queue.read_keys([key])] for key in keys)
    assert row.dtype == torch.float32 and torch.equal(row, old.float()) and torch.equal(fresh, behavior)
