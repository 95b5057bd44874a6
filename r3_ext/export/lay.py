"""`python -m r3_ext.export r3 DEST`: lay a recipe of this repository into a checkout of verl-recipe.

verl-recipe's recipes stand alone, so the part of recipe/common that the recipe reaches goes with it:

    recipe/NAME                         DEST/NAME
    what it reaches in recipe/common    DEST/NAME/common, and of its config DEST/NAME/config
    tests/common, tests/NAME            DEST/NAME/tests, DEST/NAME/tests/NAME

A test goes with it if everything that it imports does. In Markdown, what stands between `<!-- here only -->` and
`<!-- /here only -->` stays here. An earlier export in DEST is replaced, with what was edited there by hand.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

from r3_ext.cli import COMMANDS
from r3_ext.settings.compose import ROOT

PIN = "REQUIRED_VERL.txt"
SUFFIXES = ".py", ".yaml", ".sh", ".md", ".txt"
DOTTED = re.compile(r"\b(?:recipe|tests|r3_ext)(?:\.\w+)+|\br3_ext\b")
HERE_ONLY = re.compile(r"<!-- here only -->.*?<!-- /here only -->[ \t]*\n?", re.DOTALL)
COPY = "A copy of what several recipes share, made by `python -m r3_ext.export`."
"""Stands in the docstring of an export's common/__init__.py: a reader learns where it comes from, and so does this."""


