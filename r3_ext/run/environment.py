"""Where a run happens: versions, git state, machine; and a home folder that can be written."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from r3_ext.host.hardware import PACKAGES, installed_version, list_gpus
from r3_ext.settings.compose import IS_CHECKOUT, ROOT
from recipe.common.config.machine_rules import is_home_writable


def replace_read_only_home(cache: Path, say) -> None:
    """Ray's token, HuggingFace's data sets and vLLM's settings are written to the home folder: where it cannot be
    written, or there is none, a folder in the cache is HOME for this run.

    Raises:
        ValueError: the cache cannot be written either.
    """
    if is_home_writable():
        return
    home, own = os.path.expanduser("~"), (cache / "home").resolve()
    with writing_to(cache):
        own.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(own)
    say(f"the home folder {home} cannot be written: {own} takes its place")


@contextmanager
def writing_to(cache: Path) -> Iterator[None]:
    """
    Raises:
        ValueError: the block could not write to the cache.
    """
    try:
        yield
    except OSError as error:
        if not Path(error.filename or "/").is_relative_to(cache.absolute()):
            raise
        raise ValueError(f"the cache {cache} cannot be written ({error}): name another folder with --cache") from error


def git_says(*arguments: str) -> str | None:
    """None where there is no git, or no checkout of this project: an installed copy may lie in another repository."""
    if shutil.which("git") is None or not IS_CHECKOUT:
        return None
    result = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def environment(command: list[str]) -> dict:
    """Versions, git state, machine and command of a run."""
    versions = {name: version for name in PACKAGES if (version := installed_version(name))}
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {len(list_gpus())} GPUs",
        "versions": versions,
        "git": {"commit": git_says("rev-parse", "HEAD"), "changes": git_says("status", "--porcelain")},
    }
