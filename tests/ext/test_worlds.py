"""Games and lists: what is drawn can be solved, no list has another's game, files are the same in every process."""

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from r3_ext.settings.compose import ROOT
from r3_ext.worlds.games import draw_layouts
from r3_ext.worlds.layout import ALL_NOUNS, DIRECTIONS, LEVELS, NEW_NOUNS, NOUNS, Layout, opposite
from r3_ext.worlds.lists import ASKS_FOR_TAGS, Games, draw_lists, prepare
from r3_ext.worlds.walks import State, Walks, example, renaming, walk, walk_states, words
from recipe.hgpo.agent_loop import command_in
from recipe.hgpo.environments.pool import EnvironmentPool, Limits

FEW = Games(seed=3, train=2, val=1, levels=(2, 3))
"""Five games."""


def layouts(level: int) -> list[Layout]:
    return draw_layouts(200, [level], NOUNS, random.Random(level), set())


# what is drawn


@pytest.mark.parametrize("level", LEVELS)
def test_a_layout_has_the_size_of_its_level_and_every_name_once(level):
    size = LEVELS[level]
    for layout in layouts(level):
        counts = (len(layout.rooms), len(layout.containers), len(layout.objects))
        assert counts == (size.rooms, size.containers, size.objects)
        placed = [name for name, _ in layout.containers + layout.supporters + layout.objects]
        assert len({*placed, *layout.rooms}) == len(placed) + len(layout.rooms)
        assert {room for _, room in layout.supporters} == set(layout.rooms)


@pytest.mark.parametrize("level", LEVELS)
def test_ways_do_not_cross_and_reach_every_room(level):
    for layout in layouts(level):
        ends = [(room, way) for room, way, _ in layout.ways]
        ends += [(other, opposite(way)) for _, way, other in layout.ways]
        assert len(set(ends)) == len(ends) and len(layout.ways) == len(layout.rooms) - 1
        assert all(layout._path(layout.start, room) is not None for room in layout.rooms)


@pytest.mark.parametrize(("level", "fewest", "most"), [(1, 2, 2), (2, 3, 3), (3, 3, 3), (4, 3, 5), (5, 3, 7)])
def test_solutions_are_as_long_as_the_level_asks_for(level, fewest, most):
    steps = {len(layout.solution()) for layout in layouts(level)}
    assert steps == set(range(fewest, most + 1))


def test_a_solution_by_hand():
    layout = Layout(
        level=4,
        rooms=("attic", "study"),
        ways=(("attic", "east", "study"),),
        containers=(("chest", "study"),),
        supporters=(("desk", "attic"), ("bed", "study")),
        objects=(("coin", "chest"), ("book", "desk")),
        start="attic",
        target="desk",
    )
    assert layout.objective == "Put the coin on the desk."
    assert layout.solution() == ["go east", "open chest", "take coin from chest", "go west", "put coin on desk"]
    near = replace(layout, start="study", target="bed", objects=(("coin", "bed"),))
    assert near.solution() == ["take coin from bed", "put coin on bed"]


def test_no_layout_is_drawn_twice_and_too_many_are_refused():
    taken = set()
    first = draw_layouts(50, [2, 3], NOUNS, random.Random(0), taken)
    second = draw_layouts(50, [2, 3], NOUNS, random.Random(0), taken)
    assert len({*first, *second}) == 100 == len(taken)
    one_room = replace(
        NOUNS, supporters=("bed", "desk"), containers=("chest",), objects=("coin", "book"), rooms=("attic",)
    )
    with pytest.raises(ValueError, match="number of games must be at most .* for levels \\[1\\], got 500"):
        draw_layouts(500, [1], one_room, random.Random(0), set())


