"""A world for the worst session: no command ends it, and what every turn shows fills a prompt."""

import uuid
from collections.abc import Mapping
from typing import Any

from recipe.hgpo.environments.base import Observation, Step

WORLD, SHOWS = "r3_ext.hgpo.rehearse.endless:Endless", "shows"
"""What a task names it by, and where the task has what it shows."""
COMMANDS = ("walk on",)


class Endless:
    """Sessions begin alike, and go apart with the first command, as real ones do: a server that keeps the prompts which
    it has read finds no turn among them."""

    def __init__(self, task: Mapping[str, Any]):
        self.shows, self.session, self.turn = task[SHOWS], uuid.uuid4().hex[:6], 0

    def reset(self) -> Observation:
        return Observation(self.shows, COMMANDS, state="0")

    def step(self, command: str) -> Step:
        self.turn += 1
        here = f"{self.session} {self.turn}"
        return Step(Observation(f"{here} {self.shows}", COMMANDS, state=here), reward=0.0, done=False)

    def close(self) -> None:
        pass
