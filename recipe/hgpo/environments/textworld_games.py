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
"""Games of TextWorld: a `.z8` file with its `.json` beside it, as `tw-make` and TextWorld's GameMaker write them.

    task = {"world": "textworld", "game": "/absolute/path.z8", "sha256": of the .json, or none}

The interpreter plays whatever it is sent: several commands in a line, `restart`, `save` into a file, and it hangs on a
NUL. So only commands that the game lists are sent. `look`, `inventory` and `examine X` are not among them: they change
nothing and are most of the list.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import textworld
from textworld.generator.game import Game
from textworld.generator.world import World

from recipe.hgpo.environments.base import Observation, Step, clean

INFOS = textworld.EnvInfos(admissible_commands=True, facts=True, objective=True, won=True, lost=True)
CHANGES_NOTHING = ("examine ", "inventory", "look")

_BANNER = re.compile(r"\A[\s_|$\\/<>-]*\$\$\$\$\$\$\$ *\n")
_STATUS = re.compile(r"\s*>\s*-= [^\n]* =-\d+/\d+\s*\Z")
"""The room, score and number of the turn: with it, no state would be seen twice."""
_END = re.compile(r"(\s*Your score has just gone [^\n]*)?\s*\*\*\* The End \*\*\*.*", re.DOTALL)


class TextWorldGame:
    suffix, files = ".z8", "a .z8 file with its .json beside it"
    """Of the file that is played, and what there has to be."""
    skipped = CHANGES_NOTHING
    """Commands that are not listed, by how they begin."""

    def __init__(self, task: Mapping[str, Any]):
        path = Path(str(task.get("game")))
        if not path.is_absolute():
            raise ValueError(f"task.game must be an absolute path, got {str(path)!r}")
        if not (path.suffix == self.suffix and path.is_file() and content(path).is_file()):
            raise ValueError(f"task.game must be {self.files}, got {str(path)!r}")
        if (wanted := task.get("sha256")) and wanted != digest(path):
            raise ValueError(f"{content(path)} is not the game of the task list: its SHA-256 must be {wanted}")
        self._game = self.start(path)
        self.state = textworld.GameState()
        """All that the game tells now."""
        self.commands: tuple[str, ...] = ()

    @classmethod
    def warm_up(cls) -> None:
        """Parse the rules of a world, which is kept: 0.2 seconds that no session spends again."""
        Game.deserialize(Game(World()).serialize())

    def start(self, path: Path) -> textworld.Environment:
        return textworld.start(str(path), request_infos=self.infos())

    @classmethod
    def infos(cls) -> textworld.EnvInfos:
        """What the game tells."""
        return INFOS

    def reset(self) -> Observation:
        return self._seen(self._game.reset())

    def step(self, command: str) -> Step:
        if command not in self.commands:
            raise ValueError(f"only what the game lists is sent to it, got {command!r}")
        state, _, done = self._game.step(command)
        return Step(self._seen(state), reward=float(state.won), done=bool(done), won=bool(state.won))

    def close(self) -> None:
        self._game.close()

    def _seen(self, state: textworld.GameState) -> Observation:
        self.state = state
        # After the end `restart` would begin the game again, for which nobody asked.
        is_over = state.won or state.lost
        listed = () if is_over else state.admissible_commands
        self.commands = tuple(command for command in listed if not command.startswith(self.skipped))
        facts = "\n".join(sorted(map(str, state.facts)))
        name = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return Observation(self.said(state), self.commands, name)

    def said(self, state: textworld.GameState) -> str:
        return said(state.feedback, state.objective)


def content(path: Path) -> Path:
    """The file that says what a game is: of a .z8 the .json, as the former holds the date on which it was compiled."""
    return path.with_suffix(".json") if path.suffix == TextWorldGame.suffix else path


def digest(path: Path) -> str:
    return hashlib.sha256(content(path).read_bytes()).hexdigest()


def said(feedback: str, objective: str) -> str:
    """What the game says, in one line, without banner, status line and closing words; the prompt has the objective."""
    text = _END.sub("", _STATUS.sub("", _BANNER.sub("", feedback)))
    return clean(text).removeprefix(clean(objective)).strip()
