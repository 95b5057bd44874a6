r"""Reward of an answer to a task of reasoning-gym: the mark that the task's own scorer gives, from 0 to 1.

    reward.custom_reward_function.path=examples/custom_reward/reasoning_gym_reward.py
    reward.custom_reward_function.name=compute_score

The answer is what stands in the last <answer>...</answer> after the last </think>, and of it, or of the whole text
where there are no such tags, the last \boxed{...}: `<answer>so \boxed{12}</answer>` and `It is \boxed{\text{12}}.` both
answer 12. A text without either, with an unclosed box, or with an answer of over 4,000 characters has none: mark 0.

Rows come from prepare_data.py: `data_source` is reasoning_gym/TASK, and `extra_info.entry` holds what the task made
(question, answer, metadata) as JSON, because parquet has no place for metadata that differ from task to task.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from recipe.common.reward.math.answer_text import MAX_ANSWER_CHARS, final_answer

try:
    import pycosat  # noqa: F401
except ModuleNotFoundError:
    # It would have to be compiled. reasoning_gym imports it with everything else, and zebra_puzzles alone calls it.
    sys.modules["pycosat"] = ModuleType("pycosat")
try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
except ModuleNotFoundError as error:
    requirements = Path(__file__).with_name("requirements.txt")
    raise ImportError(f"{error}; pip install --no-deps -r {requirements}") from error

PREFIX = "reasoning_gym/"
EXECUTING = (
    "binary_matrix countdown intermediate_integration n_queens polynomial_multiplication puzzle24 simple_integration "
    "spiral_matrix string_insertion"
).split()
"""Their scorers give the answer to eval() or to sympy's parse_expr, which calls it."""
REFUSED = dict.fromkeys(EXECUTING, "its scorer would run a model's answer as a program") | {
    "coin_flip": "its scorer gives the full mark to 0",
    "complex_arithmetic": "its scorer gives the full mark to nan",
    "game_of_life_halting": "its scorer gives the full mark to any text",
}
"""Tasks of reasoning-gym 0.1.25 whose scorers a text could fool, and reinforcement learning finds such texts."""
TEXT = re.compile(r"\\(?:text|textbf|mathrm|texttt)\{([^{}]*)\}")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict) -> dict:
    """`score`: the mark in [0, 1]. `acc`: whether it is the full mark.

    Raises:
        ValueError: a row that prepare_data.py did not write. Never for what the response says.
    """
    entry = extra_info.get("entry")
    check_row(data_source, ground_truth, entry)
    answer = answer_of(solution_str)
    score = 0.0 if answer is None else mark(data_source, answer, json.loads(entry))
    return {"score": score, "acc": score >= 1.0}


def answer_of(response: str) -> str | None:
    """The answer in a response, None where there is none; see the module's docstring."""
    text = response.rpartition("</think>")[2]
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    tagged = text[start + len("<answer>") : end] if start >= 0 else None
    answer = final_answer(text if tagged is None else tagged)
    if answer is None and tagged is not None and r"\boxed" not in tagged:
        answer = tagged
    if answer is None or len(answer) > MAX_ANSWER_CHARS:
        return None
    answer = answer.strip()
    is_text = TEXT.fullmatch(answer)
    return is_text[1].strip() if is_text else answer


def mark(data_source: str, answer: str, entry: dict) -> float:
    """What the task's scorer says of an answer to a row that `check_row` passed."""
    try:
        return float(scorer(data_source)(answer, entry))
    except Exception:  # scorers read answers with int(), json and more; the row is fine, so the text is at fault
        return 0.0


@lru_cache(maxsize=4096)
def check_row(data_source: str, ground_truth: str, entry: str | None) -> None:
    """Raises ValueError unless the row's own answer gets the full mark of its task."""
    try:
        known = json.loads(entry)
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra_info.entry must be a task's entry as JSON ({error}): use prepare_data.py") from error
    if not isinstance(known, dict) or known.get("answer") != ground_truth:
        raise ValueError(f"reward_model.ground_truth={ground_truth!r} is not the answer of extra_info.entry")
    judge = scorer(data_source)
    try:
        best = judge(ground_truth, known)
    except Exception as error:  # as above; what the row lacks is not known here
        raise ValueError(f"{data_source}: the scorer fails on the row's own answer ({error!r})") from error
    if best < 1:
        raise ValueError(f"{data_source}: the row's own answer {ground_truth!r} gets {best}, not the full mark")


@lru_cache
def scorer(data_source: str) -> Callable[[str, dict], float]:
    """Raises ValueError for a data source that is no task, or one of `REFUSED`."""
    task = data_source.removeprefix(PREFIX)
    if not data_source.startswith(PREFIX) or task not in DATASETS:
        raise ValueError(f"data_source={data_source} is not {PREFIX} and a task of reasoning-gym")
    if task in REFUSED:
        raise ValueError(f"data_source={data_source} cannot be trusted: {REFUSED[task]}")
    return reasoning_gym.get_score_answer_fn(task)
