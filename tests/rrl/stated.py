"""States, steps of training and what a state buffer holds, for its tests."""

import random
from dataclasses import astuple

import numpy as np

from recipe.rrl.states import FAILED, RIGHT, State, StateBuffer

QUERIES = ("a", "b", "c", "d")


def make_state(tokens, query="q", origin=FAILED, gain: float | None = 0.1, **changes) -> State:
    """Of an answer of twice its tokens; without a value where gain is None."""
    tokens = np.array(tokens, dtype="int32")
    values = {} if gain is None else {"value": 0.2 + gain, "start_value": 0.2}
    return State(query, tokens, origin, **{"length": 2 * len(tokens), "step": 1, **values, **changes})


def open_buffer(path, **changes) -> StateBuffer:
    return StateBuffer(str(path), **{"max_per_query": 3, "max_states": 9, **changes})


def held(buffer, **which) -> list[list[int]]:
    """Tokens of what can be drawn, in order."""
    return sorted(state.tokens.tolist() for state in buffer.load(buffer.candidates(**which)))


def ids(buffer) -> dict[tuple[int, ...], int]:
    """The rows of what can be drawn, by tokens."""
    return {tuple(state.tokens.tolist()): state.id for state in buffer.load(buffer.candidates())}


def contents(buffer) -> list[tuple]:
    """All that is known of what can be drawn, in order, but for the ids, which differ where training went back."""
    states = buffer.load(buffer.candidates())
    return [(state.tokens.tolist(), *astuple(state)[2:8], *astuple(state)[9:]) for state in states]


def dump(buffer) -> dict:
    """Everything that later steps can see."""
    draws = [buffer.draw(3, random.Random(seed), 0.1) for seed in range(5)]
    return {
        "states": contents(buffer),
        "draws": [[(state.query_id, state.tokens.tolist()) for state in draw] for draw in draws],
        "aimed": [buffer.aimed(query) for query in QUERIES],
        "metrics": buffer.metrics(),
    }


def random_states(step: int, number: int = 6) -> list[State]:
    """Of few queries and ids, so that some are there already; every second answer a right one without values."""
    rng, made = random.Random(step), []
    for _ in range(number):
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 3))]
        right = rng.random() < 0.5
        marks = {"origin": RIGHT, "gain": None, "aim": 0.5} if right else {"gain": rng.random()}
        made.append(make_state(tokens, rng.choice(QUERIES), step=step, **marks))
    return made


def train(buffer: StateBuffer, step: int) -> None:
    """A step: restart from what a seeded draw gives, ask the critic of some, then take over new states."""
    rng = random.Random(step)
    drawn = buffer.draw(3, rng, 0.1)
    buffer.tried([(state.id, 4, rng.choice((0, 0, 1, 4))) for state in drawn], step)
    listed = buffer.candidates()
    asked = rng.sample(listed, min(4, len(listed)))
    buffer.revalue([(each.id, rng.random(), rng.random() / 9) for each in asked], step)
    buffer.add(random_states(step), step)


def train_to(buffer: StateBuffer, last: int, pins=(), first: int = 1) -> dict[int, dict]:
    """Train the steps `first` to `last`; returns the dumps after each."""
    dumps = {}
    for step in range(first, last + 1):
        train(buffer, step)
        dumps[step] = dump(buffer)
        if step in pins:
            buffer.pin(step)
    return dumps
