"""HGPO's advantages: by hand, against known methods, under invariances, against a slow loop from the paper."""

from collections import defaultdict
from statistics import fmean

import numpy as np
import pytest
import torch

from recipe.hgpo.core_algos import compute_hgpo_advantage, context_groups, discounted_returns
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

NORMS = ("mean_std_norm", "mean_norm")


def sessions(*states: str, uid: str = "u") -> dict[str, list]:
    """The rows of one task whose sessions saw these states, a letter each."""
    rows = [(state, name, turn) for name, session in enumerate(states) for turn, state in enumerate(session)]
    state_keys, trajectory, turn = map(list, zip(*rows, strict=True))
    return {"state_keys": state_keys, "uid": [uid] * len(rows), "trajectory": trajectory, "turn": turn}


def random_rows(seed: int) -> dict:
    """Tasks with sessions of 1 to 8 turns among few states, so that contexts meet; whole returns, so that ties do."""
    rng = np.random.default_rng(seed)
    rows = []
    for task in range(rng.integers(1, 5)):
        for session in range(rng.integers(1, 7)):
            rows += [(f"u{task}", session, t, int(rng.integers(0, 3))) for t in range(rng.integers(1, 9))]
    rows = [rows[at] for at in rng.permutation(len(rows))]
    uid, trajectory, turn, state_keys = map(list, zip(*rows, strict=True))
    returns = rng.integers(0, 4, len(rows)).astype(float)
    return {
        "step_returns": returns,
        "state_keys": state_keys,
        "uid": uid,
        "trajectory": trajectory,
        "turn": turn,
        "depth": int(rng.integers(0, 5)),
    }


def slow_advantage(step_returns, state_keys, uid, trajectory, turn, depth, alpha, norm, mode, epsilon=1e-6):
    """Row by row: look for all rows with the same last states, in whole numbers of returns where noise cannot be."""
    states = dict(zip(zip(uid, trajectory, turn, strict=True), state_keys, strict=True))
    names = list(states)

    def context(name, k):
        task, session, t = name
        return None if t < k else (task, *(states[task, session, j] for j in range(t - k, t + 1)))

    returns, advantages = dict(zip(names, step_returns, strict=True)), []
    for name in names:
        total = below = 0.0
        for k in range(depth + 1):
            if context(name, k) is None:
                continue
            group = [returns[other] for other in names if context(other, k) == context(name, k)]
            mean = fmean(group)
            std = fmean([(value - mean) ** 2 for value in group]) ** 0.5
            one = (returns[name] - mean) / (std + epsilon if norm == "mean_std_norm" else 1.0)
            if len(set(group)) == 1 or (mode == "release" and abs(returns[name] - mean) < 1e-9):
                continue
            weight = (k + (1 if mode == "paper" else 2)) ** alpha
            total, below = total + weight * one, below + weight
        advantages.append(total / (below + (epsilon if mode == "release" else 0)) if below else 0.0)
    return advantages


# (a) numbers by hand

THREE = sessions("PQRS", "PQRU", "PVR")
RETURNS = [8.57375, 9.025, 9.5, 10.0, 0.0, 0.0, 0.0, -0.1, 9.025, 9.5, 10.0]


@pytest.mark.parametrize(
    ("norm", "mode", "expected"),
    [
        (
            "mean_std_norm",
            "release",
            [0.65207, 1.0, 0.92268, 0, -1.41282, -1.0, -1.09174, 0, 0.76075, 0, 0.76075],
        ),
        ("mean_std_norm", "paper", [0.65207, 1.0, 0.94201, 0, -1.41282, -1.0, -1.06880, 0, 0.76075, 0, 0.76075]),
        ("mean_norm", "release", [2.7075, 4.5125, 4.36111, 0, -5.86625, -4.5125, -5.13889, 0, 3.15875, 0, 3.5]),
    ],
)
def test_three_sessions_of_a_task(norm, mode, expected):
    found = compute_hgpo_advantage(RETURNS, **THREE, depth=2, norm=norm, mode=mode)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found.dtype == np.float64


