"""`r3 episodes`: sessions of a run turn by turn: what was seen and done, returns, groups and advantage by level.

    r3 episodes outputs/hgpo_embedded/RUN              those of the last step that was written down
    r3 episodes outputs/hgpo_embedded/RUN --step 10

A run with nested groups writes a few sessions into episodes.jsonl, in its first step and every trainer.test_freq steps
(recipe/hgpo/episodes.py). Texts in it come from games and models, and are shown without control characters.
"""

import argparse
import os
import sys
from pathlib import Path

from r3_ext.host.files import json_lines
from r3_ext.host.text import in_one_line

FILE = "episodes.jsonl"
MOST_STEPS, MOST_TURNS = 1000, 200
"""What is read of a file that may be anybody's."""


def read(folder: Path) -> dict[int, list[str]]:
    """Lines to show by step; of a step that was trained twice, the later. What cannot be read is left out.
    Of a folder without such a file nothing.

    Raises:
        OSError: the file cannot be read.
    """
    found = {}
    for line in json_lines(folder / FILE):
        try:
            step = int(line["step"])
            found[step] = lines_of(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return dict(sorted(found.items())[-MOST_STEPS:])


def lines_of(told: dict) -> list[str]:
    """What a step left, as lines of text; the first is its title.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: it is not what the trainer writes.
    """
    lines = [f"step {int(told['step'])}: {_clean(told['task'])}"]
    for number, session in enumerate(told["sessions"], start=1):
        turns = session["turns"][:MOST_TURNS]
        earned = sum(float(turn["reward"]) for turn in turns)
        lines += ["", f"session {number}: {_clean(session['end'])} after {len(turns)} turns, reward {earned:g}"]
        for place, turn in enumerate(turns):
            lines += _turn(place, turn)
    return lines


def _turn(place: int, turn: dict) -> list[str]:
    seen = [_clean(line) for line in str(turn["seen"]).splitlines()] or [""]
    kind = _clean(turn["answer"])
    said = f"{_clean(turn['said'])}{'' if kind == 'valid' else f'   ({kind})'}"
    sums = f"reward {float(turn['reward']):g}, return {float(turn['return']):.3g}, "
    sums += f"advantage {float(turn['advantage']):+.2f}"
    levels = [_level(number, level) for number, level in enumerate(turn["levels"]) if level is not None]
    return [
        f"{place:>3}  {seen[0]}",
        *(f"     {line}" for line in seen[1:]),
        f"     > {said}",
        f"     {sums}; {'; '.join(levels)}",
    ]


def _level(number: int, level: dict) -> str:
    """`level 1: 8 turns of 5 sessions, +0.61`."""
    size, sessions = int(level["size"]), int(level["sessions"])
    if size == 1:
        return f"level {number}: alone"
    said = "all alike" if level["advantage"] is None else f"{float(level['advantage']):+.2f}"
    return f"level {number}: {size} turns of {sessions} session{'s' * (sessions > 1)}, {said}"


def _clean(text: object) -> str:
    return in_one_line(str(text)[:2000], "\N{REPLACEMENT CHARACTER}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="r3 episodes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.add_argument("--step", type=int, help="default: the last one there is")
    args = parser.parse_args(argv)
    try:
        found = read(args.run)
    except OSError as error:
        print(f"error: {args.run / FILE}: {error.strerror}", file=sys.stderr)
        return 2
    if not found:
        told = f"{args.run} has no {FILE} with episodes: runs of hgpo and gigpo write it in their first step"
    elif args.step not in (None, *found):
        told = f"--step must be one of {', '.join(map(str, found))}, got {args.step}"
    else:
        told = None
    if told:
        print(f"error: {told}", file=sys.stderr)
        return 2
    try:
        print("\n".join(found[max(found) if args.step is None else args.step]))
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
