"""Which folder a run has, and the record of its starts that makes it one: starts.jsonl.

A line is written when a run starts (`event` start: when, arguments, step, files, commit) and one when it ends (`event`
end: seconds, exit code). A start without an end was killed.
"""

import difflib
import json
import os
import re
import tempfile
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from r3_ext.host import locks
from r3_ext.host.files import json_lines, sha256

STARTS = "starts.jsonl"
STOPPED, INTERRUPTED = 75, 130
"""Exit codes of a run that saved and ended on SIGTERM, "try again" in sysexits.h, and of one that Ctrl-C ended."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(option: str, name: str | None) -> None:
    """Refuse a name that would leave its folder, or that hydra, a shell or a file system reads otherwise.

    Raises:
        ValueError: it holds anything but letters, digits, `.`, `_` and `-`.
    """
    if name is not None and not NAME.fullmatch(name):
        raise ValueError(
            f"{option} must be a name of up to 100 letters, digits, '.', '_' and '-' that begins with a letter or "
            f"digit, got {name!r}; another place is named with --outputs"
        )


def is_run(folder: Path) -> bool:
    """Whether `r3 run` made this folder."""
    try:
        return bool(read_starts(folder))
    except ValueError:
        return False


def read_starts(folder: Path) -> list[dict]:
    """The lines of starts.jsonl, oldest first; none where there is no such file. A torn last line is left out.

    Raises:
        ValueError: the file is damaged, or not what a run wrote.
    """
    file = folder / STARTS
    if not file.is_file():
        return []
    lines = json_lines(file)
    for number, entry in enumerate(lines, start=1):
        if not _is_event(entry) or (number == 1 and entry["event"] != "start"):
            raise ValueError(f"{file}, line {number}: not a line of a run's record of its starts")
    return lines


def _is_event(entry: object) -> bool:
    """Whether it has what later starts read of it."""
    try:
        datetime.fromisoformat(entry["when"]).astimezone()
        if entry["event"] == "end":
            return entry["seconds"] >= 0
        kept = entry["arguments"]
        texts = [
            entry["folder"],
            *kept["sources"],
            *kept["sources"].values(),
            *kept["overrides"],
            *kept["options"].keys(),
        ]
        lists = isinstance(kept["overrides"], list) and all(
            isinstance(files, list) for files in entry["files"].values()
        )
        return entry["event"] == "start" and lists and all(isinstance(text, str) for text in texts)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False


def append(folder: Path, event: str, /, **facts) -> None:
    """Add a line to the record, on disk before this returns."""
    line = {"event": event, "when": datetime.now().astimezone().isoformat(timespec="seconds"), **facts}
    with open(folder / STARTS, "ab+") as record:
        record.seek(0)
        whole = record.read().rfind(b"\n") + 1
        record.truncate(whole)  # a line that was being written when the machine stopped
        record.write(json.dumps(line).encode() + b"\n")
        record.flush()
        os.fsync(record.fileno())


@contextmanager
def held(folder: Path):
    """Keep the folder for this process alone, and for what it gives the yielded file descriptor to.

    Raises:
        ValueError: another process is training in it.
    """
    try:
        with locks.locked(folder) as lock:
            yield lock
    except locks.Taken as taken:
        raise ValueError(f"{folder} is in use: its run is training now, {taken}") from None


def is_held(folder: Path) -> bool:
    """Whether a process keeps the folder with `held`. The lock is tried for a moment."""
    try:
        with held(folder):
            return False
    except ValueError:
        return True


def claim(folder: Path) -> None:
    """Refuse a folder that holds anything and is no run.

    Raises:
        ValueError: it is not empty, or not a folder, or cannot be made.
    """
    above = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not above.is_dir():
        raise ValueError(
            f"{above} is a file or a link to nowhere: no run folder can be made there; name another with --outputs"
        )
    try:
        # Permissions do not tell: root may write everywhere, but not to a read-only disk.
        os.rmdir(tempfile.mkdtemp(dir=above))
    except OSError as error:
        raise ValueError(f"{above} cannot be written ({error}); name another folder with --outputs") from None
    if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:3])
        raise ValueError(
            f"{folder} holds files that no run wrote ({names}) and stays as it is; choose another name with --run"
        )


def runs_below(outputs: Path) -> dict[str, Path]:
    """The runs of an outputs folder, as EXPERIMENT/RUN, oldest first."""
    found = [file.parent for file in outputs.glob(f"*/*/{STARTS}") if is_run(file.parent)]
    found.sort(key=lambda folder: (read_starts(folder)[0]["when"], folder))
    return {f"{folder.parent.name}/{folder.name}": folder for folder in found}


def find(outputs: Path, run: str, experiment: str | None = None) -> Path | None:
    """The folder of the run that `run` names, RUN or EXPERIMENT/RUN; None where there is none.

    Raises:
        ValueError: several experiments have a run of that name.
    """
    runs = runs_below(outputs)
    wanted = run if experiment is None else f"{experiment}/{run}"
    matches = [name for name in runs if wanted in (name, name.split("/")[1])]
    if len(matches) > 1:
        raise ValueError(f"{len(matches)} runs are called {run}: {', '.join(matches)}; name the experiment as well")
    return runs[matches[0]] if matches else None


def missing(outputs: Path, run: str) -> str:
    """The sentence on a run that there is not: the nearest name, and those that there are."""
    runs = list(runs_below(outputs))
    if not runs:
        return f"no run {run}: {outputs} holds none"
    short = {name.split("/")[1]: name for name in runs} | {name: name for name in runs}
    near = difflib.get_close_matches(run, short, n=1)
    shown = ", ".join(runs[-10:]) + (f" and {len(runs) - 10} older ones" if len(runs) > 10 else "")
    meant = f"Did you mean {short[near[0]]}? " if near else ""
    return f"no run {run} in {outputs}. {meant}There are: {shown}"


def digest(path: str) -> str | None:
    """sha256 of a file, or of what stands in a folder, of large files their ends; None where there is neither."""
    place = Path(path)
    if not place.is_dir():
        return sha256(f". {place.stat().st_size}", place) if place.exists() else None
    files = [file for file in sorted(place.rglob("*")) if file.is_file()]
    names = (f"{file.relative_to(place)} {file.stat().st_size}" for file in files)
    return sha256(*(part for name, file in zip(names, files, strict=True) for part in (name, _ends(file))))


def _ends(file: Path, most: int = 2**20) -> bytes:
    """The first and the last MiB: a model of gigabytes is compared at every start."""
    with open(file, "rb") as content:
        first = content.read(most)
        content.seek(max(content.tell(), file.stat().st_size - most))
        return first + content.read(most)
