"""The figures of runs that train on sessions of several turns: what the sessions came to, and their nested groups."""

import re
from collections.abc import Callable

from r3_ext.report.panels import Lines, Section, add_lines
from r3_ext.report.readers import ACCURACY, LENGTH, TOTAL, TRUNCATED, get, share
from r3_ext.report.runs import Arm

LEVEL = re.compile(r"hgpo/level_([0-9])/grouped")
INVALID = get("sessions/inadmissible"), get("sessions/bad_format")
TURNS = get("num_turns/mean", "sessions/turns")
SIGNAL = get("hgpo/turns_with_signal")
SESSIONS = (
    Lines("Success, training", "share of sessions", (ACCURACY,)),
    Lines("Return", "sum of rewards", (get("sessions/return", "fresh/score/mean"),)),
    Lines("Length", "turns", (TURNS,)),
    Lines("Ended by the limit of turns", "share of sessions", (TRUNCATED,)),
    Lines("Answers that did nothing", "share of turns", INVALID, ("not admissible", "not in the form asked for")),
    Lines("All won", "share of groups", (share(get("groups/all_correct"), TOTAL),)),
    Lines("None won", "share of groups", (share(get("groups/all_wrong"), TOTAL),)),
    Lines("Answer length", "tokens", (LENGTH,)),
    Lines("Policy entropy", "nats per token", (get("actor/entropy"),)),
    Lines("In the environment", "seconds per session", (get("sessions/environment_s"),)),
    Lines("Failed with their environment", "sessions", (get("sessions/failed"),)),
)


def lines(*specs: Lines) -> Callable:
    return lambda section, arms, by: add_lines(section, arms, specs, by)


def add_levels(section: Section, arms: list[Arm], by: str) -> None:
    """Two panels for each level of nested groups that some run has."""
    keys = {key for arm in arms for run in arm.runs for row in run.rows for key in row}
    styles = "in a group of two or more", "groups of one session"
    specs = [Lines("Turns with a signal", "share of turns", (SIGNAL,))]
    for level in sorted({found[1] for key in keys if (found := LEVEL.fullmatch(key))}):
        grouped, alone, size = (get(f"hgpo/level_{level}/{name}") for name in ("grouped", "alone", "size"))
        specs.append(Lines(f"Level {level}: how many", "share", (grouped, alone), styles))
        specs.append(Lines(f"Level {level}: how large", "turns in a group", (size,)))
    alone = get("hgpo/signal_of_penalty_alone")
    if "hgpo/signal_of_penalty_alone" in keys:
        specs.append(Lines("Signal of penalties alone", "share of turns", (alone,)))
    if len(specs) > 1:
        add_lines(section, arms, tuple(specs), by)


OWN = (
    ("sessions", "Sessions", lines(*SESSIONS),
     "Success should rise while fewer sessions end at the limit of turns and fewer answers do nothing; groups that all "
     "won or all lost taught nothing by their outcome."),
    ("levels", "Nested groups", add_levels,
     "Turns are compared with turns of their task that share the last states, one more at each level. A level in which "
     "few turns have a partner says little, and a group of one session compares it with itself."),
)  # fmt: skip
"""key, title, what adds the panels, and a caption that says what to look for."""
