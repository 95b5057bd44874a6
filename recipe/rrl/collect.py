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
"""Which states a step's answers leave behind: pure functions on answers, no Ray, no TransferQueue."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recipe.common.restart.cuts import Cutter, random_cut
from recipe.rrl.config.rrl_config import AT_RANDOM, AT_START, BY_VALUE, FIXED, StatesConfig
from recipe.rrl.cuts import admitted, best_cut, fixed_cut, steered
from recipe.rrl.states import FAILED, REFERENCE, RIGHT, State


@dataclass(frozen=True)
class Answer:
    """One written from the start in this step."""

    query_id: str
    group: str
    """Its uid."""
    tokens: np.ndarray
    """(L,) ids."""
    is_right: bool
    values: np.ndarray | None
    """(L,) V(s_t) of t = 0 .. L-1; None without a critic."""


def states_of(
    answers: Iterable[Answer],
    config: StatesConfig,
    cutter: Cutter,
    step: int,
    rng: random.Random,
    aimed: Callable[[str], Sequence[tuple[float, int, int]]],
    solution: Callable[[str], Sequence[int]] | None = None,
) -> list[State]:
    """The states that a step adds, of hard problems: at most one an answer, and one a solution.

    Args:
        answers: of whole groups, in any order: the result depends on their content alone.
        aimed: by query id, (share aimed at, tries, successes) of its steered restarts so far.
        solution: by query id, token ids of a worked solution; None: there is none.
    """
    hard = _hard(list(answers), config.hard)
    failed = [answer for answer in hard if not answer.is_right] if config.takes_failed else []
    right = [answer for answer in hard if answer.is_right] if config.takes_right else []
    found = _failed(failed, config, cutter, step, rng)
    found += [state for answer in right if (state := _right(answer, config, cutter, step, rng, aimed, RIGHT))]
    for query_id in sorted({answer.query_id for answer in hard}) if solution else ():
        given = Answer(query_id, "", np.array(solution(query_id), dtype=np.int32), True, None)
        found += [state] if (state := _right(given, config, cutter, step, rng, aimed, REFERENCE)) else []
    return found


def _hard(answers: Collection[Answer], most: float) -> list[Answer]:
    """The answers of groups of which at most that share is right, in an order of their content."""
    groups = defaultdict(list)
    for answer in answers:
        groups[answer.group].append(answer)
    kept = [group for group in groups.values() if np.mean([answer.is_right for answer in group]) <= most]
    return sorted((answer for group in kept for answer in group), key=lambda a: (a.query_id, a.tokens.tolist()))


def _failed(answers: list[Answer], config: StatesConfig, cutter: Cutter, step: int, rng: random.Random) -> list[State]:
    """By value: the best cut of each answer, if it is among the step's best. Without it: of as many
    answers, but for the floor."""
    cuts = [(answer, cutter.points(answer.tokens)) for answer in answers]
    cuts = [(answer, points) for answer, points in cuts if len(points)]
    if config.failed_cut in (AT_RANDOM, AT_START):
        number = int(admitted(np.arange(len(cuts)), -math.inf, config.admit).sum())  # rounded as the best are
        chosen = rng.sample(cuts, number)
        is_random = config.failed_cut == AT_RANDOM
        return [_state(answer, random_cut(points, rng) if is_random else 0, FAILED, step) for answer, points in chosen]
    assert config.failed_cut == BY_VALUE
    found = [(answer, best_cut(answer.values, points, config.score)) for answer, points in cuts]
    is_kept = admitted(np.array([score for _, (_, score) in found]), config.floor, config.admit)
    return [_state(answer, cut, FAILED, step) for (answer, (cut, _)), kept in zip(found, is_kept, strict=True) if kept]


def _right(
    answer: Answer,
    config: StatesConfig,
    cutter: Cutter,
    step: int,
    rng: random.Random,
    aimed: Callable[[str], Sequence[tuple[float, int, int]]],
    origin: str,
) -> State | None:
    """None where there is no cut."""
    points, length, share = cutter.points(answer.tokens), len(answer.tokens), config.right_share
    if not len(points):
        return None
    if config.right_cut == AT_RANDOM:
        return _state(answer, random_cut(points, rng), origin, step)
    if config.right_cut == FIXED:
        return _state(answer, fixed_cut(points, share, length), origin, step)
    share = steered(aimed(answer.query_id), share)
    return _state(answer, fixed_cut(points, share, length), origin, step, aim=share)


def _state(answer: Answer, cut: int, origin: str, step: int, aim: float | None = None) -> State:
    known = answer.values is not None
    return State(
        query_id=answer.query_id,
        tokens=np.asarray(answer.tokens[:cut], dtype=np.int32),
        origin=origin,
        length=len(answer.tokens),
        step=step,
        value=float(answer.values[cut]) if known else None,
        start_value=float(answer.values[0]) if known else None,
        aim=aim,
    )
