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
"""Games of ALFWorld, which one brings: `game.tw-pddl` files, as `alfworld-download` fetches them.

    task = {"world": "alfworld", "game": "/absolute/path/game.tw-pddl", "sha256": of that file, or none}

TextWorld's planner engine plays them by the rules and texts that the game file brings; alfworld gives things their
names. All commands are listed, as ALFWorld lists them, `look` and `examine` too.
"""

import re
from pathlib import Path

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

from recipe.hgpo.environments.base import clean
from recipe.hgpo.environments.textworld_games import TextWorldGame

_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_TASK = re.compile(r"Your task is to: [^\n]*\Z")


class AlfworldGame(TextWorldGame):
    suffix, files = ".tw-pddl", "a .tw-pddl file"
    skipped = ()

    @classmethod
    def warm_up(cls) -> None:
        """Nothing that all games share: each brings its own rules."""

    @classmethod
    def infos(cls) -> textworld.EnvInfos:
        return textworld.EnvInfos(admissible_commands=True, facts=True, won=True, lost=True)

    def start(self, path: Path) -> textworld.Environment:
        return textworld.start(str(path), request_infos=self.infos(), wrappers=[AlfredDemangler()])

    def said(self, state: textworld.GameState) -> str:
        """In one line, without the banner and the task, which stands in the prompt."""
        return clean(_TASK.sub("", state.feedback)).removeprefix(_BANNER).strip()
