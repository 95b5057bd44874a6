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
"""Which cuts of an answer are worth a restart, and which stored states are drawn: pure functions on arrays.

An answer has L tokens. A cut t keeps `tokens[:t]`, 1 <= t < L; the state there is the prompt and what is kept.
`values[t]` is the critic's value of that state, `values[0]` of the prompt alone. V: size of the vocabulary. N: states
or answers.
"""

import random
from collections.abc import Iterable, Sequence

import numpy as np

from recipe.rrl.config.rrl_config import GAIN, SCORES

LADDER = tuple(eighths / 8 for eighths in range(1, 8))
"""Shares of a right answer that a restart may keep."""


def best_cut(values_L: np.ndarray, points: np.ndarray, score: str) -> tuple[int, float] | None:
    """The cut that the critic thinks most of, and its score; the earliest of equal ones. None without a cut.

    values [0.2, 0.1, 0.6, 0.9, 0.3], points [1, 2]: (2, 0.4) by gain, (2, 0.6) by raw value.

    Args:
        values_L: (L,) finite; `values[0]` is that of the prompt.
        score: "gain", V(s_t) - V(s_0), which easy prompts do not lead, or "raw", V(s_t).

    Raises:
        ValueError: another score.
    """
    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
    if not len(points):
        return None
    best = int(points[np.argmax(values_L[points])])
    return best, float(values_L[best]) - (float(values_L[0]) if score == GAIN else 0.0)


def admitted(scores_N: np.ndarray, floor: float, share: float) -> np.ndarray:
    """Which of a step's best cuts are kept: those at `floor` or above that are in the step's highest `share`.

    The share holds where the scale of a young critic drifts; the floor holds in a step without a good cut.
    scores [0.1, 0.2, 0.3, 0.4, 0.5], floor 0, share 0.25: the last two; floor 0.45: the last.

    Returns:
        (N,) bool.
    """
    scores_N = np.asarray(scores_N, dtype=np.float64)
    if not len(scores_N):
        return np.zeros(0, dtype=bool)
    return scores_N >= max(floor, float(np.quantile(scores_N, 1.0 - share)))


def fixed_cut(points: np.ndarray, share: float, length: int) -> int | None:
    """The cut nearest to `share` of the answer's `length`, the earlier of two as near; None without a cut."""
    return int(points[np.argmin(np.abs(points - share * length))]) if len(points) else None


def steer(share: float, successes: int, tries: int, enough: int = 8) -> float:
    """The share of a right answer that the next restart keeps, so that success goes to one half.

    One rung of the ladder 1/8, 2/8, ..., 7/8 at a time, once there were `enough` tries at a share: shorter where more
    than half succeeded, longer where fewer did. A longer right prefix succeeds more often, so the rungs walked
    lie about the one where half succeeds.

    share 0.5, 6 of 8: 0.375; 2 of 8: 0.625; 4 of 8, or 2 of 2: 0.5.

    Args:
        share: of the restarts that were counted; taken as its nearest rung, the shorter of two as near.
        successes, tries: of restarts at that share.
    """
    rung = int(np.argmin(np.abs(np.array(LADDER) - share)))
    if tries >= enough and 2 * successes != tries:
        rung += -1 if 2 * successes > tries else 1
    return LADDER[min(max(rung, 0), len(LADDER) - 1)]


def steered(restarts: Iterable[tuple[float, int, int]], share: float, enough: int = 8) -> float:
    """The share at which a query stands after all its restarts: `steer`, from one move to the next.

    share 0.5, restarts [(0.5, 4, 4), (0.5, 4, 3), (0.625, 4, 0), (0.375, 4, 1)]: 0.375, for 7 of 8 moved it there, and
    neither a restart that aimed elsewhere nor 4 tries move it on.

    Args:
        restarts: (share aimed at, tries, successes) in their order.
        share: to begin with.
    """
    share, tries, successes = steer(share, 0, 0), 0, 0
    for aim, more_tries, more_successes in restarts:
        if aim == share:
            tries, successes = tries + more_tries, successes + more_successes
        if tries >= enough:
            share, tries, successes = steer(share, successes, tries, enough), 0, 0
    return share


def draw_weights(gains_N: np.ndarray, tries_N: np.ndarray, temperature: float) -> np.ndarray:
    """exp(gain / temperature) / sqrt(1 + tries), normalised: how likely each state is to be drawn.

    gains [0.1, 0.1], tries [0, 3], any temperature: [2/3, 1/3].

    Args:
        gains_N: (N,) finite V(s_c) - V(s_0); any size, for only differences count.
        temperature: above 0, in units of the value; infinite: by tries alone.

    Returns:
        (N,) float64 with the sum 1; empty where there is no state.
    """
    gains_N = np.asarray(gains_N, dtype=np.float64)
    if not len(gains_N):
        return gains_N
    weights_N = np.exp((gains_N - gains_N.max()) / temperature) / np.sqrt(1.0 + np.asarray(tries_N))
    return weights_N / weights_N.sum()


def drawn(
    query_ids: Sequence[str],
    gains: Sequence[float],
    tries: Sequence[int],
    k: int,
    rng: random.Random,
    temperature: float,
) -> list[int]:
    """Places of at most `k` of N states, drawn one after the other by `draw_weights` among those whose query has none
    yet; fewer where there are fewer queries.

    Args:
        query_ids, gains, tries: (N,) of the states.
    """
    left = np.arange(len(query_ids))
    names_N, gains_N, tries_N = np.array(query_ids, dtype=object), np.array(gains), np.array(tries)
    chosen = []
    while len(chosen) < k and len(left):
        below = np.cumsum(draw_weights(gains_N[left], tries_N[left], temperature))
        [at] = rng.choices(left.tolist(), cum_weights=below.tolist())
        chosen.append(at)
        left = left[names_N[left] != names_N[at]]
    return chosen
