"""A network of its own for the processes of a run: a loopback interface, and no way in or out.

TransferQueue unpickles, and so executes, whatever is sent to its sockets, and verl's vLLM server answers anybody. In a
Linux network namespace other hosts and other users of the machine do not reach them. Files, GPUs and Unix sockets stay.

    python -IS r3_ext/host/private_network.py COMMAND...     becomes COMMAND in a network of its own

Root needs CAP_SYS_ADMIN for it; other users get a user namespace, in which they stay who they are. Some containers and
systems forbid both. `R3_PRIVATE=1` insists, `R3_PRIVATE=0` does without; where neither is said, a run on the CPU
that needs nothing from outside gets one. It starts with every run, so this file imports next to nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
from fcntl import ioctl
from functools import cache

VARIABLE = "R3_PRIVATE"
GPUS = "GPUs (not tried with them)"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that may name an interface of the machine, which a private network does not have."""
ADDRESS = {"VLLM_HOST_IP": "127.0.0.1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Tells vLLM this machine's address, and Ray, whom verl asks, that loopback is enough."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
CAPABILITY_VERSION_3 = 0x20080522


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
    if needed and not cluster and not wish:
        return f"not by default with {' and '.join(needed)}"
    reason = f"a run with {cluster} is one of several machines" if cluster else forbidden()
    if reason and wish:
        raise ValueError(f"{VARIABLE}=1, or --private, cannot be: {reason}")
    return reason


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
    _call("unshare", CLONE_NEWNET | (CLONE_NEWUSER if uid else 0))
    if uid:  # not root, who would lose in a user namespace the rights to the files of others
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def join(pid: int) -> None:
    """Move this process, which has one thread, into the network of another one of the same user.

    Raises:
        OSError: the other process is gone, or not a descendant of this one's namespaces.
    """
    for kind, flag in (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET)):  # the first gives the rights to the second
        theirs = f"/proc/{pid}/ns/{kind}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(theirs) as namespace:
                _call("setns", namespace.fileno(), flag)
    if os.geteuid():  # the user namespace gave every right over what is in it; a new program begins without, and so we
        _call("capset", struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def _call(function: str, *arguments: int | bytes) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def main(command: list[str]) -> None:
    try:
        enter()
    except OSError as error:
        name = errno.errorcode.get(error.errno, error.errno)
        sys.exit(f"no network of its own: the kernel or the container forbids it ({name}, {error.strerror})")
    os.environ.update(ADDRESS | {name: "lo" for name in INTERFACES if name in os.environ})
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
