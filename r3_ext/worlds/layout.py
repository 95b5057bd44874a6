"""What is in a small household game, drawn without making it: rooms, furniture, objects, what is to go where.

    level 1   take a thing and put it on something else
          2   the thing is in a closed container
          3   there are two of these
          4   two rooms
          5   three rooms, three containers

A layout is a value: equal layouts are the same game, so lists of games can be kept apart before one is made.
"""

import random
from collections import deque
from dataclasses import dataclass

DIRECTIONS = ("north", "east", "south", "west")
"""Clockwise: the opposite is two further."""


@dataclass(frozen=True)
class Nouns:
    rooms: tuple[str, ...]
    containers: tuple[str, ...]
    supporters: tuple[str, ...]
    objects: tuple[str, ...]

    @property
    def classes(self) -> tuple[tuple[str, ...], ...]:
        return self.rooms, self.containers, self.supporters, self.objects

    def __add__(self, other: "Nouns") -> "Nouns":
        return Nouns(*(ours + theirs for ours, theirs in zip(self.classes, other.classes, strict=True)))


NOUNS = Nouns(
    rooms=tuple("kitchen bedroom study bathroom garden attic cellar hallway".split()),
    containers=tuple("chest fridge drawer wardrobe crate safe toolbox basket".split()),
    supporters=tuple("table shelf counter desk bench bed".split()),
    objects=tuple("apple coin book cup lamp ring candle hammer towel lemon bottle brush spoon map doll rope".split()),
)
NEW_NOUNS = Nouns(
    rooms=tuple("pantry library garage balcony".split()),
    containers=tuple("trunk cabinet bucket suitcase".split()),
    supporters=tuple("couch stool dresser rack".split()),
    objects=tuple("pear hat pen soap fork glove vase drum".split()),
)
"""Of no game that is trained on."""
ALL_NOUNS = NOUNS + NEW_NOUNS


@dataclass(frozen=True)
class Level:
    rooms: int
    containers: int
    objects: int

    @property
    def supporters(self) -> int:
        return max(2, self.rooms)


LEVELS = {1: Level(1, 0, 2), 2: Level(1, 1, 2), 3: Level(1, 2, 3), 4: Level(2, 2, 3), 5: Level(3, 3, 4)}


@dataclass(frozen=True)
class Layout:
    level: int
    rooms: tuple[str, ...]
    ways: tuple[tuple[str, str, str], ...]
    """Room, direction, room; the way back is the opposite direction."""
    containers: tuple[tuple[str, str], ...]
    """Name and room; all are closed in the beginning."""
    supporters: tuple[tuple[str, str], ...]
    objects: tuple[tuple[str, str], ...]
    """Name, and the container or supporter that it is in or on. The first one is the one that is wanted."""
    start: str
    """Room."""
    target: str
    """The supporter on which the wanted object is to be put."""

    @property
    def wanted(self) -> str:
        return self.objects[0][0]

    @property
    def objective(self) -> str:
        return f"Put the {self.wanted} on the {self.target}."

    def solution(self) -> list[str]:
        """A shortest list of commands that solves it."""
        home = self.objects[0][1]
        room_of = dict(self.containers + self.supporters)
        opened = [f"open {home}"] if home in dict(self.containers) else []
        there, back = self._path(self.start, room_of[home]), self._path(room_of[home], room_of[self.target])
        take, put = f"take {self.wanted} from {home}", f"put {self.wanted} on {self.target}"
        return [*there, *opened, take, *back, put]

    def _path(self, start: str, end: str) -> list[str]:
        found, waiting = {start: []}, deque([start])
        while end not in found:
            here = waiting.popleft()
            for room, direction, other in self.ways:
                for a, way, b in ((room, direction, other), (other, opposite(direction), room)):
                    if a == here and b not in found:
                        found[b] = [*found[a], f"go {way}"]
                        waiting.append(b)
        return found[end]


def opposite(direction: str) -> str:
    return DIRECTIONS[(DIRECTIONS.index(direction) + 2) % 4]


def draw(level: int, nouns: Nouns, rng: random.Random) -> Layout:
    """A game of a level. Containers stand anywhere, every room has a supporter, and the target is not where the wanted
    object is."""
    size = LEVELS[level]
    rooms = rng.sample(nouns.rooms, size.rooms)
    containers = [(name, rng.choice(rooms)) for name in rng.sample(nouns.containers, size.containers)]
    names = rng.sample(nouns.supporters, size.supporters)
    supporters = [(name, rooms[number % size.rooms]) for number, name in enumerate(names)]
    wanted, *others = rng.sample(nouns.objects, size.objects)
    home = rng.choice(containers or supporters)[0]
    places = [(name, rng.choice(containers + supporters)[0]) for name in others]
    return Layout(
        level=level,
        rooms=tuple(rooms),
        ways=tuple(_ways(rooms, rng)),
        containers=tuple(containers),
        supporters=tuple(supporters),
        objects=((wanted, home), *places),
        start=rng.choice(rooms),
        target=rng.choice([name for name in names if name != home]),
    )


def _ways(rooms: list[str], rng: random.Random) -> list[tuple[str, str, str]]:
    """Each room is joined to one before it, in a direction that is free in both."""
    ways, free = [], {room: list(DIRECTIONS) for room in rooms}
    for number, room in enumerate(rooms[1:], start=1):
        other = rng.choice(rooms[:number])
        direction = rng.choice([way for way in free[other] if opposite(way) in free[room]])
        free[other].remove(direction)
        free[room].remove(opposite(direction))
        ways.append((other, direction, room))
    return ways
