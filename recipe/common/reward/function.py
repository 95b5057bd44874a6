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
number or a truth value, or a dict with `score` and perhaps `acc` and `pred`; its other keys are not used. An answer is
correct when `acc` says so, else when its score is at least `reward.reward_kwargs.correct_from`.

The function is the user's, the text is a model's: it runs with the grader's killing deadline and memory limit, and what
it returns is checked. One that hangs, raises, or returns NaN, a text or more than 1e18 leaves a wrong answer with
score 0 and the reason, which is counted; nothing of it is believed.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from numbers import Number

import numpy as np  # rows of a data set may hold its arrays too: it is loaded before memory is limited

from recipe.common.process_pool import FIRST_CALL_S, FirstCalls, Pool, Worker, questions

KEY = "reward.custom_reward_function"
PKG, FILE = "pkg://", "file://"
NAMES = "data_source", "solution_str", "ground_truth", "extra_info"
LARGEST = 1e18
"""Scores are kept in float32, where the std of a group squares them."""
LOADED = "r3: the reward function is there"
"""Printed by this module as a program: a file may end the process that loads it, and that with exit code 0."""


@dataclass(frozen=True)
class Verdict:
    """What a reward function says of one response."""

    score: float
    acc: bool | None = None
    """Whether the answer is correct, where the function says it itself."""
    pred: str | None = None
    """What the function took for the answer, where it says so: verl's validation counts votes by it (`maj@`)."""
    error: str | None = None
    """Why there is no score of the function's; then `score` is 0."""

    def is_correct(self, correct_from: float) -> bool:
        """What the function says itself, else whether the score is at least `correct_from`."""
        return self.error is None and (self.score >= correct_from if self.acc is None else self.acc)


def _module_name(path: str) -> str:
    return path.removeprefix(PKG).replace("/", ".")


def function_file(path: str) -> str | None:
    """The file that `path` means, as verl's load_module and `~` have it. None: no file of such a module is found."""
    if not path.startswith(PKG):
        return os.path.expanduser(path.removeprefix(FILE))
    first, *inner = _module_name(path).split(".")
    # `python -m` looks in the working folder first. importlib's find_spec would import what a module is inside of.
    spec = PathFinder.find_spec(first, [os.getcwd(), *sys.path]) or importlib.util.find_spec(first)
    for name in inner:
        spec = spec and PathFinder.find_spec(name, spec.submodule_search_locations or [])
    return spec and spec.origin


def load_function(path: str, name: str, may_be_coroutine: bool = False) -> Callable:
    """The function `name` of a Python file, or of a module written `pkg://package.module`.

    Raises:
        ValueError: there is none, in a sentence.
    """
    try:
        if path.startswith(PKG):
            module = importlib.import_module(_module_name(path))
        else:
            spec = importlib.util.spec_from_file_location("r3_custom_reward", function_file(path))
            if spec is None or spec.loader is None:
                raise ImportError("it is not a Python file")
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise ValueError(_line(f"{KEY}.path={path} cannot be loaded: {type(error).__name__}: {error}")) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{KEY}.name={name}: {path} has no such function")
    if inspect.iscoroutinefunction(function) and not may_be_coroutine:
        raise ValueError(f"{KEY}.name={name} is a coroutine; write a plain function, it runs in a process of its own")
    return function


def check_arguments(function: Callable, name: str, kwargs: dict) -> None:
    """Raises ValueError where the function does not take what it is given. One of C may not say what it takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**dict.fromkeys(NAMES) | kwargs)
    except TypeError as error:
        given = ", ".join([*NAMES, *(f"reward_kwargs.{key}" for key in kwargs)])
        raise ValueError(_line(f"{KEY}.name={name} takes {signature} and is given {given}: {error}")) from error


def _line(text: str) -> str:
    return " ".join(text.split())


def packed(kwargs: dict) -> str:
    """Keyword arguments as a text for another process; as JSON a key that is a number would become a text."""
    return pickle.dumps(kwargs).hex()


def unpacked(text: str) -> dict:
    return pickle.loads(bytes.fromhex(text))


def judged(result: object) -> Verdict:
    """The verdict of what a function returned; what cannot be one is said."""
    score, acc = (result.get("score"), result.get("acc")) if isinstance(result, dict) else (result, None)
    if not isinstance(score, Number | np.bool_) or isinstance(score, complex):
        return Verdict(0.0, error=f"returned {_short(result)}, not a number or a dict with one under score")
    score = float(score)  # pyright: ignore[reportArgumentType]
    if not abs(score) <= LARGEST:  # nor is NaN
        return Verdict(0.0, error=f"returned the score {score}")
    if acc is not None and not (isinstance(acc, Number | np.bool_) and acc in (0, 1)):
        return Verdict(0.0, error=f"returned acc={_short(acc)}, neither true nor false")
    pred = result.get("pred") if isinstance(result, dict) else None
    return Verdict(score, None if acc is None else bool(acc), pred if isinstance(pred, str) else None)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def serve(pipe: int, parent_pid: int, path: str, name: str, kwargs: str) -> None:
    """Answers (data_source, solution_str, ground_truth, extra_info) with the fields of a `Verdict` as JSON."""
    connection, function, arguments = Connection(pipe), load_function(path, name), unpacked(kwargs)
    for question, reply in questions(connection, parent_pid):
        is_full = False
        try:
            verdict = judged(function(**dict(zip(NAMES, question, strict=True)) | arguments))
        except Exception as error:  # whatever the user's code raises is told, and costs that answer only
            verdict = Verdict(0.0, error=f"raised {type(error).__name__}: {_short(str(error))}")
            is_full = isinstance(error, MemoryError)  # and may be so for good
        reply(json.dumps(vars(verdict)).encode(), last=is_full)


class RewardFunction:
    """The function in its processes.

    Args:
        path, name: of the function.
        kwargs: `reward.custom_reward_function.reward_kwargs`, further keyword arguments.
        timeout_s: seconds for one answer; the first of a fresh process may take FIRST_CALL_S more.
        workers: number of processes.
    """

    def __init__(self, path: str, name: str, kwargs: dict, timeout_s: float, workers: int):
        arguments, first_calls = (path, name, packed(kwargs)), FirstCalls()
        self._pool = Pool(lambda: Worker(__name__, arguments, f"Look at {path}, which holds {name}", first_calls))
        self._pool.grow(workers)
        self.timeout_s = timeout_s

    def __call__(self, data_source: str, solution: str, ground_truth: object, extra_info: dict) -> Verdict:
        """Works in any thread."""
        answer = self._pool.ask((data_source, solution, ground_truth, extra_info), self.timeout_s)
        if answer is None:
            deadline = f"{self.timeout_s:g} s (a process's first answer: up to {FIRST_CALL_S:g} s more)"
            return Verdict(0.0, error=f"did not return within {deadline}, or ended its process")
        return Verdict(**json.loads(answer))

    def close(self) -> None:
        self._pool.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Whether a reward function can be loaded.")
    parser.add_argument("path")
    parser.add_argument("name")
    parser.add_argument("--kwargs", type=unpacked, help="packed; whether it takes these and what verl gives, too")
    parser.add_argument("--may-be-coroutine", action="store_true")
    args = parser.parse_args()
    try:
        function = load_function(args.path, args.name, args.may_be_coroutine)
        if args.kwargs is not None:
            check_arguments(function, args.name, args.kwargs)
    except ValueError as error:
        sys.exit(str(error))
    print(f"\n{LOADED}", file=sys.__stdout__, flush=True)
