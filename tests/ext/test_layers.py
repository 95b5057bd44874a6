"""One rule holds the house together: command -> settings -> trainer hooks -> formulas, and nothing runs back.

r3_ext -> recipe/NAME -> recipe/common -> verl. Within each of them a room may use the rooms below it.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from r3_ext.recipes import RECIPES
from r3_ext.settings.compose import ROOT

FLOORS = (
    # From the top: a room uses its own floor and those below. The first name stands for the files beside the rooms.
    ("", "export"),
    ("r3", "hgpo", "rrl", "study"),
    ("rehearse",),
    ("run", "evaluate"),
    ("report",),
    ("doctor", "record"),
    ("settings",),
    ("recipes", "tiny", "worlds", "cpu"),
    ("data",),
    ("host",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    files = [file for top in ("recipe", "r3_ext") for file in (ROOT / top).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


KNOWN = modules()


def imports_of(file: Path) -> Iterator[str]:
    """Modules of this repository that a file imports, within functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in KNOWN)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if (name := full if full in KNOWN else node.module) in KNOWN:
                    yield name


ARROWS = {name: set(imports_of(file)) - {name} for name, file in KNOWN.items()}


def circle(arrows: Mapping[str, set[str]]) -> list[str] | None:
    """A way along the arrows that comes back to its beginning."""
    done, way = set(), []

    def walk(node: str) -> list[str] | None:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return None
        way.append(node)
        found = next(filter(None, map(walk, sorted(arrows.get(node, ())))), None)
        way.pop()
        done.add(node)
        return found

    return next(filter(None, map(walk, sorted(arrows))), None)


def recipe_of(module: str) -> str:
    return module.split(".")[1]


def room_of(module: str) -> str:
    """The folder of a module, within r3_ext or recipe."""
    return KNOWN[module].parent.relative_to(ROOT).as_posix()


def floor_of(module: str) -> int:
    parts = module.split(".")[1:]
    name = parts[0] if parts else ""
    return FLOOR_OF[name if name in FLOOR_OF else ""]


def test_a_circle_is_found_and_a_tree_has_none():
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_file_imports_itself_in_a_round():
    assert circle(ARROWS) is None


def test_no_room_needs_a_room_that_needs_it():
    rooms = defaultdict(set)
    for module, targets in ARROWS.items():
        rooms[room_of(module)] |= {room_of(target) for target in targets} - {room_of(module)}
    assert circle(rooms) is None


@pytest.mark.parametrize("module", [name for name in KNOWN if name.startswith("recipe.")])
def test_a_recipe_uses_itself_and_what_is_common(module):
    for target in ARROWS[module]:
        assert target.startswith("recipe."), "recipes never import the shell"
        assert recipe_of(target) in ("common", recipe_of(module))


@pytest.mark.parametrize("module", [name for name in KNOWN if name.startswith("r3_ext.")])
def test_the_shell_imports_downwards(module):
    for target in ARROWS[module]:
        if target.startswith("r3_ext."):
            assert floor_of(target) >= floor_of(module), f"{module} imports {target}, which stands above it"


ROOMS_OF_ONE_RECIPE = {
    "r3",
    "hgpo",
    "rrl",
    "doctor",  # tries whether a history can be locked where it will lie
    "study",  # its arms are settings of R^3
    "tiny",  # teaches a model to read reflection prompts
    "evaluate",  # ranks recorded answers by R^3's entropies
    "worlds",  # makes games for the environments of HGPO
}


def test_only_the_tools_of_one_recipe_know_it_by_name():
    """Elsewhere a recipe is what the table says."""
    names = {recipe.name for recipe in RECIPES.values()} - {"baseline"}
    for module, targets in ARROWS.items():
        if not module.startswith("r3_ext."):
            continue
        for target in targets:
            own = recipe_of(target) if target.startswith("recipe.") else "common"
            assert own not in names or module.split(".")[1] in ROOMS_OF_ONE_RECIPE, f"{module} -> {target}"
