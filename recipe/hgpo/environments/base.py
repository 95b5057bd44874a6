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
"""What a text world is to an agent: the interface that adapters have, and what is done with texts of world and model.

An adapter for one's own world is a class with the methods of `Environment`, named in the data as `module:Class`:

    class Door:
        def __init__(self, task): ...
        def reset(self): return Observation("A closed door.", ("open door",))
        def step(self, command): return Step(Observation("An open door.", ()), reward=1.0, done=True, won=True)
        def close(self): ...

What a model writes never reaches a world that lists its commands: only a command of the list does (`match`). A world
does not count its steps; who plays does.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

NOTHING_HAPPENS = "Nothing happens."
"""The answer to what is no admissible command, whatever was written."""

FEEDBACK, FEEDBACK_AND_COMMANDS, STATE = STATE_KEYS = ("feedback", "feedback_and_commands", "state")
"""What makes two turns the same state: the text; the text and what may be done; what the world itself says."""

MOST_COMMAND_CHARS = 1000
"""Of a command that is sent to a world which lists none."""


@dataclass(frozen=True)
class Observation:
    """What an agent is shown before a turn."""

    text: str
    commands: tuple[str, ...] | None = None
    """All that it may send, in the order in which they are shown. None: this world takes any text."""
    state: str | None = None
    """A name of the true state: equal for equal states. None: this world does not tell."""


@dataclass(frozen=True)
class Step:
    """What a command led to."""

    observation: Observation
    reward: float
    """Of this step alone."""
    done: bool
    """Whether the episode is over."""
    won: bool = False
    """Whether the task is done; the episode is over then."""


class Environment(Protocol):
    """One episode of one task. Sessions of equal tasks must begin alike: all chance comes from the task."""

    def __init__(self, task: Mapping[str, Any]):
        """
        Args:
            task: the row's column `task`.

        Raises:
            ValueError, OSError: it cannot be played; the text says why.
        """
        ...

    def reset(self) -> Observation: ...

    def step(self, command: str) -> Step: ...

    def close(self) -> None: ...


class _Known(NamedTuple):
    place: str
    """`module:Class` of the adapter."""
    install: str
    """The package that brings what it imports."""


_HERE = "recipe.hgpo.environments"
WORLDS = {
    "textworld": _Known(f"{_HERE}.textworld_games:TextWorldGame", "textworld==1.7.0"),
    "alfworld": _Known(f"{_HERE}.alfworld_games:AlfworldGame", "alfworld==0.4.2 'textworld[pddl]==1.7.0'"),
}
"""By what `world` in a task says; beside these, any `module:Class`."""


def adapter(world: str) -> type[Environment]:
    """The class that plays a world. It may have a classmethod `warm_up`, for what all sessions need: it is called once.

    Raises:
        ValueError: there is no such world, or what it needs is not installed.
    """
    known = WORLDS.get(world)
    module, colon, name = (known.place if known else world).partition(":")
    if not (module and colon and name.isidentifier()):
        raise ValueError(f"task.world must be one of {', '.join(WORLDS)} or `module:Class`, got {world!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        way = f"; pip install {known.install}" if known else ""
        raise ValueError(f"task.world {world}: {error}{way}") from error
    except AttributeError as error:
        raise ValueError(f"task.world {world}: {error}") from error


def clean(text: str) -> str:
    r"""In one line, single spaces, without control characters: "a\n\n b\x00" gives "a b"."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def match(answer: str, commands: tuple[str, ...] | None) -> str | None:
    r"""The command that a model's answer is, or None: it is not admissible.

    Letter case and white space do not count, all else does: of ("go east",), " GO  east\n" is "go east", and neither
    "go east." nor "go east. go north" is anything. Where a world lists no commands, any text is one, in one line; not
    an empty one, nor one of more than MOST_COMMAND_CHARS.
    """
    if commands is None:
        command = clean(answer)
        return command if 0 < len(command) <= MOST_COMMAND_CHARS else None
    wanted = _normal(answer)
    return next((command for command in commands if _normal(command) == wanted), None)


def _normal(text: str) -> str:
    return " ".join(text.split()).lower()


def refused(observation: Observation) -> Step:
    """The turn after an answer that is not admissible: the world is as it was and was not asked."""
    return Step(Observation(NOTHING_HAPPENS, observation.commands, observation.state), reward=0.0, done=False)


class NoState(ValueError):
    """A world does not tell what is asked for."""


def state_key(observation: Observation, kind: str) -> str:
    """What the states of two turns of a task are compared by.

    Args:
        kind: one of STATE_KEYS. The plainer, the more turns meet in groups, and the more groups mix different states.

    Raises:
        ValueError: an unknown kind.
        NoState: `state` where the world does not tell.
    """
    if kind == FEEDBACK:
        return observation.text
    if kind == FEEDBACK_AND_COMMANDS:
        return "\n".join((observation.text, *(observation.commands or ())))
    if kind != STATE:
        raise ValueError(f"state_key must be one of {', '.join(STATE_KEYS)}, got {kind!r}")
    if observation.state is None:
        raise NoState(f"state_key must be {FEEDBACK} or {FEEDBACK_AND_COMMANDS}: this world does not tell its state")
    return observation.state
