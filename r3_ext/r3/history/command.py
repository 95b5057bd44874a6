"""`r3 history`: look into the sample buffer of a run, and take samples out and in.

    r3 history show outputs/r3/run1                   works while a run writes
    r3 history show outputs/r3/run1 --query 3f2a9bcd0e41a7c2
    r3 history query outputs/r3/run1 "SELECT * FROM pins"
    r3 history export outputs/r3/run1 right.parquet --outcome correct
    r3 history import new.sqlite outputs/r3/run1      to seed a new run

PATH is a history file, or the run folder that holds history.sqlite. Exit code 2
on an error.
"""

import argparse
import os
import sys
from collections.abc import Callable

from r3_ext.host.tables import printable
from r3_ext.r3.history.export import export
from r3_ext.r3.history.importing import import_samples
from r3_ext.r3.history.show import query, show
from recipe.common.rows import PLAIN, REFLECTION, RESTART
from recipe.r3.history.file import HistoryError


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
        added = commands.add_parser(name, help=text, description=text, **style)
        added.set_defaults(act=act)
        added.add_argument("path", metavar="PATH", help="history file, or run folder that holds history.sqlite")
        return added

    added = command("show", show, "overview, or the timeline of one problem; works while a run is writing")
    added.add_argument("--query", metavar="ID", help="query id of the problem")
    added = command("query", query, "the rows of one SELECT as CSV; as any SQLite tool does")
    added.add_argument("sql", metavar="SQL")
    added = command("export", export, "samples to parquet; the checksum of each is compared")
    added.add_argument("out", metavar="OUT.parquet", help="replaced when it exists")
    added.add_argument("--outcome", choices=("correct", "wrong", "any"), default="any")
    variants = PLAIN, REFLECTION, RESTART, "any"
    added.add_argument("--variant", choices=variants, default="any", help="prompt of the response")
    added.add_argument("--abandoned", action="store_true", help="also what a resumed run left behind")
    added.add_argument("--tokenizer", metavar="DIR", help="adds the column text; folder of the run's model")
    added = command(
        "import", import_samples, "make a new history to seed a run with; what is imported counts as step 0"
    )
    text = "history, run folder, or parquet (all its rows, no statistics); several are put together"
    added.add_argument("sources", metavar="SOURCE", nargs="+", help=text)
    added.add_argument("--max-per-outcome", type=positive, metavar="N", help="as algorithm.r3.history.max_per_outcome")
    added.add_argument("--max-gib", type=gib, metavar="GIB", help="as algorithm.r3.history.max_gib")
    added.add_argument("--seed", type=count, default=0, metavar="N", help="as data.seed of the run to come")
    return parser.parse_args(argv)


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
