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
"""What a recipe's YAML and README say of its settings, written from its dataclasses.

Hydra composes files without importing the recipe, so the defaults have to stand in one; each is decided in the
dataclasses alone. Both files keep what stands around the lines with a block's marks.
"""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from verl.base_config import BaseConfig


@dataclass(frozen=True)
class Block:
    """The settings of one dataclass, groups of settings in it included.

    Args:
        key: where they stand in the config.
        others: files of other methods that set some of them, by the method's name; a column each.
        placed: defaults that follow another setting of the run, by key below `key`.
        told: what a table says of values too long for it.
    """

    cls: type[BaseConfig]
    key: str
    method: str
    others: Mapping[str, Path] = field(default_factory=dict)
    placed: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)

    def marks(self, command: str) -> tuple[str, str]:
        """What the lines hold between which the settings stand."""
        return f"{self.key}: written by {command}", f"{self.key}: end of what it writes"

    def defaults(self) -> dict[str, Any]:
        """The settings as the YAML file has them."""
        return self._defaults(self.cls, "")

    def _defaults(self, cls: type, prefix: str) -> dict[str, Any]:
        node: dict[str, Any] = {"_target_": f"{cls.__module__}.{cls.__qualname__}"}
        for one in own_fields(cls):
            name = f"{prefix}{one.name}"
            is_group = isinstance(one.type, type) and is_dataclass(one.type)
            node[one.name] = self._defaults(one.type, f"{name}.") if is_group else self.placed.get(name, one.default)
        return node

    def yaml_lines(self) -> str:
        indent = " " * 2 * len(self.key.split("."))
        return textwrap.indent(yaml.dump(self.defaults(), Dumper=Dumper, sort_keys=False, width=110), indent)

    def table(self) -> str:
        """The settings as a table: default of the method, value of each other where it has another, meaning."""
        others = {name: OmegaConf.select(OmegaConf.load(path), self.key) for name, path in self.others.items()}
        heads = [f"setting under `{self.key}`", *(f"`{name}`" for name in (self.method, *others)), "meaning"]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        groups = [("", self.cls), *((f"{f.name}.", f.type) for f in own_fields(self.cls) if is_dataclass(f.type))]
        for prefix, cls in groups:
            texts = notes(cls)
            for one in own_fields(cls):
                if is_dataclass(one.type):
                    continue
                name = f"{prefix}{one.name}"
                cells = [f"`{name}`", self.told.get(name) or _spelled(self.placed.get(name, one.default))]
                for node in others.values():
                    theirs = one.default if node is None else OmegaConf.select(node, name, default=one.default)
                    cells.append("" if theirs == one.default else _spelled(theirs))
                lines.append(f"| {' | '.join([*cells, texts[one.name].replace('|', chr(92) + '|')])} |")
        return "\n".join(lines) + "\n"


def own_fields(cls: type) -> list:
    """Without `_target_`; what stands alone comes before the groups."""
    own = [one for one in fields(cls) if one.name != "_target_"]
    return sorted(own, key=lambda one: is_dataclass(one.type))


def notes(cls: type) -> dict[str, str]:
    """The first sentence of the text under each field of a dataclass."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for one, note in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            assert isinstance(one.target, ast.Name)
            text = " ".join(str(note.value.value).split())
            found[one.target.id] = re.split(r"(?<=\.)(?<!eq\.) ", text)[0]
    return found


class Dumper(yaml.SafeDumper):
    """PyYAML's, with texts of several lines line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _text)


def _spelled(value: Any) -> str:
    """As YAML has it."""
    return f"`{value}`" if isinstance(value, str) else yaml.safe_dump(value).split("\n")[0]


def filled(text: str, block: str, begin: str, end: str) -> str:
    """`text` with `block` between the lines that hold the marks."""
    lines = text.splitlines(keepends=True)
    [first], [last] = ([at for at, line in enumerate(lines) if mark in line] for mark in (begin, end))
    return "".join([*lines[: first + 1], block, *lines[last:]])


def written(blocks: Iterable[tuple[Block, Path]], command: str, readme: Path) -> dict[Path, str]:
    """What each file should hold. blocks: each with its YAML file."""
    texts: dict[Path, str] = {}
    for block, settings in blocks:
        for path, lines in ((settings, block.yaml_lines()), (readme, block.table())):
            texts[path] = filled(texts.get(path) or path.read_text(), lines, *block.marks(command))
    return texts


def main(argv: list[str], command: str, texts: dict[Path, str]) -> int:
    """Write the files; with `--check` write nothing, and return 1 where one is not as it would be written."""
    parser = argparse.ArgumentParser(prog=command, description="settings from their dataclasses")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a file is not up to date")
    args = parser.parse_args(argv)
    stale = {path: text for path, text in texts.items() if text != path.read_text()}
    for path, text in stale.items():
        if not args.check:
            path.write_text(text)
        print(f"{path.name}: {'not up to date' if args.check else 'written'}")
    return int(args.check and bool(stale))
