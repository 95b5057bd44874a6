"""What is done with texts of worlds and of models, and which answers of a world are believed."""

import json
from dataclasses import asdict

import pytest

from recipe.hgpo.environments import wire
from recipe.hgpo.environments.base import (
    NOTHING_HAPPENS,
    STATE_KEYS,
    Observation,
    Step,
    adapter,
    clean,
    match,
    refused,
    state_key,
)

SEEN = Observation("You see a door.", ("open door", "Buy Now"), state="s1")


@pytest.mark.parametrize("answer", ["open door", "OPEN DOOR", "  open \n\t door ", "Open\u00a0door"])
def test_case_and_white_space_do_not_count(answer):
    assert match(answer, SEEN.commands) == "open door"


def test_a_command_is_sent_as_the_world_wrote_it():
    assert match("buy now", SEEN.commands) == "Buy Now"


@pytest.mark.parametrize(
    "answer", ["", "open", "open door.", "open door\x00", "> open door", "open door; open door", "door"]
)
def test_all_else_is_no_command(answer):
    assert match(answer, SEEN.commands) is None


def test_nothing_is_admissible_where_nothing_is_listed():
    assert match("open door", ()) is None


def test_a_refused_turn_leaves_the_world_as_it_was_and_says_one_thing():
    step = refused(SEEN)
    assert step == Step(Observation(NOTHING_HAPPENS, SEEN.commands, SEEN.state), 0.0, False, False)


def test_text_is_put_in_one_line_without_control_characters():
    assert clean("\n a\t\tb\x00c \x1b[31m d\u2028e\n") == "a b c [31m d e"


def test_states_are_told_apart_by_as_much_as_the_key_says():
    other_commands = Observation(SEEN.text, ("open door",), state="s1")
    other_state = Observation(SEEN.text, SEEN.commands, state="s2")
    apart = {
        kind: [state_key(o, kind) != state_key(SEEN, kind) for o in (other_commands, other_state)]
        for kind in STATE_KEYS
    }
    assert apart == {"feedback": [False, False], "feedback_and_commands": [True, False], "state": [False, True]}


def test_a_state_that_the_world_does_not_tell_is_no_key():
    with pytest.raises(ValueError, match="state_key must be feedback or feedback_and_commands"):
        state_key(Observation("a"), "state")
    with pytest.raises(ValueError, match="state_key must be one of feedback, .* got 'text'"):
        state_key(SEEN, "text")


@pytest.mark.parametrize("world", ["", "house", "a.b", ":A", "a:", "a:b c"])
def test_a_world_is_a_name_or_a_class(world):
    with pytest.raises(ValueError, match="task.world must be one of textworld, alfworld or `module:Class`, got"):
        adapter(world)


@pytest.mark.parametrize("step", [Step(SEEN, 0.5, True, True), Step(Observation("a"), -1, False)])
def test_a_step_arrives_as_it_was_sent(step):
    kind, value = wire.unpacked(wire.answer(3, wire.STEP, step), 3)
    assert kind == wire.STEP and wire.step_of(value) == step


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"3", b'[2, "step", 1]', b"[3, 4, 5]", b'[3, "step"]', b"[" * 100_000]
)
def test_a_line_that_is_no_answer_to_the_question_is_refused(line):
    with pytest.raises(ValueError):
        wire.unpacked(line, 3)


def test_a_step_has_what_a_step_has_and_no_more():
    whole = json.loads(json.dumps(asdict(Step(SEEN, 0.5, True))))
    assert wire.step_of(whole).reward == 0.5
    for value in ({**whole, "score": 1}, {"reward": 0.5}, [], None, "step"):
        with pytest.raises(ValueError, match="Step.* must have done, observation, reward, won"):
            wire.step_of(value)
