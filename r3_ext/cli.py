"""The command `r3`. Each subcommand is a function (argv) -> exit code, imported only when it is asked for."""

import argparse
import codecs
import importlib
import io
import sys
from importlib import metadata

COMMANDS = {
    "run": ("r3_ext.run.command", "prepare, check, train, and leave a run folder behind"),
    "resume": ("r3_ext.run.command:resume", "go on with a run, with the settings that it has"),
    "rehearse": ("r3_ext.rehearse.command", "the worst and a typical step for real, and what the run will take"),
    "probe": ("r3_ext.r3.probe.command", "is it worth it for this model and these problems? generates, trains nothing"),
    "doctor": ("r3_ext.doctor.entry", "check this machine, the installation and a configuration"),
    "eval": ("r3_ext.evaluate.command", "measure a model on benchmarks; score, compare, challenging subset"),
    "study": ("r3_ext.study.command", "compare methods, their parts and their baselines at equal cost"),
    "report": ("r3_ext.report.command", "draw one HTML page and PNG figures from the metrics of one or several runs"),
    "episodes": ("r3_ext.report.episodes", "sessions of a run turn by turn, with the groups of each turn"),
    "states": ("r3_ext.rrl.states", "states that RRL-style replay starts again from, with their tries and texts"),
    "history": ("r3_ext.r3.history.command", "look into R^3's sample buffer, export it, seed a new one"),
}

GUARDED = ("run", "resume", "rehearse", "probe", "eval")
"""Commands that start processes of their own. Those of a study are such commands."""


def version() -> str:
    """The one in pyproject.toml, as it was installed."""
    try:
        return metadata.version("r3-recipe")
    except metadata.PackageNotFoundError:
        return "not installed"


def main(argv: list[str] | None = None) -> int:
    is_called = argv is None
    _suit_the_console()
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="r3",
        description="R^3, HGPO and RRL-style replay on verl: train, compare and look into what was trained.",
        epilog="\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"r3-recipe {version()}")
    parser.add_argument("command", choices=COMMANDS, help="`r3 COMMAND --help` tells more")
    # Only the first word is parsed here: what follows may be hydra overrides, which argparse would misread.
    command = parser.parse_args(argv[:1]).command
    if is_called and command in GUARDED and not {"-h", "--help"} & set(argv):
        from r3_ext.host import guard

        guard.stand_in()
    module, _, function = COMMANDS[command][0].partition(":")
    try:
        from recipe.common.config.machine_rules import name_the_user

        name_the_user()
        return getattr(importlib.import_module(module), function or "main")(argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "r3_ext", "recipe"):
            raise
        way = "examples/install.sh --games" if error.name == "textworld" else "examples/install.sh"
        print(f"error: {error}: run {way}, which installs what is missing", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _suit_the_console() -> None:
    """What the console cannot write, `ü` where it is ASCII, is written as an escape and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        # A stream of UTF-8 is left alone: one of a forked process stands on another file than it began on.
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
