"""verl's transfer of new weights to vLLM, made to fail when vLLM does not take them, and kept to one run.

verl's sender runs in the FSDP worker. It waits for vLLM's acknowledgement on a zmq socket without a limit, and only
afterwards looks at the Ray call that runs the receiver. A receiver that fails or dies never acknowledges, so its error
stays unread and the job waits for ever.

Loaded by `actor_rollout_ref.model.external_lib`, which verl imports before it looks the rollout class up. Nothing here
depends on the CPU.
"""

import os
import time
from typing import Any, Callable, Optional

import ray
import zmq

from verl.workers.rollout import base
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

DEADLINE_S = 120.0
"""Longest wait for a receiver to connect, and then for each acknowledgement, which take milliseconds. A receiver that
fails or dies in between hangs up, which is noticed at once."""

POLL_MS = 500

REASON_S = 5.0
"""How long a receiver that hung up has to report why."""


def address_of_this_run(address: str) -> str:
    """verl tells runs apart by Ray's job id, which is 01000000 in every Ray instance that a run starts for itself: two
    runs on one machine would take each other's weights. The raylet's process id differs, and reaches vLLM's processes.

    >>> address_of_this_run("ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock")
    'ipc:///tmp/rl-colocate-zmq-4711-01000000-replica-0-rank-0.sock'
    """
    return address.replace("-zmq-", f"-zmq-{os.environ['RAY_RAYLET_PID']}-", 1)


class WatchingSocket(zmq.Socket):
    """A socket that raises when its peer stays away, hangs up or stays silent."""

    receiver_ended: Callable[[], bool] = staticmethod(lambda: False)
    """Set by the one adapter of the process: has the receiver's Ray call ended?"""

    hang_ups: Optional[zmq.Socket] = None

    def bind(self, address: str) -> Any:
        self.hang_ups = self.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        return super().bind(address)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        # Sending waits too, for a receiver to connect: one that died before that has nothing to hang up.
        deadline = time.monotonic() + DEADLINE_S
        while not self.poll(POLL_MS, zmq.POLLOUT):
            if self.receiver_ended() or time.monotonic() > deadline:
                raise ConnectionError("vLLM's weight receiver has not connected")
        return super().send(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        poller = zmq.Poller()
        poller.register(self, zmq.POLLIN)
        poller.register(self.hang_ups, zmq.POLLIN)
        ready = dict(poller.poll(DEADLINE_S * 1000))
        # The receiver closes its socket after the last acknowledgement: the message counts, if there is one. zmq looks
        # at one socket after the other, and both may come after its look at the first. A hang-up never comes first.
        if self in ready or self.poll(0):
            return super().recv(*args, **kwargs)
        if ready:
            raise ConnectionError("vLLM's weight receiver ended without acknowledging the weights")
        raise TimeoutError(f"vLLM's weight receiver has not acknowledged the weights for {DEADLINE_S:.0f} s")

    def close(self, linger: Optional[int] = None) -> None:
        # In this order: zmq's thread blocks for ever on reporting a hang-up to a closed socket.
        self.disable_monitor()
        if self.hang_ups is not None:
            self.hang_ups.close()
        super().close(linger)


class WatchingSender(BucketedWeightSender):
    """verl's sender on such a socket."""

    def _init_socket(self) -> None:
        self.socket = self.zmq_context.socket(zmq.REQ, socket_class=WatchingSocket)
        self.socket.bind(self.zmq_handle)


class WatchingServerAdapter(vllm_rollout.ServerAdapter):
    """verl's client of one vLLM server; a failed update raises, with the receiver's own error where there is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zmq_handle = address_of_this_run(self.zmq_handle)
        self._receiver: Optional[ray.ObjectRef] = None
        WatchingSocket.receiver_ended = staticmethod(lambda: self._receiver_ended(0))

    async def _execute_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super()._execute_method(method, *args, **kwargs)
        if method == "update_weights_from_ipc":
            self._receiver = answer
        return answer

    def _receiver_ended(self, timeout: float) -> bool:
        return self._receiver is not None and bool(ray.wait([self._receiver], timeout=timeout)[0])

    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().update_weights(*args, **kwargs)
        except (ConnectionError, TimeoutError) as error:
            if self._receiver_ended(REASON_S):
                ray.get(self._receiver)
            raise error


# ServerAdapter.update_weights makes its sender from this name, and verl looks the adapter up in this table.
vllm_rollout.BucketedWeightSender = WatchingSender
base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{__name__}.WatchingServerAdapter"
