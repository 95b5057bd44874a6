"""A game of TextWorld through the pool: won by its own plan, and never sent what it does not list."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

textworld = pytest.importorskip("textworld")

from recipe.hgpo.environments.base import NOTHING_HAPPENS  # noqa: E402
from recipe.hgpo.environments.pool import REFUSED, EnvironmentFailed, EnvironmentPool, Limits  # noqa: E402
from recipe.hgpo.environments.textworld_games import CHANGES_NOTHING, TextWorldGame, digest, said  # noqa: E402

MAKE = """
import sys, textworld
options = textworld.GameOptions()
options.seeds, options.path = 7, sys.argv[1]
options.nb_rooms, options.nb_objects, options.quest_length = 2, 4, 3
textworld.make(options)
"""


pytestmark = pytest.mark.filterwarnings(
    "ignore:Game .* is not fully supported"
)  # jericho's, of a game that it knows not


@pytest.fixture(scope="module")
def game(tmp_path_factory) -> Path:
    """As `tw-make` makes it, with its long texts."""
    path = tmp_path_factory.mktemp("games") / "game.z8"
    env = os.environ | {"HOME": str(path.parent)}  # where Inform 7 writes its documentation
    subprocess.run([sys.executable, "-c", MAKE, path], check=True, stdout=subprocess.DEVNULL, env=env)
    return path


@pytest.fixture(scope="module")
def plan(game) -> list[str]:
    played = textworld.start(str(game), request_infos=textworld.EnvInfos(policy_commands=True))
    commands = played.reset().policy_commands
    played.close()
    assert len(commands) >= 3
    return commands


def task(game: Path, fields: dict | None = None) -> dict:
    return {"world": "textworld", "game": str(game), "sha256": digest(game)} | (fields or {})


@pytest.fixture(scope="module")
def in_pool():
    """Runs `act(pool)` in one pool."""
    with asyncio.Runner() as runner:
        pool = EnvironmentPool(Limits())
        yield lambda act: runner.run(act(pool))
        pool.close()


async def transcript(pool, asked: dict, answers: list[str]) -> list:
    async with pool.open(asked) as session:
        seen = [session.observation]
        for answer in answers:
            played = await session.step(answer)
            seen.append((played.command, played.step))
        return seen


def test_its_own_plan_wins_it_and_the_last_step_alone_is_rewarded(in_pool, game, plan):
    first, *steps = in_pool(lambda pool: transcript(pool, task(game), plan))
    assert [command for command, _ in steps] == plan
    assert [(step.reward, step.done, step.won) for _, step in steps] == [
        *[(0.0, False, False)] * (len(plan) - 1),
        (1.0, True, True),
    ]
    assert steps[-1][1].observation.commands == (), "after the end, restart would begin again"
    assert not any(command.startswith(CHANGES_NOTHING) for command in first.commands)


RAW = [
    "\x00abc",
    "{0}. {1}",
    "{0}\n{1}",
    "save",
    "script",
    "restart",
    "restore",
    "quit",
    "undo",
    "y",
    "look",
    "xyzzy",
    "",
    "tw-print state",
]


def test_raw_text_does_not_reach_the_interpreter_which_it_would_hang_restart_or_let_cheat(in_pool, game, plan):
    async def act(pool):
        async with pool.open(task(game)) as session:
            before = session.observation
            for raw in RAW:
                played = await session.step(raw.format(*plan))
                seen = played.step.observation
                assert (played.command, seen.text) == (None, NOTHING_HAPPENS)
                assert (seen.commands, seen.state) == (before.commands, before.state)
        return await transcript(pool, task(game), [*RAW[:3], *plan])

    assert in_pool(act)[-1][1].won
    with pytest.raises(ValueError, match="only what the game lists is sent to it"):
        played = TextWorldGame(task(game))
        played.reset()
        played.step("restart")


def test_sessions_of_a_game_are_alike_in_every_process(in_pool, game, plan):
    answers = [*plan[:1], "hm", *plan[1:]]

    async def act(pool):
        other = EnvironmentPool(Limits())
        found = await asyncio.gather(*(transcript(each, task(game), answers) for each in (pool, pool, other)))
        other.close()
        return found

    first, second, elsewhere = in_pool(act)
    assert first == second == elsewhere


def test_a_state_that_comes_back_has_its_key_again_and_its_text_tells_no_turn_or_score(game):
    played = TextWorldGame(task(game))
    first = played.reset()
    [there] = [command for command in first.commands if command.startswith("go ")][:1]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there.removeprefix("go ")]
    seen = [played.step(command).observation for command in (there, f"go {back}", there, f"go {back}")]
    assert seen[0] == seen[2] and seen[1] == seen[3]
    assert seen[1].state == first.state != seen[0].state
    texts = [first.text, *(each.text for each in seen)]
    assert not any("$$" in text or "=-0/" in text or "\n" in text or "  " in text for text in texts)


def test_banner_objective_status_line_and_closing_words_are_cut():
    begin = "\n\n ______\n| \\$$$$ \n \\$$ \\$$$$$$$ \nPut it\n there.\n\n-= Attic =-\nDusty.\n\n>      -= Attic =-0/1"
    assert said(begin, "Put it there.") == "-= Attic =- Dusty."
    score = "Your score has just gone up by one point."
    end = f"\nDone.\n\n\n{score}\n\n   *** The End ***\n\nWould you like\n>   -= Attic =-0/3"
    assert said(end, "Put it there.") == "Done."


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"game": "game.z8"}, "task.game must be an absolute path, got 'game.z8'"),
        ({"game": None}, "task.game must be an absolute path, got 'None'"),
        ({"game": "/nowhere/game.z8"}, "task.game must be a .z8 file with its .json beside it"),
        ({"sha256": "0" * 64}, "is not the game of the task list: its SHA-256 must be 000"),
    ],
)
def test_another_game_than_the_lists_is_refused(in_pool, game, fields, told):
    async def act(pool):
        with pytest.raises(EnvironmentFailed) as failed:
            async with pool.open(task(game, fields)):
                pass
        return failed.value

    error = in_pool(act)
    assert error.reason == REFUSED and told in str(error)


@pytest.mark.slow
def test_sixty_four_sessions_beside_each_other_are_all_won_and_each_ends_by_itself(in_pool, game, plan):
    async def act(pool):
        async def play(number: int) -> bool:
            async with pool.open(task(game)) as session:
                together.add(number)
                while len(together) < 64:
                    await asyncio.sleep(0.01)
                for command in plan[: -1 if number % 8 == 0 else None]:
                    await session.step(command)
                return session.done

        together: set[int] = set()
        return await asyncio.gather(*map(play, range(64)))

    assert in_pool(act) == [number % 8 != 0 for number in range(64)]


def test_nothing_is_written_where_the_trainer_stands(in_pool, game, plan):
    before = set(os.listdir())
    in_pool(lambda pool: transcript(pool, task(game), plan))
    assert set(os.listdir()) == before
