"""What verl's trainer mode separate_async needs without a GPU: a way for the weights, and two mends.

Loaded by `actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module`, which verl imports in the trainer, the
FSDP workers and the workers of standalone replicas; the last ones get the watched weight transfer from here, since
they import no `external_lib`. Nothing but that mode uses what is mended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import ray
import torch
from ray.actor import ActorHandle

from r3_ext.cpu import weight_sync
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils import fsdp_utils


@CheckpointEngineRegistry.register("ray")
class RayCheckpointEngine(CheckpointEngine):
    """The first trainer rank hands every rollout worker all weights in one call, through Ray's object store.

    A peer that died ends the call with Ray's error, and there is no socket, file or process group that could stay
    behind. The whole model is in memory twice more meanwhile, so this is for small ones.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._receivers: list[ActorHandle] = []

    def prepare(self) -> ActorHandle:
        self._arrived: asyncio.Queue[dict[str, torch.Tensor]] = asyncio.Queue()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[ActorHandle]):
        receivers = metadata[actor_wg_world_size:]
        senders = [receivers] + [[]] * (actor_wg_world_size - 1)
        return {"receivers": senders}, {"receivers": [[]] * rollout_world_size}

    def init_process_group(self, receivers: list[ActorHandle]) -> None:
        self._receivers = receivers

    def finalize(self) -> None:
        self._receivers = []

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Raises Ray's error where a receiver is gone."""
        taken = {}
        for name, weight in weights:  # on every rank: each weight is gathered from all of them
            if self._receivers:
                # A view would be pickled with all that it is a view of.
                taken[name] = weight.detach().clone()
        # verl's worker passes calls on to its engine by the method's name.
        one = ray.put(taken) if self._receivers else None
        await asyncio.gather(*[to.execute_checkpoint_engine.remote("take", one) for to in self._receivers])

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        """Called by the sender."""
        self._arrived.put_nowait(weights)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Raises TimeoutError when nothing was sent for `weight_sync.DEADLINE_S`."""
        try:
            weights = await asyncio.wait_for(self._arrived.get(), weight_sync.DEADLINE_S)
        except TimeoutError as error:
            limit = f"{weight_sync.DEADLINE_S:g} s"
            raise TimeoutError(f"the trainer has sent no weights to this rollout worker for {limit}") from error
        for item in weights.items():
            yield item


def copying(save: Any) -> Any:
    """verl keeps the old policy of a step by `.cpu()`, which on a CPU is no copy: the optimizer would change it."""

    def fsdp2_sharded_save_to_cpu(model: torch.nn.Module) -> tuple[dict[str, tuple], Any]:
        state, spec = save(model)
        return {name: (shard.clone(), own) for name, (shard, own) in state.items()}, spec

    return fsdp2_sharded_save_to_cpu


fsdp_utils.fsdp2_sharded_save_to_cpu = copying(fsdp_utils.fsdp2_sharded_save_to_cpu)

# With hybrid_engine=False the trainer calls `logger.info(..., flush=True)`, which is a TypeError where it is shown.
logging.getLogger("verl.trainer.ppo.v1.trainer_separate_async").setLevel(logging.WARNING)
