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
"""What an agent reads before a turn, and what goes first where that is too long.

Task: Put the coin on the table.
-= Kitchen =- You are in the kitchen.
> open fridge
You open the fridge, revealing a coin.
You can: close fridge; take coin from fridge
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TASK, COMMAND, COMMANDS = "Task: ", "> ", "You can: "
CUT = " ..."
"""Ends an observation that was shortened."""


class NoRoom(ValueError):
    """Not even task and commands fit."""


@dataclass(frozen=True)
class Prompt:
    text: str
    turns_dropped: int = 0
    """Remembered turns for which there was no room."""
    chars_cut: int = 0
    """Characters of the observation for which there was none."""


def prompt_text(
    task: str, memory: Sequence[tuple[str, str]], observation: str, commands: Sequence[str] | None = None
) -> str:
    """
    Args:
        memory: observation and command of the last turns, the oldest first.
        commands: what may be done now. None: the world lists nothing, and nothing is said of it.
    """
    lines = [f"{TASK}{task}"]
    lines += [f"{seen}\n{COMMAND}{command}" for seen, command in memory]
    lines.append(observation)
    if commands is not None:
        lines.append(f"{COMMANDS}{'; '.join(commands)}")
    return "\n".join(lines)


def last_seen(text: str) -> str:
    """The last observation of a prompt with its commands, whatever a chat template put around it; for people.

    "user\\nTask: Eat.\\nA shelf.\\n> go\\nA table.\\nYou can: look" gives "A table.\\nYou can: look".
    """
    lines = text.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith(TASK)), -1)
    listed = [at for at, line in enumerate(lines) if at > begin and line.startswith(COMMANDS)]
    end = listed[-1] + 1 if listed else len(lines)
    commands = [at for at in range(begin + 1, end) if lines[at].startswith(COMMAND)]
    return "\n".join(lines[(commands[-1] if commands else begin) + 1 : end])


def fitted_prompt(
    task: str,
    memory: Sequence[tuple[str, str]],
    observation: str,
    commands: Sequence[str] | None,
    length: Callable[[str], int],
    most: int,
) -> Prompt:
    """The prompt that has room: the oldest turns are dropped first, then the end of the observation.

    Task and commands stay: without them nobody could act. verl would cut the beginning, the task first.

    Args:
        length: of a text, in tokens, with all that a chat template adds.
        most: tokens that the prompt may have.

    Raises:
        NoRoom: even without memory and observation.
    """
    for dropped in range(len(memory) + 1):
        text = prompt_text(task, memory[dropped:], observation, commands)
        if length(text) <= most:
            return Prompt(text, dropped)

    def shortened(chars: int) -> str:
        return prompt_text(task, (), observation[:chars] + CUT, commands)

    if (least := length(shortened(0))) > most:
        raise NoRoom(f"data.max_prompt_length must be at least {least} for this task and its commands, got {most}")
    fits, too_many = 0, len(observation)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if length(shortened(middle)) <= most else (fits, middle)
    return Prompt(shortened(fits), len(memory), len(observation) - fits)
