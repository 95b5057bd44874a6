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
"""Ends a run that would otherwise wait for ever: a dead worker, a weight sync that never returns."""

import faulthandler
import os
import sys
import threading
from contextlib import contextmanager

import ray


@contextmanager
def deadline(seconds: float, what: str):
    """End this process when the block takes longer: it waits inside native code, where no exception can reach it.

    Ray then fails the driver's pending call, so the run ends non-zero.
    """

    def give_up():
        print(f"{what} did not finish within algorithm.r3.stall_timeout_s={seconds:g} s; giving up", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class WorkerWatch:
    """Notices the death of Ray actors that the step waits on without ever asking for a result of theirs."""

    def __init__(self):
        self.pending = {}

    def add(self, trainer) -> None:
        """Watch the actors of a trainer that is about to start."""
        self.actors = {
            "agent loop worker": trainer.agent_loop_manager.agent_loop_workers,
            "reward worker": trainer.reward_loop_manager.reward_loop_workers,
            "rollout server": [
                server for replica in trainer.llm_server_manager.get_replicas() for server in replica.servers
            ],
        }

    def check(self) -> None:
        """Raise RuntimeError when a watched actor is dead."""
        for name, actors in getattr(self, "actors", {}).items():
            for actor in actors:
                ref = self.pending.setdefault(actor, actor.__ray_ready__.remote())
                done, _ = ray.wait([ref], timeout=0)
                if done:
                    del self.pending[actor]
                    try:
                        ray.get(ref)
                    except ray.exceptions.RayActorError as error:
                        raise RuntimeError(f"a {name} died: {error}") from error
