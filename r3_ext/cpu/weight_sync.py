"""verl's sender of new weights to vLLM, made to fail when vLLM cannot take them.

verl's sender runs in the FSDP worker. It waits for vLLM's acknowledgement on a zmq socket without a limit, and only
afterwards looks at the Ray call that runs the receiver. A receiver that fails never acknowledges, so its error would
stay unread and the job would wait for ever.

Loaded by `actor_rollout_ref.model.external_lib`, which verl imports before it looks the rollout class up.
"""

import time
from typing import Any, Optional

import ray
import zmq
from verl.workers.rollout import base
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

DEADLINE_S = 300.0
"""Longest wait for one acknowledgement: it covers a receiver that neither answers nor fails."""

POLL_MS = 1000


class WatchingSocket(zmq.Socket):
    """A socket whose `recv` raises when the receiver's Ray call has failed."""

    receiver: Optional[ray.ObjectRef] = None

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not self.poll(POLL_MS):
            self._raise_if_receiver_ended()
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM has not acknowledged a bucket of weights for {DEADLINE_S:.0f} s")
        return super().recv(*args, **kwargs)

    def _raise_if_receiver_ended(self) -> None:
        if not ray.wait([self.receiver], timeout=0)[0] or self.poll(POLL_MS):
            return
        try:
            ray.get(self.receiver)
        except ray.exceptions.RayError as error:
            raise RuntimeError("vLLM failed while taking new weights; its engine has logged the first cause") from error
        raise RuntimeError("vLLM's weight update ended without acknowledging the last bucket")


class WatchingSender(BucketedWeightSender):
    """verl's sender on a socket of that kind."""

    receiver: Optional[ray.ObjectRef] = None

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket.close()
        self.socket = self.zmq_context.socket(zmq.REQ, socket_class=WatchingSocket)
        self.socket.receiver = self.receiver
        self.socket.bind(self.zmq_handle)


class WatchingServerAdapter(vllm_rollout.ServerAdapter):
    """verl's client of one vLLM server; hands the receiver's Ray call to the sender that is about to be made."""

    async def _execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._execute_method(method, *args, **kwargs)
        if method == "update_weights_from_ipc":
            WatchingSender.receiver = answer
        return answer


# ServerAdapter.update_weights makes its sender from this name, and verl looks the adapter up in this table.
vllm_rollout.BucketedWeightSender = WatchingSender
base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{__name__}.WatchingServerAdapter"
