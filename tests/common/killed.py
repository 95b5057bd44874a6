"""Processes that are killed while they write a store, and the files that they leave."""

import multiprocessing
import os
import shutil
import time
from contextlib import suppress


def killed(work, path: str, delay: float) -> list[int]:
    """What `work(path, report)` reports in a process that gets SIGKILL `delay` seconds after its first report."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=work, args=(path, sender.send))
    process.start()
    sender.close()
    reports = [receiver.recv()]
    time.sleep(delay)
    process.kill()
    process.join()
    with suppress(EOFError):
        while True:
            reports.append(receiver.recv())
    return reports


def copy(source: str, target: str) -> None:
    """Put the file and its log, without the shared memory, as after a crash of the machine."""
    for end in ("", "-wal", "-shm"):
        if os.path.exists(target + end):
            os.remove(target + end)
    for end in ("", "-wal"):
        if os.path.exists(source + end):
            shutil.copy(source + end, target + end)
