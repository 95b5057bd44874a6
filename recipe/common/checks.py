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
"""Checks of settings, as every recipe makes them: a value against its rule, a group of settings as a dataclass."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def require(ok: bool, key: str, rule: str, value: Any) -> None:
    """Raise ValueError("<full key> must <rule>, got <value>") unless `ok`."""
    if not ok:
        raise ValueError(f"{key} must {rule}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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


def leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Full key and value of every setting below `key`: {"a": {"b": 1}} below `x` gives ("x.a.b", 1)."""
    if not isinstance(node, Mapping):
        yield key, node
        return
    for name, value in node.items():
        yield from leaves(value, f"{key}.{name}")


def raise_first(broken: Iterable[str]) -> None:
    """Raise ValueError with the first of the messages about broken rules, if there is one."""
    for message in broken:
        raise ValueError(message)
