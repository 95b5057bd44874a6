"""What sessions of TextWorld beside each other cost: memory of their processes, and seconds of a step.

    python -m tests.benchmarks.environments --cache DIR [--sessions 1 16 64] [--turns 10]

All sessions of a size are open at once, each in its process, and play random commands; every one goes on as soon as it
has its answer, so that a step waits for all others, as where no model thinks in between. Games are made in the cache.
"""

import argparse
import asyncio
import contextlib
import random
import resource
import time
from pathlib import Path

import numpy as np
import psutil

from r3_ext.worlds.lists import TRAIN, Games, task_lists
from recipe.hgpo.environments.pool import EnvironmentPool, Limits, Session


async def play(session: Session, turns: int, seed: int) -> list[float]:
    """Seconds of each step; an episode that is over plays no more."""
    rng, seconds = random.Random(seed), []
    while len(seconds) < turns and not session.done:
        before = session.seconds
        await session.step(rng.choice(session.observation.commands))
        seconds.append(session.seconds - before)
    return seconds


def megabytes() -> tuple[int, float]:
    """Processes below this one, and what they have for themselves, with their part of what they share (PSS)."""
    used = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            used.append(process.memory_full_info().pss / 2**20)
    return len(used), sum(used)


async def measure(tasks: list[dict], number: int, turns: int) -> str:
    pool = EnvironmentPool(Limits(processes=number))
    everyone, played = asyncio.Barrier(number + 1), asyncio.Barrier(number + 1)

    async def one(at: int) -> list[float]:
        async with pool.open(tasks[at % len(tasks)]) as session:
            await everyone.wait()
            seconds = await play(session, turns, at)
            await played.wait()
            await played.wait()
            return seconds

    async with pool.open(tasks[0]):
        pass  # the adapter is loaded once, whoever comes first
    loaded = megabytes()[1]
    begin = time.monotonic()
    running = [asyncio.create_task(one(at)) for at in range(number)]
    await everyone.wait()
    opened, begin = time.monotonic() - begin, time.monotonic()
    await played.wait()
    stepped = time.monotonic() - begin
    processes, used = megabytes()
    await played.wait()
    steps = np.array([each for seconds in await asyncio.gather(*running) for each in seconds]) * 1e3
    pool.close()
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        f"{number:4} sessions: opened in {opened:.2f} s, {len(steps)} steps in {stepped:.2f} s, of each median "
        f"{np.median(steps):.1f} ms, 95 of 100 within {np.quantile(steps, 0.95):.1f} ms; {used:.0f} MiB in {processes} "
        f"processes, {loaded:.0f} of them before a session; so far {spent.ru_utime + spent.ru_stime:.1f} CPU s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder for games")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    tasks = [row["task"] for row in task_lists(Games(), args.cache)[TRAIN].rows()]
    for number in args.sessions:
        print(asyncio.run(measure(tasks, number, args.turns)), flush=True)


if __name__ == "__main__":
    main()
