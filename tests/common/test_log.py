"""What a recipe says in the trainer's process is read where verl's own lines are."""

import subprocess
import sys

SPEAK = """
import logging
logging.basicConfig(format="other: %(message)s", level="WARNING")
logging.root.handlers[0].setLevel("WARNING")
from recipe.common.trainer.measured import logger, speak_beside_verl
from verl.utils.logging_utils import configure_verl_logging
speak_beside_verl()
logger.info("before")
configure_verl_logging()
speak_beside_verl()
logger.info("a line")
logger.warning("a warning")
"""


def test_lines_and_warnings_are_told_once_and_in_verls_form():
    done = subprocess.run([sys.executable, "-c", SPEAK], capture_output=True, text=True, check=True)
    told = [line for line in done.stderr.splitlines() if line.endswith(("before", "a line", "a warning"))]
    assert [line.partition(":")[0] for line in told] == ["INFO", "WARNING"], done.stderr[-2000:]