def test_returns_are_discounted_within_a_session():
    # Two sessions, rows mixed: 10 after two more turns is 10 * 0.5 * 0.5.
    found = discounted_returns([10, 0, 4, 0, 0], ["a", "a", "b", "a", "b"], [2, 0, 1, 1, 0], gamma=0.5)
    assert found.tolist() == [10.0, 2.5, 4.0, 5.0, 2.0]


def test_the_returns_of_the_three_sessions():
    rewards = [0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 10]
    found = discounted_returns(rewards, THREE["trajectory"], THREE["turn"], gamma=0.95)
    assert found == pytest.approx([*RETURNS[:7], 0.0, *RETURNS[8:]])


def test_a_level_holds_the_turns_with_the_same_last_states():
    groups = context_groups(**sessions("PQP", "QP"), depth=2)
    same = [groups[:, 0][[0, 2, 4]], groups[:, 0][[1, 3]], groups[:, 1][[2, 4]]]
    assert [len(set(group)) for group in same] == [1, 1, 1]
    assert groups[:, 1].tolist().count(-1) == 2 and groups[:, 2].tolist().count(-1) == 4
    assert len({*groups[:, 0]} & {*groups[:, 1]} - {-1}) == 0, "numbers tell levels apart"


# (b) known methods


@pytest.mark.parametrize("seed", range(20))
def test_depth_zero_undivided_is_the_return_minus_the_mean_of_its_state(seed):
    rows = {**random_rows(seed), "depth": 0}
    members = defaultdict(list)
    for task, state, value in zip(rows["uid"], rows["state_keys"], rows["step_returns"], strict=True):
        members[task, state].append(value)
    means = [fmean(members[name]) for name in zip(rows["uid"], rows["state_keys"], strict=True)]
    found = compute_hgpo_advantage(**rows, norm="mean_norm")
    assert found == pytest.approx(rows["step_returns"] - means, abs=1e-12)


@pytest.mark.parametrize("is_divided", [True, False])
def test_one_row_a_session_and_one_state_is_verls_grpo(is_divided):
    rng = np.random.default_rng(1)
    uid = np.repeat([f"u{task}" for task in range(6)], 8)
    returns = rng.integers(0, 3, len(uid)).astype(float)
    verls, _ = compute_grpo_outcome_advantage(
        torch.tensor(returns)[:, None], torch.ones(len(uid), 1), uid, norm_adv_by_std_in_grpo=is_divided
    )
    norm = NORMS[0] if is_divided else NORMS[1]
    rows = {"state_keys": ["-"] * len(uid), "uid": uid, "trajectory": range(len(uid)), "turn": [0] * len(uid)}
    assert compute_hgpo_advantage(returns, **rows, depth=0, norm=norm, ddof=1) == pytest.approx(verls[:, 0].numpy())


def test_alpha_zero_is_the_plain_mean_of_the_levels_that_are_there():
    # Q after P: level 0 has 9, 0 and 4, level 1 has 9 and 0.
    rows = sessions("PQ", "PQ", "VQ")
    found = compute_hgpo_advantage([0, 9, 0, 0, 0, 4], **rows, depth=1, alpha=0, norm="mean_norm")
    level_0, level_1 = 9 - 13 / 3, 9 - 4.5
    assert found[1] == pytest.approx((level_0 + level_1) / 2)
    assert found[5] == pytest.approx(4 - 13 / 3), "its history is V: level 1 has it alone"


# (c) invariances


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("norm", NORMS)
def test_the_order_of_rows_does_not_matter(seed, norm):
    rows = random_rows(seed)
    order = np.random.default_rng(seed + 100).permutation(len(rows["uid"]))
    shuffled = {name: value if name == "depth" else [value[at] for at in order] for name, value in rows.items()}
    found = compute_hgpo_advantage(**rows, norm=norm)[order]
    assert compute_hgpo_advantage(**shuffled, norm=norm) == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("mode", ["paper", "release"])
def test_a_group_never_crosses_tasks(mode):
    one, other = random_rows(1), random_rows(2)
    other["uid"] = [f"other {uid}" for uid in other["uid"]]
    both = {name: [*one[name], *other[name]] for name in one if name != "depth"}
    together = compute_hgpo_advantage(**both, depth=2, mode=mode)
    apart = [compute_hgpo_advantage(**{**rows, "depth": 2}, mode=mode) for rows in (one, other)]
    assert together.tolist() == np.concatenate(apart).tolist()


