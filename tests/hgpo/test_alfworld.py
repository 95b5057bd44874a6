"""ALFWorld's engine and texts through the pool, on a problem of our own: its games are not ours to bring."""

import asyncio
import json

import pytest

pytest.importorskip("fast_downward", reason="the extra alfworld is not installed")
pytest.importorskip("alfworld", reason="the extra alfworld is not installed")

from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # noqa: E402

from recipe.hgpo.environments.base import NOTHING_HAPPENS  # noqa: E402
from recipe.hgpo.environments.pool import REFUSED, EnvironmentFailed, EnvironmentPool, Limits  # noqa: E402
from recipe.hgpo.environments.textworld_games import digest  # noqa: E402

TASK = "put some apple on sidetable"
KINDS = "Fridge", "SideTable", "SinkBasin", "Microwave", "Knife", "ButterKnife", "DeskLamp", "FloorLamp", "Apple", "Mug"
PROBLEM = f"""
(define (problem ours) (:domain alfred)
 (:objects
  agent1 - agent
  Fridge_bar_1 SideTable_bar_1 - receptacle
  Apple_bar_1 Mug_bar_1 - object
  loc_0 loc_1 loc_2 - location
  {" ".join(f"{kind}Type" for kind in KINDS[:4])} - rtype
  {" ".join(f"{kind}Type" for kind in KINDS[4:])} - otype
 )
 (:init
  (atLocation agent1 loc_0)
  (receptacleAtLocation Fridge_bar_1 loc_1) (receptacleAtLocation SideTable_bar_1 loc_2)
  (receptacleType Fridge_bar_1 FridgeType) (receptacleType SideTable_bar_1 SideTableType)
  (openable Fridge_bar_1)
  (objectType Apple_bar_1 AppleType) (objectType Mug_bar_1 MugType)
  (pickupable Apple_bar_1) (pickupable Mug_bar_1)
  (inReceptacle Apple_bar_1 Fridge_bar_1) (objectAtLocation Apple_bar_1 loc_1)
  (inReceptacle Mug_bar_1 SideTable_bar_1) (objectAtLocation Mug_bar_1 loc_2)
  (canContain SideTableType AppleType) (canContain FridgeType AppleType)
  (canContain SideTableType MugType) (canContain FridgeType MugType)
  (= (total-cost) 0)
 )
 (:goal (exists (?r - receptacle ?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r SideTableType))))
 (:metric minimize (total-cost))
)
"""
PLAN = [
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."),
    ("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1."),
    ("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see a mug 1."),
    ("move apple 1 to sidetable 1", "You move the apple 1 to the sidetable 1."),
]


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    with open(ALFRED_PDDL_PATH) as domain, open(ALFRED_TWL2_PATH) as grammar:
        rules = {"pddl_domain": domain.read(), "grammar": grammar.read().replace("UNKNOWN GOAL", TASK)}
    path = tmp_path_factory.mktemp("alfworld") / "game.tw-pddl"
    path.write_text(json.dumps({**rules, "pddl_problem": PROBLEM, "solvable": True}))
    return path


def play(task, answers):
    async def act():
        pool = EnvironmentPool(Limits())
        try:
            async with pool.open(task) as session:
                return session.observation, [(await session.step(answer)).step for answer in answers]
        finally:
            pool.close()

    return asyncio.run(act())


def test_a_game_is_won_with_alfworlds_texts_and_nothing_else_reaches_it(game):
    hostile = ["save", "\x00", "go to fridge 1. open fridge 1", "restart"]
    task = {"world": "alfworld", "game": str(game), "sha256": digest(game)}
    first, steps = play(task, [*hostile, *(command for command, _ in PLAN)])
    assert first.text.startswith("You are in the middle of a room.") and "task" not in first.text
    assert {"go to fridge 1", "go to sidetable 1", "look", "inventory"} <= set(first.commands)
    assert [step.observation.text for step in steps] == [NOTHING_HAPPENS] * 4 + [text for _, text in PLAN]
    assert [(step.reward, step.done, step.won) for step in steps] == [(0.0, False, False)] * 8 + [(1.0, True, True)]
    states = [step.observation.state for step in steps]
    assert len(set(states[:4])) == 1 and len(set(states[4:])) == len(PLAN)
    assert play(task, [command for command, _ in PLAN])[0] == first, "sessions of a task begin alike"


def test_another_game_than_that_of_the_list_is_refused(game):
    with pytest.raises(EnvironmentFailed) as failed:
        play({"world": "alfworld", "game": str(game), "sha256": "0" * 64}, [])
    assert failed.value.reason == REFUSED and "is not the game of the task list" in str(failed.value)
