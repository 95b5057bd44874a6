"""Stands for the Python interpreter: asks the fork server for the process, and lives and ends as it does.

    python -IS client.py SOCKET ARGUMENTS-OF-PYTHON...

Started for every process of a run, so it imports next to nothing.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(sys.argv[1])
    except OSError as error:
        start_anew(f"no fork server ({error})")
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    fds = sorted(fd for fd in fds if fd != server.fileno() and is_open(fd))
    request = {"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd(), "fds": fds}
    text = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(server, [text[:1]], fds)
    server.sendall(text[sent:])
    answers = server.makefile("r")
    answer = answers.readline().strip()
    if not answer.isdecimal():
        start_anew(answer or "the fork server broke off")
    # Whoever waits for the end of a pipe waits for the process alone.
    for fd in fds:
        if fd > 2:
            os.close(fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: os.kill(int(answer), number))
    end(answers.readline().strip())


def is_open(fd: int) -> bool:
    """Not so for the descriptor that listed the others."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def start_anew(reason: str) -> None:
    print(f"a new interpreter instead of a fork: {reason}", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


def end(status: str) -> None:
    """With the status of the process; killed as it was killed."""
    code = int(status) if status else -signal.SIGKILL
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
