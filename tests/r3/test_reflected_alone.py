"""Replay of right answers that asking again found, and of no others (`replay.outcome=reflected`)."""

import pytest
from collector import N, read, stored, write_group

from recipe.common.rows import REFLECTION, RESTART, tags_of
from recipe.r3.replay.buffer import R3ReplayBuffer


def replayed(buffer: R3ReplayBuffer, step: int, groups: int = 1) -> list[list[int]]:
    batch, _ = buffer.sample(step, "train", groups)
    rows = read(batch)
    return [
        rows[key]["responses"].tolist() for key, tag in zip(batch.keys, tags_of(batch), strict=True) if tag.is_replayed
    ]


@pytest.mark.parametrize("variant", [REFLECTION, RESTART])
def test_of_stored_right_answers_only_those_that_asking_again_found_are_replayed(make_buffer, history, variant):
    found, plain = stored(step=1, tokens=[55], log_probs=[-0.1], variant=variant), stored(step=1)
    history.add([plain, found], step=1)
    write_group("q", ("wrong",) * N, step=2)
    assert replayed(make_buffer(outcome="reflected", k=2), 2) == [[55]]


def test_a_lucky_right_answer_is_replayed_by_default_and_not_then(make_buffer, history):
    history.add([stored(step=1, tokens=[55], log_probs=[-0.1])], step=1)
    write_group("q", ("wrong",) * N, step=2)
    assert not replayed(make_buffer(outcome="reflected"), 2)
    write_group("q", ("wrong",) * N, step=3)
    assert replayed(make_buffer(), 3) == [[55]]


def test_a_query_with_no_other_right_answers_is_asked_again(make_buffer, history):
    history.add([stored(step=1)], step=1)
    known = {outcome: make_buffer(outcome=outcome).replayer.is_known("q") for outcome in ("correct", "reflected")}
    assert known == {"correct": True, "reflected": False}
    history.add([stored(step=2, tokens=[55], log_probs=[-0.1], variant=REFLECTION)], step=2)
    assert make_buffer(outcome="reflected").replayer.is_known("q")


def test_what_reflection_finds_rescues_the_group_of_its_step(make_buffer):
    write_group("q", ("wrong",) * N, step=2)
    write_group("q", ("wrong",) * (N - 1) + ("right",), step=2, variant=REFLECTION)
    buffer = make_buffer(outcome="reflected", same_step=True)
    buffer.reflection_groups = 1
    assert replayed(buffer, 2) == [[200 + N - 1] * (N + 1)]


def test_groups_under_reflection_and_groups_that_are_all_right_get_nothing(make_buffer, history):
    history.add(
        [stored(step=1, variant=REFLECTION), stored(step=1, tokens=[55], log_probs=[-0.1], correct=False)], step=1
    )
    write_group("q", ("right",) * N, step=2)
    write_group("q", ("wrong",) * N, step=2, variant=REFLECTION)
    buffer = make_buffer(outcome="reflected")
    buffer.reflection_groups = 1
    assert not replayed(buffer, 2)
