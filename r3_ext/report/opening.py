"""The three sentences that a report opens with: what happened, what it did, what to try next.

Each follows from the runs by a rule. What is in backticks is for the command line.
"""

import shlex

import numpy as np

from r3_ext.record.cautions import what_it_shows
from r3_ext.record.folder import INTERRUPTED, STOPPED
from r3_ext.record.summary import NO_SCORE
from r3_ext.report import session_words
from r3_ext.report.findings import ACCURACY_RISE, change, further_prompt, lower_rate, mend, percent, setting, total
from r3_ext.report.readers import TOTAL, TRUNCATED, dead, get, mean_pass_at_1
from r3_ext.report.runs import Arm, Run, all_play, clean

FINISHED, RUNNING, UNKNOWN = "finished", "is still running", "was trained"
BROKEN_OFF = {STOPPED: "was stopped by SIGTERM", INTERRUPTED: "was interrupted", None: "was killed"}
FEW_DEAD = 0.1
"""Of all groups. R^3 costs more than GRPO in every step and works on dead groups only."""
MANY_STILL_DEAD, MANY_TRUNCATED = 1 / 3, 0.25
ENOUGH_SEEDS = 3
MOST_NAMED = 3
MECHANISMS = ("replay", "reflection", "ranking")
THROWN_AWAY = get("training/filter_groups/evicted_samples")
"""Groups without signal that dynamic sampling threw away: verl counts groups here, by whatever name."""


VAL_ERRORS = get("val/reward_errors")


LABELS = "What happened", "What R^3 did", "What to try next"


def opening(arms: list[Arm]) -> tuple[str, str, str]:
    runs = [run for arm in arms for run in arm.runs]
    return happened(arms), did(runs), try_next(arms)


def cautions(runs: list[Run]) -> list[str]:
    """What is to be read before any figure of these runs; each text once."""
    started = [[line for line in run.starts if line["event"] == "start"] for run in runs]
    texts = (what_it_shows(starts[-1]["arguments"]) for starts in started if starts)
    return [text for text in dict.fromkeys(texts) if text]


