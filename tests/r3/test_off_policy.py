"""Off-policy metrics of replayed rows: by hand, equal policies and verl's figures, under invariances, a slow loop.

L tokens of one row. Log-probs in nats; ratio = pi_current / pi_behavior of a token.
"""

import math

import numpy as np
import pytest
import torch

from recipe.r3.off_policy import LOG_RATIO_BOUND, RATIO_BINS, off_policy_metrics
from verl.trainer.ppo.rollout_corr_helper import (
    SAFETY_BOUND,
    compute_offpolicy_metrics,
    compute_rollout_correction_weights,
)
from verl.trainer.ppo.v1.utils import MetricsAggregator


def rows_with(*log_ratios: list[float]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(old, behavior) log-probs of rows with the given log ratios; every token had log-prob -2 when generated."""
    behavior = [torch.full((len(row),), -2.0, dtype=torch.float64) for row in log_ratios]
    return [row + torch.tensor(d, dtype=torch.float64) for row, d in zip(behavior, log_ratios, strict=True)], behavior


def rows_with_ratios(*ratios: list[float]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return rows_with(*[[math.log(ratio) for ratio in row] for row in ratios])


def random_rows(seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int]]:
    """Old (float32) and behavior (float16) log-probs of 1 to 7 rows of 1 to 39 tokens, and ages of 0 to 40 steps."""
    rng = np.random.default_rng(seed)
    old, behavior, ages = [], [], []
    for _ in range(rng.integers(1, 8)):
        stored = -rng.exponential(1.5, size=rng.integers(1, 40))
        drift = rng.normal(scale=0.1 + seed % 4 * 0.4, size=stored.shape)
        behavior.append(torch.tensor(stored, dtype=torch.float16))
        old.append(torch.tensor(np.minimum(stored + drift, 0), dtype=torch.float32))
        ages.append(int(rng.integers(0, 41)))
    return old, behavior, ages


def slow_quantile(values: list[float], share: float) -> float:
    values = sorted(values)
    position = share * (len(values) - 1)
    low, high = values[math.floor(position)], values[math.ceil(position)]
    return low + (position - math.floor(position)) * (high - low)


def slow_ess(weights: list[float]) -> float:
    return sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights))


def slow_metrics(old, behavior, ages) -> dict[str, float]:
    """The definitions token by token, in Python floats; ratios must be small enough not to overflow."""
    pairs = zip(old, behavior, strict=True)
    rows = [[o - b for o, b in zip(o_L.tolist(), b_L.tolist(), strict=True)] for o_L, b_L in pairs]
    tokens = [d for row in rows for d in row]
    bins = dict(zip(RATIO_BINS, [(0, 0.5), (0.5, 0.8), (0.8, 1.25), (1.25, 2), (2, math.inf)], strict=True))
    result = {
        f"replay/ratio/{name}": sum(lower <= math.exp(d) < upper for d in tokens) / len(tokens)
        for name, (lower, upper) in bins.items()
    }
    result["replay/ratio/p01"] = math.exp(slow_quantile(tokens, 0.01))
    result["replay/ratio/p99"] = math.exp(slow_quantile(tokens, 0.99))
    result["replay/ess/rows"] = slow_ess([math.exp(sum(row)) for row in rows])
    chosen = {"all": tokens}
    for lower, upper in [(0, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63)]:
        inside = [d for row, age in zip(rows, ages, strict=True) for d in row if lower <= age <= upper]
        if inside:
            chosen[f"age_{lower:04d}"] = inside
    for name, values in chosen.items():
        result[f"replay/ess/{name}"] = slow_ess([math.exp(d) for d in values])
        result[f"replay/kl/{name}"] = -sum(values) / len(values)
    return result


# (a) numbers by hand


def test_the_worked_example_of_the_docstring():
    # weights 1, 3, 1/4, 1: sum 5.25, sum of squares 11.0625. Quantiles at positions 0.03 and 2.97 of the sorted
    # log ratios [-1.386294, 0, 0, 1.098612]: exp(0.97 * -1.386294) and exp(0.97 * 1.098612).
    metrics = off_policy_metrics(*rows_with_ratios([1, 3], [0.25, 1]), ages=[1, 9])
    assert metrics == pytest.approx(
        {
            "replay/ratio/below_0.5": 0.25,
            "replay/ratio/0.5_to_0.8": 0.0,
            "replay/ratio/0.8_to_1.25": 0.5,
            "replay/ratio/1.25_to_2": 0.0,
            "replay/ratio/above_2": 0.25,
            "replay/ratio/p01": 0.260616,
            "replay/ratio/p99": 2.902736,
            "replay/ess/all": 0.622881,
            "replay/ess/rows": 0.582759,
            "replay/ess/age_0000": 0.8,
            "replay/ess/age_0008": 0.735294,
            "replay/kl/all": 0.071921,
            "replay/kl/age_0000": -0.549306,
            "replay/kl/age_0008": 0.693147,
        },
        abs=1e-5,
    )


@pytest.mark.parametrize(
    "ratio, name",
    [(0.49, "below_0.5"), (0.51, "0.5_to_0.8"), (0.79, "0.5_to_0.8"), (0.81, "0.8_to_1.25"), (1.24, "0.8_to_1.25")]
    + [(1.26, "1.25_to_2"), (1.99, "1.25_to_2"), (2.01, "above_2")],
)
def test_every_ratio_falls_into_the_bin_that_its_name_says(ratio, name):
    metrics = off_policy_metrics(*rows_with_ratios([ratio]), ages=[0])
    assert {bin_name: metrics[f"replay/ratio/{bin_name}"] for bin_name in RATIO_BINS} == {
        bin_name: float(bin_name == name) for bin_name in RATIO_BINS
    }


@pytest.mark.parametrize(
    "age, name",
    [(0, "age_0000"), (1, "age_0000"), (2, "age_0002"), (3, "age_0002"), (4, "age_0004"), (7, "age_0004")]
    + [(8, "age_0008"), (15, "age_0008"), (16, "age_0016"), (1023, "age_0512"), (1024, "age_1024")],
)
def test_age_buckets_double_and_only_those_that_occur_are_reported(age, name):
    metrics = off_policy_metrics(*rows_with_ratios([0.5, 2.5]), ages=[age])
    assert [key for key in metrics if "age_" in key] == [f"replay/ess/{name}", f"replay/kl/{name}"]


def test_names_of_age_buckets_sort_by_age():
    ages = [9000, 100, 8, 0, 2, 5000, 40]
    metrics = off_policy_metrics(*rows_with(*[[0.1]] * len(ages)), ages=ages)
    names = [key for key in metrics if key.startswith("replay/kl/age_")]
    assert names == sorted(names)
    assert [int(name[-4:]) for name in names] == [0, 2, 8, 32, 64, 4096, 8192]


def test_one_outlier_among_equal_weights_sets_the_effective_sample_size():
    # weights 99 times 1 and one 101: 200^2 / (100 * (99 + 10201)) = 40000 / 1030000
    metrics = off_policy_metrics(*rows_with_ratios([1] * 99 + [101]), ages=[0])
    assert metrics["replay/ess/all"] == pytest.approx(40000 / 1030000)


# (b) reductions: equal policies, known distributions, verl's own figures


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_equal_log_probs_are_on_policy(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = [(-torch.rand(length, generator=generator) * 9).to(dtype) for length in (1, 17, 400)]
    metrics = off_policy_metrics(rows, [row.clone() for row in rows], ages=[0, 3, 70])
    for name, value in metrics.items():
        one = name.startswith("replay/ess/") or name in {f"replay/ratio/{key}" for key in ("0.8_to_1.25", "p01", "p99")}
        assert value == pytest.approx(float(one), abs=1e-12), name


def test_kl_of_tokens_sampled_from_the_behaviour_policy_is_the_exact_kl():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=50)
    # A moderate drift: the mean of w^2 converges slowly when rare tokens carry large ratios.
    behavior, current = (np.exp(x) / np.exp(x).sum() for x in (logits, logits + rng.normal(scale=0.5, size=50)))
    tokens = rng.choice(50, size=200_000, p=behavior)
    metrics = off_policy_metrics([torch.tensor(np.log(current[tokens]))], [torch.tensor(np.log(behavior[tokens]))], [0])
    log_ratio = np.log(behavior / current)
    exact = (behavior * log_ratio).sum()
    noise = math.sqrt((behavior * (log_ratio - exact) ** 2).sum() / len(tokens))
    assert metrics["replay/kl/all"] == pytest.approx(exact, abs=5 * noise)
    # E[w] = 1, so the share tends to 1 / E[w^2]
    assert metrics["replay/ess/all"] == pytest.approx(1 / (current**2 / behavior).sum(), rel=0.02)


def test_kl_and_ess_are_what_verl_reports_for_the_same_tokens():
    assert LOG_RATIO_BOUND == SAFETY_BOUND
    for seed in range(12):
        old, behavior, ages = random_rows(seed)
        padded = [torch.nn.utils.rnn.pad_sequence([row.double() for row in rows], True) for rows in (old, behavior)]
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.float64) for row in old], True)
        metrics = off_policy_metrics(old, behavior, ages)
        assert metrics["replay/kl/all"] == pytest.approx(compute_offpolicy_metrics(*padded, mask)["kl"], abs=1e-7)
        for level, name in (("token", "all"), ("sequence", "rows")):
            log_ratio = padded[0] - padded[1]
            if level == "sequence":
                # verl counts a row once per token; one token per row counts rows.
                log_ratio, mask = log_ratio.sum(-1, keepdim=True), mask[:, :1]
            _, verl_metrics = compute_rollout_correction_weights(log_ratio, mask, level, rollout_is_threshold=1e8)
            expected = verl_metrics["rollout_is_eff_sample_size"]
            # verl divides by mean + 1e-8
            assert metrics[f"replay/ess/{name}"] == pytest.approx(expected, rel=1e-4)


def test_verl_averages_every_metric_over_several_updates():
    old, behavior, _ = random_rows(1)
    metrics = off_policy_metrics(old * 3, behavior * 3, [2**age for age in range(len(old) * 3)])
    assert {MetricsAggregator()._get_aggregation_type(name) for name in metrics} == {"weighted_avg"}


def test_no_metric_is_the_folder_of_another():
    metrics = off_policy_metrics(*random_rows(2))
    assert not [(name, other) for name in metrics for other in metrics if other.startswith(name + "/")]


# (c) invariances


def test_row_order_does_not_matter():
    for seed in range(12):
        old, behavior, ages = random_rows(seed)
        order = np.random.default_rng(seed).permutation(len(ages))
        permuted = off_policy_metrics(*([values[row] for row in order] for values in (old, behavior, ages)))
        expected = off_policy_metrics(old, behavior, ages)
        assert list(permuted) == list(expected)
        assert permuted == pytest.approx(expected, abs=1e-12)


def test_splitting_rows_of_an_age_changes_only_the_row_figure():
    for seed in range(12):
        old, behavior, ages = random_rows(seed)
        whole = off_policy_metrics(old, behavior, ages)
        parts = [[part for row in rows for part in row.split(5)] for rows in (old, behavior)]
        part_ages = [age for row, age in zip(old, ages, strict=True) for _ in row.split(5)]
        split = off_policy_metrics(*parts, part_ages)
        whole.pop("replay/ess/rows"), split.pop("replay/ess/rows")
        assert split == pytest.approx(whole, abs=1e-12)


def test_shares_sum_to_one_and_effective_sample_sizes_stay_in_their_range():
    for seed in range(30):
        old, behavior, ages = random_rows(seed)
        metrics = off_policy_metrics(old, behavior, ages)
        assert sum(metrics[f"replay/ratio/{name}"] for name in RATIO_BINS) == pytest.approx(1)
        assert 1 / sum(len(row) for row in old) <= metrics["replay/ess/all"] <= 1 + 1e-12
        assert 1 / len(old) - 1e-12 <= metrics["replay/ess/rows"] <= 1 + 1e-12
        assert metrics["replay/ratio/p01"] <= metrics["replay/ratio/p99"]


def test_kl_is_the_token_weighted_mean_of_its_age_buckets():
    old, behavior, _ = random_rows(3)
    ages = [2**row for row in range(1, len(old) + 1)]
    metrics = off_policy_metrics(old, behavior, ages)
    parts = [metrics[f"replay/kl/age_{age:04d}"] * len(row) for age, row in zip(ages, old, strict=True)]
    assert metrics["replay/kl/all"] == pytest.approx(sum(parts) / sum(len(row) for row in old))


def test_exchanging_the_policies_negates_kl_and_mirrors_the_histogram():
    for seed in range(12):
        old, behavior, ages = random_rows(seed)
        metrics, swapped = off_policy_metrics(old, behavior, ages), off_policy_metrics(behavior, old, ages)
        assert swapped["replay/kl/all"] == pytest.approx(-metrics["replay/kl/all"], abs=1e-12)
        assert swapped["replay/ratio/p01"] == pytest.approx(1 / metrics["replay/ratio/p99"])
        for name, mirrored in zip(RATIO_BINS, reversed(RATIO_BINS), strict=True):
            assert swapped[f"replay/ratio/{name}"] == metrics[f"replay/ratio/{mirrored}"]


def test_a_common_factor_of_all_ratios_leaves_ess_and_shifts_kl():
    old, behavior, ages = random_rows(6)
    metrics = off_policy_metrics(old, behavior, ages)
    scaled = off_policy_metrics([row.double() - 0.3 for row in old], behavior, ages)
    assert scaled["replay/ess/all"] == pytest.approx(metrics["replay/ess/all"])
    assert scaled["replay/kl/all"] == pytest.approx(metrics["replay/kl/all"] + 0.3)


def test_inputs_are_left_as_they_were():
    old, behavior, ages = random_rows(7)
    copies = [row.clone() for row in old], [row.clone() for row in behavior], list(ages)
    off_policy_metrics(old, behavior, ages)
    assert all(torch.equal(row, copy) for row, copy in zip(old + behavior, copies[0] + copies[1], strict=True))
    assert ages == copies[2]


# (d) a slow loop over tokens


def test_agrees_with_a_loop_over_tokens():
    for seed in range(40):
        old, behavior, ages = random_rows(seed)
        assert off_policy_metrics(old, behavior, ages) == pytest.approx(slow_metrics(old, behavior, ages), abs=1e-9)


# extremes


def test_ratios_that_overflow_and_underflow_give_finite_metrics():
    metrics = off_policy_metrics(*rows_with([1000.0, 0.0], [-1000.0, 0.0]), ages=[0, 4])
    assert all(math.isfinite(value) for value in metrics.values())
    assert [metrics[f"replay/ratio/{name}"] for name in RATIO_BINS] == [0.25, 0, 0.5, 0, 0.25]
    # one weight is all of the sum: 1 of 4 tokens, 1 of 2 rows, 1 of the 2 tokens of each bucket
    expected = {"all": 0.25, "rows": 0.5, "age_0000": 0.5, "age_0004": 0.5}
    assert {name: metrics[f"replay/ess/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["replay/kl/all"] == 0
    assert (metrics["replay/kl/age_0000"], metrics["replay/kl/age_0004"]) == (-500, 500)
    assert metrics["replay/ratio/p99"] == pytest.approx(math.exp(20))
    assert metrics["replay/ratio/p01"] == pytest.approx(math.exp(-20))


@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
def test_equal_weights_have_full_effective_sample_size_at_any_scale(log_ratio):
    metrics = off_policy_metrics(*rows_with([log_ratio] * 3, [log_ratio] * 3), ages=[0, 0])
    assert (metrics["replay/ess/all"], metrics["replay/ess/rows"]) == pytest.approx((1, 1))
    assert metrics["replay/kl/all"] == -log_ratio


def test_float16_storage_moves_a_ratio_by_at_most_half_a_thousandth_per_nat():
    exact = -torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 15
    metrics = off_policy_metrics([exact], [exact.half()], ages=[0])
    bound = 15 * 2**-11
    assert math.exp(-bound) <= metrics["replay/ratio/p01"] <= metrics["replay/ratio/p99"] <= math.exp(bound)
    # Rounding averages out. Steps of 2^-7 in the coarsest range, [-16, -8), have a standard error of 2^-7 / sqrt(12).
    assert abs(metrics["replay/kl/all"]) < 5 * 2**-7 / math.sqrt(12 * 5000)


def test_no_rows_no_metrics():
    assert off_policy_metrics([], [], []) == {}


# what is refused


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["old", "behavior"])
def test_a_log_prob_that_is_not_finite_names_its_row_and_side(value, side):
    old, behavior = rows_with([0.0, 0.0], [0.1, 0.2, 0.3])
    (old if side == "old" else behavior)[1][2] = value
    with pytest.raises(ValueError, match=f"row 1: 1 of 3 {side} log-probs are not finite"):
        off_policy_metrics(old, behavior, ages=[0, 1])


@pytest.mark.parametrize("lengths", [(3, 2), (0, 0)])
def test_rows_without_a_pair_of_log_probs_per_token_are_refused(lengths):
    with pytest.raises(ValueError, match=f"row 1: {lengths[0]} old and {lengths[1]} behavior"):
        off_policy_metrics(*([torch.zeros(4), torch.zeros(length)] for length in lengths), ages=[0, 0])


def test_a_negative_age_is_refused():
    with pytest.raises(ValueError, match="row 1: age -3 is negative"):
        off_policy_metrics(*rows_with([0.0], [0.0]), ages=[0, -3])


def test_unequal_numbers_of_rows_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="got 2 old_log_probs, 2 behavior_log_probs and 1 ages"):
        off_policy_metrics(*rows_with([0.0], [0.0]), ages=[0])
