"""What a state key costs and gives: how many turns find a partner at each level, and how many keys stand for several
true states.

    python -m tests.benchmarks.state_keys --cache DIR [--tasks 24] [--sessions 8] [--turns 10] [--seed 0]

Sessions choose among the listed commands at random, as a policy does that knows nothing; one that has learned meets
itself more often. Games are made in the cache. `alone` is the share of groups of one session, at level 0.
"""

import argparse
import random
from collections import defaultdict
from pathlib import Path

from r3_ext.worlds.lists import TRAIN, Games, task_lists
from recipe.hgpo.core_algos import context_groups
from recipe.hgpo.environments.base import STATE_KEYS, Observation, state_key
from recipe.hgpo.environments.textworld_games import TextWorldGame
from recipe.hgpo.turns import level_metrics

DEPTH = 2


def walk(task: dict, turns: int, rng: random.Random) -> list[Observation]:
    """What a session saw before each of its turns."""
    game = TextWorldGame(task)
    seen = [game.reset()]
    while len(seen) < turns:
        step = game.step(rng.choice(seen[-1].commands or ()))
        if step.done:
            break
        seen.append(step.observation)
    game.close()
    return seen


def several(sessions: dict[tuple[int, int], list[Observation]], kind: str) -> float:
    """Share of the keys, each of one task, that stand for more than one true state."""
    states = defaultdict(set)
    for (task, _), seen in sessions.items():
        for each in seen:
            states[task, state_key(each, kind)].add(each.state)
    return sum(len(each) > 1 for each in states.values()) / len(states)


def line(sessions: dict[tuple[int, int], list[Observation]], kind: str) -> str:
    turns = [(task, name, at, each) for (task, name), seen in sessions.items() for at, each in enumerate(seen)]
    uid, session, index, seen = zip(*turns, strict=True)
    trajectory = [*zip(uid, session, strict=True)]
    groups = context_groups([state_key(each, kind) for each in seen], uid, trajectory, index, DEPTH)
    figures = level_metrics(groups, trajectory)
    grouped = " | ".join(f"{figures[f'hgpo/level_{level}/grouped']:.2f}" for level in range(DEPTH + 1))
    return f"| {kind} | {grouped} | {figures['hgpo/level_0/alone']:.2f} | {several(sessions, kind):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for games")
    for name, default in (("tasks", 24), ("sessions", 8), ("turns", 10), ("seed", Games.seed)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    tasks = [row["task"] for row in task_lists(Games(args.seed), args.cache)[TRAIN].rows()][: args.tasks]
    sessions = {
        (at, session): walk(task, args.turns, random.Random(f"{at}/{session}"))
        for at, task in enumerate(tasks)
        for session in range(args.sessions)
    }
    print(f"| state key | {' | '.join(f'level {level}' for level in range(DEPTH + 1))} | alone | several states |")
    print("|" + "---|" * (DEPTH + 4))
    for kind in STATE_KEYS:
        print(line(sessions, kind))


if __name__ == "__main__":
    main()
