"""Finished rollouts in TransferQueue without a model, and stored answers, for tests of the data collectors."""

import asyncio
import uuid

import numpy as np
import transfer_queue as tq

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import PLAIN, RESTART, reflection_uid
from recipe.r3.config.r3_config import ReplayConfig
from recipe.r3.history.store import History, Sample
from recipe.r3.replay.draw import Replayer
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

N = 3
"""Responses per prompt."""


def replayer(history: History, **replay) -> Replayer:
    """By `algorithm.r3.replay` with these settings."""
    return Replayer(history, ReplayConfig(**replay), 0, 100, decode=lambda ids: TEXTS.get(ids[0], "no word of it"))


def stored(tokens=(4, 5, 6, 4), log_probs=(-0.1, -0.2, -0.3, -0.4), query="q", **changes) -> Sample:
    values = {"correct": True, "score": 1.75, "truncated": False, "step": 3, **changes}
    log_probs = None if log_probs is None else np.array(log_probs, dtype="float32")
    return Sample(query, np.array(tokens, dtype="int32"), log_probs=log_probs, **values)


TEXTS = {60: "The mistake in the earlier attempt was a sign.", 61: "I attempt this anew, without a hint."}
"""Texts of stored answers by their first token."""


PROMPT = 7, 8, 9
"""Token ids of every prompt."""


class RolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's rollout worker without a model: it only writes finished trajectories to TransferQueue."""

    processor = None
    reward_loop_worker_handles = None
    distillation_enabled = False

    def __init__(self):
        pass


def write_group(
    query,
    outcomes,
    step,
    partition="train",
    variant=PLAIN,
    info=None,
    log_probs=True,
    length=2,
    uid="",
    of="",
    status="finished",
    versions=None,
    wrong=0.0,
    backwards=False,
) -> str:
    """A prompt with one trajectory per outcome (right, wrong, cut, failed, turns); returns its uid.

    Response `session` has `length + session` tokens 100 * step + session; a right one scores 1.9 - session / 10.
    failed: the reward function failed. turns: its first token is not the model's. wrong: score of wrong answers.
    versions: the first and the last step whose weights wrote it. of: uid of the plain group that was asked again.
    backwards: the last session is the first to be finished.
    """
    uid = reflection_uid(of) if of else uid + str(uuid.uuid4())
    mark = {"is_prompt": True, "status": "pending", "global_steps": step}
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[mark])
    for session, outcome in sorted(enumerate(outcomes), reverse=backwards):
        output = answer(session, outcome, step, length + session, info, log_probs, wrong)
        if variant != PLAIN:
            output.extra_fields["prompt_variant"] = variant
        if variant == RESTART:  # its first token is a stored answer's
            output.extra_fields["prefix_len"], output.response_mask[0] = 1, 0
        if versions:
            output.extra_fields |= dict(zip(("min_global_steps", "max_global_steps"), versions, strict=True))
        row = {"uid": uid, "session_id": session, "global_steps": step, "query_id": query, "index": 0}
        row["raw_prompt"] = [{"role": "user", "content": query}]
        asyncio.run(RolloutWorker()._agent_loop_postprocess(output, partition == "val", **row))
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[{"status": status}])
    return uid


def answer(session, outcome, step, size, info, log_probs, wrong) -> AgentLoopOutput:
    """What verl's rollout worker has of one trajectory of `write_group`, of `size` tokens."""
    right, cut, judged = outcome == "right", outcome == "cut", outcome != "failed"
    output = AgentLoopOutput(
        prompt_ids=[*PROMPT],
        response_ids=[100 * step + session] * size,
        response_mask=[int(outcome != "turns")] + [1] * (size - 1),
        response_logprobs=[-0.25] * size if log_probs else None,
        reward_score=1.9 - session / 10 if right else wrong * judged,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": info or {"acc": float(right), "truncated": float(cut)}},
    )
    if wrong or not judged:  # as the recipe's manager says it of a reward function
        graded = {"score": 1.0 if right else wrong * judged, "reward_error": float(not judged)}
        output.extra_fields["reward_extra_info"] |= graded
    return output


def read(batch: KVBatchMeta) -> dict[str, dict]:
    """Key -> every field of the row."""
    return dict(zip(batch.keys, queue.read(batch), strict=True))


def finish_step(batch: KVBatchMeta) -> None:
    tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)


def finish_prompts(buffer, running: list[str], at_once: bool = False) -> None:
    """These groups are finished one after the other, a poll each; or all before the second poll."""
    left, wait = list(running), buffer._wait_for_next_poll

    def poll(*given):
        for uid in [left.pop(0) for _ in range(len(left) if at_once else min(1, len(left)))]:
            tq.kv_put(uid, partition_id="train", tag={"status": "finished"})
        return wait(*given)

    buffer._wait_for_next_poll = poll
