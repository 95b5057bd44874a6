"""`r3 states`: the states of a run of RRL-style replay, which the policy starts again from.

    r3 states outputs/rrl/run1                        works while a run writes
    r3 states outputs/rrl/run1 --query 3f2a9bcd0e41a7c2 --limit 100

PATH is a state buffer, or the run folder that holds states.sqlite. The texts need the
tokenizer of the run's model, which the folder names. Exit code 2 on an error.
"""

import argparse
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from r3_ext.host import stores
from r3_ext.host.tables import print_table, printable, share
from r3_ext.run.changes import stored_settings
from recipe.common.store.file import StoreError
from recipe.rrl.state_file import LISTED, STATES, Listed, StatesError, load

TEXT = 160
"""Characters of a state that are shown: its last ones, from where the policy goes on."""


def parse(argv: list[str]) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="r3 states", description=__doc__, formatter_class=style)
    parser.add_argument("path", metavar="PATH", help="state buffer, or run folder that holds states.sqlite")
    parser.add_argument("--query", metavar="ID", help="query id of the problem")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="states that are shown (default: 20)")
    parser.add_argument("--tokenizer", metavar="DIR", help="folder of the run's model, where the run folder names none")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    try:
        show(args)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (StoreError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return 2
    return 0


def show(args: argparse.Namespace) -> None:
    path = stores.existing(args.path, STATES, "a state buffer", "states.sqlite")
    with stores.snapshot(path, STATES) as db:
        folder = args.tokenizer or model_of(args.path)
        tokenizer = stores.load_tokenizer(folder, stores.meta_of(db), STATES) if folder else None
        print_table(path, ["origin", "states", "queries", "tokens", "tries", "right", "gain"], by_origin(db))
        columns = ["id", "query", "origin", "cut", "step", "gain", "gain now", "right", "ends in"]
        print_table("\nby gain" if args.query is None else "", columns, list(rows(db, path, args, tokenizer)))


def by_origin(db: sqlite3.Connection) -> list[tuple]:
    """Of the states that can be drawn."""
    sums = db.execute(
        "SELECT origin, count(*), count(DISTINCT query_id), avg(cut), sum(tries), sum(successes), avg(gain) FROM live "
        "GROUP BY origin ORDER BY origin"
    )
    return [
        (origin, number, queries, f"{tokens:.0f}", tries, share(right, tries), gain)
        for origin, number, queries, tokens, tries, right, gain in sums
    ]


def rows(db: sqlite3.Connection, path: str, args: argparse.Namespace, tokenizer) -> Iterator[tuple]:
    where, values = ("WHERE query_id = ?", [args.query]) if args.query is not None else ("", [])
    found = db.execute(f"SELECT {LISTED} FROM live {where} ORDER BY gain DESC, id LIMIT ?", (*values, args.limit))
    for one in (Listed(*row) for row in found.fetchall()):
        ids = load(db, one, path).tokens.tolist()
        text = tokenizer.decode(ids, skip_special_tokens=True) if tokenizer else "(name its --tokenizer)"
        taken = None if one.value is None or one.start_value is None else one.value - one.start_value
        now = None if one.value_now is None or one.start_now is None else one.value_now - one.start_now
        cut, right = f"{one.cut} of {one.length}", f"{one.successes} of {one.tries}"
        yield one.id, one.query_id, one.origin, cut, one.step, taken, now, right, text[-TEXT:]


def model_of(path: str) -> str | None:
    """Folder of the run's model, where the run folder's settings name one that is there."""
    if not (Path(path) / "config.yaml").is_file():
        return None
    try:
        model = stored_settings(Path(path)).get("actor_rollout_ref.model.path")
    except ValueError as error:
        raise StatesError(f"{error}; name the folder of its model with --tokenizer") from error
    return model if isinstance(model, str) and os.path.isdir(model) else None
