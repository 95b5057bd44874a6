"""A start of a run: a new one, or a later one that keeps what the run was started with."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from r3_ext.host import private_network
from r3_ext.recipes import DEFAULT_METHOD, check_kind, recipe_of
from r3_ext.record.folder import append, check_name, claim, digest, find, is_run, missing, read_starts
from r3_ext.record.metrics_file import split
from r3_ext.record.summary import CUT
from r3_ext.run import changes as changing
from r3_ext.run.changes import Changes
from r3_ext.settings.choose import ATTENTION, attention_override
from r3_ext.settings.compose import (
    CACHE,
    HYDRA,
    OWN_CONFIG,
    base_overrides,
    check_choice,
    parse_override,
    quoted,
    resolved,
)
from r3_ext.settings.prepare import EMBEDDED
from r3_ext.tiny import world
from recipe.common.modes import COLOCATE_ASYNC, SEPARATE_ASYNC, SYNC, trainer_name
from recipe.common.reward.function import FILE, function_file

FUNCTION = "reward.custom_reward_function.path"
FILES = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path", FUNCTION)
TRAINER = "trainer.v1.trainer_mode"
NEW = "leave it out, give --change to go on as another run, or start a new one with another --run"


@dataclass
class Start:
    folder: Path
    options: dict[str, object]
    """Those of `changes.OPTIONS`."""
    sources: dict[str, str]
    """DATA, VAL_DATA and MODEL, where they are set."""
    overrides: list[str]
    known: list[dict] = field(default_factory=list)
    """The run's record of its starts; empty for a new run."""
    change: bool = False
    """Whether it may become another run."""
    asked: Changes = field(default_factory=dict)
    """Options and sources that differ from the last start's."""
    shown: Changes = field(default_factory=dict)
    """Differences that were said already."""

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def method(self) -> str:
        return self.options["method"]

    @property
    def arguments(self) -> dict:
        """What a later start keeps, as starts.jsonl has it."""
        overrides = changing.without_once(self.overrides)
        return {"options": self.options, "sources": self.sources, "overrides": overrides}

    @property
    def mode(self) -> str:
        return self.options.get("mode") or SYNC

    @property
    def world(self) -> str:
        """As `--world` has it."""
        return self.options["world"] or recipe_of(self.method).world

    @property
    def profile(self) -> str:
        return self.options["profile"]

    @property
    def cache(self) -> Path:
        return Path(self.options["cache"])

    @property
    def is_finished(self) -> bool:
        """Whether the last start came to its end."""
        return bool(self.known) and self.known[-1].get("exit_code") == 0

    def has_more_to_do(self, changes: Changes) -> bool:
        """Whether it goes on although it is finished: it is longer now, another run, or goes back to a checkpoint."""
        once = len(self.overrides) > len(changing.without_once(self.overrides))
        return once or changing.is_longer(changes) or (self.change and bool(changing.bound(changes)))

    def compose(self, overrides: list[str]) -> list[str]:
        """All overrides of the start, these between its method and its own."""
        base = [*base_overrides(self.profile, self.method, self.world), *self._mode()]
        return [*base, *self._attention(), *overrides, *self.overrides]

    def _mode(self) -> list[str]:
        """A profile may need more than others for a mode."""
        if self.mode == SYNC:
            return []
        own = f"{self.profile}_{self.mode}"
        name = own if (OWN_CONFIG / "mode" / f"{own}.yaml").is_file() else self.mode
        trainer = trainer_name(recipe_of(self.method).name, self.mode)
        # A batch of sessions is one optimizer step; the mode has two from one sync to the next.
        one = self.mode == SEPARATE_ASYNC and world.is_text(self.world)
        steps = ["trainer.v1.separate_async.parameter_sync_step=1"] if one else []
        return [f"+mode={name}", f"trainer.v1.trainer_mode={trainer}", *steps]

    def _attention(self) -> list[str]:
        """By what is installed at the first start; a later one keeps it."""
        if not (self.known and (self.folder / "config.yaml").is_file()):
            return attention_override(self.profile)
        kept = changing.stored_settings(self.folder).get(ATTENTION)
        return [f"{ATTENTION}={kept}"] if kept and self.profile != EMBEDDED else []

    def stored_paths(self) -> list[str]:
        """Overrides that name the model and the data files of the last start."""
        if not (self.folder / "config.yaml").is_file():
            return []
        old = changing.stored_settings(self.folder)
        return [f"{key}={_hydra_value(old[key])}" for key in changing.PREPARED if old.get(key)]

    def check(self, config: DictConfig, prepared: bool, say) -> Changes:
        """What differs from the settings of the last start.

        prepared: whether model and data are, so that their contents are compared too.

        Raises:
            ValueError: a difference makes it another run, and --change was not given.
        """
        if not self.known:
            return {}
        if not (self.folder / "config.yaml").is_file():
            if (self.folder / "metrics.jsonl").exists() or (self.folder / "checkpoints").exists():
                raise ValueError(f"{self.folder / 'config.yaml'} is gone: the run cannot go on with its settings")
            return {}  # it was killed before it began
        here, there = str(self.folder), self._last_start["folder"]
        old = {key: _moved(value, there, here) for key, value in changing.stored_settings(self.folder).items()}
        found = self.asked | changing.between(old, resolved(config))
        if prepared:
            found = _compare_files(found, self._last_start["files"], contents(config))
        if found and found != self.shown:
            say("\n".join(["differs from the last start:", *changing.lines(found)]))
            self.shown = found
        modes = [mode_of(values.get(TRAINER)) for values in (old, resolved(config))]
        if modes[0] != modes[1]:
            raise ValueError(
                f"{self.name} trains in the mode {modes[0]}, and what is in flight there has no place in {modes[1]}: "
                "leave --mode out, or start a new run under another --run (r3 history import takes the history along)"
            )
        if (binding := changing.bound(found)) and not self.change:
            raise ValueError(f"{self.name} was started with other settings: {', '.join(list(binding)[:3])}; {NEW}")
        return found

    @property
    def _last_start(self) -> dict:
        return [line for line in self.known if line["event"] == "start"][-1]

    def check_goes_on(self, step: int, say) -> None:
        """Say where the run goes on, and what becomes of the rows of metrics behind that.

        Raises:
            ValueError: it came to its end and left no checkpoint, or was started by somebody else meanwhile.
        """
        if read_starts(self.folder) != self.known:
            raise ValueError(f"{self.name} was started elsewhere meanwhile: call the same command again")
        if not self.known:
            return
        rows = len(split(self.folder / "metrics.jsonl", step)[1])
        if step < 0 and rows and self.is_finished:
            raise ValueError(
                f"{self.name} came to its end and left no checkpoint to go on from: start a new run under another name"
            )
        where = f"goes on from the checkpoint of step {step}" if step >= 0 else "no checkpoint: begins again at step 0"
        say(where + (f"; {rows} rows of metrics after it are moved to {CUT}" if rows else ""))

    def record(self, step: int, config: DictConfig, changed: Changes, commit: str | None) -> None:
        """Write this start into the run's record; one before it that was killed gets its end."""
        if self.known and self.known[-1]["event"] == "start":
            append(self.folder, "end", seconds=_seconds_seen(self.folder, self.known[-1]), exit_code=None)
        append(
            self.folder,
            "start",
            step=step,
            commit=commit,
            changed={key: list(values) for key, values in changed.items()},
            folder=str(self.folder),
            files=contents(config),
            arguments=self.arguments,
        )


