"""`r3 history prune`: make a file smaller."""

import argparse
from contextlib import closing

from r3_ext.host.units import human
from r3_ext.r3.history.shared import UNBOUNDED, disk_size, existing, print_table, snapshot, stored
from r3_ext.r3.history.show import sample_lines, step_lines
from recipe.r3.history.store import History


def prune(args: argparse.Namespace) -> None:
    path = existing(args.path)
    before, size = state(path), disk_size(path)
    with closing(History(path, UNBOUNDED, UNBOUNDED)) as history:
        if args.abandoned:
            history.drop_abandoned()
        damaged = f"{history.drop_damaged():,} damaged samples deleted, " if args.damaged else ""
        if args.keep_checkpoints is not None:
            kept = pins_to_keep(history.pinned(), args.keep_checkpoints)
            history.unpin(lambda step: step not in kept)
        history.compact()
    rows = [(name, old, new) for (name, old), (_, new) in zip(before, state(path), strict=True)]
    print_table(path, ["", "before", "after"], rows)
    print(f"{damaged}{human(max(0, size - disk_size(path)))} freed")


def state(path: str) -> list[tuple]:
    with snapshot(path) as db:
        return [*sample_lines(stored(db), path), *step_lines(db)]


def pins_to_keep(pinned: list[int], checkpoints: int) -> set[int]:
    """The newest checkpoints and step 0, the state before the first step; of no checkpoints, not even that."""
    return {0, *[step for step in pinned if step][-checkpoints:]} if checkpoints else set()
