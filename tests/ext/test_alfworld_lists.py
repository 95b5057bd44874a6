"""Rows of ALFWorld's games; what a list reads of them needs no engine."""

import json

import pytest

from r3_ext.worlds import alfworld_lists
from recipe.hgpo.environments.textworld_games import digest

GRAMMAR = '{"intro": [{"rhs": "#look# #task#"}], "task": [{"rhs": "Your task is to: put some apple on sidetable."}]}'


@pytest.fixture
def games(tmp_path):
    """In the form of its splits: two games of a kind, one of which cannot be solved, and one whose objects move."""
    for trial, solvable in (
        ("pick_and_place_simple-Apple-None-SideTable-1/trial_2", True),
        ("pick_and_place_simple-Apple-None-SideTable-1/trial_1", False),
        ("pick_two_obj_and_place-Apple-None-SideTable-1_movable/trial_3", True),
    ):
        (tmp_path / trial).mkdir(parents=True)
        (tmp_path / trial / "game.tw-pddl").write_text(json.dumps({"grammar": GRAMMAR, "solvable": solvable}))
    return tmp_path


def test_a_list_has_the_games_that_can_be_solved_in_one_order_with_their_tasks(games):
    [game] = games.glob("*/trial_2/game.tw-pddl")
    [row] = alfworld_lists.rows(games, "val")
    assert row["task"] == {"world": "alfworld", "game": str(game), "sha256": digest(game)}
    assert row["prompt"][-1]["content"] == "Put some apple on sidetable."
    assert row["data_source"] == "alfworld_pick_and_place_simple"


def test_a_folder_without_games_and_a_game_without_a_task_are_told(games, tmp_path_factory):
    with pytest.raises(ValueError, match="no game.tw-pddl that is known to be solvable in"):
        alfworld_lists.rows(tmp_path_factory.mktemp("empty"), "val")
    [game] = games.glob("*/trial_2/game.tw-pddl")
    game.write_text(json.dumps({"grammar": "{}", "solvable": True}))
    with pytest.raises(ValueError, match="does not say what its task is"):
        alfworld_lists.rows(games, "val")
