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
"""Checks of settings, as every recipe makes them: a value against its rule, a group of settings as a dataclass.

All rules that settings break are told in one answer, with what mends them as overrides that can be copied.
"""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def require(ok: bool, key: str, rule: str, value: Any) -> None:
    """Raise ValueError("<full key> must <rule>, got <value>") unless `ok`."""
    if not ok:
        raise ValueError(f"{key} must {rule}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def is_count(value: Any, least: int) -> bool:
    """Whether it is a whole number from `least` on; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_pattern(value: Any) -> bool:
    """Whether it is a regular expression."""
    try:
        re.compile(value)
    except (TypeError, re.error):
        return False
    return True


def build(cls: type[T], node: Any, key: str) -> T:
    """`cls`, a dataclass of settings, from a plain dict; groups of settings in it are dataclasses, too.

    Args:
        key: where the settings stand, for the messages.

    Raises:
        ValueError: an unknown key, no group where there must be one, or a flag that is neither true nor false.
    """
    if not isinstance(node, Mapping):
        raise ValueError(f"{key} must be a group of settings, got {node!r}")
    known = {field.name: field for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    values = {}
    for name, value in node.items():
        if name not in known:
            options = ", ".join(option for option in known if option != "_target_")
            raise ValueError(f"{key}.{name} is not a setting; known settings: {options}")
        default = known[name].default
        if is_dataclass(known[name].type):
            value = build(known[name].type, value, f"{key}.{name}")  # pyright: ignore[reportArgumentType]
        elif default is not MISSING and isinstance(default, bool):
            require(isinstance(value, bool), f"{key}.{name}", "be true or false", value)
        values[name] = value
    return cls(**values)


def faults(cls: type, node: Any, key: str) -> Iterator[str]:
    """What `build` says of each setting by itself, where it raises with the first one."""
    if not isinstance(node, Mapping):
        yield f"{key} must be a group of settings, got {node!r}"
        return
    types = {field.name: field.type for field in fields(cls)}
    for name, value in node.items():
        if is_dataclass(types.get(name)):
            yield from faults(types[name], value, f"{key}.{name}")  # pyright: ignore[reportArgumentType]
            continue
        try:
            build(cls, {name: value}, key)
        except ValueError as error:
            yield str(error)


def leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Full key and value of every setting below `key`: {"a": {"b": 1}} below `x` gives ("x.a.b", 1)."""
    if not isinstance(node, Mapping):
        yield key, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{key}.{name}")


class Broken(NamedTuple):
    """A rule that settings break, and the way out."""

    told: str
    """Full key, value and rule."""
    ways: tuple[str, ...] = ()
    """Settings of which any one mends it, as they are typed in a shell: `a=1 b=2` are two that go together."""
    out: tuple[str, ...] = ()
    """Settings that are left out first, with all below them."""

    @property
    def advice(self) -> str:
        """`leave out a.b; set c=1 d=2, or e=3`."""
        parts = [f"leave out {', '.join(self.out)}"] if self.out else []
        return "; ".join(parts + ([f"set {', or '.join(self.ways)}"] if self.ways else []))

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.told, self.advice)))


def missing(key: str, recipe: str) -> Broken:
    """What is told where a recipe's settings are not there."""
    return Broken(
        f"{key} is missing: add recipe/{recipe}/config/{recipe}.yaml; in a YAML file of yours "
        f"`pkg://recipe.{recipe}.config` and `pkg://recipe.common.config` under hydra.searchpath, and `{recipe}` under "
        "defaults, behind ppo_trainer"
    )


class Refused(ValueError):
    """Settings that cannot work, with every rule that they break."""

    def __init__(self, broken: Iterable[Broken]):
        self.broken = list(broken)
        super().__init__(_answer(self.broken))


def _answer(broken: list[Broken]) -> str:
    """The sentence about one broken rule; about several, a line each and what mends all of them together."""
    if len(broken) == 1:
        return str(broken[0])
    out, put = remedy(broken)
    lines = [f"{len(broken)} things cannot work", *(f"- {one}" for one in broken)]
    if out:
        lines += ["For all of them, leave these settings out:", *(f"    {key}" for key in out)]
    if put:
        head = "and put these in:" if out else "For all of them, put these behind the others:"
        lines += [head, " \\\n".join(f"    {shlex.quote(text)}" for text in put)]
    return "\n".join(lines)


def remedy(broken: Iterable[Broken]) -> tuple[list[str], list[str]]:
    """What the first ways out come to together: keys to leave out, and overrides; the last one of a key counts."""
    broken = list(broken)
    texts = [text for one in broken for way in one.ways[:1] for text in shlex.split(way)]
    put = {text.partition("=")[0].lstrip("+"): text for text in texts}
    return list(dict.fromkeys(key for one in broken for key in one.out)), list(put.values())


def setting(key: str, value: Any) -> str:
    """An override as it is typed in a shell: `a=1`, `a=null`, `'a="x,y"'`."""
    return shlex.quote(f"{key}={_literal(value)}")


def _literal(value: Any) -> str:
    """As hydra reads it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_literal, value)) + "]"
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/.][\w./@+-]*(://[\w./@+:-]+)?", value)
    if is_plain and value.lower() not in ("true", "false", "null", "nan", "inf"):
        return value
    if isinstance(value, str):  # hydra takes backslashes literally, but in front of quotes
        return '"' + re.sub(r'(\\*)("|$)', lambda end: end[1] * 2 + ('\\"' if end[2] else ""), value) + '"'
    return "null" if value is None else str(value)


def refuse(broken: Iterable[Broken]) -> None:
    """Raises Refused where there are any."""
    if told := list(broken):
        raise Refused(told)
