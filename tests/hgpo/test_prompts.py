"""What an agent reads: as it stands, and what goes first where there is no room."""

import pytest

from recipe.hgpo.prompts import CUT, NoRoom, fitted_prompt, prompt_text

TASK = "Put the coin on the table."
MEMORY = [("Kitchen.", "open fridge"), ("You open the fridge.", "close fridge"), ("You close the fridge.", "go east")]
SEEN, COMMANDS = "You are in the hallway with a coin.", ("take coin", "go west")


def fitted(most: int, memory=MEMORY, observation: str = SEEN):
    return fitted_prompt(TASK, memory, observation, COMMANDS, len, most)


def test_a_prompt_has_the_task_the_memory_the_observation_and_the_commands():
    assert prompt_text(TASK, MEMORY[:1], SEEN, COMMANDS) == (
        "Task: Put the coin on the table.\nKitchen.\n> open fridge\nYou are in the hallway with a coin.\n"
        "You can: take coin; go west"
    )


def test_of_a_world_that_lists_no_commands_nothing_is_said_of_them():
    assert prompt_text(TASK, [], SEEN) == f"Task: {TASK}\n{SEEN}"


def test_what_has_room_is_as_it_is():
    whole = prompt_text(TASK, MEMORY, SEEN, COMMANDS)
    prompt = fitted(len(whole))
    assert (prompt.text, prompt.turns_dropped, prompt.chars_cut) == (whole, 0, 0)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_the_oldest_turns_go_first(kept):
    wanted = prompt_text(TASK, MEMORY[len(MEMORY) - kept :], SEEN, COMMANDS)
    for most in (len(wanted), len(wanted) + 1):
        prompt = fitted(most)
        assert (prompt.text, prompt.turns_dropped, prompt.chars_cut) == (wanted, len(MEMORY) - kept, 0)


def test_then_the_observation_loses_its_end_by_no_more_than_it_must():
    bare = len(prompt_text(TASK, [], "", COMMANDS))
    for most in range(bare + len(CUT), bare + len(SEEN)):
        prompt = fitted(most)
        left = most - bare - len(CUT)
        assert len(prompt.text) == most and prompt.turns_dropped == len(MEMORY)
        assert f"{SEEN[:left]}{CUT}\nYou can: " in prompt.text and prompt.chars_cut == len(SEEN) - left


def test_task_and_commands_always_stay_or_the_turn_is_refused():
    least = len(prompt_text(TASK, [], CUT, COMMANDS))
    assert fitted(least).text.startswith(f"Task: {TASK}\n") and fitted(least).text.endswith("go west")
    with pytest.raises(NoRoom, match=rf"data.max_prompt_length must be at least {least} .* got {least - 1}"):
        fitted(least - 1)


def test_a_long_text_is_measured_a_few_times_only():
    calls = []

    def length(text: str) -> int:
        calls.append(text)
        return len(text.split())

    text = " ".join(map(str, range(100_000)))
    prompt = fitted_prompt(TASK, MEMORY, text, COMMANDS, length, most=500)
    assert len(prompt.text.split()) == 500 and len(calls) < 30
