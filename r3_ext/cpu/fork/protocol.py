"""What the fork server and `client.py` say to each other."""

import json
import socket
from contextlib import suppress
from typing import NamedTuple

MOST_FDS = 250


class Request(NamedTuple):
    """What `client.py` sends: the arguments after the interpreter, and what a process inherits."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    fds: list[int]
    """Numbers under which the passed file descriptors were open."""


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """A request, a line of JSON, and the file descriptors that come with its first byte.

    Raises:
        ValueError: the client broke off.
    """
    text, fds, _, _ = socket.recv_fds(client, 1 << 16, MOST_FDS)
    while not text.endswith(b"\n"):
        if not (more := client.recv(1 << 16)):
            raise ValueError("the request ends before its end of line")
        text += more
    return Request(**json.loads(text)), fds


def tell(client: socket.socket, line: str) -> None:
    with suppress(OSError):  # it was killed
        client.sendall(f"{line}\n".encode())
