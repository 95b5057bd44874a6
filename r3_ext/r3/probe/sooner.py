"""What all-wrong groups find when they are asked again from the first step on (`reflection.when`), and by which prompt
(`reflection.ask`).

The first n answers of a problem are its group in the first epoch, where the history knows nothing. A group whose
answers are all wrong is asked again under reflection, with one of them as the attempt, and plainly, which the last n
answers are. It is rescued by a right answer: under reflection by one that replay may draw into it.

    verdict   of the share of an epoch's groups that reflection rescues, as in verdicts.py: next to nothing is off. What
              plain answers find counts for nothing: GRPO with further plain answers was not shown to gain in 40 worlds,
              and R^3 was below GRPO in the 20 in which plain answers found more (examples/results/rivals_sorting)
    ask       the way that rescues more for a generated token, where the whole interval says so; else `adaptive`, by
              which the run finds out. So it is where fewer than `LEAST` groups were rescued by one way alone
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from r3_ext.r3.probe.quantities import Figure, Plain, Reflected, asked_part, share, without_signal
from r3_ext.r3.probe.verdicts import LEAST, OFF, ON, Verdict, by_reach, of_few, percent
from recipe.common.rows import PLAIN, REFLECTION
from recipe.common.validation import bootstrap, pass_at_k, percentiles
from recipe.r3.config.r3_config import ADAPTIVE, AT_ONCE, NEXT_STEP, NEXT_VISIT, R3Config

WAYS = {REFLECTION: "by reflection", PLAIN: "plainly"}
NOTHING: Figure = [math.nan] * 3


def all_wrong(plain: Plain) -> np.ndarray:
    """(P,) whether the first group is asked again: all its answers are wrong, and have one score."""
    return ~plain.correct_PA[:, : plain.n].any(1) & has_no_signal(plain)


def has_no_signal(plain: Plain) -> np.ndarray:
    """(P,) whether GRPO learns nothing from the first group."""
    return without_signal(plain.correct_PA[:, : plain.n], plain.score_PA[:, : plain.n])


def sizes(n: int) -> list[int]:
    """Answers of a further group: all n, a half and a quarter. 8: 8, 4, 2."""
    return [k for k in dict.fromkeys((n, n // 2, n // 4)) if k]


def measure(plain: Plain, reflected: Reflected, seed: int, r3: R3Config, batch_size: int) -> dict[str, Figure]:
    """Figures by name, [value, low, high] as in quantities.py.

    all_wrong: share of the groups. no_signal: of those that GRPO learns nothing from.
    WAY/K: share of the groups asked again that K answers rescue, the mean over all choices of K of the n.
    WAY/K/tokens: generated tokens for each group that they rescue.
    WAY/reach: share of all groups that n answers rescue; WAY/no_signal: no_signal without these.
    by_one_way: share of the groups asked again that one way alone rescues.
    per_token: what reflection rescues for a token, over what both do.
    NaN where no group was asked, or rescued.
    """
    wrong_P, without_P = all_wrong(plain), has_no_signal(plain).astype(float)
    asked_P, n = wrong_P & reflected.asked_P, plain.n
    right_PW = np.stack([reflected.drawable_P, plain.correct_PA[:, n:].sum(1)], 1).astype(int) * asked_P[:, None]
    tokens_PW = np.stack([reflected.tokens_P, plain.tokens_PA[:, n:].sum(1)], 1) * asked_P[:, None]
    part = asked_part(float(asked_P.mean()), r3.reflection.cap(batch_size) / batch_size)
    figures = {"all_wrong": share(wrong_P), "no_signal": share(without_P)}
    for way, right_P, tokens_P in zip(WAYS, right_PW.T, tokens_PW.T, strict=True):
        for k in sizes(n) if way == REFLECTION else [n]:
            found_P = pass_at_k(np.full(len(right_P), n), right_P, k)
            figures[f"{way}/{k}"] = share(found_P[asked_P]) if asked_P.any() else NOTHING
            figures[f"{way}/{k}/tokens"] = _tokens_a_rescue(tokens_P * k / n, found_P, seed)
        saved_P = part * (right_P > 0)
        figures |= {f"{way}/reach": share(saved_P), f"{way}/no_signal": share(without_P - saved_P)}
    found_PW = right_PW > 0
    figures["by_one_way"] = share(found_PW.sum(1)[asked_P] == 1) if asked_P.any() else NOTHING
    figures["per_token"] = _per_token(found_PW.astype(float), tokens_PW, seed)
    return {f"sooner/{name}": figure for name, figure in figures.items()}


def _tokens_a_rescue(tokens_P: np.ndarray, found_P: np.ndarray, seed: int) -> Figure:
    """Without an end where a resample may find nothing."""
    if not found_P.any():
        return NOTHING
    low, high = percentiles(bootstrap(found_P, seed, tokens_P))
    return [float(tokens_P.sum() / found_P.sum()), 1 / float(high), 1 / float(low) if low else math.inf]


def _per_token(found_PW: np.ndarray, tokens_PW: np.ndarray, seed: int) -> Figure:
    columns = np.concatenate([found_PW, tokens_PW], 1)
    values = []
    for means_BM in (columns.mean(0, keepdims=True), bootstrap(columns, seed)):
        with np.errstate(invalid="ignore"):
            rates_BW = means_BM[:, :2] / means_BM[:, 2:]
            values.append(rates_BW[:, 0] / rates_BW.sum(1))
    if not np.isfinite(values[0][0]):
        return NOTHING
    return [float(values[0][0]), *map(float, percentiles(values[1]))]


@dataclass(frozen=True)
class Sooner(Verdict):
    ask: str | None
    """What the answers speak for as `reflection.ask`; None where next to nothing is found."""


def judge(figures: dict[str, Figure], asked: int, n: int, when: str) -> Sooner:
    """The verdict, with its reasons.

    Args:
        figures: of `measure`.
        asked: all-wrong groups that were asked again.
        n: answers of a group.
        when: `reflection.when`.
    """
    found = {name.removeprefix("sooner/"): figure for name, figure in figures.items()}
    reasons = [f"{percent(found['all_wrong'])} of the first groups are all wrong; {asked} were asked again"]
    if asked < LEAST:
        verdict, told = of_few(found["all_wrong"])
        return Sooner(verdict, [*reasons, told], None if verdict == OFF else ADAPTIVE)
    by_way = {way: by_reach(found[f"{way}/reach"]) for way in WAYS}
    verdict = by_way[REFLECTION]
    ask = None if verdict == OFF else _ask(found, asked)
    told = [*reasons, *_told(found, n)]
    if verdict != ON and by_way[PLAIN] == ON:
        told.append("plain answers reach far enough: further ones (--method grpo_extra) are not shown to gain on GRPO")
    return Sooner(verdict, [*told, *_way_out(verdict, when)], ask)


def _ask(found: dict[str, Figure], asked: int) -> str:
    _, low, high = found["per_token"]
    if round(asked * found["by_one_way"][0]) < LEAST or low <= 0.5 <= high:
        return ADAPTIVE
    return REFLECTION if low > 0.5 else PLAIN


def _told(found: dict[str, Figure], n: int) -> Iterator[str]:
    for way, name in WAYS.items():
        value, low, high = found[f"{way}/{n}/tokens"]
        most = f"{high:,.0f}" if math.isfinite(high) else "any number"
        each = "" if math.isnan(value) else f", for {value:,.0f} generated tokens each ({low:,.0f} to {most})"
        yield f"{name} {percent(found[f'{way}/{n}'])} of them get a right answer{each}"
    fewer = [(k, found[f"{REFLECTION}/{k}"][0], found[f"{REFLECTION}/{k}/tokens"][0]) for k in sizes(n)[1:]]
    if not math.isnan(found[f"{REFLECTION}/{n}/tokens"][0]):
        told = [f"{k} {round(100 * value)} %, for {tokens:,.0f} each" for k, value, tokens in fewer]
        yield f"fewer answers by reflection than {n}: with {'; with '.join(told)}"
    without = [f"{name} {percent(found[f'{way}/no_signal'])}" for way, name in WAYS.items()]
    yield (
        f"without signal {percent(found['no_signal'])} of the first groups; asked sooner, as far as "
        f"reflection.max_fraction lets, {', '.join(without)}"
    )


def _way_out(verdict: str, when: str) -> Iterator[str]:
    if verdict == OFF:
        yield "by reflection next to nothing is found: " + (
            "leave reflection.when as it is"
            if when == NEXT_VISIT
            else "switch off algorithm.r3.reflection.enable, or take --method grpo"
        )
    elif when == NEXT_VISIT:
        yield f"with reflection.when={NEXT_VISIT} the first epoch asks none of them; {NEXT_STEP} and {AT_ONCE} do"
