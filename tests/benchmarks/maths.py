"""What the formulas of R^3 cost, beside the least that a step computes anyway.

    python -m tests.benchmarks.maths                         2,048 rows of 8,192 tokens: one to two minutes, 2 GB
    python -m tests.benchmarks.maths --rows 256 --repeats 15  smaller and steadier

    ranking     the ranking reward of all rows, in groups of 16 as the trainer calls it (padding them to one length is
                part of the time) and as one group; against one `topk` of the same width and one `mean` over the same
                entropies. Rows of full length, of random lengths, and of lengths within a tenth of each other
    advantage   eq. (3) on groups of 8, none or every fourth with a replayed row; against verl's GRPO advantage
    order       20,000 rows of 300 to 8,500 tokens dealt to 8 ranks and 2 or 16 optimizer steps, 400 groups of 17 kept
                whole; against verl's own dealing of the same rows, which keeps none. It has to take under 0.2 s

The two of a pair take turns and the medians are compared. Exits with 1 if one of R^3's is over the bound. On one thread
by default, because that is what Ray gives to the process that trains; with more threads than idle cores the many short
loops of R^3 mostly wait for each other, and the figures mean nothing.
"""

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from recipe.common.trainer.mini_batches import order_rows, rows_with_room
from recipe.r3.core_algos import compute_r3_advantage, structural_entropy_ranking_reward
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

BOUND = 1.5
TOP_RATIO, MAX_REWARD = 0.2, 0.5
RANKED_GROUP, GROUP = 16, 8

Pair = tuple[str, Callable[[], object], Callable[[], object]]
"""What is measured, R^3's function and the one it is compared with."""


def rank_groups(entropy: list[torch.Tensor], mask: list[torch.Tensor]) -> None:
    """The ranking rewards of rows of different lengths, as `R3Trainer._ranking_rewards` computes them per group."""
    for start in range(0, len(entropy), RANKED_GROUP):
        group = slice(start, start + RANKED_GROUP)
        structural_entropy_ranking_reward(
            pad_sequence(entropy[group], batch_first=True),
            pad_sequence(mask[group], batch_first=True),
            TOP_RATIO,
            MAX_REWARD,
        ).tolist()


def ranking_pairs(rows: int, tokens: int) -> list[Pair]:
    generator = torch.Generator().manual_seed(0)
    # Most tokens are nearly certain, as in a language model.
    entropy = torch.rand(rows, tokens, generator=generator) ** 6 * 4

    def reference() -> None:
        entropy.topk(max(1, int(TOP_RATIO * tokens)), dim=-1)
        entropy.mean(dim=-1)

    pairs = []
    for name, shortest in (("full length", tokens), ("1 to full length", 1), ("90% to full length", 0.9 * tokens)):
        length_N = torch.randint(max(1, int(shortest)), tokens + 1, (rows,), generator=generator)
        length_N[0] = tokens
        mask = (torch.arange(tokens) < length_N.unsqueeze(-1)).long()
        kept = [[row[:length] for row, length in zip(rows_, length_N, strict=True)] for rows_ in (entropy, mask)]
        pairs += [
            (f"ranking, groups of {RANKED_GROUP}, {name}", lambda kept=kept: rank_groups(*kept), reference),
            (
                f"ranking, one group, {name}",
                lambda mask=mask: structural_entropy_ranking_reward(entropy, mask, TOP_RATIO, MAX_REWARD),
                reference,
            ),
        ]
    return pairs


def advantage_pairs(rows: int, tokens: int) -> list[Pair]:
    rewards = torch.zeros(rows, tokens)
    rewards[:, -1] = torch.from_numpy(np.random.default_rng(0).integers(0, 2, rows).astype("float32"))
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    index = np.array([f"uid-{row // GROUP}" for row in range(rows)], dtype=object)
    return [
        (
            f"advantage, {name}",
            lambda replayed=replayed: compute_r3_advantage(rewards, mask, index, replayed),
            lambda: compute_grpo_outcome_advantage(rewards, mask, index),
        )
        for name, replayed in (
            ("no replayed row", np.zeros(rows, dtype=bool)),
            ("a replayed row in every fourth group", np.arange(rows) % (4 * GROUP) == GROUP - 1),
        )
    ]


def order_pairs() -> list[Pair]:
    ranks, group_size = 8, 16
    lengths = np.random.default_rng(0).lognormal(8, 0.7, 20_000).clip(max=8192).astype(int) + 300
    # The replayed row of each rescued group stands behind all fresh ones.
    groups = [[*range(group_size * group, group_size * (group + 1)), 19_600 + group] for group in range(400)]

    def order(steps: int) -> None:
        rows = rows_with_room([len(group) for group in groups], len(lengths), steps, ranks * steps)
        padded = np.pad(lengths, (0, rows - len(lengths)), constant_values=1)
        order_rows(groups, calculate_workload(torch.from_numpy(padded)).tolist(), ranks, steps)

    def reference() -> None:
        get_seqlen_balanced_partitions(calculate_workload(torch.from_numpy(lengths)).tolist(), ranks, equal_size=True)

    return [(f"order, {steps} optimizer steps", lambda steps=steps: order(steps), reference) for steps in (2, 16)]


def seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.rows} rows of {args.tokens} tokens, median of {args.repeats}, {args.threads} threads, milliseconds")
    print(f"{'':<52}{'R^3':>9}{'reference':>11}{'ratio':>8}{'bound':>7}", flush=True)
    missed = 0
    pairs = ranking_pairs(args.rows, args.tokens) + advantage_pairs(args.rows, args.tokens) + order_pairs()
    for name, ours, reference in pairs:
        ours(), reference()  # warm up
        times = [(seconds(ours), seconds(reference)) for _ in range(args.repeats)]
        r3, other = (median(column) for column in zip(*times, strict=True))
        missed += r3 / other > BOUND
        verdict = "  MISSED" if r3 / other > BOUND else ""
        print(f"{name:<52}{r3 * 1e3:>9.1f}{other * 1e3:>11.1f}{r3 / other:>8.2f}{BOUND:>7}{verdict}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
