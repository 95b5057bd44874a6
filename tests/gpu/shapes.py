"""The sizes at which the suite runs: a GPU's, and small ones that show on the CPU that the suite itself works."""

from dataclasses import dataclass

from r3_ext.settings.sizing import ARCHITECTURES


@dataclass(frozen=True)
class Shapes:
    rows: int
    """Of the advantage and the ranking, in groups of 8 and 16."""
    tokens: int
    """Response tokens of a row."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    lengths: tuple[int, ...]
    """Tokens of the rows of one packed micro-batch: more than the 512 that fused log-probs take at a time, and 64
    beyond a multiple of 128, where cuDNN's attention has NaN gradients (recipe/common/trainer/engine.py)."""


DISTILL = ARCHITECTURES["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]
# Its width, heads and vocabulary, and four of its 28 layers: what is compared lies behind them, and a model with
# gradients in single precision and all logits of 8,256 tokens stay under 40 GiB.
REAL = Shapes(
    *(2048, 8192, DISTILL.hidden, 4, DISTILL.heads, DISTILL.kv_heads, DISTILL.intermediate, DISTILL.vocabulary),
    lengths=(3000, 2500, 1500, 1000, 256),
)
SMALL = Shapes(
    *(64, 96, 64, 2, 4, 2, 128, 512),
    lengths=(300, 250, 150, 132),
)
