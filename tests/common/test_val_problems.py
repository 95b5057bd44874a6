"""Copies of a problem in a validation file are one problem with more answers."""

import numpy as np
import pytest

from recipe.common.trainer.val_problems import RememberingLoader, problems_of
from recipe.common.validation import by_problem, pass_at_k, validation_metrics


def batch(*pairs) -> dict:
    prompts = np.empty(len(pairs), dtype=object)
    prompts[:] = [[{"role": "user", "content": text}] for text, _ in pairs]
    return {
        "raw_prompt": prompts,
        "reward_model": np.array([{"ground_truth": truth} for _, truth in pairs], dtype=object),
    }


def test_equal_prompts_with_equal_references_are_one_problem():
    a, again, other_truth, other_text = problems_of(batch(("a", "1"), ("a", "1"), ("a", "2"), ("b", "1")))
    assert a == again and len({a, other_truth, other_text}) == 3


def test_tasks_that_are_put_in_the_same_words_are_several_problems():
    tasks = np.array([{"world": "w", "game": game} for game in "xxy"], dtype=object)
    a, again, other = problems_of(
        {**batch(("put it there", "won"), ("put it there", "won"), ("put it there", "won")), "task": tasks}
    )
    assert a == again != other


def test_the_problems_of_the_last_pass_are_those_of_its_uids_in_order():
    loader = RememberingLoader([batch(("a", "1"), ("b", "1")), batch(("a", "1"))])
    for number in range(2):
        assert len(list(loader)) == len(loader) == 2
        problem = loader.by_uid(uid := [f"{number}x", f"{number}y", f"{number}z"])
        assert problem[uid[0]] == problem[uid[2]] != problem[uid[1]]
    with pytest.raises(ValueError):
        loader.by_uid(["one too few"])


def test_answers_asked_for_are_those_of_all_copies():
    expected = {("s", "a"): 1, ("s", "b"): 2, ("s", "c"): 1, ("t", "d"): 1}
    found = by_problem(expected, {"a": "p", "b": "p", "c": "q", "d": "p"})
    assert found == {("s", "p"): 3, ("s", "q"): 1, ("t", "p"): 1}


def test_thirty_problems_in_960_rows_have_the_interval_of_thirty_and_pass_at_32():
    rng = np.random.default_rng(0)
    rates_P, copies = rng.beta(0.5, 0.5, 30), 32
    correct_PC = rng.random((30, copies)) < rates_P[:, None]
    uids = [f"row{p}-{c}" for p in range(30) for c in range(copies)]
    problem = {uid: uid.split("-")[0] for uid in uids}
    rows = correct_PC.ravel().astype(float).tolist(), [0.0] * 960, [9.0] * 960
    expected = by_problem({("aime", uid): 1 for uid in uids}, problem)
    found = validation_metrics(["aime"] * 960, [problem[uid] for uid in uids], *rows, expected=expected)
    by_row = validation_metrics(["aime"] * 960, uids, *rows)
    assert found["val/aime/problems"] == 30 and found["val/aime/failed"] == 0
    assert found["val/aime/pass@1"] == pytest.approx(by_row["val/aime/pass@1"])
    assert found["val/aime/pass@8"] == pytest.approx(pass_at_k([32] * 30, correct_PC.sum(1), 8).mean())
    widths = [m["val/aime/pass@1/high"] - m["val/aime/pass@1/low"] for m in (found, by_row)]
    means = np.array([rng.choice(correct_PC.mean(1), 30).mean() for _ in range(4000)])
    assert widths[0] == pytest.approx(np.subtract(*np.quantile(means, [0.975, 0.025])), rel=0.1)
    assert widths[0] > 3 * widths[1], "rows that are copies say less than rows that are not"
