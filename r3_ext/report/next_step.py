"""The third sentence that a report opens with: what to try next."""

import math
import shlex

from r3_ext.record.summary import skipped_steps
from r3_ext.report import session_words
from r3_ext.report.findings import ACCURACY_RISE, change, lower_rate, percent, setting, total
from r3_ext.report.readers import TRUNCATED, get
from r3_ext.report.run_facts import (
    BROKEN_OFF,
    FINISHED,
    RUNNING,
    UNKNOWN,
    accuracies,
    be,
    cautions,
    count,
    epochs_of,
    groups_of,
    is_r3,
    sentence,
    state_of,
    steps_of,
)
from r3_ext.report.runs import Arm, Run, all_play, clean

FEW_DEAD = 0.1
"""Of all groups. R^3 costs more than GRPO in every step and works on dead groups only."""
MANY_STILL_DEAD, MANY_TRUNCATED = 1 / 3, 0.25
MOSTLY_CUT_OFF = 0.5
"""Where that share of the answers of groups asked again is cut off, and twice that of others, they want room."""
ENOUGH_SEEDS = 3
ASKED_ENOUGH, IN_VAIN = 40, 0.25
"""Groups asked again before their yield is judged, and the share of a plain group's yield for a token below which it is
said to be asked in vain: a rescued group may be worth more than a mixed one, but not so much."""


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
    if vain := asked_in_vain(arm):
        less = "ask no group again, `algorithm.r3.reflection.enable=False`"
        limit = int(setting(arm.runs[0], "data.max_response_length"))
        again, first = (cut_off(arm, kind) for kind in ("reflection", "fresh"))
        if limit and again >= max(MOSTLY_CUT_OFF, 2 * first):
            room = f"allow longer answers, such as `data.max_response_length={2 * limit}`"
            return f"{room}, or {less}: {vain}, and {percent(again)} of its answers were cut off"
        return f"{less}: {vain}"
    if max(map(epochs_of, arm.runs)) == 1 and asks_late(arm):
        earlier = "replay and reflection need earlier answers to the same problems"
        return f"train past the first epoch, `{longer(arm.runs[0])}`: {earlier}"
    first, last = accuracies(arm)
    if last - first >= ACCURACY_RISE:
        equal = "gives both the same number of generated tokens, on several seeds"
        return f"train GRPO beside it before you trust the gain: `r3 study --arms grpo r3` {equal}"
    return of_no_gain(arm, first, last, groups)


def asks_late(arm: Arm) -> bool:
    """Whether an all-wrong group waits for its problem's next visit; runs of early versions do not say, and did."""
    return all(run.config.get("algorithm.r3.reflection.when", "next_visit") == "next_visit" for run in arm.runs)


def asked_in_vain(arm: Arm) -> str:
    """What asking again cost and found, where its tokens found far less than those of plain prompts did; else empty."""
    names = "reflection/prompts", "reflection/solved", "reflection/tokens"
    asked, found, tokens = (total(arm, get(name)) for name in names)
    groups, mixed, fresh = (total(arm, get(name)) for name in ("groups/total", "groups/mixed", "fresh/tokens"))
    if asked < ASKED_ENOUGH or not (tokens and fresh) or found / tokens >= IN_VAIN * mixed / fresh:
        return ""
    spent, given = percent(tokens / (tokens + fresh)), percent(found / asked)
    text = f"it took {spent} of the generated tokens and found a right answer for {given} of the groups"
    return f"{text}, where {percent(mixed / groups)} of all groups were mixed"


def cut_off(arm: Arm, kind: str) -> float:
    """Share of the answers of a kind that ended at the limit, over the steps whose metrics say so."""
    counts = [(row.get(f"{kind}/truncated/mean"), row.get(f"{kind}/rows")) for run in arm.runs for row in run.rows]
    said = [(mean, n) for mean, n in counts if mean is not None and n is not None and math.isfinite(mean * n)]
    return sum(mean * n for mean, n in said) / max(sum(n for _, n in said), 1)


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
    options = run.options
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


def mend(run: Run) -> str:
    """What to change where gradients or weights were not finite."""
    alarmed = [row for row in run.rows if row.get("alarm/not_finite")]
    if alarmed and all(skipped_steps(alarmed[-1])):  # others of the step were finite
        return "train with another `actor_rollout_ref.model.override_config.attn_implementation`"
    return lower_rate(run)
