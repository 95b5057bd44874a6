"""On, off or unclear: the rule for each mechanism.

A mechanism is worth what it adds to GRPO: groups that carry a signal, which they would not without it. So each has a
reach, the share of an epoch's groups that it turns from dead to live: off where the whole interval of the reach lies
below `MATTERS`; on where it lies at or above and GRPO's own mixed groups do not teach the same; else unclear, and then
more problems may decide.

    replay      a group of the second epoch is dead, and the history of one epoch holds an answer of the other outcome
                that `replay.outcome` lets it draw;
                with reflection on, also all wrong groups whose only right answer was born under reflection. On only if
                these alone reach as far: the others came in groups that were mixed, which GRPO learned from. So replay
                is on only where reflection is; where that is unclear, off only if off with it as well
    reflection  a hard problem has a right answer under reflection and none when it is asked again at equal generated
                tokens, less the reverse. Where fewer than `LEAST` were asked, the share of hard problems bounds it
    ranking     a group is all wrong and two of its answers are cut off.
                On only if the order of the ranking foresees which cut-off answers become right (`r3 eval rank`): a
                wrong order teaches wrong things, and off where
                the foresight is too small to matter. On only if such groups surely outnumber the mixed ones, in which
                GRPO may see cut-off answers fail beside others

The first rule was reach and foresight alone. It said on of R^3 in every world that was probed, and R^3 gained `MATTERS`
in 4 of 14 (examples/results/probe_first_rule, examples/results/worlds_b07baa2/probe). This one was written after that.
"""

from dataclasses import dataclass

from r3_ext.r3.probe.quantities import Figure

ON, OFF, UNCLEAR = "on", "off", "unclear"
MECHANISMS = ("replay", "reflection", "ranking")
MATTERS = 0.05
"""Of an epoch's groups: one in twenty. It is less than one group of a step on the embedded profile (16) and six on GPUs
(128); and an effect below 0.05 of Pass@1 is one that the study of worlds does not count either."""
LEAST = 8
"""Problems. With fewer, even a bootstrap of one mind has an interval too narrow to believe: five equal signs in five
come by chance once in sixteen."""
CHANCE = 0.5
INFORMED = 0.55
"""Of pairs of a later success and a later failure that are in order. At 0.55 the ones in order outnumber the others by
a tenth of all pairs, and nine tenths of what the ranking teaches cancels."""


@dataclass(frozen=True)
class Verdict:
    verdict: str
    reasons: list[str]


def by_reach(reach: Figure) -> str:
    """[0.10, 0.06, 0.15] on, [0.02, 0.01, 0.04] off, [0.10, 0.04, 0.15] unclear."""
    _, low, high = reach
    return ON if low >= MATTERS else OFF if high < MATTERS else UNCLEAR


def of_few(reach: Figure) -> tuple[str, str]:
    """The verdict and its reason where fewer than LEAST problems could be asked: off if all would be few."""
    verdict = by_reach([0.0, 0.0, reach[2]])
    return verdict, "too few to matter" if verdict == OFF else f"fewer than {LEAST}, which says little"


def percent(figure: Figure) -> str:
    value, low, high = (round(100 * end) for end in figure)
    return f"{value} % ({low} to {high})"


def judge(figures: dict[str, Figure], asked: int, foresight: dict | None) -> dict[str, Verdict]:
    """The verdict on each of MECHANISMS.

    Args:
        figures: of `quantities.measure`.
        asked: hard problems that were asked again with reflection.
        foresight: `evaluate.rank.foresight`, None where no problem has a right and a wrong cut-off answer.
    """
    reflects = _reflection(figures, asked)
    return {
        "replay": _replay(figures, reflects.verdict),
        "reflection": reflects,
        "ranking": _ranking(figures, foresight),
    }


def overall(found: dict[str, Verdict]) -> str:
    """Whether R^3 is worth more than GRPO: on where one mechanism is, off where all are."""
    verdicts = {verdict.verdict for verdict in found.values()}
    return ON if ON in verdicts else OFF if verdicts == {OFF} else UNCLEAR


def overrides(found: dict[str, Verdict]) -> list[str]:
    """For `r3 run`; none for what is unclear, which keeps the recipe's default."""
    return [f"algorithm.r3.{name}.enable={v.verdict == ON}" for name, v in found.items() if v.verdict != UNCLEAR]


def _replay(figures: dict[str, Figure], reflects: str) -> Verdict:
    with_reflection = reflects == ON
    reach = figures["drawn_with_reflection" if with_reflection else "drawn"]
    right, wrong = percent(figures["drawn_right"]), percent(figures["drawn_wrong"])
    reasons = [
        f"{percent(reach)} of the second epoch's groups are dead and find an answer that replay.outcome asks for"
    ]
    reasons.append(f"outcome=correct (all wrong, a right one stored): {right}; wrong, the reverse: {wrong}; both, both")
    opened = figures["opened"]
    if with_reflection:
        reasons.append(f"all wrong, a right one from reflection alone: {percent(opened)}")
    verdict = by_reach(reach)
    if verdict == ON and not (with_reflection and by_reach(opened) == ON):
        return Verdict(UNCLEAR, [*reasons, "the others came in mixed groups, which GRPO learns from, too"])
    if verdict == OFF and reflects == UNCLEAR and by_reach(figures["drawn_with_reflection"]) != OFF:
        found = percent(figures["drawn_with_reflection"])
        return Verdict(UNCLEAR, [*reasons, f"with reflection, which is unclear, it would be {found}"])
    return Verdict(verdict, reasons)


def _reflection(figures: dict[str, Figure], asked: int) -> Verdict:
    hard, reach = figures["hard"], figures["reflection/reach"]
    reasons = [f"hard are {percent(hard)} of the problems; {asked} were asked again"]
    if asked < LEAST:
        verdict, told = of_few(hard)
        return Verdict(verdict, [*reasons, told])
    solved, again = (percent(figures[f"reflection/{name}"]) for name in ("solved", "solved_again"))
    reasons.append(f"with reflection {solved} of them get a right answer, without it at equal tokens {again}")
    reasons.append(f"more solved: {percent(figures['reflection/gain'])} of these, {percent(reach)} of all problems")
    return Verdict(by_reach(reach), reasons)


def _ranking(figures: dict[str, Figure], foresight: dict | None) -> Verdict:
    reach = figures["rankable"]
    verdict, reasons = by_reach(reach), [f"{percent(reach)} of the groups are all wrong with two or more to rank"]
    if verdict == OFF:
        return Verdict(OFF, [*reasons, "there is next to nothing to rank"])
    if foresight is None or foresight["problems"] < LEAST:
        problems = foresight["problems"] if foresight else 0
        return Verdict(
            UNCLEAR, [*reasons, f"only {problems} problems show how the order compares with what came later"]
        )
    auc = foresight["auc"]
    reasons.append(
        f"the later success is ranked higher in {percent(auc)} of {foresight['pairs']:,} pairs; chance is 50"
    )
    if auc[2] < INFORMED:
        return Verdict(OFF, [*reasons, "the order says too little, or the wrong thing"])
    if auc[1] <= CHANCE:
        return Verdict(UNCLEAR, reasons)
    mixed = figures["mixed"]
    if verdict == ON and reach[1] <= mixed[2]:
        return Verdict(UNCLEAR, [*reasons, f"{percent(mixed)} are mixed, and may teach GRPO the same"])
    return Verdict(verdict, reasons)
