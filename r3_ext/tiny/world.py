"""A world of arithmetic: what the small model knows, what it believes wrongly, and how its answers fail.

Everything in a world is drawn from its seed: model, facts and mistakes, training and validation problems. The other
fields say how much there is of what R^3 repairs, and each has a neutral value at which there is nothing of it. As text:

    seed=3,mistaken=0,reflection=0.5        what is not named has its default

Or of lists to put in order (sorting.py), in which nothing is built in about mistakes and reflection; or of text games,
played in several turns (r3_ext/worlds):

    sorting,seed=3
    textworld,seed=3
"""

from dataclasses import dataclass, fields

LEVELS = 6
"""Most steps of a problem."""


@dataclass(frozen=True)
class World:
    seed: int = 0
    mistaken: float = 0.15
    """Share of the facts that are almost always told wrongly; 0: none, so that no problem is hard for good."""
    reflection: float = 1.0
    """What a reflection prompt is worth, from 0 (answers are no better under it) to 1 (nearly every failure goes)."""
    overlong: float = 0.75
    """Share of the answers that are written at length: right so far, and cut off where a problem has five steps or
    more; 0: none."""
    stuck: float = 0.15
    """Share of the answers that do not get past one of the steps and never end; 0: none."""
    train: str = "1-6"
    """Levels (steps) of the training problems, as LOWEST-HIGHEST."""
    val: str = "1-6"
    """Levels of the validation problems."""

    def __post_init__(self):
        _require(self.seed >= 0, "seed", "at least 0", self.seed)
        for name in ("mistaken", "reflection", "overlong", "stuck"):
            _require(0 <= (value := getattr(self, name)) <= 1, name, "from 0 to 1", value)
        for name in ("train", "val"):
            _require_levels(name, getattr(self, name), "steps", 1, LEVELS)

    def levels(self, split: str) -> range:
        """Numbers of steps of the problems of `train` or `val`."""
        return _levels(getattr(self, split))

    def __str__(self) -> str:
        """The text that `parse` reads: what differs from the default."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return ",".join(f"{name}={value}" for name, value in named.items() if value != getattr(World, name))


TEXTWORLD, SORTING = "textworld", "sorting"
SHORTEST, LONGEST = 2, 9
"""Lists of a world of sorting."""


@dataclass(frozen=True)
class Sorting:
    seed: int = 0
    """Draws the model and the lists."""
    train: str = "4-9"
    """Lengths of the lists to train on, as LOWEST-HIGHEST."""
    val: str = "4-9"
    """Lengths of the lists to validate on."""

    def __post_init__(self):
        _require(self.seed >= 0, "seed", "at least 0", self.seed)
        for name in ("train", "val"):
            _require_levels(name, getattr(self, name), "digits", SHORTEST, LONGEST)

    def levels(self, split: str) -> range:
        """Lengths of the lists of `train` or `val`."""
        return _levels(getattr(self, split))


@dataclass(frozen=True)
class TextWorld:
    seed: int = 0
    """Draws the games, and what the tiny model is shown of them."""

    def __post_init__(self):
        _require(self.seed >= 0, "seed", "at least 0", self.seed)


def is_text(text: str | None) -> bool:
    """Whether a world is one of text games."""
    return (text or "").partition(",")[0] == TEXTWORLD


KINDS = {TEXTWORLD: TextWorld, SORTING: Sorting}
"""By the first word of a text; any other text is of a `World`."""


def parse(text: str) -> World | Sorting | TextWorld:
    """The world of a text; "" is the default one.

    Raises:
        ValueError: a name that is no field, or a value that it cannot have, in one sentence.
    """
    kind = text.partition(",")[0]
    cls = KINDS.get(kind, World)
    known, values = {field.name: field.type for field in fields(cls)}, {}
    for part in filter(None, text.removeprefix(kind if kind in KINDS else "").split(",")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            raise ValueError(f"--world {text}: {part!r} is not one of {', '.join(f'{name}=...' for name in known)}")
        if name in values:
            raise ValueError(f"--world {text}: {name} is given twice")
        try:
            values[name] = known[name](value)
        except ValueError:
            raise ValueError(f"--world {name} must be a number, got {value!r}") from None
    return cls(**values)


def _levels(text: str) -> range:
    low, high = map(int, text.split("-"))
    return range(low, high + 1)


def _require_levels(name: str, text: str, of: str, least: int, most: int) -> None:
    low, _, high = text.partition("-")
    ok = low.isdecimal() and high.isdecimal() and least <= int(low) <= int(high) <= most
    _require(ok, name, f"two numbers of {of} from {least} to {most}, such as {least}-{most}", text)


def _require(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise ValueError(f"--world {name} must be {rule}, got {value!r}")
