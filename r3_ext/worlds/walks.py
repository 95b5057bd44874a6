"""What a small model is taught before it acts by itself: states of games, and what an expert does in them.

The expert is TextWorld's own planner. It walks through the games of a list, and goes astray now and then, so that there
are states off its way. A few compiled games are as many worlds as are wanted: in every example the names are permuted
within their kind, and the directions are turned. Without that a small model learns the games by heart.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import textworld

from r3_ext.host.files import key_of, write_text
from r3_ext.worlds.games import in_processes
from r3_ext.worlds.layout import ALL_NOUNS, DIRECTIONS, Nouns
from r3_ext.worlds.lists import TaskList
from recipe.hgpo.environments.textworld_games import TextWorldGame
from recipe.hgpo.prompts import prompt_text

VERSION = 1
"""Part of the cache key: raise it when a change of the code changes the walks."""


@dataclass(frozen=True)
class Walks:
    """How the expert walks."""

    seed: int = 0
    of_a_game: int = 6
    expert_share: float = 0.6
    """Of the turns; in the others it takes any command."""
    most_turns: int = 10


class State(NamedTuple):
    task: str
    memory: list[tuple[str, str]]
    """Observation and command of all earlier turns."""
    observation: str
    commands: list[str]
    best: str
    """What the expert does here."""


class Expert(TextWorldGame):
    """A game that tells how it is won."""

    @classmethod
    def infos(cls) -> textworld.EnvInfos:
        infos = super().infos().copy()
        infos.policy_commands = True
        return infos

    def best(self) -> str:
        """The next command on a way to the end: from every state of these games there is one."""
        return self.state.policy_commands[0]


def walk_states(tasks: TaskList, walks: Walks, cache: Path) -> list[State]:
    """The states of all walks through the games of a list, in their order; kept in the cache."""
    inputs = {"version": VERSION, "games": tasks.digest, **asdict(walks)}
    file = cache / f"walks-{key_of(inputs)}.json"
    if not file.exists():
        asked = [(task.game, task.layout.objective, walks, f"{walks.seed}/{task.sha256}") for task in tasks.tasks]
        found = [state for states in in_processes(walk, asked, "walking") for state in states]
        write_text(file, json.dumps(found))
    return [
        State(task, [(seen, command) for seen, command in memory], *rest)
        for task, memory, *rest in json.loads(file.read_text())
    ]


def walk(game: Path, objective: str, walks: Walks, seed: str) -> list[State]:
    """The states of the walks through one game, before the end."""
    rng, states = random.Random(seed), []
    for _ in range(walks.of_a_game):
        played = Expert({"game": str(game)})
        observation, memory = played.reset(), []
        while observation.commands and len(memory) < walks.most_turns:
            best = played.best()
            states.append(State(objective, list(memory), observation.text, list(observation.commands), best))
            command = best if rng.random() < walks.expert_share else rng.choice(observation.commands)
            memory.append((observation.text, command))
            observation = played.step(command).observation
        played.close()
    return states


def example(state: State, rng: random.Random, memory: int, skill: float, nouns: Nouns = ALL_NOUNS) -> tuple[str, str]:
    """A prompt and the command that answers it, in a world of its own names.

    Args:
        memory: earlier turns that the prompt shows.
        skill: probability of the expert's command; else it is any that is admissible.
        nouns: what the names are drawn from.
    """
    command = state.best if rng.random() < skill else rng.choice(state.commands)
    renamed = renaming(rng, nouns)
    shown = state.memory[len(state.memory) - memory :] if memory < len(state.memory) else state.memory
    prompt = prompt_text(
        renamed(state.task),
        [(renamed(seen), renamed(done)) for seen, done in shown],
        renamed(state.observation),
        sorted(map(renamed, state.commands)),  # as the game would list them
    )
    return prompt, renamed(command)


def renaming(rng: random.Random, nouns: Nouns = ALL_NOUNS) -> Callable[[str], str]:
    """A function of texts that permutes the names of each kind and turns the directions.

    With apple -> coin and chest -> oven, "An apple is in the chest." becomes "A coin is in the oven."
    """
    turned = rng.randrange(4)
    new = {way: DIRECTIONS[(number + turned) % 4] for number, way in enumerate(DIRECTIONS)}
    for names in nouns.classes:
        new |= zip(names, rng.sample(names, len(names)), strict=True)
    new |= {old.capitalize(): name.capitalize() for old, name in new.items()}
    pattern = re.compile(rf"(?:\b([Aa])n? )?\b({'|'.join(new)})\b")

    def replaced(found: re.Match) -> str:
        article, name = found[1], new[found[2]]
        return name if article is None else f"{article}{'n' if name[0] in 'aeiou' else ''} {name}"

    return lambda text: pattern.sub(replaced, text)


def words(nouns: Nouns = ALL_NOUNS) -> list[str]:
    """Every name and direction that an example may hold, for a tokenizer's vocabulary."""
    return [*DIRECTIONS, *(name for names in nouns.classes for name in names)]
