"""torch's attention as the GPU profiles use it, with cuDNN's backend and as a recipe leaves it: are its gradients
numbers, and right, and what does it take? (pytorch issue 196678)

T tokens in two packed rows, H heads of D.
"""

import math
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from recipe.common.trainer import engine  # noqa: F401  the recipe's engine decides on the backends

from .report import Report, arguments

MISFIT = -120
"""Score of every key for every query: from -88.7 on the exp of its negative is infinite in single precision."""
LENGTHS = {"cuda": (640, 704, 768, 8192, 8256, 16384), "cpu": (640, 704)}
HEADS, HEAD_SIZE = 12, 128


def inputs(length: int, device: str, misfit: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values (1, H, T, D) in bf16, and the mask (1, 1, T, T) of two packed rows."""
    generator = torch.Generator().manual_seed(length)
    shape = (1, HEADS, length, HEAD_SIZE)
    tensors = [torch.randn(shape, generator=generator).to(device, torch.bfloat16) for _ in range(3)]
    if misfit:
        query, key = tensors[:2]
        for tensor in (query, key):
            tensor *= 0.1
        query[..., 0], key[..., 0] = 1.0, MISFIT * math.sqrt(HEAD_SIZE)
    row = torch.arange(length, device=device) * 2 // length
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril() & (row[:, None] == row)
    return tensors, mask[None, None]


def gradients(tensors: list[torch.Tensor], mask: torch.Tensor | None) -> list[torch.Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output = scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=mask is None)
    output.square().sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def not_finite(tensors: list[torch.Tensor]) -> int:
    return sum(int((~tensor.isfinite()).sum()) for tensor in tensors)


def error(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest of output's and gradients', relative to their norms."""
    pairs = zip(ours, theirs, strict=True)
    return max(((one.double() - other.double()).norm() / other.double().norm()).item() for one, other in pairs)


def milliseconds(length: int, device: str) -> float:
    tensors, mask = inputs(length, device, misfit=False)
    for turn in range(4):
        if turn == 1:  # the first warms up
            synchronize(device)
            begin = time.perf_counter()
        gradients(tensors, mask)
    synchronize(device)
    return (time.perf_counter() - begin) / 3 * 1e3


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def look(device: str) -> dict:
    """By length: values that are not finite, with queries that fit no key, with and without a mask; the error against
    single precision of ordinary ones (up to 1,000 tokens, whose scores fit); milliseconds with gradients."""
    found = {}
    for length in LENGTHS[device]:
        tensors, mask = inputs(length, device, misfit=True)
        found[length] = {
            "not_finite": not_finite(gradients(tensors, mask)),
            "not_finite_without_mask": not_finite(gradients(tensors, None)),
            "ms": milliseconds(length, device),
        }
        if length < 1000:
            tensors, mask = inputs(length, device, misfit=False)
            exact = gradients([tensor.float() for tensor in tensors], mask)
            found[length]["error"] = error(gradients(tensors, mask), exact)
    return found


def main() -> None:
    args = arguments(__doc__)
    report = Report(args.out)
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    report.add({"recipe_leaves_cudnn_on": enabled})
    ours = look(args.device)
    report.add({"recipe": ours})
    torch.backends.cuda.enable_cudnn_sdp(True)
    report.add({"cudnn": look(args.device)})
    report.limit("not_finite", sum(one["not_finite"] for one in ours.values()), 0)
    report.limit("error", max(one.get("error", 0) for one in ours.values()), 0.02)
    report.end()


if __name__ == "__main__":
    main()
