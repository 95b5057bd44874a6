import numpy as np
import pytest

from tests.benchmarks.lengths import AIME, MATH, WORLDS, Fitted
from tests.benchmarks.waiting import Engine, Replica, at_once, generate

ENGINE = Engine(base_s=1.0, answer_s=0.0, token_s=0.0, running=8, replicas=1, poll_s=1.0)
PLAIN_PN = np.array([[1, 2], [4, 3]])
"""Without more, the first group has ended after 2 s and the second after 4."""


def test_who_waits_joins_when_another_has_ended():
    # Two run at once: two steps of 1.2 s, one of 1.2 s with the third answer, and one of 1.1 s alone.
    replica = Replica(Engine(base_s=1.0, answer_s=0.1, token_s=0.0, running=2, replicas=1, poll_s=1.0))
    for group, length in enumerate((2, 4, 1)):
        replica.submit(group, length, prompt=0)
    ended = {until: replica.run(until) for until in (2.3, 2.5, 3.5, 3.7, 4.6, 4.8)}
    assert ended == {2.3: [], 2.5: [0], 3.5: [], 3.7: [2], 4.6: [], 4.8: [1]}


def test_a_step_reads_prompt_and_answer_so_far():
    # 11, 12 and 13 tokens, in three steps of 1 s; and the same with a stop on the way.
    engine = Engine(base_s=1.0, answer_s=0.0, token_s=0.01, running=1, replicas=1, poll_s=1.0)
    for stops in ([3.35, 3.37], [1.5, 2.5, 3.35, 3.37]):
        replica = Replica(engine)
        replica.submit(0, 3, prompt=10)
        assert [replica.run(until) for until in stops] == [[]] * (len(stops) - 1) + [[0]]
        assert replica.now == pytest.approx(3.37) and replica.most_cached == 13


def test_answers_go_to_the_gpu_that_has_fewest():
    slower_together = Engine(base_s=0.0, answer_s=1.0, token_s=0.0, running=8, replicas=2, poll_s=1.0)
    assert generate(slower_together, np.array([[3, 3]]), []).seconds == 3


def asked_at_once(order: list[int], hard: list[bool], cap: int = 1) -> tuple[float, int]:
    ask = at_once(order, np.array(hard), cap, lambda group: np.array([5, 5]))
    found = generate(ENGINE, PLAIN_PN, [], ask)
    return found.seconds, found.asked


def test_at_once_answers_follow_those_of_their_group_and_early_ones_begin_with_the_step():
    assert generate(ENGINE, PLAIN_PN, []).seconds == 4
    assert generate(ENGINE, PLAIN_PN, [np.array([5, 5])]).seconds == 5
    assert asked_at_once([0, 1], [True, False]) == (2 + 5, 1)
    assert asked_at_once([0, 1], [False, True]) == (4 + 5, 1)
    assert asked_at_once([0, 1], [False, False]) == (4, 0)


def test_at_once_keeps_the_places_for_groups_before_in_the_order():
    assert asked_at_once([1, 0], [True, False]) == (4 + 5, 1)  # until the second is known to be right
    assert asked_at_once([1, 0], [True, True]) == (4 + 5, 1)
    assert asked_at_once([1, 0], [True, True], cap=2) == (4 + 5, 2)


@pytest.mark.parametrize(
    "kind, mean, deviation, cut, right, solved",
    [(MATH, 5450, 7328, 0.038, 0.814, None), (AIME, 16390, 10201, 0.152, 0.273, 0.613)],
)
def test_the_fitted_world_has_the_published_figures_at_32k(kind, mean, deviation, cut, right, solved):
    lengths, right_P = answers(kind, 8, 32768)
    assert (lengths.mean(), lengths.std()) == (pytest.approx(mean, rel=0.03), pytest.approx(deviation, rel=0.05))
    assert ((lengths >= 32768).mean(), right_P.mean()) == (pytest.approx(cut, abs=0.01), pytest.approx(right, abs=0.01))
    assert solved is None or (right_P > 0).mean() == pytest.approx(solved, abs=0.01)


def test_the_fitted_world_has_the_published_figures_at_8k():
    lengths, right_P = answers(MATH, 1, 8192)
    assert lengths[right_P == 1].mean() == pytest.approx(2907, rel=0.03)
    assert lengths[right_P == 0].mean() == pytest.approx(6521, rel=0.03)
    lengths, right_P = answers(MATH, 10, 8192)
    assert np.corrcoef(lengths.mean(1), right_P)[0, 1] == pytest.approx(-0.72, abs=0.12)
    both, rng = WORLDS["Qwen-1.5B on DeepScaleR, fitted"], np.random.default_rng(0)
    assert both.answers(rng, both.problems(rng, 20_000, 8192), 8, 8192)[0].mean() == pytest.approx(5500, rel=0.02)


def answers(kind: tuple, n: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    world, rng = Fitted(((1.0, *kind[1:]),), 0.8), np.random.default_rng(0)
    return world.answers(rng, world.problems(rng, 40_000, limit), n, limit)
