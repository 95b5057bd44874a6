"""Game files of layouts: made once, by processes beside each other, and kept by what they are made of.

A game takes 0.8 CPU seconds, most of it in Inform 7's compilers, which TextWorld brings along, and 400 KB.
"""

import multiprocessing
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import track
from textworld import GameMaker, GameOptions
from textworld.generator import compile_game
from textworld.generator.game import Event, Game, Quest

from r3_ext.host.files import key_of
from r3_ext.host.hardware import core_count
from r3_ext.worlds.layout import Layout, Nouns, draw, opposite
from recipe.hgpo.environments.textworld_games import TextWorldGame

VERSION = 1
"""Part of a game's name: raise it when a change of the code changes what is made of a layout."""
_MOST_REPEATS = 1000


def draw_layouts(
    count: int, levels: Iterable[int], nouns: Nouns, rng: random.Random, taken: set[Layout]
) -> list[Layout]:
    """Layouts that are not in `taken`, to which they are added; levels in turn.

    Raises:
        ValueError: there are not so many.
    """
    levels, found, repeats = list(levels), [], 0
    while len(found) < count:
        layout = draw(levels[len(found) % len(levels)], nouns, rng)
        repeats = repeats + 1 if layout in taken else 0
        if repeats == _MOST_REPEATS:
            raise ValueError(f"number of games must be at most {len(found)} for levels {levels}, got {count}")
        if layout not in taken:
            taken.add(layout)
            found.append(layout)
    return found


def game_files(layouts: list[Layout], folder: Path) -> list[Path]:
    """The .z8 file of each layout, with its .json beside it; those that are missing are made."""
    paths = [folder / f"level{layout.level}-{_name(layout)}.z8" for layout in layouts]
    missing = [(layout, path) for layout, path in zip(layouts, paths, strict=True) if not path.exists()]
    in_processes(make, missing, "making games")
    return paths


def _name(layout: Layout) -> str:
    return key_of({"version": VERSION, "textworld": version("textworld"), **asdict(layout)})


def in_processes(function: Callable, arguments: list[tuple], title: str) -> list[Any]:
    """function(*arguments) of each, in their order, on all cores. TextWorld is not made for threads."""
    if not arguments:
        return []
    workers = min(core_count(), len(arguments))
    # A fork of a process that has torch's threads may wait for ever; a new one loads TextWorld alone.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(function, *each) for each in arguments]
        return [answer.result() for answer in track(asked, title)]


def make(layout: Layout, path: Path) -> None:
    """Compile one game and see that its solution solves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as folder:
        partial = Path(folder, path.name)
        options = GameOptions()
        options.seeds, options.path = 1, str(partial)
        with _home(folder):
            compile_game(build(layout, options), options)
        assert solves(layout, partial), f"{layout} is not solved by {layout.solution()}"
        for suffix in (".json", ".z8"):  # the game is there once its .z8 is
            os.replace(partial.with_suffix(suffix), path.with_suffix(suffix))


@contextmanager
def _home(folder: str) -> Iterator[None]:
    """Inform 7 writes its documentation to the user's home, or where it stands."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        os.environ.pop("HOME") if before is None else os.environ.update(HOME=before)


def build(layout: Layout, options: GameOptions) -> Game:
    """TextWorld's game of a layout, with short texts."""
    maker = GameMaker(options)
    things = {name: maker.new_room(name) for name in layout.rooms}
    for room, direction, other in layout.ways:
        maker.connect(getattr(things[room], direction), getattr(things[other], opposite(direction)))
    for kind, placed in (("c", layout.containers), ("s", layout.supporters), ("o", layout.objects)):
        for name, place in placed:
            things[name] = maker.new(type=kind, name=name)
            things[place].add(things[name])
    for name, _ in layout.containers:
        things[name].add_property("closed")
    for name, thing in things.items():
        thing.infos.desc = f"You are in the {name}." if name in layout.rooms else f"A {name}."
    maker.set_player(things[layout.start])
    goal = Event(conditions={maker.new_fact("on", things[layout.wanted], things[layout.target])})
    maker.quests = [Quest(win_events=[goal])]
    maker.set_walkthrough(layout.solution())  # without it TextWorld's planner knows no way, from no state
    game = maker.build()
    game.objective = layout.objective
    game.grammar.options.names_to_exclude = []  # a set's order, unlike in every process, and of no use any more
    return game


def solves(layout: Layout, path: Path) -> bool:
    """Whether the layout's solution wins the game, every command of it admissible in its turn."""
    game = TextWorldGame({"game": str(path)})
    observation, won = game.reset(), False
    for command in layout.solution():
        if won or command not in observation.commands:
            return False
        step = game.step(command)
        observation, won = step.observation, step.won
    game.close()
    return won