@cache  # many tests lead to the same files
def names_in(text: str, suffix: str) -> frozenset[str]:
    """Dotted names that a file refers to: imports, inside functions too, and strings such as `pkg://recipe.common.x`.

    "from recipe.common import rows" gives {"recipe.common", "recipe.common.rows"}. Comments name nothing.
    """
    if suffix == ".yaml":
        return frozenset(DOTTED.findall("\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())))
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(DOTTED.findall(node.value))
    return frozenset(names)


@cache
def files_of(name: str, roots: tuple[Path, ...]) -> frozenset[Path]:
    """The file of the module that a dotted name leads to, and the __init__.py of the packages around it.

    "recipe.common.rows.Row" gives recipe/common/__init__.py and recipe/common/rows.py; a name of no file here, nothing.
    """
    found = set()
    for root in roots:
        path = root
        for part in name.split("."):
            path = path / part
            found |= {file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()}
            if not path.is_dir():
                break
    return frozenset(found)


def reached(files: Iterable[Path], roots: tuple[Path, ...]) -> set[Path]:
    """These files and all files of this repository that they lead to, over any number of steps."""
    found, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            names = names_in(file.read_text(), file.suffix) if file.suffix in (".py", ".yaml") else ()
            waiting += [other for name in names for other in files_of(name, roots)]
    return found


def shared_configs(folder: Path, shared: Path) -> set[Path]:
    """YAML files of `shared` that stand in the defaults of those in `folder`, and in their defaults in turn."""
    found, waiting = set(), list(folder.glob("*.yaml"))
    while waiting:
        entries = (yaml.safe_load(waiting.pop().read_text()) or {}).get("defaults", [])
        files = {shared / f"{entry}.yaml" for entry in entries if isinstance(entry, str)}
        new = {file for file in files if file.is_file() and not (folder / file.name).exists()} - found
        found |= new
        waiting += new
    return found


def plan(name: str, root: Path = ROOT) -> dict[Path, Path]:
    """Each file that goes, and its place below DEST/NAME. ValueError where it reaches more than common and itself."""
    recipe, common, tests = root / "recipe" / name, root / "recipe" / "common", root / "tests"
    own = {path for path in recipe.rglob("*") if path.suffix in SUFFIXES and "__pycache__" not in path.parts}
    configs = shared_configs(recipe / "config", common / "config")
    modules = reached(own | configs, (root,)) - {common / "config" / "__init__.py"}
    if outside := [str(file) for file in modules if not {recipe, common} & set(file.parents)]:
        raise ValueError(f"recipe/{name} must stand on recipe/common and verl alone, but names {', '.join(outside)}")
    places = {file: file.relative_to(recipe) for file in own}
    shared = modules | configs
    # What lies in recipe/common/config lies beside the recipe's own settings there: one place to search.
    places |= {file: Path("config", file.name) for file in shared if file.parent == common / "config"}
    places |= {file: Path("common", file.relative_to(common)) for file in shared - places.keys()}
    if len(set(places.values())) < len(places):
        raise ValueError(f"recipe/{name}/config and recipe/common/config hold files of one name: rename one")
    homes = {tests / "common": Path("tests"), tests / name: Path("tests", name)}
    candidates = {tests / "conftest.py": Path("tests", "conftest.py")}
    candidates |= {file: place / file.name for home, place in homes.items() for file in home.glob("*.py")}
    may_go = candidates.keys() | places.keys() | {common / "config" / "__init__.py"}
    return places | {file: to for file, to in candidates.items() if reached([file], (root, *homes)) <= may_go}


def rewritten(text: str, name: str, suffix: str) -> str:
    """The text with the names that it has in the export.

    `from recipe.common.rows import Row` becomes `from recipe.NAME.common.rows import Row`. The configs of recipe/common
    lie beside those of the recipe then, so pkg://recipe.common.config is no place to search any more. ValueError where
    marks do not come in pairs.
    """
    if suffix == ".md":
        text = HERE_ONLY.sub("", text)
        if "here only -->" in text:
            raise ValueError("`<!-- here only -->` and `<!-- /here only -->` must come in pairs")
    text = re.sub(r"(\n\s*- | and )pkg://recipe\.common\.config\b", "", text)
    text = re.sub(r"\brecipe([./])common\1config\b", rf"recipe\1{name}\1config", text)
    text = re.sub(r"(?<![\w/])tests/common/", "tests/", text)
    return re.sub(r"\brecipe([./])common\b", rf"recipe\1{name}\1common", text)


def left_behind(text: str, there: Path, root: Path = ROOT) -> list[str]:
    """Lines, with their numbers, that name what only this repository has: its commands, files not `there`."""
    folders = "|".join(path.name for path in root.iterdir() if path.is_dir() and path.name != "recipe")
    commands = re.compile(rf"\br3_ext\b|\br3 ({'|'.join(COMMANDS)})\b")
    paths = re.compile(rf"(?<![\w/])(?:\.\./)*(?:{folders})/\w[\w/.]*")
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if COPY not in line
        and (commands.search(line) or any(not (there / path.rstrip(".")).exists() for path in paths.findall(line)))
    ]


def check_destination(folder: Path, name: str) -> None:
    """Raises ValueError where `folder` is no checkout of verl-recipe, or holds another recipe of this name."""
    project = folder / "pyproject.toml"
    if not (project.is_file() and "[tool.ruff" in project.read_text() and any(folder.glob(f"*/{PIN}"))):
        raise ValueError(
            "DEST must be a checkout of verl-recipe (pyproject.toml with [tool.ruff], folders with REQUIRED_VERL.txt), "
            f"got {folder}: git clone https://github.com/verl-project/verl-recipe.git"
        )
    mark = folder / name / "common" / "__init__.py"
    if (folder / name).exists() and not (mark.is_file() and COPY in mark.read_text()):
        raise ValueError(f"{folder / name} is there and no export of this command: move it away, or delete it")


def write(name: str, places: dict[Path, Path], folder: Path) -> list[Path]:
    """Write the export into folder/NAME, in place of an earlier one; returns its files."""
    licence = "".join((ROOT / "recipe" / name / "__init__.py").read_text().splitlines(keepends=True)[:13])
    places = {file: folder / name / place for file, place in places.items()}
    texts = {to: rewritten(file.read_text(), name, file.suffix) for file, to in places.items()}
    mark = folder / name / "common" / "__init__.py"
    texts[mark] = texts[mark].rstrip().removesuffix('"""') + f"\n\n{COPY}\n" + '"""\n'
    shutil.rmtree(folder / name, ignore_errors=True)
    for file, to in places.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        headless = to.suffix == ".py" and not texts[to].startswith("# Copyright")
        to.write_text(licence + texts[to] if headless else texts[to])
        shutil.copymode(file, to)
    return sorted(texts)


def lint(folder: Path, name: str) -> int:
    """Put imports and lines in order again, which longer names upset; returns 1 if DEST's rules find anything then."""
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "-q", "--select", "I", "--fix", name], cwd=folder)
    subprocess.run([*ruff, "format", "-q", name], cwd=folder)
    found = subprocess.run([*ruff, "check", name], cwd=folder).returncode
    return found or subprocess.run([*ruff, "format", "--check", name], cwd=folder).returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m r3_ext.export", description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="NAME", choices=[path.parent.name for path in ROOT.glob(f"recipe/*/{PIN}")])
    parser.add_argument("folder", metavar="DEST", type=Path, help="checkout of verl-recipe")
    args = parser.parse_args(argv)
    try:
        check_destination(args.folder, args.name)
        places = plan(args.name)
        files = write(args.name, places, args.folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tests = {file for home in ("common", args.name) for file in (ROOT / "tests" / home).glob("*.py")}
    for test in sorted(tests - places.keys()):
        print(f"stays here, for it needs what does not go: {test.relative_to(ROOT)}")
    for file in files:
        for line in left_behind(file.read_text(), args.folder / args.name):
            print(f"names what is not there: {file.relative_to(args.folder)}:{line}")
    print(f"{len(files)} files in {args.folder / args.name}")
    return lint(args.folder, args.name)
