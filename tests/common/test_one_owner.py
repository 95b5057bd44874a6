"""What has one owner: TransferQueue's calls, and the form of keys and uids."""

import ast
import re
from pathlib import Path

import pytest

import recipe.common

COMMON = Path(recipe.common.__file__).parent
ALL = sorted(COMMON.parent.rglob("*.py"))
SOURCES = [file for file in ALL if "tests" not in file.relative_to(COMMON.parent).parts]
"""In an export the tests lie in the recipe's folder."""


def imports_of(source: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(source.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(COMMON.parent)))
def test_only_one_module_calls_the_queue_and_only_one_takes_keys_apart(source):
    if source != COMMON / "queue.py":
        assert not {name for name in imports_of(source) if name.split(".")[0] == "transfer_queue"}
    if source != COMMON / "rows.py":
        assert not re.search(r"""split\(["']_["']\)|["']#(replay|ranked)["']""", source.read_text())
