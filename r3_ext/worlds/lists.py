"""Lists of tasks: which games are trained on, which are only played; as verl's rows, and as a text to compare.

    train       games of the levels that are trained on
    val         other games of these levels, of the same nouns
    new_names   of these levels, with nouns that no training game has
    new_level   of a level that is not trained on

No game is in two lists. A list's digest is that of its games, wherever they lie: equal digests are equal tasks.

    python -m r3_ext.worlds.lists --cache .cache
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from r3_ext.data import write
from r3_ext.host.files import sha256, write_text
from r3_ext.worlds.games import draw_layouts, game_files
from r3_ext.worlds.layout import LEVELS, NEW_NOUNS, NOUNS, Layout
from recipe.hgpo.environments.textworld_games import digest

WORLD = "textworld"
AGENT_LOOP = "session"
"""The agent loop that plays these rows."""
ASKS_FOR_TAGS = (
    "You play a text game, one command a turn. A message shows your task, your last turns, what you see now, and the "
    "commands that the game takes now. Think about it, then give one of these commands between <action> and </action>."
)
"""System message for a model that was not taught here: `tag: action` of the sessions' settings takes such answers."""
TRAIN, VAL, NEW_NAMES, NEW_LEVEL = SPLITS = ("train", "val", "new_names", "new_level")
SCHEMA = pa.schema(
    [
        *write.SCHEMA,
        ("agent_name", pa.string()),
        (
            "task",
            pa.struct(
                [
                    *((name, pa.string()) for name in ("world", "game", "sha256")),
                    *((name, pa.int64()) for name in ("seed", "level", "solution_steps")),
                ]
            ),
        ),
    ]
)


@dataclass(frozen=True)
class Games:
    seed: int = 0
    """Draws all of them."""
    train: int = 96
    """Games that are trained on."""
    val: int = 24
    """Games of each other list."""
    levels: tuple[int, ...] = (2, 3, 4)
    """Levels that are trained on, as often each."""
    new_level: int = 5

    def __post_init__(self):
        for name in ("train", "val"):
            if getattr(self, name) < 1:
                raise ValueError(f"number of games ({name}) must be at least 1, got {getattr(self, name)}")
        if not self.levels or not {*self.levels, self.new_level} <= LEVELS.keys():
            raise ValueError(f"levels must be from 1 to {max(LEVELS)}, got {self.levels} and {self.new_level}")
        if self.new_level in self.levels:
            raise ValueError(f"new_level must not be trained on, got {self.new_level} among {self.levels}")


def session_row(task: dict, kind: str, objective: str, split: str, index: int, system: str) -> dict:
    """A row of a game: `task` with its world, game and sha256, of which `kind` is told apart in validation."""
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "query_id": task["sha256"][:16],
        "data_source": f"{task['world']}_{kind}",
        "prompt": [*messages, {"role": "user", "content": objective}],
        "ability": "agent",
        # The environment judges. Games may have the same objective: the reference tells them apart.
        "reward_model": {"style": "rule", "ground_truth": task["sha256"]},
        "extra_info": {"index": index, "split": split, "source": task["world"]},
        "agent_name": AGENT_LOOP,
        "task": task,
    }


def list_digest(games: Iterable[str]) -> str:
    """Of a list, from the digests of its games in their order."""
    return sha256("\n".join(games))


@dataclass(frozen=True)
class Task:
    """A game of a list."""

    layout: Layout
    game: Path
    sha256: str
    seed: int
    """Of the lists that it was drawn for."""

    def row(self, split: str, index: int, system: str = "") -> dict:
        level = self.layout.level
        task = {
            "world": WORLD,
            "game": str(self.game),
            "sha256": self.sha256,
            "seed": self.seed,
            "level": level,
            "solution_steps": len(self.layout.solution()),
        }
        kind = f"level{level}" if split in (TRAIN, VAL) else f"{split}_level{level}"
        return session_row(task, kind, self.layout.objective, split, index, system)


class TaskList(NamedTuple):
    split: str
    tasks: list[Task]

    @property
    def digest(self) -> str:
        return list_digest(task.sha256 for task in self.tasks)

    def rows(self, system: str = "") -> list[dict]:
        return [task.row(self.split, index, system) for index, task in enumerate(self.tasks)]

    def __str__(self) -> str:
        levels = Counter(task.layout.level for task in self.tasks)
        steps = [len(task.layout.solution()) for task in self.tasks]
        games = ", ".join(f"{count} of level {level}" for level, count in sorted(levels.items()))
        return f"{self.split}: {games}; {min(steps)} to {max(steps)} steps; sha256 {self.digest}"


class Prepared(NamedTuple):
    lists: dict[str, TaskList]
    train: Path
    val: Path
    """Rows of `val`."""
    out_of_distribution: Path
    """Rows of `new_names` and `new_level`."""


def draw_lists(games: Games) -> dict[str, list[Layout]]:
    """What is in the games of each list, without making them.

    Raises:
        ValueError: there are not so many games of a level.
    """
    rng, taken = random.Random(f"{WORLD}/{games.seed}"), set()
    return {
        TRAIN: draw_layouts(games.train, games.levels, NOUNS, rng, taken),
        VAL: draw_layouts(games.val, games.levels, NOUNS, rng, taken),
        NEW_NAMES: draw_layouts(games.val, games.levels, NEW_NOUNS, rng, taken),
        NEW_LEVEL: draw_layouts(games.val, [games.new_level], NOUNS, rng, taken),
    }


def task_lists(games: Games, cache: Path) -> dict[str, TaskList]:
    """All lists of these settings; games that are missing in the cache are made."""
    drawn = draw_lists(games)
    layouts = [layout for split in SPLITS for layout in drawn[split]]
    files = dict(zip(layouts, game_files(layouts, (cache / "games").absolute()), strict=True))
    return {
        split: TaskList(split, [Task(each, files[each], digest(files[each]), games.seed) for each in drawn[split]])
        for split in SPLITS
    }


def prepare(cache: str | Path, games: Games, system: str = "") -> Prepared:
    """Games, lists and rows of these settings. Beside the rows, tasks.json has the lists as they are, to be read.

    Args:
        system: first message of each row; "": none.

    Raises:
        ValueError: there are not so many games of a level.
    """
    cache = Path(cache)
    lists = task_lists(games, cache)
    folder = cache / f"{WORLD}-{sha256(*(each.digest for each in lists.values()), *filter(None, [system]))[:16]}"
    split = {"train": (TRAIN,), "val": (VAL,), "out_of_distribution": (NEW_NAMES, NEW_LEVEL)}
    paths = {name: folder / f"{name}.parquet" for name in split}
    for name, parts in split.items():
        write_rows(paths[name], [row for part in parts for row in lists[part].rows(system)])
    told = {
        each.split: {"sha256": each.digest, "tasks": [row["task"] for row in each.rows()]} for each in lists.values()
    }
    write_text(folder / "tasks.json", json.dumps({"games": asdict(games), **told}, indent=1) + "\n")
    return Prepared(lists, **paths)


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    write.write_table(path, pa.Table.from_pylist(list(rows), schema=SCHEMA))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", required=True, help="folder for games and rows")
    for name in ("seed", "train", "val"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Games, name), help="default: %(default)s")
    args = parser.parse_args()
    try:
        made = prepare(args.cache, Games(args.seed, args.train, args.val))
    except ValueError as error:
        parser.error(str(error))
    for each in made.lists.values():
        print(each)
    for path in (made.train, made.val, made.out_of_distribution):
        print(path)


if __name__ == "__main__":
    main()