@pytest.mark.parametrize("norm", NORMS)
def test_a_constant_on_all_returns_changes_nothing(norm):
    rows = random_rows(3)
    shifted = {**rows, "step_returns": rows["step_returns"] + 5}
    assert compute_hgpo_advantage(**shifted, norm=norm) == pytest.approx(compute_hgpo_advantage(**rows, norm=norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mode", ["paper", "release"])
def test_equal_returns_give_exactly_zero(norm, mode):
    for size in range(2, 17):
        for power in range(50):
            rows = sessions(*["PQ"] * size)
            found = compute_hgpo_advantage([10 * 0.95**power] * 2 * size, **rows, depth=1, norm=norm, mode=mode)
            assert not found.any(), (size, power)


@pytest.mark.parametrize("norm", NORMS)
def test_noise_of_the_last_bits_is_no_signal(norm):
    value = 10 * 0.95**7
    found = compute_hgpo_advantage(
        [value, np.nextafter(value, 99), value], **sessions("P", "P", "P"), depth=0, norm=norm
    )
    assert not found.any()


def test_groups_of_one_say_nothing():
    assert not compute_hgpo_advantage([1.0, 2.0, 3.0], **sessions("PQR"), depth=2).any()


def test_visits_of_one_trajectory_count_one_by_one():
    assert compute_hgpo_advantage([1.0, 3.0], **sessions("PP"), depth=0, norm="mean_norm").tolist() == [-1.0, 1.0]


def test_no_rows_no_advantages():
    nothing = {"state_keys": [], "uid": [], "trajectory": [], "turn": []}
    assert compute_hgpo_advantage([], **nothing, depth=2).shape == (0,)


# (d) a slow loop


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mode", ["paper", "release"])
def test_a_slow_loop_gives_the_same(seed, norm, mode):
    rows, alpha = random_rows(seed), [0.0, 1.0, 2.5][seed % 3]
    expected = slow_advantage(**rows, alpha=alpha, norm=norm, mode=mode)
    assert compute_hgpo_advantage(**rows, alpha=alpha, norm=norm, mode=mode) == pytest.approx(expected, abs=1e-12)


# errors


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"norm": "std"}, "norm must be one of mean_std_norm, mean_norm, got 'std'"),
        ({"mode": "mine"}, "mode must be one of paper, release, got 'mine'"),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"alpha": float("nan")}, "alpha must be at least 0 and finite, got nan"),
        ({"epsilon": -1}, "epsilon must be at least 0 and finite, got -1"),
        ({"step_returns": [1.0, float("nan")]}, "step_returns must be finite, got nan"),
        ({"turn": [0, 2]}, "row 1 is turn 2 of its trajectory"),
        ({"turn": [0, 0]}, "is turn 0 of its trajectory"),
        ({"turn": [1, 2]}, "row 0 is turn 1 of its trajectory"),
    ],
)
def test_what_cannot_be_computed_is_refused(change, match):
    given = {"step_returns": [1.0, 2.0], **sessions("PQ"), "depth": 1, **change}
    with pytest.raises(ValueError, match=match):
        compute_hgpo_advantage(**given)


@pytest.mark.parametrize("mode", ["paper", "release"])
def test_a_large_alpha_leaves_the_longest_history_alone(mode):
    rows = {"step_returns": [9.0, 10.0, 0.0, 0.0], **sessions("PQ", "PQ"), "depth": 1, "norm": "mean_norm"}
    found = compute_hgpo_advantage(**rows, mode=mode, alpha=1e4)
    assert found == pytest.approx([4.5, 5.0, -4.5, -5.0], abs=1e-5)


def test_turns_may_be_unsigned_numbers():
    returns = discounted_returns([0, 0, 10], ["a"] * 3, np.array([0, 1, 2], dtype=np.uint8), 0.5)
    assert returns.tolist() == [2.5, 5, 10]


def test_a_missing_turn_has_no_return():
    with pytest.raises(ValueError, match="row 1 is turn 2"):
        discounted_returns([0, 1], ["a", "a"], [0, 2], 0.9)
