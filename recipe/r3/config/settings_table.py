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
"""`python -m recipe.r3.config.settings_table`: write what r3.yaml and README.md say of the settings, from r3_config.py.

Hydra composes files without importing the recipe, so the defaults have to stand in one; each is decided in the
dataclasses alone. Both files keep what stands around the lines BEGIN and END. `--check` writes nothing and ends with 1
where a file is not as it would be written.
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from recipe.r3.config import r3_config
from recipe.r3.config.r3_config import R3Config
from verl.base_config import BaseConfig

HERE = Path(__file__).parent
COMMAND = "python -m recipe.r3.config.settings_table"
BEGIN, END = f"written by {COMMAND}", "end of what it writes"
YAML, README, PAPER = HERE / "r3.yaml", HERE.parent / "README.md", HERE / "method" / "r3_paper.yaml"
PLACED = {"history.path": "${trainer.default_local_dir}/history.sqlite"}
"""Defaults that follow another setting of the run."""
TOLD = {
    "replay.reflected_unless": "`ATTEMPT_WORDS`",
    "reflection.template": "see `r3_config.py`",
    "reflection.template_cut_off": "see `r3_config.py`",
}
"""Values too long for a table."""


def defaults(cls: type[BaseConfig] = R3Config, prefix: str = "") -> dict[str, Any]:
    """The settings as r3.yaml has them."""
    node: dict[str, Any] = {"_target_": f"{cls.__module__}.{cls.__qualname__}"}
    for field in own_fields(cls):
        name = f"{prefix}{field.name}"
        is_group = isinstance(field.type, type) and is_dataclass(field.type)
        node[field.name] = defaults(field.type, f"{name}.") if is_group else PLACED.get(name, field.default)
    return node


def own_fields(cls: type[BaseConfig]) -> list:
    """Without `_target_`; what stands alone comes before the groups."""
    own = [field for field in fields(cls) if field.name != "_target_"]
    return sorted(own, key=lambda field: is_dataclass(field.type))


def notes(cls: type[BaseConfig]) -> dict[str, str]:
    """The first sentence of the text under each field of a dataclass."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    found = {}
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            text = " ".join(note.value.value.split())
            found[field.target.id] = re.split(r"(?<=\.)(?<!eq\.) ", text)[0]
    return found


class Dumper(yaml.SafeDumper):
    """PyYAML's, with texts of several lines line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _text)


def yaml_block() -> str:
    """The settings as lines of config/r3.yaml."""
    return textwrap.indent(yaml.dump(defaults(), Dumper=Dumper, sort_keys=False, width=110), " " * 4)


def table() -> str:
    """The settings as a table: default of r3, value of r3_paper where it has another, meaning."""
    paper = OmegaConf.load(PAPER).algorithm.r3
    lines = ["| setting under `algorithm.r3` | `r3` | `r3_paper` | meaning |", "|---|---|---|---|"]
    groups = [("", R3Config), *((f"{f.name}.", f.type) for f in own_fields(R3Config) if is_dataclass(f.type))]
    for prefix, cls in groups:
        texts = notes(cls)
        for field in own_fields(cls):
            if is_dataclass(field.type):
                continue
            name = f"{prefix}{field.name}"
            theirs = OmegaConf.select(paper, name, default=field.default)
            value = TOLD.get(name) or _spelled(PLACED.get(name, field.default))
            other = "" if theirs == field.default else _spelled(theirs)
            lines.append(f"| `{name}` | {value} | {other} | {texts[field.name].replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _spelled(value: Any) -> str:
    """As YAML has it."""
    return f"`{value}`" if isinstance(value, str) else yaml.safe_dump(value).split("\n")[0]


def filled(text: str, block: str) -> str:
    """`text` with `block` between the lines that hold BEGIN and END."""
    lines = text.splitlines(keepends=True)
    [begin], [end] = ([at for at, line in enumerate(lines) if mark in line] for mark in (BEGIN, END))
    return "".join([*lines[: begin + 1], block, *lines[end:]])


def written() -> dict[Path, str]:
    """What each file should hold."""
    return {path: filled(path.read_text(), block) for path, block in ((YAML, yaml_block()), (README, table()))}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=f"settings from {Path(r3_config.__file__).name}")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a file is not up to date")
    args = parser.parse_args(argv)
    stale = {path: text for path, text in written().items() if text != path.read_text()}
    for path, text in stale.items():
        if not args.check:
            path.write_text(text)
        print(f"{path.name}: {'not up to date' if args.check else 'written'}")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
