"""What a world does to its process, it does to its own session: the others go on, and nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hostile
import psutil
import pytest

from recipe.hgpo.environments import pool as pools
from recipe.hgpo.environments.base import NOTHING_HAPPENS
from recipe.hgpo.environments.pool import CRASHED, HUNG, LIED, REFUSED, EnvironmentFailed, EnvironmentPool, Limits

HERE = Path(__file__).parent


def task(world: str, **fields) -> dict:
    return {"world": f"{hostile.__name__}:{world}", **fields}


def play(act, run=asyncio.run, **limits):
    """`act(pool)` in a pool of its own, of which no process is left."""
    before = set(psutil.Process().children(recursive=True))

    async def played():
        pool = EnvironmentPool(Limits(**limits))
        try:
            return await act(pool)
        finally:
            pool.close()

    result = run(played())
    _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)
    assert not left
    return result


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def comes_true(what, *arguments, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not what(*arguments) and time.monotonic() < end:
        time.sleep(0.05)
    return what(*arguments)


def leaves_nothing(pid: str, child: str, folder: str) -> bool:
    return is_gone(int(pid)) and is_gone(int(child)) and not Path(folder).exists()


async def fails(pool, asked: dict) -> EnvironmentFailed:
    """What a session ends with that takes one step."""
    with pytest.raises(EnvironmentFailed) as failed:
        async with pool.open(asked) as session:
            await session.step("go on")
    return failed.value


def test_each_failure_has_its_reason_and_ends_its_session_alone():
    """One session goes on through all of it, in a process that was forked from the same one."""
    worlds = {
        "Raises": (CRASHED, "RuntimeError: the floor gave way"),
        "Exits": (CRASHED, "its process ended"),
        "Dies": (CRASHED, "its process ended"),
        "Eats": (CRASHED, "MemoryError"),
        "Refuses": (REFUSED, "this game is of another version"),
        "LiesAtOnce": (LIED, "Observation(...) must have commands, state, text"),
    }

    async def act(pool):
        found = {}
        async with pool.open(task("Fair")) as fair:
            for name in worlds:
                found[name] = await fails(pool, task(name))
                await fair.step("go on")
            return found, fair.observation.text

    found, seen = play(act)
    assert {name: error.reason for name, error in found.items()} == {
        name: reason for name, (reason, _) in worlds.items()
    }
    for name, (_, told) in worlds.items():
        assert told in str(found[name])
    assert seen == "; ".join(["go on"] * len(worlds))


def test_a_session_that_cannot_get_a_folder_or_a_process_ends_alone():
    async def act(pool):
        async with pool.open(task("Fair")) as fair:
            (world,) = pool._templates.values()
            blocked = Path(world.folder) / "1"
            blocked.write_text("a file stands where the next session's folder would be")
            failed = await fails(pool, task("Fair"))
            async with pool.open(task("Fair")) as later:
                await later.step("go on")
            await fair.step("go on")
            return failed, fair.observation.text, later.observation.text

    failed, *seen = play(act)
    assert failed.reason == CRASHED and seen == ["go on", "go on"]


def test_a_world_that_hangs_in_c_is_given_up_at_its_deadline_and_the_others_go_on_meanwhile():
    async def act(pool):
        async with pool.open(task("Fair")) as fair, pool.open(task("Hangs")) as hung:
            waits = asyncio.ensure_future(hung.step("go on"))
            while not waits.done():
                await fair.step("go on")
                await asyncio.sleep(0.05)
            with pytest.raises(EnvironmentFailed) as failed:
                await waits
        at_once = await fails(pool, task("HangsAtOnce"))
        return failed.value.reason, at_once.reason, fair.observation.text.count("go on")

    reason, at_once, steps = play(act, deadline_s=1.0)
    assert (reason, at_once) == (HUNG, HUNG) and steps > 2


@pytest.mark.parametrize("run", ["asyncio", "uvloop"])
def test_an_answer_that_is_none_is_a_lie_whatever_is_wrong_with_it(run):
    """Ray's workers run uvloop."""

    async def act(pool):
        return {name: await fails(pool, task("Lies", answer=name)) for name in hostile.ANSWERS}

    found = play(act, pytest.importorskip(run).run)
    assert {name: error.reason for name, error in found.items()} == dict.fromkeys(hostile.ANSWERS, LIED)
    assert "reward must be a finite number up to 1e9, got nan" in str(found["nan"])
    assert all(len(str(error)) < 1000 for error in found.values())


@pytest.mark.parametrize(
    ("world", "reason", "told"),
    [
        ("house", REFUSED, "task.world must be one of textworld, alfworld or `module:Class`, got 'house'"),
        ("nowhere:Door", REFUSED, "No module named 'nowhere'"),
        ("hostile:Nobody", REFUSED, "Nobody"),
        ("unloadable:World", CRASHED, "did not load"),
    ],
)
def test_a_world_that_does_not_load_fails_every_session_at_once(world, reason, told):
    async def act(pool):
        return await asyncio.gather(*(fails(pool, {"world": world}) for _ in range(8)))

    found = play(act)
    assert {error.reason for error in found} == {reason} and all(told in str(error) for error in found)


