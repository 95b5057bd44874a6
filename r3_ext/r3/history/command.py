"""`r3 history`: look into the sample buffer of a run, and take samples out and in.

    r3 history show outputs/r3/run1                   works while a run writes
    r3 history show outputs/r3/run1 --query 3f2a9bcd0e41a7c2
    r3 history query outputs/r3/run1 never-solved     or pass-rate, replays, SQL
    r3 history check outputs/r3/run1   is all of it as it was written?
    r3 history export outputs/r3/run1 right.parquet --outcome correct
    r3 history import new.sqlite outputs/r3/run1      to seed a new run
    r3 history prune outputs/r3/run1 --abandoned

PATH is a history file, or the run folder that holds history.sqlite. Exit code 2
on an error.
"""

import argparse
import os
import sys
from collections.abc import Callable

from r3_ext.r3.history.check import check
from r3_ext.r3.history.export import export
from r3_ext.r3.history.prune import prune
from r3_ext.r3.history.query import QUERIES, query
from r3_ext.r3.history.shared import printable
from r3_ext.r3.history.show import show
from r3_ext.r3.history.transfer import import_samples
from recipe.r3.history.file import HistoryError
from recipe.r3.history.store import PLAIN, REFLECTION


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise HistoryError(f"{message}; `{self.prog} --help` tells more")


def count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def positive(text: str) -> int:
    if count(text) == 0:
        raise ValueError
    return int(text)


def gib(text: str) -> float:
    if not 0 < float(text) < 1 << 30:
        raise ValueError
    return float(text)


def parse(argv: list[str]) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(prog="r3 history", description=__doc__, **style)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, act: Callable, text: str) -> Parser:
        examples = "\n".join(line.strip() for line in __doc__.splitlines() if f"r3 history {name}" in line)
        added = commands.add_parser(
            name, help=text.splitlines()[0], description=text, epilog=f"examples:\n{examples}", **style
        )
        added.set_defaults(act=act)
        added.add_argument("path", metavar="PATH", help="history file, or run folder that holds history.sqlite")
        return added

    add_reading(command)
    add_writing(command)
    return parser.parse_args(argv)


def add_reading(command: Callable) -> None:
    added = command("show", show, "overview, or the timeline of one problem; works while a run is writing")
    added.add_argument("--query", metavar="ID", help="query id of the problem")
    names = "\n".join(f"  {name:<14}{sql.splitlines()[0][3:]}" for name, sql in QUERIES.items())
    added = command("query", query, f"a ready query, or SQL of your own, read-only\n\n{names}")
    added.add_argument("query", metavar="NAME_OR_SQL", help="name of a ready query, or one SELECT")
    added.add_argument("--limit", type=positive, metavar="N", help="at most N rows (default: 50; with --csv all)")
    text = "give up when no row came for so long (default: 120)"
    added.add_argument("--seconds", type=positive, default=120, metavar="N", help=text)
    added.add_argument("--csv", action="store_true", help="print CSV")
    added.add_argument("--sql", action="store_true", help="print the SQL and do not run it")
    command("check", check, "compare every sum and checksum of a file; works while a run is writing")
    added = command("export", export, "samples to parquet; the checksum of each is compared")
    added.add_argument("out", metavar="OUT.parquet", help="replaced when it exists")
    added.add_argument("--outcome", choices=("correct", "wrong", "any"), default="any")
    added.add_argument("--variant", choices=(PLAIN, REFLECTION, "any"), default="any", help="prompt of the response")
    added.add_argument("--abandoned", action="store_true", help="also what a resumed run left behind")
    added.add_argument("--tokenizer", metavar="DIR", help="adds the column text; folder of the run's model")


def add_writing(command: Callable) -> None:
    text = "seed a history that has no steps of its own; what is imported counts as step 0"
    added = command("import", import_samples, text)
    added.add_argument("source", metavar="SOURCE", help="history, run folder, or parquet (all its rows, no statistics)")
    added.add_argument("--max-per-outcome", type=positive, metavar="N", help="as algorithm.r3.history.max_per_outcome")
    added.add_argument("--max-gib", type=gib, metavar="GIB", help="as algorithm.r3.history.max_gib")
    added.add_argument("--seed", type=count, default=0, metavar="N", help="as algorithm.r3.seed of the run to come")
    added = command("prune", prune, "delete what no draw needs and give the space back; not while a run is writing")
    added.add_argument("--abandoned", action="store_true", help="delete what a resumed run left behind")
    added.add_argument("--damaged", action="store_true", help="delete samples whose checksum does not fit")
    text = "newest checkpoints that the history can still go back to, and the start; 0: none, and not the start"
    added.add_argument("--keep-checkpoints", type=count, metavar="N", help=text)


def main(argv: list[str]) -> int:
    try:
        args = parse(argv)
        args.act(args)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (HistoryError, OSError) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
