"""Lets verl's v1 trainer run on a machine without a GPU: a verl platform plugin, active only with VERL_PLATFORM=cpu.

verl imports this module in every process through the `verl.plugins` entry point. Without the variable the import does
nothing, so an installation that has GPUs is not touched.
"""

import os
import sys
import traceback


def _activate() -> None:
    """Register the platform, or end the process: verl itself only logs a failing plugin at DEBUG level."""
    try:
        from r3_ext.cpu import platform

        platform.activate()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        # SystemExit passes through verl's `except Exception`, which would hide anything else.
        raise SystemExit("VERL_PLATFORM=cpu is set, but r3_ext.cpu.platform could not be loaded (see above)") from error


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    _activate()
