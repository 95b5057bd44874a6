"""A world for the worst session: no command ends it, and every turn shows the same, which fills a prompt."""

from collections.abc import Mapping
from typing import Any

from recipe.hgpo.environments.base import Observation, Step

WORLD, SHOWS = "r3_ext.hgpo.rehearse.endless:Endless", "shows"
"""What a task names it by, and where the task has what it shows."""
COMMANDS = ("walk on",)


class Endless:
    def __init__(self, task: Mapping[str, Any]):
        self.seen = Observation(task[SHOWS], COMMANDS)

    def reset(self) -> Observation:
        return self.seen

    def step(self, command: str) -> Step:
        return Step(self.seen, reward=0.0, done=False)

    def close(self) -> None:
        pass
