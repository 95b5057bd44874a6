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
"""How far the replayed rows of a step are from the current policy: a pure function on log-probs, no Ray, no config.

Shapes: L tokens of one row, M tokens of all rows, N rows.
"""

import math
from collections import defaultdict

import numpy as np
import torch

RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)
"""Reciprocal around 1, so that exchanging the two policies mirrors the histogram."""
RATIO_BINS = ("below_0.5", "0.5_to_0.8", "0.8_to_1.25", "1.25_to_2", "above_2")
LOG_RATIO_BOUND = 20.0
"""Quantiles of the ratio stay in exp(+-20), verl's SAFETY_BOUND: beyond, a ratio only says "other policy"."""


def off_policy_metrics(
    old_log_probs: list[torch.Tensor], behavior_log_probs: list[torch.Tensor], ages: list[int]
) -> dict[str, float]:
    """Token ratios, effective sample size and KL of the replayed rows of one training step, under `replay/`.

    With log ratio d = old - behavior in nats and w = exp(d) = pi_current / pi_behavior of a token:

        replay/ratio/{bin}       share of the M tokens with w in [lower, upper), RATIO_BINS; the shares sum to 1
        replay/ratio/{p01,p99}   quantiles of w, interpolated in d, limited to exp(+-20)
        replay/ess/all           (sum w)^2 / (M sum w^2) over tokens, in [1/M, 1]
        replay/ess/rows          the same over the N rows with W = exp(sum of d over the row), in [1/N, 1]
        replay/kl/all            KL(behavior || current) in nats per token: k1, the mean of -d
        replay/{ess,kl}/age_0008 the token figures of the rows of age 8 to 15; lower edges 0, 2, 4, 8, 16, ... steps

    KL is k1, as in verl's `rollout_corr/kl`. k3, the mean of w - 1 - d, has less noise near w = 1, but it relies on
    E[w] = 1, which fails for rows picked by their outcome, and one rare token that became likely outweighs thousands.
    k1 is linear in d: it cannot overflow, and rounding of stored values averages out. It can be negative, through
    noise of about sqrt(2 KL / M) or because the current policy has moved towards the answers that replay picks.

    `ess/rows` tells what a sequence-level correction would leave of the rows; it nears 1/N for long responses, whose
    log ratios add up. Totals are named `/all` because MLflow keeps a metric in a file: `kl` beside `kl/age_0008`
    would be file and folder at once.

    Ratios [1, 3] in a row of age 1 and [1/4, 1] in a row of age 9: shares 0.25 (below_0.5), 0.5 (0.8_to_1.25) and
    0.25 (above_2); ess 5.25^2 / (4 * 11.0625) = 0.62288; by age 0.8 and 0.73529; over rows, with W = 3 and 1/4,
    0.58276; kl -(ln 3 - ln 4) / 4 = 0.07192; by age -0.54931 and 0.69315.

    Args:
        old_log_probs: (L,) per row, response tokens under the current policy before the update; CPU, any float type.
        behavior_log_probs: (L,) per row, the same tokens under the policy that generated them, as stored. In float16
            a ratio is off by up to 0.05 % per nat of the stored value. Where the prompt differs from the one that was
            answered (replay into reflection groups), its change is part of the ratio.
        ages: training steps since each row was generated, >= 0.

    Returns:
        The metrics; {} without rows.

    Raises:
        ValueError: lengths differ, an age is negative, or a row has no tokens or a non-finite log-prob.
    """
    if not len(old_log_probs) == len(behavior_log_probs) == len(ages):
        raise ValueError(
            f"one entry per row: got {len(old_log_probs)} old_log_probs, {len(behavior_log_probs)} behavior_log_probs "
            f"and {len(ages)} ages"
        )
    if not ages:
        return {}
    buckets, log_ratio_NL = defaultdict(list), []
    for row, (old_L, behavior_L, age) in enumerate(zip(old_log_probs, behavior_log_probs, ages, strict=True)):
        log_ratio_NL.append(_log_ratio(row, old_L, behavior_L))
        buckets[_age_bucket(row, age)].append(log_ratio_NL[-1])
    metrics = _ratio_metrics(torch.cat(log_ratio_NL))
    metrics["replay/ess/rows"] = _ess_share(torch.stack([log_ratio_L.sum() for log_ratio_L in log_ratio_NL]))
    for name, rows in {"all": log_ratio_NL, **dict(sorted(buckets.items()))}.items():
        log_ratio_M = torch.cat(rows)
        metrics[f"replay/ess/{name}"] = _ess_share(log_ratio_M)
        metrics[f"replay/kl/{name}"] = -log_ratio_M.mean().item()
    return metrics


