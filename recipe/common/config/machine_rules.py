# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a training needs of this machine and its user, told before Ray starts: what was found, and a way out.

The settings may be right on another machine: so these are no rules on settings, and `r3 doctor` tells those that
`r3 run` does not mend by itself.
"""

from __future__ import annotations

import os
import pwd
import resource
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from recipe.common.checks import Broken, setting

if TYPE_CHECKING:
    from omegaconf import DictConfig

Fault = tuple[str, str]

SHARED_MEMORY = "/dev/shm"
LEAST_FILES = 256
"""Open files of a process: the busiest one of a training with one small rank has 114."""
SOCKET_BYTES = 107
"""Longest path of a Unix socket on Linux."""
LONGEST_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""Of those that Ray makes below its folder."""
ANY_CLUSTER = (None, "", "auto")
"""Addresses with which Ray looks for a cluster of this machine by itself."""


def of_this_machine(config: DictConfig) -> Iterator[Broken]:
    """What ends a training command on this machine, whatever its settings are worth elsewhere."""
    ray_init = config.ray_kwargs.get("ray_init") or {}
    address = os.environ.get("RAY_ADDRESS") or ray_init.get("address")
    told = [*home(), *shared_memory(), *open_files()]
    if address in (*ANY_CLUSTER, "local"):
        told += socket_paths(ray_init)
    if address in ANY_CLUSTER:
        told += dead_cluster(ray_init)
    yield from (Broken(f"{found}: {advice}") for found, advice in told)
    yield from tracker(config)


def name_the_user() -> None:
    """Give a user without an entry in /etc/passwd, as a container's may be, the home and the name that are missing.

    Python and Ray end with a KeyError or RuntimeError where they ask for them. Container engines take / as home, too.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", "/")
        os.environ.setdefault("USER", str(os.getuid()))


def is_home_writable() -> bool:
    path = os.path.expanduser("~")
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def home() -> Iterator[Fault]:
    """Ray makes a token there, unless it has one or needs none."""
    has_token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if has_token or os.environ.get("RAY_AUTH_MODE", "token") != "token" or is_home_writable():
        return
    path = os.path.expanduser("~")
    if not os.path.isfile(f"{path}/.ray/auth_token"):
        yield (
            f"the home folder {path} cannot be written, where Ray keeps its token",
            "export HOME=FOLDER with one that can",
        )


def shared_memory() -> Iterator[Fault]:
    if not os.path.isdir(SHARED_MEMORY):
        mount = f"mkdir {SHARED_MEMORY} && mount -t tmpfs tmpfs {SHARED_MEMORY}"
        yield f"there is no {SHARED_MEMORY}, which Ray and vLLM need", f"give the machine one, as root: {mount}"


def open_files() -> Iterator[Fault]:
    """Ray raises the limit as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < LEAST_FILES:
        advice = "raise the hard limit (docker run --ulimit nofile=65536; as root: ulimit -n 65536)"
        yield f"a process may open {hard} files here, {LEAST_FILES} are needed", advice


def has_room_for_sockets(folder: str | Path) -> bool:
    """Whether Ray's sockets have paths that are short enough where its folder is this one."""
    return len(os.fsencode(f"{folder}/{LONGEST_SOCKET}")) <= SOCKET_BYTES


def ray_folder(ray_init: Mapping[str, Any]) -> str:
    """Where Ray keeps its sessions."""
    own = ray_init.get("_temp_dir")
    return own or os.path.join(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")


def socket_paths(ray_init: Mapping[str, Any]) -> Iterator[Fault]:
    folder = ray_folder(ray_init)
    if not has_room_for_sockets(folder):
        most = SOCKET_BYTES - len(f"/ray/{LONGEST_SOCKET}")
        found = f"Ray's sockets below {folder} would have paths of over {SOCKET_BYTES} bytes, the most on Linux"
        yield found, f"export TMPDIR=/tmp RAY_TMPDIR=/tmp, or another folder of at most {most} bytes"


def dead_cluster(ray_init: Mapping[str, Any]) -> Iterator[Fault]:
    """`ray start` leaves its address in a file, to which a later ray.init connects; so does one that is killed."""
    file = Path(ray_folder(ray_init), "ray_current_cluster")
    try:
        address = file.read_text(errors="replace").strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        found = f"{file} names a Ray cluster that does not answer ({error}), and Ray would wait for it"
        yield found, f"rm {file}"


def tracker(config: DictConfig) -> Iterator[Broken]:
    """W&B asks for its key when everything is loaded."""
    from omegaconf import OmegaConf  # without which the doctor says so

    from recipe.common.config.verl_rules import ENVIRONMENT

    loggers = config.trainer.get("logger") or []
    loggers = [loggers] if isinstance(loggers, str) else list(loggers)
    given = OmegaConf.select(config, ENVIRONMENT) or {}
    if "wandb" not in loggers or any(name.startswith("WANDB_") for name in given):
        return
    if fault := wandb_fault():
        others = [name for name in loggers if name != "wandb"] or ["console"]
        yield Broken(
            f"trainer.logger holds wandb, and {fault}: run `wandb login`, export WANDB_API_KEY, or WANDB_MODE=offline",
            (setting("trainer.logger", others),),
        )


def wandb_fault() -> str | None:
    """Why W&B would not begin: there is no key where it looks for one. W&B itself starts a process to tell."""
    if find_spec("wandb") is None:
        return "wandb is not installed"
    asks = os.environ.get("WANDB_MODE") in (None, "", "online", "run", "shared")
    if not asks or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return None
    netrc = os.environ.get("NETRC") or "~/.netrc"
    settings = os.path.join(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb", "settings")
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    words = dict.fromkeys((netrc, "~/_netrc"), (host, "api.wandb.ai", "default"))
    words |= dict.fromkeys((settings, "wandb/settings"), ("api_key", "mode", "base_url"))
    if any(word in text_of(path) for path, of in words.items() for word in of):
        return None
    return "W&B has no key"


def text_of(path: str) -> str:
    """Nothing where it cannot be read."""
    with suppress(OSError):
        return Path(os.path.expanduser(path)).read_text(errors="replace")
    return ""
