"""Why a run failed: the first error in its log. The last one is often only what Ray and the trainer made of it."""

import re
from pathlib import Path

_PREFIX = re.compile(
    r"^\s*(\([^()]*pid=\d+[^()]*\)\s*)*"  # Ray and vLLM name the process
    r"((ERROR|CRITICAL) [\d: -]+\[[^\]]*\]\s*)?"  # vLLM's logger
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r"(Fatal Python error\b|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Exit)(:|$|\())")
_WRAPPER = re.compile(r"ray\.exceptions\.RayTaskError\b")


def errors(log: Path, since: int = 0) -> list[tuple[int, str]]:
    """Number and text of the lines that name an exception, wrappers left out, oldest first.

    since: byte of the log at which this start began.
    """
    if not log.exists():
        return []
    found = []
    with open(log, "rb") as file:
        lines_before = file.read(since).count(b"\n")
        for number, raw in enumerate(file, start=lines_before + 1):
            line = _PREFIX.sub("", _COLOUR.sub("", raw[:2000].decode(errors="replace"))).strip()
            if _ERROR.match(line) and not _WRAPPER.match(line):
                found.append((number, line))
    return found


def error_lines(log: Path, since: int = 0) -> list[str]:
    """What a person should read of a failed run: its first error with the line it stands in, and the last one."""
    found = errors(log, since)
    if not found:
        return []
    (number, first), (_, last) = found[0], found[-1]
    lines = [f"first error, line {number}: {first[:400]}"]
    return lines + ([f"last error: {last[:400]}"] if last != first else [])
