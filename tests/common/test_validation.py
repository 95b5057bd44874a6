"""Pass@k against its definition, intervals against simulation, and the figures of validation worked by hand."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from recipe.common.validation import (
    bootstrap,
    error_of_difference,
    interval,
    maj_at_n,
    pass_at_k,
    powers_of_two,
    validation_metrics,
)


def test_one_right_of_four_by_hand():
    assert [pass_at_k([4], [1], k)[0] for k in (1, 2, 3, 4)] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=1e-15)


def test_the_error_of_a_difference_is_that_of_draws():
    drawn = np.random.default_rng(0).binomial(100, 0.25, (2, 20_000)) / 100
    assert error_of_difference(100, 0.2, 0.3) == pytest.approx(0.0612, abs=1e-4)
    assert error_of_difference(100, 0.2, 0.3) == pytest.approx((drawn[0] - drawn[1]).std(), rel=0.02)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for n in range(1, 8):
        for c, k in product(range(n + 1), range(1, n + 1)):
            subsets = list(combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k([n], [c], k)[0] == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def test_pass_at_k_equals_the_closed_form_in_integers_up_to_1024_answers():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 1025))
        c, k = int(rng.integers(0, n + 1)), int(rng.integers(1, n + 1))
        exact = (comb(n, k) - comb(n - c, k)) / comb(n, k)
        assert pass_at_k([n], [c], k)[0] == pytest.approx(exact, rel=1e-11, abs=1e-13)


def test_problems_do_not_see_each_other():
    together = pass_at_k([4, 256, 16], [1, 0, 16], 3)
    assert together.tolist() == [pass_at_k([n], [c], 3)[0] for n, c in ((4, 1), (256, 0), (16, 16))]
    assert together.tolist()[1:] == [0, 1]


def test_pass_at_1_is_the_share_of_right_answers_and_k_only_helps():
    n_P, c_P = np.full(17, 16), np.arange(17)
    assert pass_at_k(n_P, c_P, 1) == pytest.approx(c_P / 16, abs=1e-15)
    curves = np.array([pass_at_k(n_P, c_P, k) for k in range(1, 17)])
    assert (np.diff(curves, axis=0) >= -1e-15).all()


def test_impossible_counts_are_refused():
    for attempts, k in (([4], 5), ([4], 0), ([9, 4], 5)):
        with pytest.raises(ValueError, match=rf"k must be in \[1, 4\], the smallest number of attempts, got {k}"):
            pass_at_k(attempts, [1] * len(attempts), k)
    for successes in (5, -1):
        with pytest.raises(ValueError, match=rf"successes must be in .* got \[{successes}\] of \[4\]"):
            pass_at_k([4], [successes], 1)


def test_verls_best_at_k_is_biased_low_where_ours_is_exact():
    from verl.trainer.ppo.metric_utils import bootstrap_metric

    [(biased, _)] = bootstrap_metric([1.0, 0.0, 0.0, 0.0], 4, [np.max], n_bootstrap=20000, seed=0)
    # It draws with replacement: 1 - (3/4)^4.
    assert biased == pytest.approx(1 - 0.75**4, abs=0.02)
    assert pass_at_k([4], [1], 4)[0] == 1.0


def test_the_vote_is_for_answers():
    assert maj_at_n(["5", "4", "5", None], [True, False, True, False]) == 1
    assert maj_at_n([None, None, None, "4"], [False, False, False, True]) == 1, "no answer outvoted an answer"
    assert maj_at_n([None, None], [False, False]) == 0
    assert maj_at_n(["4", "5", "6"], [True, False, False]) == pytest.approx(1 / 3)


def test_the_vote_does_not_depend_on_the_order():
    rng = np.random.default_rng(1)
    answers = ["a", "b", "c", None, "a", "b", None, None]
    values = {
        maj_at_n([answers[i] for i in order], [answers[i] == "b" for i in order])
        for order in (rng.permutation(8) for _ in range(50))
    }
    assert values == {0.5}


def test_powers_of_two_end_with_n():
    assert [powers_of_two(n) for n in (0, 1, 2, 5, 16)] == [[], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8, 16]]


def test_bootstrap_means_equal_a_loop_over_the_drawn_problems():
    values, counts = np.array([3.0, 0.0, 5.0, 1.0]), np.array([2.0, 0.0, 4.0, 1.0])
    drawn = np.random.default_rng(7).integers(4, size=(50, 4))
    plain = [np.mean([values[i] for i in draw]) for draw in drawn]
    assert bootstrap(values, 7, resamples=50) == pytest.approx(plain)
    with np.errstate(invalid="ignore"):
        ratio = [sum(values[i] for i in draw) / sum(counts[i] for i in draw) for draw in drawn]
    assert bootstrap(values, 7, counts, resamples=50) == pytest.approx(np.array(ratio), nan_ok=True)


def test_blocks_do_not_change_the_draws(monkeypatch):
    values = np.arange(12.0).reshape(6, 2)
    whole = bootstrap(values, 3, resamples=40)
    monkeypatch.setattr("recipe.common.validation.CELLS", 30)
    assert np.array_equal(bootstrap(values, 3, resamples=40), whole)
    assert np.array_equal(whole[:, 1], bootstrap(values[:, 1], 3, resamples=40)), "figures share the drawn problems"


def test_the_95_percent_interval_covers():
    """2,000 benchmarks of 100 problems from one population: the true mean must be inside in about 95 % of them.

    A percentile interval of 100 problems covers about 94 %. Binomial deviation at 2,000 trials: 0.5 %; four of them
    each way are allowed.
    """
    rng, mean, inside, trials = np.random.default_rng(0), 0.4, 0, 2000
    for trial in range(trials):
        # Success rate of a problem: Beta(0.4, 0.6), mostly near 0 or 1; then 16 answers to it.
        shares = rng.binomial(16, rng.beta(0.4, 0.6, size=100)) / 16
        low, high = interval(shares, trial, resamples=400)
        inside += low <= mean <= high
    assert 0.92 < inside / trials < 0.97


def test_intervals_of_other_levels_are_nested_and_hold_the_mean():
    values = np.random.default_rng(2).random(50)
    narrow, wide = interval(values, 0, level=0.5), interval(values, 0, level=0.99)
    assert wide[0] < narrow[0] < values.mean() < narrow[1] < wide[1]
    assert interval([0.3], 0) == (0.3, 0.3)


def rows(*problems):
    """Columns of (source, uid, [(correct, truncated, tokens), ...])."""
    table = [(source, uid, *row) for source, uid, answers in problems for row in answers]
    return [list(column) for column in zip(*table, strict=True)]


HAND = rows(
    ("aime", "p", [(1, 0, 10), (0, 1, 96), (0, 0, 20), (0, 0, 30)]),
    ("aime", "q", [(1, 0, 40), (1, 0, 50), (0, 0, 60)]),  # one row was aborted
    ("amc", "r", [(0, 1, 96), (0, 1, 96)]),
)


def test_validation_metrics_by_hand():
    metrics = validation_metrics(*HAND)
    # p: 1 of 4, q: 2 of 3. Pass@2: 1 - C(3,2)/C(4,2) = 1/2 and 1. Pass@3: 1 - 1/4 = 3/4 and 1.
    expected = {
        "pass@1": (1 / 4 + 2 / 3) / 2,
        "pass@1/low": 1 / 4,
        "pass@1/high": 2 / 3,
        "pass@2": 3 / 4,
        "pass@3": 7 / 8,
        "tokens/all": 306 / 7,
        "tokens/correct": 100 / 3,
        "tokens/wrong": 206 / 4,
        "truncated": 1 / 7,
        "problems": 2,
        "failed": 0,
    }
    assert {k.removeprefix("val/aime/"): v for k, v in metrics.items() if "aime" in k} == pytest.approx(expected)
    assert metrics["val/amc/pass@2"] == metrics["val/amc/pass@1/high"] == 0 and metrics["val/amc/truncated"] == 1
    assert "val/amc/tokens/correct" not in metrics and "val/amc/pass@3" not in metrics


def test_lengths_and_cuts_that_are_not_known_are_left_out():
    sources, uids, correct, truncated, tokens = (list(column) for column in HAND)
    unknown = [float("nan")] * len(tokens)
    full, bare = validation_metrics(*HAND), validation_metrics(sources, uids, correct, unknown, unknown)
    assert bare == {key: full[key] for key in full if "tokens/" not in key and "truncated" not in key}
    with pytest.raises(ValueError, match="correct must be 0 or 1"):
        validation_metrics(sources, uids, unknown, truncated, tokens)


def test_validation_metrics_do_not_depend_on_the_order_of_rows():
    order = np.random.default_rng(5).permutation(len(HAND[0]))
    shuffled = [[column[i] for i in order] for column in HAND]
    assert validation_metrics(*shuffled) == pytest.approx(validation_metrics(*HAND), abs=1e-12)


def test_one_answer_per_problem_has_no_pass_at_k_above_1():
    metrics = validation_metrics(["s"] * 3, ["a", "b", "c"], [1, 0, 0], [0, 0, 0], [1, 2, 3])
    assert {key for key in metrics if "pass@" in key} == {f"val/s/pass@1{end}" for end in ("", "/low", "/high")}


def test_bad_columns_are_refused_and_no_rows_give_no_metrics():
    with pytest.raises(ValueError, match="one entry per row, got lengths"):
        validation_metrics(["s"], ["a", "b"], [1, 0], [0, 0], [1, 2])
    with pytest.raises(ValueError, match="correct must be 0 or 1 in every row, got nan"):
        validation_metrics(["s"], ["a"], [float("nan")], [0], [1])
    assert validation_metrics([], [], [], [], []) == {}


def test_an_answer_that_never_came_is_wrong():
    """Two answers asked for each of three problems; one of `a` and both of `c` failed."""
    rows = (["s"] * 3, ["a", "b", "b"], [1, 1, 0], [0, 0, 1], [10, 20, 30])
    asked = {("s", "a"): 2, ("s", "b"): 2, ("s", "c"): 2}
    metrics = validation_metrics(*rows, expected=asked)
    assert metrics["val/s/pass@1"] == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert metrics["val/s/pass@2"] == pytest.approx(2 / 3)
    assert (metrics["val/s/failed"], metrics["val/s/problems"]) == (3, 3)
    assert (metrics["val/s/tokens/all"], metrics["val/s/truncated"]) == (20, pytest.approx(1 / 3))


def test_a_source_without_any_answer_is_all_wrong():
    metrics = validation_metrics(["s"], ["a"], [1], [0], [5], expected={("s", "a"): 1, ("t", "b"): 4})
    assert (metrics["val/s/pass@1"], metrics["val/s/failed"]) == (1, 0)
    assert (metrics["val/t/pass@1"], metrics["val/t/pass@4"], metrics["val/t/failed"]) == (0, 0, 4)


def test_expected_counts_change_nothing_when_every_answer_came():
    rows = (["s"] * 4, ["a", "a", "b", "b"], [1, 0, 1, 1], [0, 1, 0, 0], [3, 4, 5, 6])
    assert validation_metrics(*rows, expected={("s", "a"): 2, ("s", "b"): 2}) == validation_metrics(*rows)
