"""Settings to rehearse, for the tests of `r3 rehearse`."""

from r3_ext.rehearse import predict
from r3_ext.settings import sizing
from r3_ext.settings.compose import compose_config
from recipe.r3.config.r3_config import load_r3_config

LONGEST = 4096 + 8192
# Where log-probs are fused, the micro-batch hardly matters.
PLAIN = "actor_rollout_ref.model.use_fused_kernels=False"
GPU = ["+profile=gpu_8x80gb", "+method=r3", PLAIN, f"{predict.TOKENS}={LONGEST + 4096}"]
DISTILL = sizing.ARCHITECTURES["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]


def embedded(*overrides: str):
    config = compose_config(["+profile=embedded", "+method=r3", *overrides])
    return config, load_r3_config(config)


def too_little() -> float:
    """GiB in which the update of GPU's profile does not fit with its micro-batches, and does with smaller ones."""
    return sizing.plan(compose_config(GPU), DISTILL, 1000.0).update - 2
