"""Worlds that do to their process, and to their pool, what a world should not."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from recipe.hgpo.environments.base import Observation, Step

SEEN = Observation("a room", ("go on",))


class Fair:
    """Plays for ever, and tells its process and what it was sent."""

    def __init__(self, task):
        self.task, self.sent = task, []

    def reset(self):
        return Observation(str(os.getpid()), self.commands())

    def step(self, command):
        self.sent.append(command)
        return Step(Observation("; ".join(self.sent), self.commands()), 0.5, done=False)

    def commands(self):
        commands = self.task.get("commands", ("go on",))
        return None if commands is None else tuple(commands)

    def close(self):
        if "closed" in self.task:
            with open(self.task["closed"], "w"):
                pass


class FreeText(Fair):
    def commands(self):
        return None


class Raises(Fair):
    def step(self, command):
        raise RuntimeError("the floor gave way")


class Exits(Fair):
    def step(self, command):
        sys.exit(0)


class Dies(Fair):
    def step(self, command):
        os.kill(os.getpid(), signal.SIGKILL)


class Eats(Fair):
    def step(self, command):
        return Step(Observation("x" * len(bytearray(2**40)), None), 0.0, False)


class Moody(FreeText):
    """Dies of one text in four, and so in some of its sessions."""

    def step(self, command):
        if sum(map(ord, command)) % 4 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(command)


class Hangs(Fair):
    def step(self, command):
        ctypes.PyDLL(None).pause()  # in C, with Python's lock: no thread and no signal handler of Python runs any more


class HangsAtOnce(Fair):
    def reset(self):
        ctypes.PyDLL(None).pause()


class Refuses(Fair):
    def __init__(self, task):
        raise ValueError("this game is of another version")


class Slow(Fair):
    def step(self, command):
        time.sleep(0.5)
        return super().step(command)


class Starts(Fair):
    """Starts a program, and leaves files where it stands."""

    def __init__(self, task):
        super().__init__(task)
        with open("saved", "w"):
            pass
        self.child = subprocess.Popen(["sleep", "600"])

    def reset(self):
        return Observation(f"{os.getpid()} {self.child.pid} {os.getcwd()}", ("go on",))


ANSWERS = {
    "nan": Step(SEEN, float("nan"), False),
    "endless": Step(SEEN, float("inf"), False),
    "true": Step(SEEN, True, False),
    "much": Step(SEEN, 1e300, False),
    "no number": Step(SEEN, "1", False),
    "no flag": Step(SEEN, 0.0, 0),
    "won by text": Step(SEEN, 0.0, False, "yes"),
    "won and not over": Step(SEEN, 1.0, False, True),
    "none": None,
    "a text": "you go on",
    "an observation": SEEN,
    "bytes": Step(Observation(b"a room", ("go on",)), 0.0, False),
    "no text": Step(Observation(None, ("go on",)), 0.0, False),
    "half a character": Step(Observation("\ud800", ("go on",)), 0.0, False),
    "megabytes": Step(Observation("x" * 3_000_000, ("go on",)), 0.0, False),
    "a command of one text": Step(Observation("a room", "go on"), 0.0, False),
    "an empty command": Step(Observation("a room", ("go on", " ")), 0.0, False),
    "a command of no text": Step(Observation("a room", ("go on", 3)), 0.0, False),
    "a state of no text": Step(Observation("a room", ("go on",), 7), 0.0, False),
}


class Lies(Fair):
    def step(self, command):
        return ANSWERS[self.task["answer"]]


class LiesAtOnce(Fair):
    def reset(self):
        return Step(SEEN, 0.0, False)
