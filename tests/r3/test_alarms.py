import pytest

from recipe.r3.alarms import DeadGroupAlarm, LengthAlarm


def ledger_of(dead: int, rescued: int) -> dict:
    return {"groups/all_correct": 0, "groups/all_wrong": dead, "groups/still_dead": dead - rescued}


def test_groups_that_are_all_right_alone_sound_no_alarm():
    alarm = DeadGroupAlarm(patience=2)
    right = {"groups/all_correct": 4, "groups/all_wrong": 0, "groups/still_dead": 4}
    assert [alarm.update(right) for _ in range(4)] == [None] * 4


def test_the_alarm_sounds_once_after_steps_with_dead_groups_and_no_rescue():
    alarm = DeadGroupAlarm(patience=3)
    warnings = [alarm.update(ledger_of(dead=2, rescued=0)) for _ in range(6)]
    assert [bool(warning) for warning in warnings] == [False, False, True, False, False, False]
    assert warnings[2].startswith("3 steps with all wrong groups and none rescued")


def test_a_rescue_starts_the_count_again_and_a_step_without_dead_groups_does_not_count():
    alarm = DeadGroupAlarm(patience=2)
    steps = [(1, 0), (1, 1), (1, 0), (0, 0), (0, 0), (1, 0), (0, 0), (1, 0)]
    assert [bool(alarm.update(ledger_of(*step))) for step in steps] == [False] * 5 + [True] + [False] * 2


def growing(length, truncated, acc, rows=64):
    names = {"response_length": length, "truncated": truncated, "acc": acc}
    return {"fresh/rows": rows, **{f"fresh/{name}/mean": value for name, value in names.items()}}


@pytest.mark.parametrize(
    "before,after,warns",
    [
        ((100, 0.1, 0.5), (112, 0.1, 0.5), True),  # longer by more than a tenth
        ((100, 0.1, 0.5), (109, 0.1, 0.5), False),
        ((100, 0.1, 0.5), (100, 0.16, 0.5), True),  # more truncated
        ((100, 0.1, 0.5), (150, 0.3, 0.52), False),  # and better
        ((100, 0.3, 0.5), (50, 0.1, 0.4), False),  # shorter and worse is another matter
    ],
)
def test_growth_without_accuracy_is_told_once(before, after, warns):
    alarm = LengthAlarm(patience=3)
    told = [alarm.update(growing(*values)) for values in [before] * 3 + [after] * 3]
    assert told[:5] == [None] * 5 and bool(told[5]) == warns
    if warns:
        assert "response_length" in told[5] and alarm.update(growing(*after)) is None


def test_the_length_alarm_passes_steps_without_fresh_rows():
    patient = LengthAlarm(patience=1)
    assert patient.update(growing(10, 0, 0.5)) is None and patient.update({"fresh/rows": 0}) is None
    assert patient.update(growing(99, 0, 0.5))
