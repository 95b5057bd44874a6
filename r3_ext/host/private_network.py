"""A network of its own for the processes of a run: a loopback interface, and no way in or out.

What verl binds follows Ray's node address, so other hosts and other users of the machine reach TransferQueue, which
unpickles, and so executes, whatever comes, and verl's vLLM server, which answers anybody. In a Linux network namespace
the same sockets are out of their reach, on whatever address they listen. Files, GPUs and Unix sockets are not touched.

    python -IS r3_ext/host/private_network.py COMMAND...     becomes COMMAND in a network of its own

Root needs CAP_SYS_ADMIN for it; other users get a user namespace, in which they stay who they are. Some containers and
systems forbid both. `R3_PRIVATE=1` insists, `R3_PRIVATE=0` does without; where neither is said, a run on the CPU
that needs nothing from outside gets one.

Started for every run and imported in none of its processes but forks: this file imports next to nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import subprocess
import sys
from fcntl import ioctl
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

VARIABLE = "R3_PRIVATE"
LOCAL_LOGGERS = {"console", "file", "tensorboard"}
"""Loggers of verl that write to this machine alone."""
GPUS = "GPUs (not tried with them)"
HUB_NAME = r"[\w.-]+/[\w.-]+"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
ADDRESSES = ("HOST_IP", "VLLM_HOST_IP")
"""Variables that may name an interface or an address of the machine, which a private network does not have."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CAPABILITY_VERSION_3 = 0x20080522
ASKED_ADDRESS = "8.8.8.8"
"""Ray, verl and vLLM take for the machine's address the one from which packets would go there. Nothing is sent."""


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
    if config.trainer.device != "cpu":
        found.append(GPUS)
    return found


def several_machines(config: DictConfig) -> str | None:
    """Why the run is not one of this machine alone, or None."""
    if address := os.environ.get("RAY_ADDRESS"):
        return f"RAY_ADDRESS={address}"
    return f"trainer.nnodes={config.trainer.nnodes}" if config.trainer.nnodes > 1 else None


def obstacle(needed: list[str], cluster: str | None = None) -> str | None:
    """Why a command does not get a network of its own, or None.

    needed: what it needs from outside. cluster: why it runs on several machines.

    Raises:
        ValueError: R3_PRIVATE is neither 0 nor 1, or it asks for what cannot be had.
    """
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, got {wish!r}")
    if wish == "0":
        return f"{VARIABLE}=0, or --no-private"
    reason = f"a run with {cluster} is one of several machines" if cluster else None
    if reason is None and not (needed and wish != "1"):
        reason = forbidden()
    if reason and wish == "1":
        raise ValueError(f"{VARIABLE}=1, or --private, cannot be: {reason}")
    return reason or (f"not by default with {' and '.join(needed)}" if needed and wish != "1" else None)


@cache
def forbidden() -> str | None:
    """Why this machine refuses a network of one's own, or None."""
    probe = subprocess.run(_inside(["true"]), capture_output=True, text=True, check=False)
    return (probe.stderr.strip().splitlines() or ["no reason given"])[-1] if probe.returncode else None


def wrap(command: list[str], needed: list[str], cluster: str | None = None) -> list[str]:
    """The command that does the same in a network of its own; the same command where `obstacle` names a reason."""
    if obstacle(needed, cluster):
        return command
    # What cannot be reached is not waited for: metrics wait for `wandb sync`, models come from the local cache.
    offline = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"} if needed else {}
    settings = [f"{name}={value}" for name, value in offline.items() if name not in os.environ]
    return [*(["env", *settings] if settings else []), *_inside(command)]


def _inside(command: list[str]) -> list[str]:
    return [sys.executable, "-IS", os.path.abspath(__file__), *command]


def enter() -> None:
    """Give this process, and what it starts from now on, a network of its own.

    Raises:
        OSError: the kernel or the container forbids it.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:  # in a user namespace root would lose its rights to the files of others
        _call("unshare", CLONE_NEWNET)
    else:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = struct.unpack("16sh22x", ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0)))
        ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | IFF_UP))
    _answer_with_loopback(ASKED_ADDRESS)


def join(pid: int) -> None:
    """Move this process, which has one thread, into the network of another one of the same user.

    Raises:
        OSError: the other process is gone, or not a descendant of this one's namespaces.
    """
    user_namespace = False
    for kind, clone_flag in (
        ("user", CLONE_NEWUSER),
        ("net", CLONE_NEWNET),
    ):  # the first gives the rights to the second
        theirs = f"/proc/{pid}/ns/{kind}"
        if os.readlink(theirs) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        namespace = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", namespace, clone_flag)
        finally:
            os.close(namespace)
        user_namespace |= kind == "user"
    if user_namespace:
        # It gives every right over what is in it, to write one's own read-only files for example. A new program begins
        # without these rights, and so does this process.
        _call("capset", struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def _call(function: str, *arguments) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _answer_with_loopback(address: str) -> None:
    """Make `address` this machine itself, reached from 127.0.0.1: `ip route add local ADDRESS dev lo src 127.0.0.1`."""
    index = socket.if_nametoindex("lo")
    attributes = ((1, socket.inet_aton(address)), (4, struct.pack("I", index)), (7, socket.inet_aton("127.0.0.1")))
    # struct rtmsg: IPv4, 32 bits, table local, protocol static, scope host, type local.
    body = struct.pack("8BI", socket.AF_INET, 32, 0, 0, 255, 4, 254, 2, 0)
    body += b"".join(struct.pack("HH", 8, kind) + value for kind, value in attributes)
    # struct nlmsghdr: RTM_NEWROUTE; a request, to be acknowledged, creating, of something new.
    header = struct.pack("IHHII", 16 + len(body), 24, 0x001 | 0x004 | 0x200 | 0x400, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(header + body)
        (code,) = struct.unpack_from("i", kernel.recv(4096), 16)
    if code:
        raise OSError(-code, f"route to {address}: {os.strerror(-code)}")


def main(command: list[str]) -> None:
    try:
        enter()
    except OSError as error:
        name = errno.errorcode.get(error.errno, error.errno)
        sys.exit(f"no network of its own: the kernel or the container forbids it ({name}, {error.strerror})")
    for names, value in ((INTERFACES, "lo"), (ADDRESSES, "127.0.0.1")):
        for name in names:
            if name in os.environ:
                os.environ[name] = value
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
