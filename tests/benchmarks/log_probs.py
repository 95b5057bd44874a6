"""What verl's log-probs cost the host, fused and plain, and how near their gradients come, on the CPU.

    python -m tests.benchmarks.log_probs                        16,384 packed rows of 512 entries: under a minute
    python -m tests.benchmarks.log_probs --rows 32768

    log-probs    verl's `logprobs_from_logits` without flash-attn, a loop over rows in Python, and its fused function, a
                 loop over chunks of 512 rows. Both from hidden states, with the entropies that verl's log-prob pass
                 takes; without and with the backward pass. The vocabulary is small, so that nearly all of the time is
                 what Python and torch spend on each row, which a GPU has to wait for; the matrix products, which a GPU
                 does in milliseconds, are part of both
    head         error of the output embeddings' gradient in bf16, relative to its norm, against double precision:
                 the chunks' gradients add up in bf16, the plain one is one matrix product

The two take turns and the medians are compared. On one thread by default, as in Ray's processes.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from verl.utils.experimental.torch_functional import FusedLinearForPPO
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

HIDDEN, VOCABULARY = 64, 512


def plain(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(T,) log-probs and entropies, as verl's FSDP engine computes them from all logits."""
    logits = states @ weight.t()
    return logprobs_from_logits(logits, labels), entropy_from_logits(logits)


def fused(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return FusedLinearForPPO()(states, weight, labels)


def inputs(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states (T, D), output embeddings (V, D), labels (T,)."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, HIDDEN, generator=generator)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.3
    return states.to(dtype), weight.to(dtype), torch.randint(0, VOCABULARY, (rows,), generator=generator)


def head_gradient(function: Callable, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """(V, D) in double, of a loss with a random weight for each row."""
    states, weight, labels = inputs(rows, torch.bfloat16)
    states, weight = states.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    advantages = torch.randn(rows, generator=torch.Generator().manual_seed(1))
    (function(states, weight, labels)[0] * advantages).sum().backward()
    return weight.grad.double()


def one_product(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
    """The plain log-probs as on a GPU, where autocast takes the softmax of bf16 logits in single precision."""
    logits = states @ weight.t()
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return (logits.log_softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1),)


def seconds(function: Callable, rows: int, with_backward: bool) -> float:
    states, weight, labels = inputs(rows, torch.bfloat16)
    states.requires_grad_(with_backward)
    weight.requires_grad_(with_backward)
    start = perf_counter()
    with torch.set_grad_enabled(with_backward):
        log_probs, _ = function(states, weight, labels)
        if with_backward:
            log_probs.sum().backward()
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.rows:,} rows, median of {args.repeats}, {args.threads} threads, milliseconds")
    print(f"{'':<32}{'plain':>9}{'fused':>9}{'ratio':>8}", flush=True)
    for name, with_backward in (("log-probs", False), ("log-probs and their gradients", True)):
        times = [[seconds(each, args.rows, with_backward) for each in (plain, fused)] for _ in range(args.repeats + 1)]
        one, other = (median(column) for column in zip(*times[1:], strict=True))  # the first warms up
        print(f"{name:<32}{one * 1e3:>9.0f}{other * 1e3:>9.0f}{other / one:>8.2f}", flush=True)
    exact = head_gradient(one_product, args.rows, torch.float64)
    for name, function in (("plain", one_product), ("fused", fused)):
        error = (head_gradient(function, args.rows, torch.bfloat16) - exact).norm() / exact.norm()
        print(f"head, {name:<26}{100 * error:>8.2f} %", flush=True)


if __name__ == "__main__":
    main()
