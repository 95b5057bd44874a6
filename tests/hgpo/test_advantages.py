"""From the queue to the queue: what the workers will read as advantages."""

import pytest
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.hgpo.advantages import alike_tasks, put_advantages, step_advantages
from recipe.hgpo.config.hgpo_config import HGPOConfig
from recipe.hgpo.config.names import BAD_FORMAT, INADMISSIBLE
from recipe.hgpo.core_algos import compute_hgpo_advantage
from recipe.hgpo.turns import WON, Turn

UNDIVIDED = {"norm": "mean_norm", "gamma": 1.0}


def turns_of(uid: str, *sessions: tuple[str, float]) -> list[Turn]:
    """Sessions by the letters of their states, and the reward of the last turn."""
    return [
        Turn(state, reward * (at == len(states) - 1), end=WON, uid=uid, session=number, index=at)
        for number, (states, reward) in enumerate(sessions)
        for at, state in enumerate(states)
    ]


@pytest.fixture
def put(transfer_queue):
    """Writes rows as verl's trainer has them when advantages are computed."""

    def put(turns: list[Turn], padding: int = 0, episode: float = 0.5) -> KVBatchMeta:
        keys = [f"{turn.uid}_{turn.session}_{turn.index}" for turn in turns]
        keys += [f"pad{number}_0_0" for number in range(padding)]
        turns = [*turns, *turns[:1] * padding]  # verl's padding is a copy of a real row
        rows = [
            {
                "advantages": episode * torch.ones(2 + at % 3) * (at < len(keys) - padding),
                "response_mask": torch.ones(2 + at % 3, dtype=torch.int64) * (at < len(keys) - padding),
                "extra_fields": {"turn": turn.to_field()},
            }
            for at, turn in enumerate(turns)
        ]
        tags = [{"is_padding": at >= len(keys) - padding} for at in range(len(keys))]
        queue.write(queue.TRAIN, keys, rows, tags)
        return KVBatchMeta(partition_id=queue.TRAIN, keys=keys, tags=tags, extra_info={})

    return put


def written(batch: KVBatchMeta, field: str = "advantages") -> list[list[float]]:
    return [row[field].tolist() for row in queue.read(batch, [field])]


TURNS = turns_of("u", ("PQ", 10.0), ("PQ", 0.0), ("PV", 4.0)) + turns_of("w", ("PQ", 10.0))


def test_rows_carry_what_the_pure_function_gives_on_each_trained_token(put):
    batch = put(TURNS, padding=2)
    metrics = put_advantages(batch, HGPOConfig())
    returns = [9.5, 10.0, 0.0, 0.0, 3.8, 4.0, 9.5, 10.0]
    rows = {name: [getattr(turn, name) for turn in TURNS] for name in ("uid", "trajectory")}
    states, index = [turn.state for turn in TURNS], [turn.index for turn in TURNS]
    expected = compute_hgpo_advantage(returns, states, **rows, turn=index, depth=2).astype("float32")
    found = written(batch)
    assert [row[0] for row in found[:8]] == expected.tolist()
    assert all(len(set(row)) == 1 for row in found)
    assert [len(row) for row in found] == [2 + at % 3 for at in range(10)]
    assert found[8:] == [[0.0] * len(row) for row in found[8:]], "padding trains nothing"
    assert written(batch, "returns") == found
    assert metrics["hgpo/turns_with_signal"] == 5 / 8


def test_padding_changes_nothing(put):
    alone = put(TURNS)
    put_advantages(alone, HGPOConfig())
    expected = written(alone)
    queue.clear(queue.TRAIN, alone.keys)
    padded = put(TURNS, padding=3)
    put_advantages(padded, HGPOConfig())
    assert written(padded)[:8] == expected


def test_without_step_weight_verls_advantages_stay_as_they_are(put):
    batch = put(TURNS[:6], padding=1)
    before = written(batch)
    put_advantages(batch, HGPOConfig(step_weight=0.0, episode_weight=1.0))
    assert written(batch) == before


def test_gigpo_adds_the_turns_to_the_sessions(put):
    batch = put(TURNS[:6], episode=0.5)
    settings = {"depth": 0, "std": "sample"}
    put_advantages(batch, HGPOConfig(**settings, episode_weight=1.0))
    step, _ = step_advantages(TURNS[:6], HGPOConfig(**settings))
    assert [row[0] for row in written(batch)] == pytest.approx(0.5 + step, abs=1e-6)


def test_a_penalty_stays_on_its_turn():
    turns = turns_of("u", ("PQ", 0.0), ("PQ", 0.0))
    turns[1] = Turn(**{**vars(turns[1]), "answer": BAD_FORMAT})
    step, metrics = step_advantages(turns, HGPOConfig(**UNDIVIDED, penalise="format", penalty=0.1))
    assert step == pytest.approx([0, -0.05, 0, 0.05])
    assert metrics["hgpo/signal_of_penalty_alone"] == 0.5, "of four turns two learn from the penalty alone"


@pytest.mark.parametrize(
    ("penalise", "losing"), [("none", []), ("format", [1]), ("inadmissible", [3]), ("both", [1, 3])]
)
def test_penalise_chooses_the_answers(penalise, losing):
    turns = turns_of("u", ("PQ", 0.0), ("PQ", 0.0), ("PQ", 0.0))
    turns[1] = Turn(**{**vars(turns[1]), "answer": BAD_FORMAT})
    turns[3] = Turn(**{**vars(turns[3]), "answer": INADMISSIBLE})
    step, metrics = step_advantages(turns, HGPOConfig(**UNDIVIDED, penalise=penalise))
    assert [at for at in (1, 3) if step[at] < 0] == losing
    assert ("hgpo/signal_of_penalty_alone" in metrics) == bool(losing)


def test_no_answer_that_loses_is_a_share_of_0_and_not_none():
    """Else a mean over updates would be of those alone in which something lost."""
    _, metrics = step_advantages(TURNS, HGPOConfig(penalise="both"))
    assert metrics["hgpo/signal_of_penalty_alone"] == 0.0


def test_a_session_that_is_left_alone_learns_nothing_of_its_whole_reward(put):
    """verl's GRPO gives a group of one its reward as the advantage."""
    turns = turns_of("u", ("PQ", 10.0), ("PQ", 0.0)) + turns_of("alone", ("PQ", 10.0))
    batch = put(turns, episode=0.7)
    metrics = put_advantages(batch, HGPOConfig(step_weight=0.0, episode_weight=1.0))
    assert [row[0] for row in written(batch)] == pytest.approx([0.7] * 4 + [0.0] * 2)
    assert metrics["hgpo/turns_with_signal"] == 4 / 6


def test_tasks_whose_sessions_earned_the_same_say_nothing():
    third = turns_of("third", ("P", 1 / 3), ("PQ", 0.1 + 1 / 3 - 0.1), ("P", 1 / 3))
    unlike = turns_of("unlike", ("P", 0.0), ("PQ", 1e-6))
    assert alike_tasks([*third, *unlike, *turns_of("alone", ("P", 3.0)), *turns_of("lost", ("P", 0), ("Q", 0))]) == {
        *("third", "alone", "lost")
    }
