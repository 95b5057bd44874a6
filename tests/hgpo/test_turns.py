"""What is told of sessions and of nested groups."""

import pytest

from recipe.hgpo.config.names import BAD_FORMAT, INADMISSIBLE
from recipe.hgpo.core_algos import context_groups
from recipe.hgpo.turns import ENDED, LAST_TURN, WON, Turn, level_metrics, no_command, session_metrics


def session(number: int, *turns: Turn, uid: str = "u") -> list[Turn]:
    return [Turn(**{**vars(turn), "uid": uid, "session": number, "index": i}) for i, turn in enumerate(turns)]


SHORT = session(0, Turn("P", 0.0), Turn("Q", 10.0, end=WON, environment_s=0.5))
LONG = session(
    1,
    Turn("P", 0.0, answer=INADMISSIBLE),
    Turn("P", 0.0, answer=BAD_FORMAT),
    Turn("P", 0.0, shortened=True),
    Turn("Q", 0.0),
    Turn("V", 1.0),
    Turn("Q", 0.0, end=LAST_TURN, environment_s=1.5),
)


def test_sessions_weigh_alike_however_many_turns_they_have():
    found = session_metrics([*LONG[3:], *SHORT, *LONG[:3]])
    assert found["sessions/number"] == 2
    assert found["sessions/success"] == 0.5
    assert found["sessions/return"] == (10 + 1) / 2
    assert found["sessions/turns"] == 4
    assert found["sessions/truncated"] == 0.5
    assert found["sessions/environment_s"] == 1.0


def test_answers_and_prompts_are_shares_of_turns():
    found = session_metrics([*SHORT, *LONG])
    assert [found[f"sessions/{name}"] for name in ("bad_format", "inadmissible", "shortened_prompts")] == [1 / 8] * 3


def test_it_is_told_where_no_answer_is_a_command():
    """As with prompts that ask for tags and a setting that looks for none."""
    mute = session(0, Turn("P", 0.0, answer=INADMISSIBLE), Turn("P", 0.0, answer=BAD_FORMAT, end=LAST_TURN))
    assert "actor_rollout_ref.rollout.custom.session.tag says" in no_command(session_metrics(mute))
    assert no_command(session_metrics([*mute, *SHORT])) is None and no_command(session_metrics([], 4)) is None


def test_sessions_without_a_row_failed():
    assert session_metrics(SHORT, expected=4)["sessions/failed"] == 3
    assert session_metrics([], expected=4) == {"sessions/number": 0, "sessions/failed": 4}


def test_an_episode_that_the_environment_ends_otherwise_is_no_success():
    assert session_metrics(session(0, Turn("P", 0.0, end=ENDED)))["sessions/success"] == 0


def test_levels_tell_how_many_turns_can_be_compared():
    rows = [*SHORT, *LONG]
    groups = context_groups(
        [t.state for t in rows], [t.uid for t in rows], [t.trajectory for t in rows], [t.index for t in rows], depth=1
    )
    found = level_metrics(groups, [t.trajectory for t in rows])
    # Level 0: P four times, Q three times; V alone. Level 1: P Q of both sessions, P P twice of one.
    assert found["hgpo/level_0/grouped"] == 7 / 8 and found["hgpo/level_0/size"] == 3.5
    assert found["hgpo/level_0/alone"] == 0
    assert found["hgpo/level_1/grouped"] == 4 / 8 and found["hgpo/level_1/size"] == 2
    assert found["hgpo/level_1/alone"] == 0.5


def test_a_turn_comes_back_from_its_row():
    turn = SHORT[1]
    assert Turn.of("u_0_1", {"turn": turn.to_field(), "other": 1}) == turn


def test_a_row_that_is_no_turn_is_refused():
    with pytest.raises(ValueError, match="row u_0_0 is no turn of a session.*column agent_name"):
        Turn.of("u_0_0", {})