def count(number: float, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def be(number: float) -> str:
    return "was" if number == 1 else "were"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def state_of(run: Run) -> str:
    """FINISHED, RUNNING, UNKNOWN where no start is on record, or how it ended."""
    if not run.starts and "exit_code" not in run.summary:
        return UNKNOWN
    last = run.starts[-1] if run.starts else run.summary
    if last.get("event") == "start":
        return RUNNING if run.is_training else BROKEN_OFF[None]
    code = last.get("exit_code")
    if code not in (0, *BROKEN_OFF):
        return f"failed with exit code {clean(code, 20)}"
    return BROKEN_OFF.get(code, FINISHED)


def steps_of(run: Run) -> int:
    return sum("training/global_step" in row for row in run.rows)


def epochs_of(run: Run) -> int:
    """Epochs begun; 0 where none is logged."""
    _, epochs = run.points(get("training/epoch"), "step")
    return int(epochs.max()) + 1 if len(epochs) else 0


def is_r3(run: Run) -> bool:
    """Whether a mechanism of R^3 was on; without a config, whether the run logged reflection prompts."""
    if not run.config:
        return any("reflection/prompts" in row for row in run.rows)
    return run.method == "r3" and any(run.config.get(f"algorithm.r3.{name}.enable", True) for name in MECHANISMS)


def accuracies(arm: Arm) -> tuple[float, float] | None:
    """First and last validation accuracy, means over the runs that have two or more; None without such a run."""
    curves = (run.points(mean_pass_at_1(run), "step")[1] for run in arm.runs)
    ends = [(y[0], y[-1]) for y in curves if len(y) > 1]
    return tuple(np.mean(ends, axis=0).tolist()) if ends else None


def from_to(first: float, last: float) -> str:
    return f"from {percent(first)} to {percent(last)}"


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


# What R^3 did


def did(runs: list[Run]) -> str:
    if all_play(runs):
        return sentence(session_words.learned_said(runs, *groups_of(runs)))
    ours, others = ([run for run in runs if is_r3(run) is flag] for flag in (True, False))
    if not others:
        return sentence(rescued_said(ours))
    if not ours:
        return sentence(f"R^3 was not at work, and {lost_said(others)}")
    groups, lost = groups_of(others)
    return sentence(f"with R^3, {rescued_said(ours)}; without it, {lost:,} of {count(groups, 'group')} {be(lost)} dead")


def groups_of(runs: list[Run]) -> tuple[int, int]:
    """Groups of answers, and how many of them were dead; with those that dynamic sampling threw away."""
    arm = Arm("", runs)
    thrown = total(arm, THROWN_AWAY)
    return total(arm, TOTAL) + thrown, total(arm, dead) + thrown


def dead_said(groups: int, lost: int) -> str:
    if not groups:
        return "what became of the groups of answers was not logged"
    what = f"{count(groups, 'group')} of answers to one problem {be(lost or 1)} dead, that is all right or all wrong"
    return f"{lost:,} of {what}" if lost else f"none of {what}"


def lost_said(runs: list[Run]) -> str:
    groups, lost = groups_of(runs)
    return dead_said(groups, lost) + (", and taught nothing about what is right" if lost else "")


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


# What to try next


def try_next(arms: list[Arm]) -> str:
    """The first rule that has something to say."""
    runs = [run for arm in arms for run in arm.runs]
    text = go_on(runs) or real_model(runs) or lower(runs) or validate(runs)
    if not text and len(arms) > 1:
        text = compare(arms)
    if not text and all_play(runs):
        text = session_words.next_said(runs, *accuracies(Arm("", runs)), longer(runs[0]))
    return sentence(text or (of_r3(arms[0]) if all(map(is_r3, runs)) else of_baseline(runs)))


def resume(run: Run) -> str:
    return f"r3 resume {shlex.quote(clean(run.folder, 400))}"


def go_on(runs: list[Run]) -> str:
    for run in runs:
        state, again = state_of(run), f"`{resume(run)}`"
        if state == RUNNING:
            return f"let run {run.name} go on, and should it break off, {again} goes on from its last checkpoint"
        if state in BROKEN_OFF.values():
            return f"{again} goes on from the last checkpoint of run {run.name}, or from the start where there is none"
        if state not in (FINISHED, UNKNOWN) and any(row.get("alarm/not_finite") for row in run.rows[-1:]):
            # What goes on is the same again.
            return f"{mend(run)}, as gradients or weights were not finite in step {run.rows[-1]['step']:g}"
        if state not in (FINISHED, UNKNOWN):
            log = shlex.quote(clean(run.folder / "run.log", 400))
            return f"find the cause at the end of `{log}`, mend it and go on with {again}"
    return ""


def real_model(runs: list[Run]) -> str:
    if not cautions(runs):
        return ""
    return (
        "train a model that can learn from these rows, on a machine with GPUs or here with `MODEL`, `DATA` and "
        "`VAL_DATA` set: the tiny model cannot"
    )


def lower(runs: list[Run]) -> str:
    for run in runs:
        for key, number in sorted(run.not_finite.items()):
            if key.startswith("actor/"):
                return f"{mend(run)}, as {count(number, 'value')} of {clean(key, 60)} {be(number)} not finite"
    return ""


def validate(runs: list[Run]) -> str:
    if accuracies(Arm("", runs)):
        return ""
    every = max(1, max(map(steps_of, runs)) // 4)
    return (
        f"validate before and after, `trainer.val_before_train=True trainer.test_freq={every}`: the reward alone does "
        "not tell whether anything was learned"
    )


def of_baseline(runs: list[Run]) -> str:
    groups, lost = groups_of(runs)
    if lost < FEW_DEAD * groups:
        few = f"{percent(lost / groups)} of the groups were dead, and R^3 would have little to rescue"
        return f"stay with this method on these problems: {few}"
    share = f"the {percent(lost / groups)} of the groups that were dead here" if groups else "dead groups"
    return f"train the same with `--method r3`, which gives {share} something to teach"


def of_r3(arm: Arm) -> str:
    groups, lost = groups_of(arm.runs)
    if groups and lost < FEW_DEAD * groups:
        few = f"with {percent(lost / groups)} of the groups dead R^3 has little to do here"
        return f"compare with `--method grpo`, which costs less: {few}"
    if max(map(epochs_of, arm.runs)) == 1:
        earlier = "replay and reflection need earlier answers to the same problems"
        return f"train past the first epoch, `{longer(arm.runs[0])}`: {earlier}"
    first, last = accuracies(arm)
    if last - first >= ACCURACY_RISE:
        equal = "gives both the same number of generated tokens, on several seeds"
        return f"train GRPO beside it before you trust the gain: `r3 study --arms grpo r3` {equal}"
    return of_no_gain(arm, first, last, groups)


def of_no_gain(arm: Arm, first: float, last: float, groups: int) -> str:
    run, truncated = arm.runs[0], change(arm, TRUNCATED)
    dead, wrong = (total(arm, get(f"groups/still_{kind}")) / max(groups, 1) for kind in ("dead", "wrong"))
    limit, n = (int(setting(run, key)) for key in ("data.max_response_length", "actor_rollout_ref.rollout.n"))
    if limit and truncated and truncated[1] >= MANY_TRUNCATED:
        cut = f"{percent(truncated[1])} of them were cut off at the end, and accuracy did not rise"
        return f"allow longer answers, such as `data.max_response_length={2 * limit}`: {cut}"
    if last - first <= -ACCURACY_RISE:
        return f"{lower_rate(run)}, as accuracy fell"
    if dead - wrong >= MANY_STILL_DEAD:
        return f"train on harder problems: {percent(dead - wrong)} of the groups were all right"
    if n and wrong >= MANY_STILL_DEAD:
        stayed = f"{percent(wrong)} of the groups stayed all wrong, and more answers to a problem agree less often"
        return f"generate more answers to each problem, `actor_rollout_ref.rollout.n={2 * n}`: {stayed}"
    return f"train longer, `{longer(run)}`: accuracy has neither risen nor fallen by a point"


def longer(run: Run) -> str:
    """The command that goes on with a finished run to twice its length."""
    options = next((line["arguments"]["options"] for line in reversed(run.starts) if line["event"] == "start"), {})
    unit = "turns" if options.get("until_turns") else "tokens"
    budget, steps = options.get(f"until_{unit}"), int(setting(run, "trainer.total_training_steps"))
    epochs = int(setting(run, "trainer.total_epochs")) or epochs_of(run) or 1
    given = []
    if isinstance(budget, int):
        given.append(f"--until-{unit} {2 * budget}")
    if steps:
        given.append(f"trainer.total_training_steps={2 * steps}")
    if not (steps or isinstance(budget, int)) or 2 * epochs_of(run) > epochs:
        given.append(f"trainer.total_epochs={2 * max(epochs, epochs_of(run))}")
    return " ".join([resume(run), *given])


def compare(arms: list[Arm]) -> str:
    seeds = min(len(arm.runs) for arm in arms)
    if seeds < ENOUGH_SEEDS:
        few = f"with {count(seeds, 'run')} in an arm a difference cannot be told from chance"
        return f"add runs with other seeds, `data.seed={seeds}` and so on: {few}"
    last = {arm.label: ends[1] for arm in arms if (ends := accuracies(arm))}
    if all_play([run for arm in arms for run in arm.runs]):
        return f"see below whether the lead of {max(last, key=last.get)} holds at equal turns"
    ours, others = (
        [arm.label for arm in arms if arm.label in last and is_r3(arm.runs[0]) is flag] for flag in (True, False)
    )
    if not ours or not others:
        return f"add an arm with `--method {'r3' if others else 'grpo'}`, to see what R^3 is worth here"
    best, beside = (max(labels, key=last.get) for labels in (ours, others))
    gain = last[best] - last[beside]
    if gain < ACCURACY_RISE:
        return f"look for what helps, `r3 study --arms grpo ccr isr serr`: {best} did not end above {beside}"
    lead = f"the lead of {best} over {beside}, {100 * gain:.1f} points of accuracy,"
    return f"see below whether {lead} holds at equal generated tokens, and repeat it on the model that you mean"
