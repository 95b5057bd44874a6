"""What a run needs from outside, who can reach its sockets, and whether Ray's token is where a cluster asks for it."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding
from r3_ext.host import private_network
from recipe.common.config.machine_rules import tracker

if TYPE_CHECKING:
    from omegaconf import DictConfig

FIRST_USER = 1000
"""User ids below are the system's, by the convention of all distributions."""
WHAT = "TransferQueue executes what is sent to its sockets, verl's vLLM server answers anybody"
FILTER = "close its ports to others with a packet filter"
LOCAL_LOGGERS = {"console", "file", "tensorboard"}
"""Loggers of verl that write to this machine alone."""
HUB_NAME = r"[\w.-]+/[\w.-]+"


def needs(config: DictConfig) -> list[str]:
    """What the run needs from outside of this machine, in words; and GPUs, with which this has not been tried."""
    loggers = config.trainer.logger
    loggers = [loggers] if isinstance(loggers, str) else loggers or []
    found = [f"the tracker {name}" for name in loggers if name not in LOCAL_LOGGERS]
    model = config.actor_rollout_ref.model.path
    if re.fullmatch(HUB_NAME, model) and not os.path.isdir(model):
        found.append(f"the model {model} from the hub")
    files = [config.data.train_files, config.data.val_files, config.trainer.default_hdfs_dir]
    paths = [path for entry in files if entry for path in ([entry] if isinstance(entry, str) else entry)]
    found += [str(path) for path in [*paths, config.reward.sandbox_fusion.url] if "://" in str(path or "")]
    return found + ([private_network.GPUS] if config.trainer.device != "cpu" else [])


def several_machines(config: DictConfig) -> str | None:
    """Why the run is not one of this machine alone, or None."""
    if address := os.environ.get("RAY_ADDRESS"):
        return f"RAY_ADDRESS={address}"
    return f"trainer.nnodes={config.trainer.nnodes}" if config.trainer.nnodes > 1 else None


def check_network(config: DictConfig) -> list[Finding]:
    """verl's and TransferQueue's sockets ask for no key; Ray's ask for a token."""
    needed, cluster = needs(config), several_machines(config)
    try:
        obstacle = private_network.obstacle(needed, cluster)
    except ValueError as error:
        return [Finding(FAIL, "network", str(error), f"leave {private_network.VARIABLE} and --private out")]
    if obstacle is None:
        return [Finding(OK, "network", "the run gets one of its own, which nobody else can reach")]
    if cluster:
        found = f"{cluster}: {WHAT}"
        advice = "let nobody else reach the nodes: a network of their own, or a packet filter (docs/security.md)"
        return [Finding(WARN, "network", found, advice), *(check_token() if os.environ.get("RAY_ADDRESS") else [])]
    reached_by = [*reaching_hosts(), *other_users()]
    if not reached_by:
        return [Finding(OK, "network", f"none of its own ({obstacle}); nobody else was found to reach it")]
    if needed and os.environ.get(private_network.VARIABLE) != "0":
        advice = "r3 run --private (R3_PRIVATE=1) closes it: W&B offline, models from the local cache; or " + FILTER
    elif os.environ.get(private_network.VARIABLE) == "0":
        advice = f"leave --no-private and {private_network.VARIABLE}=0 out, or {FILTER}"
    else:
        advice = f"allow user namespaces (containers: docker run --cap-add SYS_ADMIN), or {FILTER}"
    return [Finding(WARN, "network", f"{obstacle}; {WHAT}: {', '.join(reached_by)}", advice)]


def check_tracker(config: DictConfig) -> list[Finding]:
    """A tracker of a run in a network of its own is offline, and asks for nothing."""
    try:
        if private_network.obstacle(needs(config), several_machines(config)) is None:
            return []
    except ValueError:
        return []  # told by check_network
    return [Finding(FAIL, "tracker", one.told, one.advice) for one in tracker(config)]


def reaching_hosts() -> list[str]:
    """Who reaches the address on which verl binds: the one that Ray gives this machine."""
    import ray

    node = ray.util.get_node_ip_address().strip("[]")
    address = ipaddress.ip_address(node)
    if address.is_loopback:
        return []
    return [f"{'everybody on the internet' if address.is_global else 'hosts of its network'} ({node})"]


def other_users() -> list[str]:
    """The users, besides this one and the system's, who run anything here now."""
    ids = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ids.add(process.stat().st_uid)
        except FileNotFoundError:  # ended meanwhile
            continue
    others = sorted(uid for uid in ids - {os.getuid()} if uid >= FIRST_USER)
    return [f"the user{'s' if len(others) > 1 else ''} {', '.join(map(_user_name, others))}"] if others else []


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # of another container
        return str(uid)


def check_token() -> list[Finding]:
    """A cluster of `ray start` asks for a token; without one the run ends minutes later, with a traceback."""
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode == "disabled":
        found, advice = "RAY_AUTH_MODE=disabled: the cluster runs whatever is sent to it", "start it with tokens"
        return [Finding(WARN, "Ray's token", found, advice)]
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        level = FAIL if mode == "token" else WARN
        return [Finding(level, "Ray's token", f"no {file}", "copy the one of the cluster's head node to every node")]
    if mode != "token":
        found = "RAY_AUTH_MODE is not set, and ray.init will be refused by a cluster that asks for a token"
        return [Finding(WARN, "Ray's token", found, "export RAY_AUTH_MODE=token")]
    return [Finding(OK, "Ray's token", "there")]
