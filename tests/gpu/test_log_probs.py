"""Log-probs, entropies and gradients of verl's real FSDP engine: fused against plain, packed against single rows.

The yardstick is the same engine in single precision without fusing: bf16 must come as near to it fused as plain.
"""

import dataclasses

import numpy as np
import pytest
import torch

from r3_ext.doctor import speed
from r3_ext.settings import sizing
from recipe.r3.core_algos import compute_r3_advantage
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from .engine import (
    engine_of,
    gradients,
    log_probs_and_entropies,
    packed,
    process_group,
    save_model,
    save_model_with_misfit,
)

HEAD = "lm_head.weight"
BF16_ROUNDING = 2.0**-9
"""Largest relative error of rounding to bf16, which verl's fused function does with entropies."""


@pytest.fixture(scope="module")
def model(shapes, tmp_path_factory):
    return save_model(shapes, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", autouse=True)
def group():
    with process_group():
        yield


@dataclasses.dataclass
class Outcome:
    log_probs: torch.Tensor
    entropies: torch.Tensor
    gradients: dict[str, torch.Tensor]
    peak_gib: float | None
    """Most memory of the device in the update, None on the CPU."""

    def errors(self, other: "Outcome") -> dict[str, float]:
        """Mean difference of log-probs and entropies, in nats, and of gradients relative to the other's norm."""
        rest = [name for name in self.gradients if name != HEAD]
        return {
            "log_probs": (self.log_probs - other.log_probs).abs().mean().item(),
            "log_probs_max": (self.log_probs - other.log_probs).abs().max().item(),
            "entropies": (self.entropies - other.entropies).abs().mean().item(),
            "head_gradient": relative(self.gradients, other.gradients, [HEAD]),
            "other_gradients": relative(self.gradients, other.gradients, rest),
        }


def relative(ours: dict, theirs: dict, names: list[str]) -> float:
    missed = sum((ours[name] - theirs[name]).double().square().sum() for name in names)
    return (missed / sum(theirs[name].double().square().sum() for name in names)).sqrt().item()


def outcome(model, shapes, device, dtype, fused) -> Outcome:
    data = packed(shapes, fused)
    with engine_of(model, dtype, fused) as engine:
        log_probs, entropies = log_probs_and_entropies(engine, data.clone())
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = gradients(engine, data.clone())
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return Outcome(log_probs, entropies, found, peak)


@pytest.fixture(scope="module")
def exact(model, shapes, device):
    return outcome(model, shapes, device, torch.float32, fused=False)


def test_fused_is_as_near_to_single_precision_as_plain(model, shapes, device, record, exact):
    plain = outcome(model, shapes, device, torch.bfloat16, fused=False)
    fused = outcome(model, shapes, device, torch.bfloat16, fused=True)
    ours, theirs = fused.errors(exact), plain.errors(exact)
    limits = {f"fused_{name}": 1.5 * error + 1e-6 for name, error in theirs.items()}
    limits["fused_entropies"] += BF16_ROUNDING * exact.entropies.abs().mean().item()
    # The gradients of the chunks of 512 rows add up in bf16: each sum is rounded once more.
    chunks = -(-sum(shapes.lengths) // sizing.FUSED_ROWS)
    limits["fused_head_gradient"] += BF16_ROUNDING * chunks**0.5
    # Against a bound that both share: at the real width bf16 alone costs 0.1 nats of a random model's log-probs.
    limits["plain_log_probs"] = 0.3
    figures = {f"fused_{name}": value for name, value in ours.items()}
    figures |= {f"plain_{name}": value for name, value in theirs.items()}
    figures |= {"mean_entropy": exact.entropies.mean().item()}
    if device == "cuda":
        figures |= {"fused_peak_gib": fused.peak_gib, "plain_peak_gib": plain.peak_gib}
        logits = sum(shapes.lengths) * shapes.vocabulary * sizing.LOGIT_BYTES
        chunk = sizing.FUSED_ROWS * shapes.vocabulary * sizing.FUSED_LOGIT_BYTES
        figures["computed_difference_gib"] = (logits - chunk) / 2**30
        limits["fused_peak_gib"] = plain.peak_gib
    record.check("fused against plain log-probs, bf16", figures, limits)


def test_fused_is_plain_in_single_precision(model, shapes, device, record, exact):
    errors = outcome(model, shapes, device, torch.float32, fused=True).errors(exact)
    record.check("fused against plain log-probs, fp32", errors, {name: 1e-4 for name in errors})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_rows_do_not_see_each_other(model, shapes, device, record, exact, dtype):
    """All rows in one pack, against each row by itself."""
    with engine_of(model, dtype, fused=True) as engine:
        together = log_probs_and_entropies(engine, packed(shapes, True))
        rows = [log_probs_and_entropies(engine, packed(shapes, True, only=row)) for row in range(len(shapes.lengths))]
    alone = [torch.cat(column) for column in zip(*rows, strict=True)]
    # The last token of a row has no successor: its label is the first token of whatever follows in the pack.
    kept = torch.ones(sum(shapes.lengths), dtype=torch.bool)
    kept[np.cumsum(shapes.lengths) - 1] = False
    names = ("log_probs", "entropies")
    figures = {
        f"{name}_mean": (ours - theirs)[kept].abs().mean().item()
        for name, ours, theirs in zip(names, together, alone, strict=True)
    }
    figures["log_probs_error_of_the_pack"] = (together[0] - exact.log_probs)[kept].abs().mean().item()
    limit = 1e-4 if dtype == torch.float32 else 2 * figures["log_probs_error_of_the_pack"]
    record.check(f"packed against single rows, {dtype}", figures, {f"{name}_mean": limit for name in names[:1]})
    assert figures["entropies_mean"] <= limit + BF16_ROUNDING * exact.entropies.mean().item(), figures


def test_attention_without_masks_is_as_near_as_sdpa(model, shapes, device, record, exact):
    """On a GPU flash_attention_2, where it is installed; on the CPU, for this test's sake, torch's eager attention."""
    other = "flash_attention_2" if device == "cuda" else "eager"
    if device == "cuda" and speed.flash_package() is None:
        pytest.skip("neither flash-attn nor kernels is installed")
    figures = {}
    for attention in ("sdpa", other):
        with engine_of(model, torch.bfloat16, fused=True, attention=attention) as engine:
            log_probs, _ = log_probs_and_entropies(engine, packed(shapes, True))
        figures[attention] = (log_probs - exact.log_probs).abs().mean().item()
    record.check("log-probs by attention, bf16", figures, {other: 1.5 * figures["sdpa"]})


def test_gradients_are_numbers_where_cudnns_attention_has_none(shapes, device, record, tmp_path, monkeypatch):
    """Under a mask, at a length 64 beyond a multiple of 128, for queries that fit no key: pytorch issue 196678."""
    verls, calls = torch.nn.functional.scaled_dot_product_attention, []

    def watched(query, key, value, attn_mask=None, **rest):
        if not calls:
            calls.append((query.shape[-2], attn_mask is not None, lowest_logsumexp(query[0, 0], key[0, 0], attn_mask)))
        return verls(query, key, value, attn_mask=attn_mask, **rest)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with engine_of(save_model_with_misfit(shapes, tmp_path), torch.bfloat16, fused=True) as engine:
        found = gradients(engine, packed(shapes, True))
    [(length, has_mask, lowest)] = calls
    assert has_mask and length % 128 == 64
    figures = {"not_finite": sum(int((~value.isfinite()).sum()) for value in found.values()), "logsumexp": lowest}
    record.check("gradients of a head that fits no key", figures, {"not_finite": 0, "logsumexp": -88.8})


@torch.no_grad()
def lowest_logsumexp(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> float:
    """Over the queries of one head, (T, D) each, of the scores of the keys that they see."""
    scores = query.float() @ key.float().T / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[0, 0], -torch.inf) if mask.dtype == torch.bool else scores + mask[0, 0]
    return scores.logsumexp(dim=-1).min().item()


def test_planted_dead_groups_have_no_gradient_under_grpo_and_one_under_r3(model, shapes, device, record):
    """All right or all wrong gives GRPO nothing; a replayed right answer beside wrong ones gives R^3 a gradient."""
    rows = len(shapes.lengths)
    mask = torch.ones(rows, max(shapes.lengths), device=device)
    index, replayed = np.array(["uid"] * rows, dtype=object), np.arange(rows) == rows - 1

    def norm(engine, advantages) -> float:
        weights = [row[:length].cpu() for row, length in zip(advantages, shapes.lengths, strict=True)]
        found = gradients(engine, packed(shapes, True, weights=weights))
        return sum(value.double().square().sum() for value in found.values()).sqrt().item()

    def rewards(rewarded: list[int]) -> torch.Tensor:
        values = torch.zeros_like(mask)
        values[rewarded, -1] = 1.0
        return values

    all_right, all_wrong, mixed = rewards([*range(rows)]), rewards([]), rewards([rows - 1])
    nothing = np.zeros(rows, dtype=bool)
    with engine_of(model, torch.bfloat16, fused=True) as engine:
        figures = {
            "grpo_all_right": norm(engine, compute_grpo_outcome_advantage(all_right, mask, index)[0]),
            "grpo_all_wrong": norm(engine, compute_grpo_outcome_advantage(all_wrong, mask, index)[0]),
            "r3_off_all_wrong": norm(engine, compute_r3_advantage(all_wrong, mask, index, nothing)[0]),
            "r3": norm(engine, compute_r3_advantage(mixed, mask, index, replayed)[0]),
        }
    figures["one_over_r3"] = 1 / figures["r3"] if figures["r3"] else float("inf")
    limits = {name: 0 for name in figures if name.startswith(("grpo", "r3_off"))} | {"one_over_r3": 1e6}
    record.check("gradient norm of planted dead groups", figures, limits)
