"""Where the example of a reward function lies, and the commands of its README."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "custom_reward"
FILE = FOLDER / "reasoning_gym_reward.py"


def commands(begin: str) -> list[list[str]]:
    """Arguments of the README's commands that begin so, after DATA and VAL_DATA."""
    lines = re.findall(rf"^    (?:\w+=\S+ )*{re.escape(begin)}(.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]
