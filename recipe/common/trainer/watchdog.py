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
import time
from contextlib import contextmanager

import ray

from recipe.common.process_pool import calling_after


@contextmanager
def deadline(seconds: float, what: str):
    """End this process when the block takes longer: it waits inside Ray, for an answer that will never come.

    Ray then fails the driver's pending call, so the run ends non-zero. `what` names the block and its setting.
    """

    def give_up():
        print(f"{what} did not finish within {seconds:g} s; giving up", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr)
        os._exit(1)

    with calling_after(seconds, give_up):
        yield


class StallWatch:
    """Ends a run whose rollout stopped moving.

    Args:
        timeout_s: longest time without a response or a group more.
        key: setting that holds it, for the message.
    """

    def __init__(self, timeout_s: float, key: str):
        self.timeout_s, self.key = timeout_s, key
        self.begin()

    def begin(self) -> None:
        """Time counts from here: a collection begins."""
        self._moved, self._counts = time.monotonic(), None

    def see(self, responses: int, groups: int) -> None:
        """Raise TimeoutError when the numbers of responses and finished groups were the same for too long."""
        if (responses, groups) != self._counts:
            self._moved, self._counts = time.monotonic(), (responses, groups)
        elif time.monotonic() - self._moved > self.timeout_s:
            raise TimeoutError(
                f"no rollout finished for {self.key}={self.timeout_s:g} s ({responses} responses of {groups} finished "
                "groups so far); raise it if responses take longer"
            )


class WorkerWatch:
    """Notices the death of Ray actors that a step waits on without asking for a result of theirs."""

    def __init__(self):
        self.actors: list[tuple[str, ray.actor.ActorHandle]] = []
        self.pings: dict[int, ray.ObjectRef] = {}

    def add(self, trainer) -> None:
        """Watch the actors of a trainer that is about to start."""
        managers = trainer._rollout_server_managers()
        servers = [server for manager in managers for replica in manager.get_replicas() for server in replica.servers]
        self.actors += [("agent loop worker", actor) for actor in trainer.agent_loop_manager.agent_loop_workers]
        self.actors += [("reward worker", actor) for actor in trainer.reward_loop_manager.reward_loop_workers]
        self.actors += [("rollout server", actor) for actor in servers]

    @classmethod
    def over(cls, trainer) -> None:
        """`check_always` on the actors of a trainer that is about to start."""
        watch = cls()
        watch.add(trainer)
        watch.check_always()

    def check_always(self, period_s: float = 5.0) -> None:
        """End this process when an actor dies: for a trainer that waits in verl's code, which does not call `check`."""

        def watch():
            while True:
                time.sleep(period_s)
                try:
                    self.check()
                except RuntimeError as error:
                    print(f"RuntimeError: {error}", file=sys.stderr, flush=True)
                    os._exit(1)

        threading.Thread(target=watch, daemon=True).start()

    def check(self) -> None:
        """Raise RuntimeError when a watched actor is dead; a busy one only leaves its ping unanswered."""
        for number, (name, actor) in enumerate(self.actors):
            if number not in self.pings:
                self.pings[number] = actor.__ray_ready__.remote()
            answered, _ = ray.wait([self.pings[number]], timeout=0)
            if answered:
                try:
                    ray.get(self.pings.pop(number))
                except ray.exceptions.RayActorError as error:
                    raise RuntimeError(f"a {name} died: {error}") from error
