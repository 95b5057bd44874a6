"""Starts of a run without the training, for the tests of later starts."""

from pathlib import Path

from omegaconf import OmegaConf

from r3_ext.record import folder as run_folder
from r3_ext.run import changes, train
from r3_ext.run import command as launch
from r3_ext.run.start import settle
from r3_ext.settings.compose import compose_config, quoted


def start_of(*argv: str, resume: bool = False):
    return settle(launch.parse(list(argv), resume), resume, lambda: "embedded")


def begin(*argv: str, ends: int | None = 0, data: Path | None = None):
    """A run folder as a start with these arguments leaves it, without the training."""
    start = start_of(*argv)
    files = [f"data.train_files={quoted(data)}"] if data else []
    places = train.run_overrides(start.folder, start.method, False)
    config = compose_config(start.compose(places + files))
    start.folder.mkdir(parents=True)
    start.record(-1, config, {}, None)
    OmegaConf.save(config, start.folder / "config.yaml", resolve=True)
    if ends is not None:
        run_folder.append(start.folder, "end", seconds=10.0, exit_code=ends)
    return start.folder


def compare(start, say=lambda text: None) -> changes.Changes:
    """What the command compares before it loads anything."""
    places = train.run_overrides(start.folder, start.method, False)
    return start.check(compose_config(start.compose(places + start.stored_paths())), False, say)