def taper(old_log_probs: torch.Tensor, behavior_log_probs: torch.Tensor) -> torch.Tensor:
    """(L,) min(1, pi_current / pi_behavior) of the tokens of a row: [0.1, 0.4] of stored [0.2, 0.2] give [0.5, 1].

    Off policy an answer does not vanish from the data once it has become unlikely. The gradient of log pi does not
    shrink with pi: a constant negative advantage goes on pushing, and moves whatever shares the weights. With this
    factor it is that of pi / pi_behavior, which vanishes with pi. Successes need none: log pi saturates at 0.
    """
    return torch.exp((old_log_probs.float() - behavior_log_probs.float()).clamp(max=0.0))


def _log_ratio(row: int, old_L: torch.Tensor, behavior_L: torch.Tensor) -> torch.Tensor:
    """(L,) old - behavior in float64, so that no rounding is added to that of the stored values."""
    if len(old_L) != len(behavior_L) or len(old_L) == 0:
        raise ValueError(
            f"replayed row {row}: {len(old_L)} old and {len(behavior_L)} behavior log-probs; both need one per token"
        )
    for name, log_prob_L in (("old", old_L), ("behavior", behavior_L)):
        bad = int((~torch.isfinite(log_prob_L)).sum())
        if bad:
            raise ValueError(f"replayed row {row}: {bad} of {len(log_prob_L)} {name} log-probs are not finite")
    return old_L.double() - behavior_L.double()


def _age_bucket(row: int, age: int) -> str:
    """Name of the doubling bucket: ages 0 and 1 in age_0000, 2 and 3 in age_0002, 4 to 7 in age_0004, ..."""
    if age < 0:
        raise ValueError(f"replayed row {row}: age {age} is negative")
    lower = 0 if age < 2 else 1 << (int(age).bit_length() - 1)
    return f"age_{lower:04d}"


def _ratio_metrics(log_ratio_M: torch.Tensor) -> dict[str, float]:
    """Histogram and tail quantiles of the token ratios."""
    # An overflow to inf belongs in the last bin, as any other ratio above 2.
    bin_M = torch.bucketize(log_ratio_M.exp(), torch.tensor(RATIO_EDGES, dtype=torch.float64), right=True)
    share_per_bin = torch.bincount(bin_M, minlength=len(RATIO_BINS)).double() / len(log_ratio_M)
    metrics = {f"replay/ratio/{name}": share for name, share in zip(RATIO_BINS, share_per_bin.tolist(), strict=True)}
    # numpy's quantile: torch's refuses more than 2^24 values. Interpolating ratios would turn two infs into nan.
    for name, log_ratio in zip(("p01", "p99"), np.quantile(log_ratio_M.numpy(), (0.01, 0.99)), strict=True):
        metrics[f"replay/ratio/{name}"] = math.exp(np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    return metrics


def _ess_share(log_weight_M: torch.Tensor) -> float:
    """(sum w)^2 / (M sum w^2) from the log weights: w itself may overflow, or underflow to 0 / 0."""
    log_share = 2 * log_weight_M.logsumexp(0) - (2 * log_weight_M).logsumexp(0) - math.log(len(log_weight_M))
    return log_share.exp().item()
