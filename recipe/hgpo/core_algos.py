# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The formulas of HGPO (arXiv 2602.22817): pure functions on arrays, no Ray, no config tree, no TransferQueue.

A row is one turn of a session. Shapes: B rows of the batch in any order, K = `depth` turns of history.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from recipe.hgpo.config.names import MEAN_STD_NORM, NORMS, PAPER, RELEASE, WEIGHTS

ABSENT = -1
"""Group of a row at a level that it does not have."""
TOLERANCE = 1e-9
"""Returns that differ by less, relative to the largest of their group, are equal."""


def discounted_returns(rewards: Sequence[float], trajectory: Sequence, turn: Sequence[int], gamma: float) -> np.ndarray:
    """R_t = sum over j >= t of gamma^(j - t) * r_j, within each trajectory.

    Rewards [0, 0, 10] of turns 0, 1, 2 with gamma 0.5: [2.5, 5, 10].

    Args:
        rewards: (B,) of the environment, per turn.
        trajectory: (B,) name of the session of each row, unlike in all sessions of the batch.
        turn: (B,) 0, 1, 2, ... within a trajectory.

    Returns:
        (B,) float64.

    Raises:
        ValueError: a trajectory lacks a turn or has one twice.
    """
    rewards_B = np.asarray(rewards, dtype=np.float64)
    turn_B = np.asarray(turn, dtype=np.int64)
    next_B = _row_after(_numbered(trajectory), turn_B)
    returns_B = rewards_B.copy()
    for row in np.argsort(-turn_B, kind="stable"):
        if next_B[row] != ABSENT:
            returns_B[row] += gamma * returns_B[next_B[row]]
    return returns_B


def context_groups(
    state_keys: Sequence[Hashable], uid: Sequence, trajectory: Sequence, turn: Sequence[int], depth: int
) -> np.ndarray:
    """The nested groups G_0, ..., G_K: rows of one task that share their last k + 1 states.

    C_k(s_t) = (s_(t-k), ..., s_t). Rows are in one group of level k if their uid and their C_k are equal, whichever
    turns and trajectories they are of. A turn t < k has no level k.

    States P Q P of one trajectory, depth 1: level 0 [0, 1, 0], level 1 [-1, 2, 3].

    Args:
        state_keys: (B,) what the environment showed before the turn, by equality.
        uid: (B,) task of each row. No group holds rows of two tasks.
        trajectory, turn: see `discounted_returns`; trajectories of two tasks may share a name.
        depth: K, at least 0.

    Returns:
        (B, K + 1) numbers of groups, unlike in all levels; -1 where a row does not have the level.

    Raises:
        ValueError: a trajectory lacks a turn or has one twice.
    """
    if depth < 0:
        raise ValueError(f"depth must be at least 0, got {depth}")
    turn_B = np.asarray(turn, dtype=np.int64)
    before_B = np.full(len(turn_B), ABSENT)
    next_B = _row_after(_numbered(zip(uid, trajectory, strict=True)), turn_B)
    has_next_B = next_B != ABSENT
    before_B[next_B[has_next_B]] = np.flatnonzero(has_next_B)
    state_B = _numbered(state_keys)
    groups = np.full((len(turn_B), depth + 1), ABSENT)
    groups[:, 0] = _numbered(zip(uid, state_B, strict=True))
    count = 1 + groups[:, 0].max(initial=ABSENT)
    earliest_B = np.arange(len(turn_B))  # the row of s_(t-k)
    for level in range(1, depth + 1):
        has_B = turn_B >= level
        earliest_B = before_B[earliest_B]
        # C_k(s_t) is C_(k-1)(s_t) and the state before: one number each, whatever k is.
        pairs = zip(groups[has_B, level - 1], state_B[earliest_B[has_B]], strict=True)
        groups[has_B, level] = count + _numbered(pairs)
        count = max(count, 1 + groups[:, level].max(initial=ABSENT))
    return groups


