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
"""What a session's process and its pool say to each other, a line of JSON each, and which answers are believed.

To the process: [number, task], then [number, command] for each turn, [number, null] at the end. From it: [number, kind,
value], with the number of the question.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from dataclasses import fields as fields_of
from typing import Any

from recipe.common.checks import is_number, require
from recipe.hgpo.environments.base import Observation, Step

MOST_BYTES = 2**18
"""Of a message. An observation of a text world has some hundred, a page of a web shop some thousand."""
LARGEST_REWARD = 1e9
"""Returns are sums of rewards, and their groups have variances."""

OBSERVATION, STEP = "observation", "step"
REFUSED, CRASHED = "refused", "crashed"
"""Kinds of answers; the value of these two is a text."""


def question(number: int, value: Any) -> bytes:
    """
    Raises:
        TypeError: a task holds what JSON has no form for.
    """
    return json.dumps([number, value]).encode() + b"\n"


def answer(number: int, kind: str, value: Any) -> bytes:
    """What JSON has no form for becomes what neither `observation_of` nor `step_of` takes."""
    return json.dumps([number, kind, value], default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    is_ours = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_ours else {"not of JSON": repr(value)[:100]}


def unpacked(line: bytes, number: int) -> tuple[str, Any]:
    """Kind and value of an answer.

    Raises:
        ValueError: it is none to the question with that number.
    """
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("a message must not be nested without end") from error
    ok = isinstance(message, list) and len(message) == 3 and message[0] == number and isinstance(message[1], str)
    require(ok, "a message", f"be [{number}, kind, value]", line)
    return message[1], message[2]


def step_of(value: Any) -> Step:
    """
    Raises:
        ValueError: something in it is not what a step has.
    """
    fields = _fields(value, Step)
    reward = fields["reward"]
    require(is_number(reward) and abs(reward) <= LARGEST_REWARD, "reward", "be a finite number up to 1e9", reward)
    for name in ("done", "won"):
        require(isinstance(fields[name], bool), name, "be true or false", fields[name])
    require(fields["done"] or not fields["won"], "done", "be true where won is", fields["done"])
    return Step(observation_of(fields["observation"]), float(reward), fields["done"], fields["won"])


def observation_of(value: Any) -> Observation:
    """
    Raises:
        ValueError: something in it is not what an observation has.
    """
    fields = _fields(value, Observation)
    text, commands, state = fields["text"], fields["commands"], fields["state"]
    require(_is_text(text), "text", "be a text", text)
    require(state is None or _is_text(state), "state", "be a text, or None", state)
    require(commands is None or isinstance(commands, list), "commands", "be texts, or None", commands)
    for command in commands or ():
        require(_is_text(command) and command.strip(), "a command", "be a text that is not empty", command)
    return Observation(text, None if commands is None else tuple(commands), state)


def _fields(value: Any, kind: type) -> Mapping[str, Any]:
    names = {field.name for field in fields_of(kind)}
    ok = isinstance(value, dict) and value.keys() == names
    require(ok, f"{kind.__name__}(...)", f"have {', '.join(sorted(names))}", value)
    return value


def _is_text(value: Any) -> bool:
    """Whether it is a text that a tokenizer takes: half a surrogate pair is none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