def test_new_nouns_are_new():
    assert not {name for names in NOUNS.classes for name in names} & {n for names in NEW_NOUNS.classes for n in names}
    assert len(words()) == len(set(words()))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"train": 0}, r"number of games \(train\) must be at least 1, got 0"),
        ({"levels": (2, 9)}, "levels must be from 1 to 5"),
        ({"levels": (5,)}, "new_level must not be trained on, got 5"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        Games(**settings)


def test_default_lists_are_drawn_apart_from_each_other_and_are_another_seeds_never():
    drawn, others = (draw_lists(Games(seed=seed)) for seed in (0, 1))
    layouts = [layout for each in drawn.values() for layout in each]
    assert len(set(layouts)) == len(layouts) == 96 + 3 * 24 and drawn == draw_lists(Games())
    assert all(drawn[split] != others[split] for split in drawn)
    old = {name for names in NOUNS.classes for name in names}
    for layout in drawn["new_names"]:
        assert not old & {*layout.rooms, layout.target, *(name for name, _ in layout.objects + layout.containers)}


# what a small model is taught

STATE = State(
    task="Put the apple on the desk.",
    memory=[("-= Attic =- You are in the attic.", "go east"), ("-= Study =- You are in the study.", "open chest")],
    observation="You open the chest, revealing an apple and a coin.",
    commands=["close chest", "go west", "take apple from chest", "take coin from chest"],
    best="take apple from chest",
)


def test_names_are_permuted_within_their_kind_and_directions_turned():
    kinds = {name: names for names in ALL_NOUNS.classes for name in names} | dict.fromkeys(DIRECTIONS, DIRECTIONS)
    for seed in range(20):
        renamed = renaming(random.Random(seed))
        new = {name: renamed(name) for name in words()}
        assert all(kinds[name] is kinds[other] for name, other in new.items())
        assert len(set(new.values())) == len(new)
        assert new[opposite("north")] == opposite(new["north"]) and new[opposite("east")] == opposite(new["east"])


def test_articles_and_capitals_follow_the_names():
    for seed in range(50):
        renamed = renaming(random.Random(seed))
        thing, room = renamed("apple"), renamed("kitchen")
        assert (
            renamed("-= Kitchen =- An apple.") == f"-= {room.capitalize()} =- A{'n' * (thing[0] in 'aeiou')} {thing}."
        )
        assert renamed("tap a toolboxes tapestry") == "tap a toolboxes tapestry"


def test_an_example_is_one_world_whose_answer_is_among_its_commands():
    for seed in range(50):
        prompt, command = example(STATE, random.Random(seed), memory=2, skill=1.0)
        *seen, commands = prompt.splitlines()
        thing, target = seen[0].removeprefix("Task: Put the ").removesuffix(".").split(" on the ")
        home = command.removeprefix(f"take {thing} from ")
        assert f"open {home}" in prompt and seen[-1].startswith(f"You open the {home}, revealing a")
        listed = commands.removeprefix("You can: ").split("; ")
        assert command in listed == sorted(listed) and len(seen) == 6


def test_memory_and_skill_are_as_asked_for():
    assert len(example(STATE, random.Random(0), memory=0, skill=1.0)[0].splitlines()) == 3
    assert len(example(STATE, random.Random(0), memory=9, skill=1.0)[0].splitlines()) == 7
    verbs = [example(STATE, random.Random(seed), 2, skill=0.6)[1].split()[0] for seed in range(1000)]
    assert 0.75 < verbs.count("take") / 1000 < 0.85  # 0.6, and half of the others


# what is made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return cache, prepare(cache, FEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Game .* is not fully supported")
class TestGames:
    def test_the_lists_share_no_game_and_have_the_levels_and_names_that_they_say(self, made):
        lists = made[1].lists
        games = [task.sha256 for each in lists.values() for task in each.tasks]
        assert len(set(games)) == len(games) == 5
        assert {name: [task.layout.level for task in each.tasks] for name, each in lists.items()} == {
            "train": [2, 3],
            "val": [2],
            "new_names": [2],
            "new_level": [5],
        }
        told = str(lists["train"])
        assert (
            told.startswith("train: 1 of level 2, 1 of level 3; 3 to 3 steps; sha256 ") and len(told.split()[-1]) == 64
        )

    def test_rows_are_verls_and_name_their_game_wherever_they_are_read(self, made):
        cache, prepared = made
        rows = pq.read_table(prepared.out_of_distribution).to_pylist()
        assert [row["data_source"] for row in rows] == ["textworld_new_names_level2", "textworld_new_level_level5"]
        [task] = prepared.lists["new_level"].tasks
        assert rows[1]["prompt"] == [{"role": "user", "content": task.layout.objective}]
        truths = [row["reward_model"]["ground_truth"] for row in rows]
        assert truths[1] == task.sha256 != truths[0], "games of one objective are problems of their own"
        assert rows[1]["agent_name"] == "session" and Path(rows[1]["task"]["game"]).is_absolute()
        assert rows[1]["task"] | {"game": ""} == {
            "world": "textworld",
            "game": "",
            "sha256": task.sha256,
            "seed": 3,
            "level": 5,
            "solution_steps": len(task.layout.solution()),
        }
        told = json.loads((prepared.train.parent / "tasks.json").read_text())
        assert told["train"] == {
            "sha256": prepared.lists["train"].digest,
            "tasks": [row["task"] for row in pq.read_table(prepared.train).to_pylist()],
        }

    def test_a_model_that_was_not_taught_here_is_told_how_to_answer(self, made):
        cache, prepared = made
        other = prepare(cache, FEW, system=ASKS_FOR_TAGS)
        [system, user] = pq.read_table(other.val).to_pylist()[0]["prompt"]
        assert (system["role"], command_in("I think. <action>go east</action>", "action")) == ("system", "go east")
        assert "<action> and </action>" in system["content"]
        assert [user] == pq.read_table(prepared.val).to_pylist()[0]["prompt"]
        assert other.val != prepared.val and str(other.lists) == str(prepared.lists)

    def test_a_game_is_the_same_from_another_process_in_another_place(self, made, tmp_path):
        code = (
            "from pathlib import Path; from r3_ext.worlds.games import make; "
            "from r3_ext.worlds.lists import draw_lists, digest, Games\n"
            "drawn = draw_lists(Games(seed=3, train=2, val=1, levels=(2, 3)))\n"
            "for split in ('new_level', 'train'):\n"
            "    make(drawn[split][0], Path.cwd() / 'games' / f'{split}.z8')\n"
            "    print(digest(Path.cwd() / 'games' / f'{split}.z8'))"
        )
        env = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "11", "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", code]
        again = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert again.stdout.split() == [made[1].lists[split].tasks[0].sha256 for split in ("new_level", "train")]
        assert [path.name for path in tmp_path.iterdir()] == ["games"], "the compiler leaves nothing where it stands"

    def test_what_is_made_is_not_made_again(self, made):
        cache, prepared = made
        times = {path: path.stat().st_mtime_ns for path in (cache / "games").iterdir()}
        again = prepare(cache, FEW)
        assert again.train == prepared.train and str(again.lists) == str(prepared.lists)
        assert {path: path.stat().st_mtime_ns for path in (cache / "games").iterdir()} == times
        assert {path.suffix for path in times} == {".z8", ".json"} and len(times) == 10

    def test_every_row_is_won_by_its_solution_through_the_pool(self, made):
        prepared = made[1]
        solutions = {str(t.game): t.layout.solution() for each in prepared.lists.values() for t in each.tasks}
        tables = (prepared.train, prepared.val, prepared.out_of_distribution)
        rows = [row["task"] for path in tables for row in pq.read_table(path).to_pylist()]

        async def play(pool, task) -> bool:
            async with pool.open(task) as session:
                for command in solutions[task["game"]]:
                    won = (await session.step(command)).step.won
                return won

        async def all_of_them():
            pool = EnvironmentPool(Limits())
            won = await asyncio.gather(*(play(pool, task) for task in rows))
            pool.close()
            return won

        assert asyncio.run(all_of_them()) == [True] * 5

    def test_walks_have_the_experts_command_for_states_on_and_off_its_way(self, made):
        cache, prepared = made
        walks = Walks(of_a_game=6, expert_share=0.5)
        states = walk_states(prepared.lists["train"], walks, cache)
        assert all(state.best in state.commands for state in states)
        assert sum(not state.memory for state in states) == 12
        steps = [(a, b) for a, b in pairwise(states) if b.memory[:-1] == a.memory and b.memory]
        assert {b.memory[-1][1] == a.best for a, b in steps} == {True, False}

    def test_walks_are_kept_and_would_be_the_same_again(self, made):
        cache, prepared = made
        walks, tasks = Walks(of_a_game=2), prepared.lists["train"]
        states = walk_states(tasks, walks, cache)
        assert walk_states(tasks, walks, cache) == states
        [first, _] = tasks.tasks
        again = walk(first.game, first.layout.objective, walks, f"{walks.seed}/{first.sha256}")
        assert again == states[: len(again)]
