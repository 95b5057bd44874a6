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
"""A user's own reward function (`reward.custom_reward_function`), in processes of its own.

verl's interface: `compute_score(data_source, solution_str, ground_truth, extra_info, **reward_kwargs)` returns a
number or a truth value, or a dict with `score` and perhaps `acc`; its other keys are not used. An answer is correct
when `acc` says so, else when its score is at least `algorithm.r3.correct_from`.

The function is the user's, the text is a model's: it runs with the grader's killing deadline and memory limit, and what
it returns is checked. One that hangs, raises, or returns NaN, a text or an infinity leaves a wrong answer with score 0
and the reason, which is counted; nothing of it is believed.
"""

import importlib
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from numbers import Number

import numpy as np  # rows of a data set may hold its arrays too: it is loaded before memory is limited

from .process_pool import Pool, Worker, questions


@dataclass(frozen=True)
class Verdict:
    """What a reward function says of one response."""

    score: float
    acc: bool | None = None
    """Whether the answer is correct, where the function says it itself."""
    error: str | None = None
    """Why there is no score of the function's; then `score` is 0."""


def load_function(path: str, name: str) -> Callable:
    """The function `name` of a Python file, or of a module written `pkg://package.module`.

    Raises:
        ValueError: there is none, in a sentence.
    """
    key = "reward.custom_reward_function"
    try:
        if path.startswith("pkg://"):
            module = importlib.import_module(path.removeprefix("pkg://"))
        else:
            spec = importlib.util.spec_from_file_location("r3_custom_reward", path)
            if spec is None:
                raise ValueError(f"{key}.path={path} is not a Python file")
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except (ImportError, OSError, SyntaxError) as error:
        raise ValueError(f"{key}.path={path} cannot be loaded: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{key}.name={name}: {path} has no such function")
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{key}.name={name} is a coroutine; write a plain function, it runs in a process of its own")
    return function


def judged(result: object) -> Verdict:
    """The verdict of what a function returned; what cannot be one is said."""
    score, acc = (result.get("score"), result.get("acc")) if isinstance(result, dict) else (result, None)
    if not isinstance(score, Number | np.bool_) or isinstance(score, complex):
        return Verdict(0.0, error=f"returned {_short(result)}, not a number or a dict with one under score")
    if not math.isfinite(score := float(score)):
        return Verdict(0.0, error=f"returned the score {score}")
    if acc is not None and not (isinstance(acc, Number | np.bool_) and acc in (0, 1)):
        return Verdict(0.0, error=f"returned acc={_short(acc)}, neither true nor false")
    return Verdict(score, None if acc is None else bool(acc))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def serve(pipe: int, parent_pid: int, path: str, name: str, kwargs: str) -> None:
    """Answers (data_source, solution_str, ground_truth, extra_info) with the fields of a `Verdict` as JSON."""
    connection, function, kwargs = Connection(pipe), load_function(path, name), json.loads(kwargs)
    names = "data_source", "solution_str", "ground_truth", "extra_info"
    for question in questions(connection, parent_pid):
        try:
            verdict = judged(function(**dict(zip(names, question, strict=True)), **kwargs))
        except Exception as error:  # whatever the user's code raises is told, and costs that answer only
            verdict = Verdict(0.0, error=f"raised {type(error).__name__}: {_short(str(error))}")
        connection.send_bytes(json.dumps(vars(verdict)).encode())


class RewardFunction:
    """The function in its processes.

    Args:
        path, name: of the function.
        kwargs: `reward.custom_reward_function.reward_kwargs`, further keyword arguments.
        timeout_s: seconds for one answer.
        workers: number of processes.
    """

    def __init__(self, path: str, name: str, kwargs: dict, timeout_s: float, workers: int):
        arguments = path, name, json.dumps(kwargs)
        self._pool = Pool(lambda: Worker(__name__, arguments, f"Look at reward.custom_reward_function.path={path}"))
        self._pool.grow(workers)
        self.timeout_s = timeout_s

    def __call__(self, data_source: str, solution: str, ground_truth: object, extra_info: dict) -> Verdict:
        """Works in any thread."""
        answer = self._pool.ask((data_source, solution, ground_truth, extra_info), self.timeout_s)
        if answer is None:
            return Verdict(0.0, error=f"did not return within {self.timeout_s:g} s, or ended its process")
        return Verdict(**json.loads(answer))

    def close(self) -> None:
        self._pool.close()


if __name__ == "__main__":
    try:
        load_function(*sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
