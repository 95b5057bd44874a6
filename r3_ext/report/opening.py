"""The three sentences that a report opens with: what happened, what it did, what to try next.

Each follows from the runs by a rule. What is in backticks is for the command line.
"""

from r3_ext.record.summary import NO_SCORE
from r3_ext.report import session_words
from r3_ext.report.findings import further_prompt, percent, restarts_said, setting, total
from r3_ext.report.next_step import try_next
from r3_ext.report.readers import TOTAL, get, mean_pass_at_1
from r3_ext.report.run_facts import (
    FINISHED,
    UNKNOWN,
    accuracies,
    be,
    count,
    epochs_of,
    from_to,
    groups_of,
    is_r3,
    sentence,
    state_of,
    steps_of,
)
from r3_ext.report.runs import Arm, Run, all_play

MOST_NAMED = 3
TRAINED_BY = {"gae": "PPO", "ngrpo": "NGRPO", "rl_zvp": "RL-ZVP"}
"""By verl's name of the estimator, those that train groups without contrast by the outcome."""
VAL_ERRORS = get("val/reward_errors")
LABELS = "What happened", "What the method did", "What to try next"


def opening(arms: list[Arm]) -> tuple[str, str, str]:
    runs = [run for arm in arms for run in arm.runs]
    return happened(arms), did(runs), try_next(arms)


# What happened


def happened(arms: list[Arm]) -> str:
    runs = [run for arm in arms for run in arm.runs]
    return sentence((run_said(runs[0]) if len(runs) == 1 else runs_said(arms, runs)) + errors_said(runs))


def errors_said(runs: list[Run]) -> str:
    """Answers that count as wrong because the grader was late or the reward function failed on them."""
    counts = {"training": total(Arm("", runs), get("reward/errors")), "validation": total(Arm("", runs), VAL_ERRORS)}
    shown = [f"{count(number, 'answer')} of {where}" for where, number in counts.items() if number]
    return f"; there is no score for {' and '.join(shown)}, which count as wrong: {NO_SCORE}" if shown else ""


def run_said(run: Run) -> str:
    state, steps = state_of(run), steps_of(run)
    text = f"Run {run.name} ({run.method}) {state} "
    text += f"after {count(steps, 'step')}{size_said(run)}" if steps else "without a training step"
    x, y = run.points(mean_pass_at_1(run), "step")
    if not len(y):
        return f"{text}, and nothing was validated"
    if len(y) == 1:
        return f"{text}, and its only validation, in step {x[0]:g}, found an accuracy of {percent(y[0])}"
    return f"{text}, and its validation accuracy went {from_to(y[0], y[-1])} between step {x[0]:g} and step {x[-1]:g}"


def size_said(run: Run) -> str:
    """Problems, epochs and starts, as far as they are known."""
    problems = total(Arm("", [run]), TOTAL) or int(setting(run, "data.train_batch_size") * steps_of(run))
    noun = "task" if run.has_sessions else "problem"
    starts, epochs = sum(line["event"] == "start" for line in run.starts), epochs_of(run)
    repeats = f" over {epochs:,} epochs, repeats counted" if epochs > 1 else ""
    parts = [count(problems, noun) + repeats] if problems else []
    parts += [count(starts, "start")] if starts > 1 else []
    return f" ({'; '.join(parts)})" if parts else ""


def runs_said(arms: list[Arm], runs: list[Run]) -> str:
    states = {run.name: state for run in runs if (state := state_of(run)) not in (FINISHED, UNKNOWN)}
    text = count(len(runs), "run") + (f" in {count(len(arms), 'arm')}" if len(arms) > 1 else " that differ in the seed")
    steps = sorted(map(steps_of, runs))
    text += f" took {steps[0]:,}{f' to {steps[-1]:,}' if steps[0] != steps[-1] else ''} steps each"
    shown = [f"{name} {state}" for name, state in list(states.items())[:MOST_NAMED]]
    shown += [f"and {len(states) - MOST_NAMED:,} more did not finish"] if len(states) > MOST_NAMED else []
    text += f" ({', '.join(shown)})" if shown else ""
    found = {arm.label: ends for arm in arms if (ends := accuracies(arm))}
    if not found:
        return f"{text}, and nothing was validated twice"
    ranked = sorted(found, key=lambda label: -found[label][1])
    shown = [f"{from_to(*found[label])} ({label})" for label in ranked]
    if len(arms) == 1:
        shown = [from_to(*found[ranked[0]])]
    elif len(ranked) > MOST_NAMED:
        shown = [f"at best {shown[0]}", f"at worst {shown[-1]}"]
    return f"{text}, and validation accuracy went {' and '.join(shown)}"


# What it did


def did(runs: list[Run]) -> str:
    if all_play(runs):
        return sentence(session_words.learned_said(runs, *groups_of(runs)))
    ours, others = ([run for run in runs if is_r3(run) is flag] for flag in (True, False))
    if not others:
        return sentence(rescued_said(ours))
    if not ours:
        restarts = [one.text.rstrip(".") for one in restarts_said(Arm("", others))]
        own = f"{restarts[0]};" if restarts else "R^3 was not at work, and"
        return sentence(f"{own} {lost_said(others)}")
    groups, lost = groups_of(others)
    return sentence(f"with R^3, {rescued_said(ours)}; without it, {lost:,} of {count(groups, 'group')} {be(lost)} dead")


def dead_said(groups: int, lost: int) -> str:
    if not groups:
        return "what became of the groups of answers was not logged"
    what = f"{count(groups, 'group')} of answers to one problem {be(lost or 1)} dead, that is all right or all wrong"
    return f"{lost:,} of {what}" if lost else f"none of {what}"


def lost_said(runs: list[Run]) -> str:
    groups, lost = groups_of(runs)
    estimators = [run.config.get("algorithm.adv_estimator") for run in runs]
    by = dict.fromkeys(TRAINED_BY[name] for name in estimators if name in TRAINED_BY)
    taught = f"{' and '.join(by)} trained them by their outcome" if by else "taught nothing about what is right"
    return dead_said(groups, lost) + (f", and {taught}" if lost else "")


def rescued_said(runs: list[Run]) -> str:
    arm, (groups, lost) = Arm("", runs), groups_of(runs)
    left, replayed = (total(arm, get(f"groups/{name}")) for name in ("still_dead", "rescued_by_replay"))
    text, rescued = dead_said(groups, lost), lost - left
    if rescued:
        them = "it" if lost == 1 else f"{f'{rescued:,}' if left else 'all'} of them"
        text += (
            f": R^3 rescued {them} ({replayed:,} by replay of past answers, {rescued - replayed:,} by ranking alone)"
        )
    elif groups:
        text += ": R^3 rescued none of them" if lost else ": R^3 had nothing to rescue"
    return f"{text}, and {reflected_said(arm)}"


def reflected_said(arm: Arm) -> str:
    prompts, solved = (total(arm, get(f"reflection/{name}")) for name in ("prompts", "solved"))
    if not prompts:
        return "no problem was asked again with a reflection prompt"
    return f"{solved:,} of {count(prompts, further_prompt(arm))} {be(solved)} solved"
