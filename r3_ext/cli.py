"""The command `r3`. Each subcommand is a function (argv) -> exit code, imported only when it is asked for."""

import argparse
import importlib
import sys
from importlib import metadata

COMMANDS = {
    "run": ("r3_ext.run.command", "prepare, check, train, and leave a run folder behind"),
    "resume": ("r3_ext.run.command:resume", "go on with a run, with the settings that it has"),
    "rehearse": (
        "r3_ext.r3.rehearse.command",
        "the worst and a typical step for real, and what the run will take",
    ),
    "probe": ("r3_ext.r3.probe.command", "is it worth it for this model and these problems? generates, trains nothing"),
    "doctor": ("r3_ext.doctor.command", "check this machine, the installation and a configuration"),
    "eval": ("r3_ext.evaluate.command", "measure a model on benchmarks; score, compare, challenging subset"),
    "study": ("r3_ext.study.command", "compare R^3, its parts and its baselines at equal generated tokens"),
    "report": ("r3_ext.report.command", "draw one HTML page and PNG figures from the metrics of one or several runs"),
    "history": ("r3_ext.r3.history.command", "look into a sample buffer, export it, seed a new one"),
}


def version() -> str:
    """The one in pyproject.toml, as it was installed."""
    try:
        return metadata.version("r3-recipe")
    except metadata.PackageNotFoundError:
        return "not installed"


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="r3",
        description="R^3 on verl: replay, reflection and ranking rewards.",
        epilog="\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"r3-recipe {version()}")
    parser.add_argument("command", choices=COMMANDS, help="`r3 COMMAND --help` tells more")
    # Only the first word is parsed here: what follows may be hydra overrides, which argparse would misread.
    command = parser.parse_args(argv[:1]).command
    module, _, function = COMMANDS[command][0].partition(":")
    try:
        return getattr(importlib.import_module(module), function or "main")(argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
