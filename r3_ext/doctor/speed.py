"""Attention and log-probs: what a run on GPUs takes where nobody chose, and what the choice costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_cpu
from r3_ext.host.hardware import installed_version
from r3_ext.host.units import GIB
from r3_ext.settings.choose import ATTENTION, FLASH, HUB_KERNEL, KERNELS, PLAIN, WAYS, flash_package, kernels_fault

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_attention(config: DictConfig) -> list[Finding]:
    """verl's default is flash_attention_2. Its package has no wheel for the pinned torch, and is not in the pins."""
    from r3_ext.settings import sizing

    model = config.actor_rollout_ref.model
    chosen, package = model.override_config.get("attn_implementation", FLASH), flash_package()
    if is_cpu(config):
        found = [Finding(FAIL, "attention", f"{FLASH} needs a GPU", f"set +{ATTENTION}={PLAIN}")]
        return found if chosen == FLASH else [Finding(OK, "attention", chosen)]
    if fault := kernels_fault():
        return [Finding(FAIL, "attention", fault, f'pip install "{KERNELS}", or pip uninstall kernels')]
    if chosen == FLASH and package is None:
        found = f"{FLASH} needs the package flash-attn or kernels"
        return [Finding(FAIL, "attention", found, f"{WAYS}; or set +{ATTENTION}={PLAIN}")]
    if chosen == PLAIN and model.use_remove_padding:
        tokens = sizing.micro_batch_tokens(config)
        mask = sizing.MASK_BYTES * tokens**2 / GIB
        found = (
            f"{PLAIN} computes all {tokens:,} x {tokens:,} scores of a packed micro-batch, those between different "
            f"rows too, under a mask of {mask:.1f} GiB; {FLASH} computes each row's own, without a mask"
        )
        return [Finding(WARN, "attention", found, f"set {ATTENTION}={FLASH}" if package else WAYS)]
    return [
        Finding(OK, "attention", f"{FLASH}, by {HUB_KERNEL}" if (chosen, package) == (FLASH, "kernels") else chosen)
    ]


def check_log_probs(config: DictConfig) -> list[Finding]:
    """How verl gets from hidden states to log-probs. The rows of the CPU profile are too few to matter."""
    model = config.actor_rollout_ref.model
    if is_cpu(config):
        return []
    if model.use_fused_kernels:
        return [Finding(OK, "log-probs", f"fused, by {model.fused_kernel_options.impl_backend}")]
    found = "not fused: the logits of a whole micro-batch are kept"
    if not installed_version("flash-attn"):
        found += ", and without flash-attn verl goes through their rows one by one, in Python, rounding to bf16"
    return [Finding(WARN, "log-probs", found, "set actor_rollout_ref.model.use_fused_kernels=True")]