def mode_of(trainer_mode: object) -> str:
    """verl's mode, of a trainer of the recipe's or of verl's own."""
    asynchronous = (COLOCATE_ASYNC, SEPARATE_ASYNC)
    return next((mode for mode in asynchronous if str(trainer_mode).endswith(mode)), SYNC)


def settle(args: argparse.Namespace, resume: bool, default_profile: Callable[[], str]) -> Start:
    """Which run is meant, and with what it starts; sets DATA, VAL_DATA and MODEL to what the run keeps.

    default_profile: asked where nobody names one.

    Raises:
        ValueError: a name, a folder or an option that cannot be taken.
    """
    for name in ("warm_start_steps", "until_tokens", "until_turns"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if not resume:
        check_name("--run", args.run)
        check_name("--experiment", args.experiment)
    if own := [text for text in args.overrides if HYDRA.match(text)]:
        raise ValueError(f"{own[0]!r} is a setting of hydra's own, which the command needs for itself: leave it out")
    folder = find(args.outputs, args.run, args.experiment) if args.run else None
    if resume and folder is None and args.run and is_run(Path(args.run)):
        folder = Path(args.run)
    if resume and folder is None:
        raise ValueError(missing(args.outputs, args.run))
    if args.private is None:
        args.private = {"1": True, "0": False}.get(os.environ.get(private_network.VARIABLE, ""))
    given = {
        "options": {name: value for name in changing.OPTIONS if (value := getattr(args, name)) is not None},
        "sources": {name: _absolute(os.environ[name]) for name in changing.SOURCES if os.environ.get(name)},
        "overrides": [_at_its_place(override) for override in args.overrides],
    }
    if "cache" in given["options"]:
        given["options"]["cache"] = os.path.realpath(args.cache)
    start = _later(folder, given, args.change) if folder else _new(args, given, default_profile)
    if start.options["world"]:
        check_world(start.options["world"], start.profile, start.sources.get("DATA"))
    check_kind(start.method, start.world)
    if start.options.get("until_turns") and not world.is_text(start.world):
        raise ValueError("--until-turns counts turns of sessions: with answers of one turn take --until-tokens")
    check_choice("profile", start.profile)
    os.environ.update(start.sources)
    return start


def _new(args: argparse.Namespace, given: dict, default_profile: Callable[[], str]) -> Start:
    if args.change:
        raise ValueError("--change is for a run that there is already; leave it out")
    defaults = {name: None for name in changing.OPTIONS} | {
        "method": DEFAULT_METHOD,
        "mode": SYNC,
        "profile": given["options"].get("profile") or os.environ.get("R3_PROFILE") or default_profile(),
        "wandb": False,
        "cache": str(CACHE),
    }
    options = defaults | given["options"]
    if options["profile"] != EMBEDDED and options.get("warm_start_steps") is not None:
        raise ValueError("--warm-start-steps concerns the tiny model of the profile embedded: leave it out")
    experiment = args.experiment or f"{trainer_name(options['method'], options['mode'])}_{options['profile']}"
    folder = args.outputs / experiment / (args.run or datetime.now().strftime("%Y%m%d-%H%M%S"))
    claim(folder.absolute())
    return Start(Path(os.path.realpath(folder)), options, given["sources"], given["overrides"])


def _later(folder: Path, given: dict, change: bool) -> Start:
    known = read_starts(folder)
    stored = [line for line in known if line["event"] == "start"][-1]["arguments"]
    kept = changing.merged(stored, given)
    old, new = stored["options"], kept["options"]
    asked = {f"--{name.replace('_', '-')}": (old.get(name), value) for name, value in new.items()}
    asked |= {name: (stored["sources"].get(name), value) for name, value in kept["sources"].items()}
    asked = {name: (old, new) for name, (old, new) in asked.items() if old != new}
    return Start(
        Path(os.path.realpath(folder)), kept["options"], kept["sources"], kept["overrides"], known, change, asked
    )


def _absolute(source: str) -> str:
    """A path for good, whatever the working folder; what is no path here, an id on the hub, as it is."""
    path = os.path.expanduser(source)
    return os.path.abspath(path) if os.path.exists(path) else source


def _at_its_place(override: str) -> str:
    """The file of a reward function is found from any working folder: a later start may have another, as Ray's do."""
    key = override.partition("=")[0]
    if key.lstrip("+") != FUNCTION:
        return override
    path = parse_override(override).value()
    return f"{key}={_hydra_value(_absolute(path.removeprefix(FILE)))}" if isinstance(path, str) else override


def check_world(text: str, profile: str, data: str | None) -> None:
    """Raise ValueError where --world has no meaning or is none."""
    if not world.is_text(text) and (profile != EMBEDDED or data):
        raise ValueError(
            "--world concerns the problems that the profile embedded generates; leave it out, or unset DATA"
        )
    world.parse(text)


def _hydra_value(value: str | list[str]) -> str:
    return quoted(value) if isinstance(value, str) else f"[{','.join(map(quoted, value))}]"


def _moved(value: object, there: str, here: str) -> object:
    """A path in the run's folder, which may have been moved since."""
    inside = isinstance(value, str) and value.startswith(f"{there}/")
    return here + value.removeprefix(there) if inside else value


def contents(config: DictConfig) -> dict[str, list[str | None]]:
    """sha256 of the data files, of the model and of the reward function's file of a run, by setting."""
    values = {key: OmegaConf.select(config, key) for key in FILES}
    if values[FUNCTION]:
        values[FUNCTION] = function_file(values[FUNCTION]) or values[FUNCTION]
    return {
        key: [digest(path) for path in ([value] if isinstance(value, str) else value or ())]
        for key, value in values.items()
    }


def _compare_files(found: Changes, old: dict, new: dict) -> Changes:
    """Files count by what they hold: the same ones at another place are no change, others at the same place are."""
    same = {key for key in FILES if old.get(key, []) == new[key] and None not in new[key]}
    found = {key: values for key, values in found.items() if key not in same}
    for key in FILES:
        if old.get(key, []) != new[key] and key not in found:
            found[f"content of {key}"] = old.get(key), new[key]
    return found


def _seconds_seen(folder: Path, start: dict) -> float:
    """How long a start that was killed wrote to its log or its metrics."""
    written = [file.stat().st_mtime for name in ("run.log", "metrics.jsonl") if (file := folder / name).exists()]
    return round(max(0.0, max(written, default=0) - datetime.fromisoformat(start["when"]).timestamp()), 1)
