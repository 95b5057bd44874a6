"""How many restarts a step has, what a rollout worker makes of one, and when they are not worth it."""

import random
from types import SimpleNamespace

import pytest
from stated import make_state, open_buffer

from recipe.common.restart.agent_loop import with_prefix
from recipe.rrl.alarms import Comparison
from recipe.rrl.config.rrl_config import RestartsConfig, RRLConfig, StatesConfig
from recipe.rrl.restarts import Restarts, due
from recipe.rrl.states import FAILED, REFERENCE, RIGHT
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput


def test_every_so_many_prompts_there_is_a_restart_whether_they_come_in_batches_or_one_by_one():
    assert [due(0.25, 1, before) for before in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [due(0.25, 10, before) for before in (0, 10, 20)] == [2, 3, 2]
    assert due(0.0, 100, 7) == 0


def test_a_restart_is_the_row_of_an_answer_from_the_start_with_its_prefix_masked():
    output = AgentLoopOutput(
        prompt_ids=[5, 6, 1, 2],
        response_ids=[3, 4],
        response_mask=[1, 1],
        response_logprobs=[-0.5, -0.6],
        metrics=AgentLoopMetrics(),
        extra_fields={},
    )
    row = with_prefix(output, [1, 2])
    assert (row.prompt_ids, row.response_ids) == ([5, 6], [1, 2, 3, 4])
    assert (row.response_mask, row.response_logprobs) == ([0, 0, 1, 1], [0.0, 0.0, -0.5, -0.6])
    assert row.extra_fields == {"prompt_variant": "restart", "prefix_len": 2}
    with pytest.raises(AssertionError, match="changed the tokens"):
        with_prefix(output, [1, 2])


def test_a_restart_at_the_start_is_an_answer_from_the_start_that_is_counted_apart():
    written = {"prompt_ids": [5, 6], "response_ids": [3, 4], "response_mask": [1, 1], "response_logprobs": [-0.5, -0.6]}
    output = AgentLoopOutput(**written, metrics=AgentLoopMetrics(), extra_fields={})
    row = with_prefix(output, [])
    assert {name: getattr(row, name) for name in written} == written
    assert row.extra_fields == {"prompt_variant": "restart", "prefix_len": 0}


@pytest.mark.parametrize(
    "settings, drawn",
    [
        ({}, {FAILED}),
        ({"origin": "right"}, {RIGHT}),
        ({"origin": "both"}, {FAILED, RIGHT}),
        ({"reference": "solution"}, {FAILED, REFERENCE}),
    ],
)
def test_a_run_that_goes_on_with_other_settings_restarts_from_what_these_take(tmp_path, settings, drawn):
    buffer = open_buffer(tmp_path / "states.sqlite")
    for number, origin in enumerate((FAILED, RIGHT, REFERENCE)):
        buffer.add([make_state([number, 1], origin, origin), make_state([number] * 9, f"long {origin}", origin)], 1)
    config = RRLConfig(states=StatesConfig(**settings), restarts=RestartsConfig())
    names = [query for origin in (FAILED, RIGHT, REFERENCE) for query in (origin, f"long {origin}")]
    dataset = SimpleNamespace(dataframe={"query_id": names})
    restarts = Restarts(config, buffer, dataset, None, "single_turn_agent", seed=0, max_cut=8)
    assert {state.query_id for state in restarts.draw(9, "restart", 0)} == drawn, "and none without room for the rest"


def test_states_of_problems_that_the_data_no_longer_has_take_no_place_of_a_draw(tmp_path):
    buffer = open_buffer(tmp_path / "states.sqlite")
    buffer.add([make_state([1], f"gone {number}") for number in range(20)] + [make_state([2], "here")], 1)
    dataset = SimpleNamespace(dataframe={"query_id": ["here"]})
    config = RRLConfig(states=StatesConfig(), restarts=RestartsConfig())
    restarts = Restarts(config, buffer, dataset, None, "single_turn_agent", seed=0, max_cut=8)
    assert [[state.query_id for state in restarts.draw(1, "restart", step)] for step in range(5)] == [["here"]] * 5


def steps(comparison: Comparison, right: int, number: int = 2, fresh: int | None = None) -> list[str | None]:
    """Steps in which four restarts of a problem end, `right` of them right; with `fresh`, it comes again in each."""
    told = []
    for _ in range(number):
        for half in (range(2), range(2, 4)):  # verl's separate mode has several updates in a step
            comparison.add_restarts([("hard", attempt < right) for attempt in half])
            for attempt in half if fresh is not None else ():
                comparison.add_fresh("hard", attempt < fresh)
        comparison.close()
        told.append(comparison.warning())
    return told


@pytest.fixture
def comparison():
    """A problem of which one in four fresh attempts was right when it gave a state."""
    comparison = Comparison(2)
    for attempt in range(4):
        comparison.add_fresh("hard", attempt == 0)
    comparison.close()
    return comparison


def test_restarts_that_succeed_no_more_often_than_fresh_attempts_are_told_once_with_what_to_switch_off(comparison):
    first, warning = steps(comparison, right=1, fresh=3)
    assert first is None and warning == (
        "of 8 restarts in 2 steps 0.25 succeeded, of fresh attempts at the same problems 0.75: restarts cost and do "
        "not help; set algorithm.rrl.restarts.share=0, or another algorithm.rrl.states.origin"
    )
    assert steps(comparison, right=1, fresh=3, number=1) == [None], "the count begins anew"


def test_a_warning_by_later_attempts_is_not_followed_by_one_by_those_before():
    """The problem comes again in every second step only."""
    comparison = Comparison(2)
    comparison.add_fresh("hard", True)
    comparison.add_fresh("other", False)
    comparison.close()
    told = []
    for step in range(7):
        comparison.add_restarts([("hard", False)] * 4)
        if step % 2:
            comparison.add_fresh("hard", True)
        comparison.add_fresh("other", False)
        comparison.close()
        told.append(comparison.warning() is not None)
    assert told == [False, False, False, True, False, False, False]


def test_restarts_that_succeed_more_often_are_no_reason_to_warn(comparison):
    assert steps(comparison, right=3, fresh=2, number=5) == [None] * 5
    assert steps(comparison, right=2, fresh=2, number=5) == [None] * 5, "within one standard error"


def test_what_all_fresh_attempts_rose_by_meanwhile_is_taken_off():
    comparison = Comparison(2)
    for name in ("hard", "other"):
        comparison.add_fresh(name, False)
    comparison.close()
    comparison.add_restarts([("hard", True), ("hard", False)])
    comparison.close()
    for name in ("hard", "other"):
        for attempt in range(4):
            comparison.add_fresh(name, attempt < (3 if name == "hard" else 1))
    # 0.75 now, less the rise of all from 0 to 0.5.
    assert comparison.close() == {"restart/compared": 2, "restart/success": 0.5, "restart/fresh_success": 0.25}


def test_restarts_are_compared_when_their_problem_comes_again(comparison):
    comparison.add_restarts([("hard", True), ("hard", False)])
    assert comparison.close() == {}, "by the attempts before, it was found hard"
    comparison.add_restarts([("hard", True)])
    for is_right in (True, False, False, False):
        comparison.add_fresh("hard", is_right)
    figures = {"restart/compared": 3, "restart/success": pytest.approx(2 / 3), "restart/fresh_success": 0.25}
    assert comparison.close() == figures
    comparison.add_fresh("hard", True)
    assert comparison.close() == {}, "each restart is compared once"


def test_attempts_by_which_a_problem_was_found_hard_are_not_what_restarts_are_compared_with():
    """Problems that are solved one time in two, of which the newest states are restarted, so that nothing changes."""
    rng, comparison, newest = random.Random(0), Comparison(20), []
    own = fresh = 0.0
    for step in range(100):
        comparison.add_restarts((problem, rng.random() < 0.5) for problem in newest)
        newest = []
        for problem in range(step % 8 * 50, step % 8 * 50 + 50):
            right = [rng.random() < 0.5 for _ in range(4)]
            for is_right in right:
                comparison.add_fresh(str(problem), is_right)
            if sum(right) <= 1:
                newest.append(str(problem))
        if figures := comparison.close():
            own += figures["restart/compared"] * figures["restart/success"]
            fresh += figures["restart/compared"] * figures["restart/fresh_success"]
    assert own / fresh == pytest.approx(1, abs=0.05), "restarts that change nothing look like it"


def alarmed(seed: int, rise: float, gain: float, epoch: int = 20) -> bool:
    """Whether a run of 120 steps is told. 16 problems and 16 restarts a step; the policy rises from 0.2, and restarts
    succeed by `gain` more often than fresh attempts of their step."""
    rng, comparison, told = random.Random(seed), Comparison(20), False
    for step in range(120):
        chance = 0.2 + rise * step
        if step:
            names = (str(rng.randrange(16 * min(step, epoch))) for _ in range(16))
            comparison.add_restarts((name, rng.random() < chance + gain) for name in names)
        for problem in range(step % epoch * 16, step % epoch * 16 + 16):
            for _ in range(4):
                comparison.add_fresh(str(problem), rng.random() < chance)
        comparison.close()
        told = comparison.warning() is not None or told
    return told


@pytest.mark.parametrize("rise", [0.0, 0.005])
@pytest.mark.parametrize(("gain", "least", "most"), [(-0.1, 30, 30), (0.0, 15, 30), (0.1, 0, 1)])
def test_the_alarm_is_about_restarts_and_neither_about_chance_nor_about_what_the_policy_learns(rise, gain, least, most):
    assert least <= sum(alarmed(seed, rise, gain) for seed in range(30)) <= most


def test_before_a_problem_comes_again_only_restarts_that_are_no_better_than_what_found_it_hard_are_told():
    for right, is_told in ((0, True), (1, True), (2, False)):
        comparison = Comparison(2)
        for attempt in range(4):
            comparison.add_fresh("hard", attempt == 0)
        comparison.close()
        told = steps(comparison, right)
        assert (told[-1] is not None) == is_told
        comparison.add_restarts([("hard", True)])
        assert comparison.close() == {}, "that says nothing of how much better others are"


def test_a_comparison_goes_on_from_a_checkpoint(comparison, tmp_path):
    steps(comparison, right=2, number=1, fresh=4)
    comparison.add_restarts([("hard", True)])
    comparison.close()
    comparison.save(tmp_path)
    again = Comparison(2)
    again.load(tmp_path)
    assert vars(again) == vars(comparison) | {"made": []}
    assert steps(again, right=0, number=1, fresh=4)[0].startswith("of 9 restarts in 2 steps 0.33 succeeded")
    again.load(tmp_path / "of a run without restarts")
