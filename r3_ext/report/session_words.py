"""What the opening of a report says of runs that train on sessions of several turns."""

from r3_ext.record.summary import environment_steps
from r3_ext.report.findings import ACCURACY_RISE, change, lower_rate, percent, total
from r3_ext.report.runs import Arm, Run
from r3_ext.report.sessions import INVALID, SIGNAL

LABELS = "What happened", "What was learned from", "What to try next"
MANY_INVALID = 0.25
PLAN = "examples/studies/hgpo_worlds.yaml"


def learned_said(runs: list[Run], groups: int, lost: int) -> str:
    """Turns, groups of sessions that told nothing, and how many turns had an advantage.

    Args:
        groups, lost: groups of sessions, and how many of them all won or all lost.
    """
    arm = Arm("", runs)
    text = f"{total(arm, environment_steps):,} turns were played"
    if groups:
        text += f", and in {lost:,} of {groups:,} groups of sessions all won or all lost"
    signal = change(arm, SIGNAL)
    return text + (f"; {percent(signal[1])} of the last turns had an advantage" if signal else "")


def next_said(runs: list[Run], first: float, last: float, longer: str) -> str:
    """
    Args:
        first, last: validation accuracies. longer: the command that goes on.
    """
    arm = Arm("", runs)
    ends = [found for read in INVALID if (found := change(arm, read))]
    if (invalid := sum(end[1] for end in ends)) >= MANY_INVALID:
        return f"look at the episodes below: {percent(invalid)} of the last answers did nothing"
    if last - first >= ACCURACY_RISE:
        return (
            f"compare before you trust the gain: `r3 study --plan {PLAN}` trains HGPO, GiGPO and GRPO for equal turns"
        )
    if last - first <= -ACCURACY_RISE:
        return f"{lower_rate(runs[0])}, as success fell"
    return f"train longer, `{longer}`: success has neither risen nor fallen by a point"
