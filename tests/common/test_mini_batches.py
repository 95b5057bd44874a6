"""Which row trains in which optimizer step: hand numbers, what always holds, and verl's own functions as the judge."""

import random

import pytest
import torch
from tensordict import TensorDict

from recipe.common.trainer.mini_batches import order_rows, rows_with_room
from recipe.common.trainer.workers import split_groups
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions


def length(rng: random.Random) -> int:
    return min(8192, int(rng.lognormvariate(8, 0.7)))


def random_batch(rng: random.Random):
    """(ranks, steps, whole groups, tokens per row with padding): fresh rows in order, replayed ones behind them."""
    ranks, steps = rng.randint(1, 64), rng.randint(1, 16)
    prompts, members = rng.randint(1, 300), rng.randint(1, 16)
    groups, tokens = [], []
    for _ in range(prompts):
        size = rng.randint(max(1, members - 3), members)
        groups.append(list(range(len(tokens), len(tokens) + size)))
        tokens += [length(rng) for _ in range(size)]
    whole = [group for group in groups if rng.random() < 0.6]
    for group in whole:
        for _ in range(rng.randint(0, 3)):
            group.append(len(tokens))
            tokens.append(length(rng))
    rows = rows_with_room([len(group) for group in whole], len(tokens), steps, ranks * steps)
    return ranks, steps, whole, tokens + [128] * (rows - len(tokens))


def workloads(tokens: list[int]) -> list[int]:
    return calculate_workload(torch.tensor(tokens)).tolist()


def received(order: list[list[int]], steps: int) -> list[list[list[int]]]:
    """The rows of each optimizer step and rank, cut by verl's own iterator."""
    per_rank = []
    for rank, rows in enumerate(order):
        data = TensorDict({"row": torch.tensor(rows)}, batch_size=len(rows))
        batches = tu.make_iterator(data, len(rows) // steps, 1, seed=42 + rank, dataloader_kwargs={"shuffle": False})
        per_rank.append([batch["row"].tolist() for batch in batches])
    return [list(step) for step in zip(*per_rank, strict=True)]


def test_two_groups_and_two_steps():
    assert order_rows([[0, 4], [1, 5]], [1] * 6, ranks=1, steps=2) == [[0, 2, 4, 1, 3, 5]]


def test_other_rows_fill_the_steps_in_the_order_of_the_batch():
    assert order_rows([[3, 5]], [1] * 6, ranks=1, steps=3) == [[3, 5, 0, 1, 2, 4]]


def test_the_longest_row_goes_to_the_idlest_rank():
    # Step 1: rank 0 gets 9, rank 1 gets 1. Step 2: 8 goes to rank 1.
    assert order_rows([[0, 1], [2, 3]], [9, 1, 2, 8], ranks=2, steps=2) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "sizes, rows, steps, multiple, expected",
    [
        ([5, 5, 5], 15, 2, 2, 20),  # two of them share a step
        ([5, 5], 15, 2, 2, 16),  # the others fill up
        ([9] * 17, 153, 2, 16, 176),  # 9 groups in one step: 81 rows, of 8 ranks 88
        ([], 10, 2, 4, 12),
        ([4], 4, 1, 3, 6),
    ],
)
def test_padding_makes_room_for_whole_groups(sizes, rows, steps, multiple, expected):
    assert rows_with_room(sizes, rows, steps, multiple) == expected


def test_what_cannot_be_dealt_is_refused():
    with pytest.raises(ValueError, match="7 rows cannot be dealt evenly to 2 ranks and 2 optimizer steps"):
        order_rows([], [1] * 7, ranks=2, steps=2)
    with pytest.raises(ValueError, match="whole groups need 3 rows in an optimizer step of 2"):
        order_rows([[0, 1, 2]], [1] * 4, ranks=1, steps=2)


@pytest.mark.parametrize("seed", range(60))
def test_no_row_is_lost_and_no_group_split(seed):
    rng = random.Random(seed)
    ranks, steps, whole, tokens = random_batch(rng)
    order = order_rows(whole, workloads(tokens), ranks, steps)
    assert sorted(row for rows in order for row in rows) == list(range(len(tokens)))
    assert {len(rows) for rows in order} == {len(tokens) // ranks}
    group_of_row = {row: number for number, group in enumerate(whole) for row in group}
    names = [
        [f"{group_of_row[row]}#replay" if row in group_of_row else f"alone{row}" for rows in step for row in rows]
        for step in received(order, steps)
    ]
    assert split_groups(names) == 0


def spread(order: list[list[int]], weights: list[int]) -> int:
    sums = [sum(weights[row] for row in rows) for rows in order]
    return max(sums) - min(sums)


@pytest.mark.parametrize("seed", range(60))
def test_ranks_are_as_busy_as_under_verls_own_balance(seed):
    rng = random.Random(f"balance {seed}")
    ranks, steps, whole, tokens = random_batch(rng)
    weights = workloads(tokens)
    order = order_rows(whole, weights, ranks, steps)
    # Whatever the rows, no two ranks differ by more than two rows do.
    assert spread(order, weights) <= max(weights) - min(weights)
    if len(tokens) >= 5 * ranks * steps:
        theirs = get_seqlen_balanced_partitions(weights, ranks, equal_size=True)
        busiest = [max(sum(tokens[row] for row in rows) for rows in either) for either in (order, theirs)]
        assert busiest[0] <= 1.05 * busiest[1]


def test_replayed_rows_at_the_end_of_the_batch_are_split_from_their_groups():
    """verl's order, which `split_groups` has to see: 8 groups of 4, the replayed rows of two of them behind."""
    uids = [f"g{number // 4}" for number in range(32)] + ["g0#replay", "g5#replay", "pad", "pad"]
    ours = order_rows([[0, 1, 2, 3, 32], [20, 21, 22, 23, 33]], [1] * 36, ranks=1, steps=2)
    for order, expected in (([list(range(36))], 1), (ours, 0)):
        steps = [[uids[row] for rows in step for row in rows] for step in received(order, 2)]
        assert split_groups(steps) == expected


def test_only_rescued_groups_count_as_split():
    assert split_groups([["a"], ["a"]]) == 0
    assert split_groups([["a#ranked"], ["a#ranked"]]) == 1
    assert split_groups([["a", "b"], ["a#replay", "b#replay"]]) == 2