RAW = [
    "",
    " ",
    "\x00",
    "go on\x00",
    "\x00go on",
    "go on.",
    "go on. go on",
    "go on\ngo off",
    "go",
    "restart",
    "go  on x",
]


def test_what_is_not_admissible_never_reaches_the_world_and_costs_a_turn():
    async def act(pool):
        async with pool.open(task("Fair")) as session:
            for answer in RAW:
                played = await session.step(answer)
                assert played.command is None and played.step.observation.text == NOTHING_HAPPENS
                assert (played.step.reward, played.step.done) == (0.0, False)
            return await session.step(" GO\n  on ")

    assert play(act).step.observation.text == "go on"


def test_a_world_that_lists_no_commands_gets_any_text_in_one_line():
    async def act(pool):
        async with pool.open(task("FreeText")) as session:
            assert (await session.step("\n \x00")).command is None
            assert (await session.step("x" * 2000)).command is None
            return (await session.step("search[\x00red\n shoes]")).step.observation.text

    assert play(act) == "search[ red shoes]"


def test_who_plays_counts_the_steps_and_no_world_ends_a_session_for_their_number():
    async def act(pool):
        async with pool.open(task("Slow", commands=["a"])) as session:
            for _ in range(3):
                await session.step("a")
            assert session.seconds > 1.0
        async with pool.open(task("Fair")) as session:
            for _ in range(2000):
                await session.step("go on")
            return session.done

    assert play(act) is False


def test_there_are_never_more_sessions_than_allowed_and_waiting_for_a_place_counts_against_no_deadline():
    async def act(pool):
        most = 0

        async def session():
            nonlocal most
            async with pool.open(task("Slow")) as opened:
                most = max(most, sum(not is_gone(pid) for pid in pids | {int(opened.observation.text)}))
                pids.add(int(opened.observation.text))
                for _ in range(2):
                    await opened.step("go on")

        pids: set[int] = set()
        await asyncio.gather(*(session() for _ in range(6)))
        return most

    assert play(act, processes=2, deadline_s=2.0) == 2


def test_an_answer_that_came_while_this_process_was_busy_is_taken():
    async def act(pool):
        async with pool.open(task("Fair")) as session:
            step = asyncio.ensure_future(session.step("go on"))
            await asyncio.sleep(0)  # it is asked
            time.sleep(1.5)
            return (await step).command

    assert play(act, deadline_s=0.5) == "go on"


def test_a_session_ends_with_its_children_and_its_folder_however_it_ends():
    async def act(pool):
        found = []
        async with pool.open(task("Starts")) as session:
            found.append(session.observation.text.split())
        with pytest.raises(ZeroDivisionError):
            async with pool.open(task("Starts")) as session:
                found.append(session.observation.text.split())
                raise ZeroDivisionError

        async def cut_off():
            async with pool.open(task("Starts")) as session:
                found.append(session.observation.text.split())
                await asyncio.sleep(600)

        cut = asyncio.ensure_future(cut_off())
        while len(found) < 3:
            await asyncio.sleep(0.01)
        cut.cancel()
        await asyncio.wait([cut])
        for pid, child, folder in found:
            assert comes_true(leaves_nothing, pid, child, folder)

    play(act)


def test_a_world_is_closed_by_itself_before_its_process_ends(tmp_path):
    async def act(pool):
        async with pool.open(task("Fair", closed=str(tmp_path / "closed"))):
            pass

    play(act)
    assert (tmp_path / "closed").exists()


def test_when_the_process_that_sessions_are_forked_from_dies_they_crash_and_the_next_one_finds_another():
    before = set(psutil.Process().children())  # graders of other tests

    async def act(pool):
        async with pool.open(task("Fair")) as session:
            begun = set(psutil.Process().children()) - before
            [template] = [child for child in begun if "serve(" in " ".join(child.cmdline())]
            template.kill()
            with pytest.raises(EnvironmentFailed) as failed:
                while True:
                    await session.step("go on")
        async with pool.open(task("Fair")) as session:
            await session.step("go on")
        return failed.value.reason, int(session.observation.text == "go on")

    assert play(act) == (CRASHED, 1)


def test_closing_a_pool_ends_what_is_open():
    async def act(pool):
        async with pool.open(task("Hangs")) as session:
            pid = int(session.observation.text)
            pool.close()
            assert comes_true(is_gone, pid)

    play(act)


PARENT = """
import asyncio
from recipe.hgpo.environments.pool import EnvironmentPool, Limits

async def main():
    pool = EnvironmentPool(Limits())
    async with pool.open({"world": "hostile:Starts"}) as a, pool.open({"world": "hostile:Hangs"}) as b:
        print(a.observation.text, b.observation.text, flush=True)
        await b.step("go on")

asyncio.run(main())
"""


def test_after_kill_9_of_their_parent_no_process_and_no_file_is_left(tmp_path):
    path = os.pathsep.join([str(HERE), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )
    first, child, folder, hung = parent.stdout.readline().split()
    templates = [each.pid for each in psutil.Process(parent.pid).children()]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for pid in map(int, (first, child, hung, *templates)):
        assert comes_true(is_gone, pid)
    assert str(tmp_path) in folder and comes_true(lambda: not list(tmp_path.iterdir()))


def test_the_reasons_are_a_closed_list():
    assert pools.REASONS == (CRASHED, HUNG, LIED, REFUSED)