def compute_hgpo_advantage(
    step_returns: Sequence[float],
    state_keys: Sequence[Hashable],
    uid: Sequence,
    trajectory: Sequence,
    turn: Sequence[int],
    depth: int,
    alpha: float = 1.0,
    norm: str = "mean_std_norm",
    mode: str = "paper",
    epsilon: float = 1e-6,
    ddof: int = 0,
) -> np.ndarray:
    """A_t = sum_k w_k A_k: the advantage of a turn among turns with its last k + 1 states, for k = 0, ..., K.

    In a group of two or more whose returns differ, A_k = (Y - mean) / (std + epsilon), or Y - mean with `mean_norm`.
    Other groups say nothing: their level is absent, and w is shared out among the levels that are there (Eq. 7 gives
    the sum over all K + 1 only). The result is linear in rows and levels.

        paper     w_k ~ (k + 1)^alpha
        release   w_k ~ (k + 2)^alpha, the weights' sum + epsilon below; a level at which the turn sits at its group's
                  mean is absent as well

    GiGPO's step term is depth 0 with ddof 1. GRPO is depth 0 with ddof 1, one row a trajectory and one state.

    One uid, two trajectories of two turns with states P Q and P R, returns [9, 10] and [0, 0], depth 1, mean_norm:
    [4.5, 0, -4.5, 0], for Q and R have no equal.

    Args:
        step_returns: (B,) Y, see `discounted_returns`; minus a penalty where there is one.
        state_keys, uid, trajectory, turn, depth: see `context_groups`.
        alpha: 0 weighs all levels alike; the larger, the more the longest history counts.
        epsilon: is added to the std.
        ddof: 0 for the std of a population, as HGPO has it; 1 for that of a sample, as GRPO and GiGPO have it.

    Returns:
        (B,) float64. 0 for turns without a level; exactly 0 if all returns of a group are equal.

    Raises:
        ValueError: an unknown norm or mode, alpha or epsilon below 0 or not finite, a return that is not finite, or a
            trajectory that lacks a turn.
    """
    for name, value, allowed in (("norm", norm, NORMS), ("mode", mode, WEIGHTS)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    for name, value in (("alpha", alpha), ("epsilon", epsilon)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
    returns_B = np.asarray(step_returns, dtype=np.float64)
    if not np.isfinite(returns_B).all():
        raise ValueError(f"step_returns must be finite, got {returns_B[~np.isfinite(returns_B)][0]}")
    groups = context_groups(state_keys, uid, trajectory, turn, depth)
    of_levels, speaks = level_advantages(returns_B, groups, norm, epsilon, ddof)
    if mode == RELEASE:
        speaks &= of_levels != 0
    # Relative to the highest level that is there: no power is too large for a float.
    base = np.where(speaks, np.arange(depth + 1) + (1.0 if mode == PAPER else 2.0), 0.0)
    highest_B = np.maximum(base.max(axis=1, initial=0.0), 1.0)
    weights = np.where(speaks, (base / highest_B[:, None]) ** alpha, 0.0)
    total_B, weight_B = (weights * of_levels).sum(axis=1), weights.sum(axis=1)
    below_B = weight_B + (epsilon * highest_B**-alpha if mode == RELEASE else 0.0)
    return np.divide(total_B, below_B, out=np.zeros_like(total_B), where=weight_B > 0)


def level_advantages(
    returns_B: np.ndarray, groups: np.ndarray, norm: str, epsilon: float = 1e-6, ddof: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A_k of each turn at each level, before they are weighed against each other.

    Args:
        returns_B: (B,) finite returns Y.
        groups: (B, K + 1), see `context_groups`.

    Returns:
        (B, K + 1) advantages, and (B, K + 1) whether the level's group says anything; where not, the advantage is 0.
    """
    found, speaks = np.zeros(groups.shape), np.zeros(groups.shape, dtype=bool)
    for level in range(groups.shape[1]):
        has_B = groups[:, level] != ABSENT
        centred, deviates, tells = _centred(returns_B[has_B], groups[has_B, level], ddof)
        divided = centred / (deviates + epsilon) if norm == MEAN_STD_NORM else centred
        found[has_B, level] = np.where(tells, divided, 0.0)
        speaks[has_B, level] = tells
    return found, speaks


def _centred(returns_R: np.ndarray, group_R: np.ndarray, ddof: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of R rows that have a level: Y - mean of the group, std of the group, whether the group says anything.

    What lies within the tolerance of the mean lies at the mean: float noise, divided by the std of noise, would be an
    advantage of full size.
    """
    if not len(returns_R):
        return returns_R, returns_R, returns_R.astype(bool)
    names_G, group_R = np.unique(group_R, return_inverse=True)
    size_G = np.bincount(group_R)
    low_G, high_G = np.full(len(names_G), np.inf), np.full(len(names_G), -np.inf)
    np.minimum.at(low_G, group_R, returns_R)
    np.maximum.at(high_G, group_R, returns_R)
    noise_G = TOLERANCE * np.maximum(np.abs(low_G), np.abs(high_G))
    centred_R = returns_R - (np.bincount(group_R, returns_R) / size_G)[group_R]
    centred_R[np.abs(centred_R) <= noise_G[group_R]] = 0.0
    speaks_G = (size_G > 1) & (high_G - low_G > noise_G)
    variance_G = np.bincount(group_R, centred_R**2) / np.maximum(size_G - ddof, 1)
    return centred_R, np.sqrt(variance_G)[group_R], speaks_G[group_R]


def _numbered(names) -> np.ndarray:
    """0, 1, 2, ... in the order in which they first appear; equal names, equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _row_after(trajectory_B: np.ndarray, turn_B: np.ndarray) -> np.ndarray:
    """(B,) the row of the next turn of each row's trajectory, -1 after the last."""
    order = np.lexsort((turn_B, trajectory_B))
    is_first = np.diff(trajectory_B[order], prepend=ABSENT) != 0
    expected = np.where(is_first, 0, np.roll(turn_B[order], 1) + 1)
    if (wrong := turn_B[order] != expected).any():
        at = order[np.flatnonzero(wrong)[0]]
        raise ValueError(
            f"row {at} is turn {turn_B[at]} of its trajectory: its turns must be 0, 1, 2, ... and each there once"
        )
    next_B = np.full(len(turn_B), ABSENT)
    follows = ~is_first[1:]
    next_B[order[:-1][follows]] = order[1:][follows]
    return next_B
