"""`r3 probe` without a model: figures by hand, invariances, the rule of the verdicts, the check against a study."""

import dataclasses
import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
from omegaconf import OmegaConf

from r3_ext.cli import main
from r3_ext.evaluate import EvaluationError
from r3_ext.r3.probe import ask, check, command, figure, quantities, report, verdicts
from r3_ext.r3.probe.judge import asking
from r3_ext.r3.probe.quantities import Plain, Reflected
from r3_ext.settings.compose import compose_config
from r3_ext.study.design import read_design
from recipe.r3.config.r3_config import load_r3_config

PARTS = "correct_PA", "cut_PA", "tokens_PA", "score_PA"
NAMES = "hard_P", "asked_P", "right_P", "drawable_P", "tokens_P"
YES, NO = [0.2, 0.06, 0.3], [0.01, 0.0, 0.04]


def plain_of(correct: list[list[int]], cut: list[list[int]] | None = None, tokens: int | list = 10) -> Plain:
    correct_PA = np.array(correct, bool)
    cut_PA = np.zeros_like(correct_PA) if cut is None else np.array(cut, bool)
    return Plain(correct_PA, cut_PA, np.broadcast_to(tokens, correct_PA.shape).astype(float), correct_PA.astype(float))


def reflected_of(asked: list[int], right: list[int], tokens: list[float]) -> Reflected:
    asked_P = np.array(asked, bool)
    right_P = np.array(right, float)
    return Reflected(asked_P, asked_P, right_P, right_P, np.array(tokens, float))


def measure(plain: Plain, reflected: Reflected, seed: int = 0, batch: int = 16, **settings) -> dict:
    """Every hard problem is asked in an epoch, unless told otherwise."""
    parts = {"reflection": {"max_fraction": 1.0}} | settings
    config = OmegaConf.create({"algorithm": {"r3": parts}})
    return quantities.measure(plain, reflected, seed, load_r3_config(config), batch)


def random_answers(seed: int, problems: int = 12, n: int = 4) -> tuple[Plain, Reflected]:
    rng = np.random.default_rng(seed)
    correct_PA = rng.random((problems, 2 * n)) < rng.random((problems, 1)) ** 2
    cut_PA = ~correct_PA & (rng.random((problems, 2 * n)) < 0.5)
    plain = plain_of(correct_PA, cut_PA, rng.integers(5, 60, (problems, 2 * n)))
    hard_P = quantities.is_hard(correct_PA[:, :n], 0.25)
    right_P = np.where(hard_P, rng.integers(0, n + 1, problems), 0).astype(float)
    return plain, Reflected(hard_P, hard_P, right_P, right_P, np.where(hard_P, rng.integers(20, 200, problems), 0.0))


def answers_of(right: int, cut: int, n: int) -> list[tuple[bool, float, bool]]:
    """2n answers; those that are cut off are wrong."""
    return [(True, 1.0, False)] * right + [(False, 0.0, True)] * cut + [(False, 0.0, False)] * (2 * n - right - cut)


# figures


def test_wilson_by_hand():
    # z = 1.959964: 1 of 10 is the textbook's 0.0179 to 0.4042; 0 of 10 ends at z^2 / (10 + z^2).
    assert quantities.wilson(0.1, 10) == pytest.approx([0.1, 0.01788, 0.40415], abs=1e-5)
    assert quantities.wilson(0.0, 10) == pytest.approx([0, 0, 3.841459 / 13.841459], abs=1e-6)
    assert quantities.wilson(1.0, 10)[1:] == pytest.approx([10 / 13.841459, 1], abs=1e-6)


def test_groups_by_hand():
    # n = 2 of R W(cut) W(cut) W: the pairs are 3 with R, mixed, and 3 without, one of which has both that are cut off.
    # Each of these 3 leaves R to the other half.
    found = quantities.group_of(answers_of(right=1, cut=2, n=2), n=2)
    assert found == pytest.approx(
        {"mixed": 1 / 2, "all_right": 0, "all_wrong": 1 / 2, "rankable": 1 / 6, "drawn_right": 1 / 2, "drawn_wrong": 0}
    )
    never, always = (quantities.group_of(answers_of(*counts, n=2), 2) for counts in ((0, 4), (4, 0)))
    assert (never["all_wrong"], never["rankable"], never["drawn_right"]) == (1, 1, 0)
    assert (always["all_right"], always["drawn_wrong"], always["mixed"]) == (1, 0, 0)


def graded(seed: int, n: int) -> list[tuple[bool, float, bool]]:
    """Answers with three scores; the function calls some of them right itself, and some of those are cut off."""
    rng = np.random.default_rng(seed)
    columns = rng.random(2 * n) < 0.4, rng.choice([0, 0, 0.5, 1], 2 * n), rng.random(2 * n) < 0.5
    return list(zip(*(column.tolist() for column in columns), strict=True))


COUNTS = [(0, 0), (0, 6), (1, 3), (2, 1), (3, 3), (5, 1), (6, 0)]


@pytest.mark.parametrize("answers", [answers_of(*counts, n=3) for counts in COUNTS] + [graded(k, 3) for k in range(9)])
def test_groups_equal_a_count_of_all_splits(answers):
    n = 3
    counts = dict.fromkeys(quantities.group_of(answers, n), 0)
    splits = list(itertools.combinations(range(2 * n), n))
    for chosen in splits:
        group = [answers[k] for k in chosen]
        history = [answers[k][0] for k in range(2 * n) if k not in chosen]
        dead = len({answer[:2] for answer in group}) == 1
        all_wrong = dead and not group[0][0]
        counts["mixed"] += not dead
        counts["all_right"] += dead and not all_wrong
        counts["all_wrong"] += all_wrong
        counts["rankable"] += all_wrong and sum(cut for _, _, cut in group) >= 2
        counts["drawn_right"] += all_wrong and any(history)
        counts["drawn_wrong"] += dead and not all_wrong and not all(history)
    expected = {name: count / len(splits) for name, count in counts.items()}
    assert quantities.group_of(answers, n) == pytest.approx(expected)


def test_the_figures_of_groups_are_unbiased():
    # p = 0.3, n = 2: all wrong 0.7^2; with a right one in the other two 0.7^2 (1 - 0.7^2).
    found = [quantities.group_of(answers_of(right, 0, 2), 2) for right in range(5)]
    chances = [math.comb(4, right) * 0.3**right * 0.7 ** (4 - right) for right in range(5)]
    mean = {name: sum(p * each[name] for p, each in zip(chances, found, strict=True)) for name in found[0]}
    assert (mean["all_wrong"], mean["drawn_right"]) == pytest.approx((0.49, 0.49 * 0.51))
    assert (mean["all_right"], mean["drawn_wrong"]) == pytest.approx((0.09, 0.09 * 0.91))


def test_hard_is_below_the_threshold_and_not_at_it():
    correct = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]], bool)
    assert quantities.is_hard(correct, 0.25).tolist() == [True, False, False]
    assert quantities.is_hard(correct, 0.5).tolist() == [True, True, False]


def test_tokens_in_mixed_groups_by_hand():
    # Groups: mixed with 3 tokens, dead with 7, dead with 10, mixed with 30.
    plain = plain_of([[1, 0, 0, 0], [1, 1, 1, 0]], tokens=[[1, 2, 3, 4], [5, 5, 10, 20]])
    assert quantities.token_share(plain, seed=0)[0] == pytest.approx(33 / 50)
    # Unequal scores of wrong answers teach, too.
    graded_plain = dataclasses.replace(plain, score_PA=np.array([[1.0, 0, 0, 0.5], [1, 1, 1, 0]]))
    assert quantities.token_share(graded_plain, seed=0)[0] == pytest.approx(40 / 50)


def test_reflection_at_equal_tokens_by_hand():
    # Two of four problems were asked, n = 2. Reflection: 2 and 0 right, 10 tokens each. Asked again: 0 and 1 right with
    # 20 tokens each, so it gets 1 answer per problem for the 10 tokens: right in half of the second problem's.
    plain = plain_of([[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], tokens=10)
    found = quantities.reflection(plain, reflected_of([1, 1, 0, 0], [2, 0, 0, 0], [10, 10, 0, 0]), seed=0)
    values = {name: value for name, (value, _, _) in found.items()}
    # One answer under reflection takes 5 tokens; asked again 1 of 4 answers was right, which took 10 each.
    expected = {"right": 2 / 4, "right_again": 1 / 8, "solved": 1 / 2, "solved_again": 1 / 4, "gain": 1 / 4}
    assert values == pytest.approx(expected | {"reach": 1 / 8})
    # With twice the tokens for reflection, it is reflection that is asked once per problem.
    found = quantities.reflection(plain, reflected_of([1, 1, 0, 0], [1, 0, 0, 0], [40, 40, 0, 0]), seed=0)
    assert (found["solved"][0], found["solved_again"][0]) == pytest.approx((1 / 4, 1 / 2))


def test_between_whole_answers_the_curve_is_linear():
    # 15 tokens against 20: asking again gets 1.5 of its 2 answers, between 1/2 for one and 1 for two.
    plain = plain_of([[0, 0, 1, 0]], tokens=10)
    found = quantities.reflection(plain, reflected_of([1], [0], [15]), seed=0)
    assert found["solved_again"][0] == pytest.approx(0.75)


def test_reflection_that_changes_nothing_gains_nothing():
    plain, _ = random_answers(3, problems=200)
    hard_P = quantities.is_hard(plain.correct_PA[:, :4], 0.25)
    again_P, tokens_P = plain.correct_PA[:, 4:].sum(1) * hard_P, plain.tokens_PA[:, 4:].sum(1) * hard_P
    found = quantities.reflection(plain, Reflected(hard_P, hard_P, again_P, again_P, tokens_P), seed=0)
    assert found["gain"] == [0, 0, 0] == [*found["reach"][:2], 0] and found["solved"] == found["solved_again"]


def test_an_answer_counts_as_its_text_up_to_the_limit_does():
    scores = type("Scores", (), {"query_ids": ["a"], "tokens_R": np.array([5.0, 9, 8, 8])})
    scores.correct_R = np.array([False, False, True, False])  # of the whole text
    plain = ask.plain_answers(scores, 8, np.array([True, True, False, False]), np.array([1.0, 0.9, 0.2, 0]))
    assert plain.correct_PA.tolist() == [[True, True, False, False]] and plain.tokens_PA.tolist() == [[5, 8, 8, 8]]
    assert plain.score_PA.tolist() == [[1, 0.9, 0.2, 0]] and plain.cut_PA.tolist() == [[False, True, False, False]]


def test_an_epoch_asks_no_more_hard_problems_than_its_steps_may():
    # 16 of 32 problems are hard, 8 of them are solved under reflection only: a quarter of all. A quarter of a batch may
    # be asked, half of what there is.
    half = [1] * 16 + [0] * 16
    plain = plain_of([[1 - hard] * 4 for hard in half])
    reflected = reflected_of(half, [1] * 8 + [0] * 24, [10] * 32)
    everything, capped = measure(plain, reflected), measure(plain, reflected, reflection={"max_fraction": 0.25})
    assert (everything["reflection/reach"][0], capped["reflection/reach"][0]) == pytest.approx((0.25, 0.125))
    assert (everything["opened"][0], capped["opened"][0]) == pytest.approx((0.25, 0.125))
    assert capped["reflection/gain"] == everything["reflection/gain"]


def test_few_problems_without_a_case_do_not_rule_reflection_out():
    plain, reflected = plain_of([[0] * 8] * 12), reflected_of([1] * 12, [0] * 12, [10] * 12)
    assert verdicts.judge(measure(plain, reflected), 12, None)["reflection"].verdict == "unclear"
    plain, reflected = plain_of([[0] * 8] * 128), reflected_of([1] * 128, [0] * 128, [10] * 128)
    assert verdicts.judge(measure(plain, reflected), 128, None)["reflection"].verdict == "off"


def test_the_figures_are_those_of_the_settings():
    plain, reflected = plain_of([[1, 0, 0, 0], [1, 1, 1, 0]] * 20), reflected_of([0] * 40, [0] * 40, [0] * 40)
    both = measure(plain, reflected, replay={"outcome": "both"})
    assert both["drawn"][0] == pytest.approx(both["drawn_right"][0] + both["drawn_wrong"][0])
    only = {name: measure(plain, reflected, replay={"outcome": name})["drawn"][0] for name in ("correct", "wrong")}
    assert only == pytest.approx({"correct": both["drawn_right"][0], "wrong": both["drawn_wrong"][0]})
    assert both["rankable"][0] == 0


def test_replay_cannot_draw_what_reflection_found_into_a_group_of_unequal_scores():
    plain, reflected = plain_of([[0] * 4, [0] * 4]), reflected_of([1, 1], [1, 1], [9, 9])
    plain = dataclasses.replace(plain, score_PA=np.array([[0.0] * 4, [0, 0, 0.5, 0.5]]))
    all_wrong_P = quantities.groups(plain)["all_wrong"]
    assert quantities.opened(plain, reflected, all_wrong_P).tolist() == pytest.approx([1, 1 / 3])


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_problems_counts_for_no_value(seed):
    plain, reflected = random_answers(seed)
    order = np.random.default_rng(seed).permutation(len(plain.correct_PA))
    other = Plain(*(getattr(plain, name)[order] for name in PARTS))
    theirs = Reflected(*(getattr(reflected, name)[order] for name in NAMES))
    ours, shuffled = measure(plain, reflected), measure(other, theirs)
    assert {k: v[0] for k, v in ours.items()} == pytest.approx({k: v[0] for k, v in shuffled.items()})


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_answers_counts_for_no_figure_of_groups(seed):
    plain, _ = random_answers(seed)
    order = np.random.default_rng(seed).permutation(plain.correct_PA.shape[1])
    other = Plain(*(getattr(plain, name)[:, order] for name in PARTS))
    ours, theirs = quantities.groups(plain), quantities.groups(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("seed", range(5))
def test_every_share_is_one_and_lies_in_its_interval(seed):
    plain, reflected = random_answers(seed)
    figures = measure(plain, reflected, seed)
    for name, (value, low, high) in figures.items():
        assert low - 1e-9 <= value <= high + 1e-9, name
        assert (-1 if name.endswith(("gain", "reach")) else 0) <= low and (high <= 1 or "right_again" in name), name
    total = sum(figures[name][0] for name in ("mixed", "all_right", "all_wrong"))
    assert total == pytest.approx(1)
    assert figures["rankable"][0] <= figures["all_wrong"][0] + 1e-12
    assert figures["drawn"][0] <= 1 - figures["mixed"][0] + 1e-12


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("tokens", [0, 64])
def test_answers_that_are_all_alike_or_empty_give_figures_and_verdicts(right, tokens):
    plain = plain_of([[right] * 8] * 10, [[1 - right] * 8] * 10, tokens=max(tokens, 1))
    reflected = reflected_of([1 - right] * 10, [0] * 10, [tokens * (1 - right)] * 10)
    figures = measure(plain, reflected)
    found = verdicts.judge(figures, int(reflected.asked_P.sum()), None)
    assert figures["drawn"][0] == 0 and figures["reflection/reach"][0] == 0
    assert set(found) == set(verdicts.MECHANISMS)


# verdicts


def test_a_verdict_is_where_the_whole_interval_lies():
    assert [verdicts.by_reach(reach) for reach in ([0.1, 0.06, 0.15], [0.02, 0.01, 0.04], [0.1, 0.04, 0.15])] == [
        "on",
        "off",
        "unclear",
    ]
    assert verdicts.by_reach([0.1, verdicts.MATTERS, 0.2]) == "on"
    assert verdicts.by_reach([0.0, 0.0, verdicts.MATTERS]) == "unclear"


def figures_of(**changes) -> dict:
    names = "hard drawn drawn_right drawn_wrong drawn_with_reflection opened rankable".split()
    named = {**dict.fromkeys(names, YES), **{f"reflection/{name}": YES for name in ("solved", "solved_again", "gain")}}
    return (
        named
        | {"reflection/reach": YES, "mixed": NO}
        | {name.replace("__", "/"): value for name, value in changes.items()}
    )


def foresight(low: float, high: float, problems: int = 20) -> dict:
    return {"auc": [(low + high) / 2, low, high], "problems": problems, "pairs": 100}


@pytest.mark.parametrize(
    ("changes", "asked", "seen", "expected"),
    [
        ({}, 20, foresight(0.6, 0.8), "on on on"),
        ({"rankable": NO}, 20, foresight(0.6, 0.8), "on on off"),
        ({}, 20, foresight(0.3, 0.54), "on on off"),
        ({}, 20, foresight(0.45, 0.7), "on on unclear"),
        ({}, 20, foresight(0.6, 0.8, problems=verdicts.LEAST - 1), "on on unclear"),
        ({}, 20, None, "on on unclear"),
        ({"rankable": [0.1, 0.04, 0.2]}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"reflection__reach": NO, "drawn": NO}, 20, None, "off off unclear"),
        # Without reflection all that is drawn came in mixed groups; with it, all but what it opened.
        ({"reflection__reach": NO, "drawn": YES, "drawn_with_reflection": NO}, 20, None, "unclear off unclear"),
        ({"opened": NO}, 20, None, "unclear on unclear"),
        ({"opened": [0.1, 0.04, 0.2]}, 20, None, "unclear on unclear"),
        # As many mixed groups teach GRPO the same as the ranked ones.
        ({"mixed": YES}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"mixed": [0.03, 0.01, 0.06]}, 20, foresight(0.6, 0.8), "on on unclear"),
        ({"mixed": [0.03, 0.01, 0.05]}, 20, foresight(0.51, 0.8), "on on on"),
        # Whether replay has something to draw depends on reflection, where that is unclear.
        ({"reflection__reach": [0.1, 0.04, 0.2], "drawn": NO}, 20, None, "unclear unclear unclear"),
        (
            {"reflection__reach": [0.1, 0.04, 0.2], "drawn": NO, "drawn_with_reflection": NO},
            20,
            None,
            "off unclear unclear",
        ),
        ({}, verdicts.LEAST, foresight(verdicts.CHANCE, 0.8), "on on unclear"),
        # What reflection finds is drawn by replay, where reflection is on.
        ({"drawn": NO}, 20, None, "on on unclear"),
        ({"hard": NO}, verdicts.LEAST - 1, None, "unclear off unclear"),
        ({"hard": YES}, verdicts.LEAST - 1, None, "unclear unclear unclear"),
    ],
)
def test_the_rule(changes, asked, seen, expected):
    found = verdicts.judge(figures_of(**changes), asked, seen)
    assert " ".join(found[name].verdict for name in verdicts.MECHANISMS) == expected


def test_the_overrides_are_those_of_what_is_decided_and_compose():
    found = verdicts.judge(figures_of(rankable=NO, opened=NO), 20, None)
    assert verdicts.overrides(found) == ["algorithm.r3.reflection.enable=True", "algorithm.r3.ranking.enable=False"]
    from r3_ext.settings.compose import compose_config

    config = compose_config(["+profile=embedded", "+method=r3", *verdicts.overrides(found)])
    assert (config.algorithm.r3.reflection.enable, config.algorithm.r3.ranking.enable) == (True, False)


@pytest.mark.parametrize(
    ("found", "expected"),
    [("on off off", "on"), ("off off off", "off"), ("off unclear off", "unclear"), ("unclear on off", "on")],
)
def test_r3_is_worth_it_where_a_part_is(found, expected):
    judged = [verdicts.Verdict(verdict, []) for verdict in found.split()]
    assert verdicts.overall(dict(zip(verdicts.MECHANISMS, judged, strict=True))) == expected


# a reward function of the user's own


FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    assert (data_source, extra_info["at"]) == ("mine", ground_truth["at"])
    with open(ground_truth["log"], "a") as log:
        log.write(solution_str)
    if solution_str == "raise":
        raise KeyError("x")
    return {"score": float(solution_str), "acc": float(solution_str) > 0.4} if solution_str < "5" else 0.5
"""


@pytest.fixture
def judge(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    truth = {"log": str(tmp_path / "log")}
    row = {"data_source": "mine", "prompt": [{"role": "user", "content": "?"}]}
    rows = [row | {"reward_model": {"ground_truth": truth | {"at": at}}, "extra_info": {"at": at}} for at in range(2)]
    overrides = [f"reward.custom_reward_function.path={tmp_path / 'mine.py'}", "reward.reward_kwargs.correct_from=0.75"]
    config = compose_config(["+profile=embedded", "+method=r3", *overrides])
    with asking(config, rows) as judge:
        yield judge


def test_the_grader_takes_any_of_the_accepted_answers_and_refuses_what_is_none():
    row = {"reward_model": {"ground_truth": ["1/3", "7"]}}
    config = compose_config(["+profile=embedded", "+method=r3"])
    with asking(config, [row]) as judge:
        found = judge.verdicts([(0, r"\boxed{7}"), (0, r"\boxed{7} and so on"), (0, r"\boxed{\frac13}"), (0, "7")])
        assert [judge.is_correct(verdict) for verdict in found] == [True, True, True, False]
    with pytest.raises(ValueError, match="must be an answer"), asking(config, [{"reward_model": {"ground_truth": {}}}]):
        pass


def test_the_function_is_given_its_row_and_asked_once_for_a_text(judge, tmp_path):
    rows = [{"index": at, "response": text} for at, text in ((0, "0.5"), (1, "0.5"), (0, "0.2"), (0, "0.5"), (1, "7"))]
    rows.append({"index": 0, "response": "raise"})
    assert judge(rows, [""] * 6) == [(None, verdict) for verdict in (True, True, False, True, False, None)]
    assert [verdict.score for verdict in judge.verdicts([(0, "0.2"), (1, "7"), (0, "raise")])] == [0.2, 0.5, 0]
    assert sorted((tmp_path / "log").read_text().replace("raise", "")) == sorted("0.50.50.27")
    assert judge.failures == 1


def test_a_function_that_fails_on_every_answer_ends_the_probe(judge):
    with pytest.raises(EvaluationError, match=r"a score for no answer; for the first it raised KeyError"):
        judge.verdicts([(0, "raise"), (1, "raise")])


# the report


def report_of(plain: Plain, reflected: Reflected, world: str | None = "seed=1") -> dict:
    figures = measure(plain, reflected)
    judged = verdicts.judge(figures, int(reflected.asked_P.sum()), None)
    about = {"model": {"path": "m"}, "profile": "embedded", "world": world, "overrides": ["a.b='c d'"]}
    about |= {"problems": len(plain.correct_PA), "group": plain.n, "limit": 64, "data": "d e"}
    about |= {"val_data": None}
    about |= {"reward": {"by": "the grader", "no_score": 0}}
    parts = {"plain": {"generated": 1000, "prompts": 300}}
    return report.content(about, plain, reflected, figures, None, judged, report.cost(parts, 250.0, 60.0))


@pytest.mark.parametrize("all_right", [False, True])
def test_the_report_is_json_a_page_of_text_and_a_picture(all_right, tmp_path):
    plain, reflected = random_answers(0, problems=40)
    if all_right:  # nobody is hard: no figure of reflection is a number
        plain, reflected = plain_of([[1] * 8] * 40), reflected_of([0] * 40, [0] * 40, [0] * 40)
    report.write(tmp_path, report_of(plain, reflected))
    found = json.loads((tmp_path / "probe.json").read_text(), parse_constant=pytest.fail)
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert sum(found["right_answers"]["problems"]) == 40
    assert sum(found["right_answers"]["hard"]) == found["asked_again"] == reflected.hard_P.sum()
    lines = "\n".join(report.text(found)).splitlines()
    assert len(lines) <= 30 and all(f"{name}:" in "\n".join(lines) for name in verdicts.MECHANISMS)
    assert "as many as 4.0 training steps" in lines[-1]


def test_a_probe_that_says_off_throughout_names_grpo_and_keeps_the_overrides():
    found = report_of(plain_of([[1] * 8] * 200), reflected_of([0] * 200, [0] * 200, [0] * 200))
    assert found["r3"] == "off"
    expected = "r3 run --profile embedded --world seed=1 --method grpo 'a.b='\"'\"'c d'\"'\"''"
    assert report.command(found) == expected
    found["settings"]["world"] = None
    assert report.command(found) == "MODEL=m DATA='d e' VAL_DATA=FILE " + expected.replace("--world seed=1 ", "")
    found["settings"]["val_data"] = "v"
    assert " VAL_DATA=v " in report.command(found)


def test_markers_of_the_picture_tell_every_verdict_apart():
    assert set(figure.FILL) == {"on", "off", "unclear"} and len(set(figure.FILL.values())) == 3
    assert set(figure.REACH) == set(verdicts.MECHANISMS)


# the command


NAIVE = "--profile embedded reward.reward_manager.source=register reward.reward_manager.name=naive"


async def later(data_source, solution_str, ground_truth, extra_info):
    return 1.0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--profile embedded --samples 1", "--samples must be at least 2, got 1"),
        ("--profile embedded --samples 3", "algorithm.r3.reflection.min_attempts: 4 attempts"),
        ("--profile embedded --problems 0", "--problems must be at least 1, got 0"),
        ("--profile embedded --seed -1", "--seed must be at least 0, got -1"),
        ("--profile embedded --max-tokens 0", "--max-tokens must be at least 1, got 0"),
        ("--profile embedded --max-tokens 65", "actor_rollout_ref.rollout.max_model_len: 576 is below"),
        ("--profile embedded --model m", "--data is missing"),
        ("--profile gpu_1x80gb --data d", "--model is missing"),
        ("--profile gpu_1x80gb", "--model is missing"),
        ("--profile gpu_1x80gb --model m --data d --world mistaken=0", "--world concerns the tiny model"),
        ("--profile embedded --world mistaken=2", "--world mistaken must be from 0 to 1"),
        ("--profile embedded --world seed=3", "seed is given twice"),
        ("--profile nope", "--profile must be one of"),
        ("--profile embedded algorithm.r3.repaly.k=1", "there is no setting algorithm.r3.repaly.k"),
        ("--profile embedded algorithm.r3.ranking.top_ratio=2", "algorithm.r3.ranking.top_ratio must be in (0, 1]"),
        ("--profile embedded reward.custom_reward_function.path=f.py", "f.py cannot be loaded"),
        (NAIVE, "or a function"),
        (f"--profile embedded reward.reward_manager.module.path={__file__}", "or a function"),
        (
            f"{NAIVE} reward.custom_reward_function.path={__file__} reward.custom_reward_function.name=later",
            "coroutine",
        ),
        ("--profile embedded data.prompt_key=messages", "data.prompt_key=messages: a probe knows prompt only"),
        ("--profile embedded actor_rollout_ref.rollout.top_k=20", "a probe knows -1 only"),
        ("--profile embedded --out others", "others holds mine.txt and no probe"),
        ("--profile embedded --out file", "is a file"),
        ("check --add others", "name folders of finished probes"),
        ("check --add foreign", "lacks cost, figures, foresight, r3, settings, verdicts"),
        ("check --out empty", "holds no verdict"),
    ],
)
def test_a_wrong_input_is_told_in_a_sentence(line, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "DATA", "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "probe.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    assert main(["probe", *line.split()]) == 2
    told = capsys.readouterr().err
    assert sentence in told and "Traceback" not in told
    assert sorted(tmp_path.rglob("*")) == before


def test_a_seed_is_a_world_as_in_a_cell_of_a_study(monkeypatch):
    for name in ("MODEL", "DATA", "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    args = command.parse(["--profile", "embedded", "--world", "reflection=0", "--seed", "2"])
    command.settle(args)
    assert args.world == "reflection=0,seed=2"
    args = command.parse(["--profile", "embedded", "--model", "m", "--data", "d", "data.train_batch_size=8"])
    config = command.settle(args)
    assert args.world is None and config.data.train_batch_size == 8


# the check


def curves_of(cells: dict[str, dict[int, float]]) -> dict:
    return {
        arm: {seed: (np.array([0.0, 60_000.0]), np.array([0.3, end])) for seed, end in ends.items()}
        for arm, ends in cells.items()
    }


def test_effects_are_the_contrasts_of_the_plan_in_their_kind_of_world():
    design = read_design(check.EXAMPLES / "studies" / "worlds.yaml")
    ends = {"none": 0.5, "ccr": 0.6, "isr": 0.5, "serr": 0.5, "no_ccr": 0.5, "no_isr": 0.6, "no_serr": 0.6, "r3": 0.6}
    curves = curves_of({f"main/{arm}": {13: end, 14: 0.5} for arm, end in ends.items()})
    curves |= curves_of({"main/grpo": {13: 0.55}, "reflection_0/r3": {13: 0.4}, "reflection_0/grpo": {13: 0.5}})

    def effect(world, mechanism, seed=13):
        return check.effect(check.Row(world, seed, mechanism, "on"), design, curves)

    assert effect("", "replay") == pytest.approx(0.1) and effect("", "replay", 14) == pytest.approx(0)
    assert (effect("", "reflection"), effect("", "ranking")) == pytest.approx((0, 0))
    assert effect("", "r3") == pytest.approx(0.05) and effect("", "r3", 14) is None
    assert effect("reflection=0", "r3") == pytest.approx(-0.1) and effect("reflection=0", "replay") is None
    assert effect("reflection=0.0", "r3") == pytest.approx(-0.1)
    assert effect("mistaken=0", "r3") is None


FIRST_RULE, PRESENT_RULE = (check.EXAMPLES / "results" / name for name in ("probe_first_rule", "probe"))


def current(record, tmp_path):
    """The table of a record, which made anew is the same, and what it counts as right, of how many."""
    shutil.copytree(record, tmp_path / "kept")
    assert check.main(["--out", str(tmp_path / "kept")], print) == 0
    told = (record / "check.md").read_text()
    assert (tmp_path / "kept" / "check.md").read_text() == told
    right, of = map(int, re.search(r"Right in (\d+) of (\d+) that", told).groups())
    return told, right, of


def test_the_first_rules_record_is_current(tmp_path, capsys):
    told, right, of = current(FIRST_RULE, tmp_path)
    yes, all_r3 = (len(re.findall(rf"\| r3 \| on \| [-+0-9.]+ \| {end} \|", told)) for end in ("yes", "(?:yes|no)"))
    assert (right, of) == (8, 16) and (yes, all_r3) == (4, 8)


def test_the_present_rules_record_is_current(tmp_path, capsys):
    _, right, of = current(PRESENT_RULE, tmp_path)
    assert (right, of) == (9, 13)


@pytest.mark.parametrize("record", [FIRST_RULE, PRESENT_RULE], ids=lambda folder: folder.name)
def test_the_table_of_probes_says_what_the_present_rule_says_of_them(record):
    text = (check.EXAMPLES.parent / "docs" / "probe.md").read_text()
    names = {"mistaken=0,overlong=1,stuck=0.5,train=5-6,val=1-4": "all cut off"}
    for key, probe in json.loads((record / "probes.json").read_text()).items():
        figures, found = probe["figures"], verdicts.judge(probe["figures"], verdicts.LEAST, probe["foresight"])
        told = {name: "unclear" if v.verdict == "unclear" else f"**{v.verdict}**" for name, v in found.items()}
        short = lambda figure: verdicts.percent(figure).replace(" %", "")
        drawn = figures["drawn_with_reflection" if found["reflection"].verdict == "on" else "drawn"]
        kind, seed = key.rsplit(", ", 1)
        row = f"| {names.get(kind, kind)}, {seed} | {short(drawn)} {told['replay']} "
        row += f"| {short(figures['reflection/reach'])} {told['reflection']} "
        row += f"| {short(figures['rankable'])}, {short(probe['foresight']['auc'])} {told['ranking']} "
        row += f"| {probe['cost']['generated']:,} | {probe['cost']['steps']:.1f} |"
        assert row in text


def test_the_kept_figures_give_the_kept_verdicts_of_the_present_rule():
    kept = {(row.world, row.seed, row.mechanism): row.verdict for row in check.read(PRESENT_RULE / check.VERDICTS)}
    probes = json.loads((PRESENT_RULE / check.PROBES).read_text())
    assert len(kept) == len(check.CONTRASTS) * len(probes)
    for key, probe in probes.items():
        world, _, seed = key.rpartition(", ")
        found = verdicts.judge(probe["figures"], verdicts.LEAST, probe["foresight"])
        for name, verdict in found.items():
            assert kept["" if world == "default" else world, int(seed), name] == verdict.verdict, key


def test_every_contrast_of_the_check_is_in_the_plan():
    names = {hypothesis.name for hypothesis in read_design(check.EXAMPLES / "studies" / "worlds.yaml").hypotheses}
    assert {name for group in check.CONTRASTS.values() for name in group} <= names
    assert {"r3", *verdicts.MECHANISMS} == set(check.CONTRASTS)


def test_right_is_on_with_an_effect_that_matters_and_off_without():
    cases = {("on", 0.06): True, ("on", 0.04): False, ("off", 0.04): True, ("off", 0.06): False}
    cases |= {("unclear", 0.3): None, ("on", None): None}
    assert {case: check.is_right(*case) for case in cases} == cases


def test_the_table_counts_what_training_has_tested():
    design = read_design(check.EXAMPLES / "studies" / "worlds.yaml")
    rows = [
        check.Row("reflection=0", seed, "r3", verdict) for seed, verdict in ((13, "on"), (14, "off"), (15, "unclear"))
    ]
    assert "Right in" not in check.table(rows, design, {})
    ends = {"reflection_0/r3": {13: 0.6, 14: 0.6, 15: 0.4}, "reflection_0/grpo": {13: 0.5, 14: 0.5, 15: 0.5}}
    told = check.table(rows, design, curves_of(ends))
    assert "Right in 1 of 2 that training has tested" in told
    assert "| reflection=0 | 13 | r3 | on | +0.1000 | yes |" in told
    assert "| reflection=0 | 14 | r3 | off | +0.1000 | no |" in told
    assert "| r3 | unclear | 1 | -0.100 |" in told


def test_verdicts_are_added_kept_and_compared(tmp_path, monkeypatch, capsys):
    for seed, world in ((1, "seed=1"), (1, "reflection=0,mistaken=0,seed=1")):
        folder = tmp_path / world
        folder.mkdir()
        report.write(folder, report_of(*random_answers(seed, problems=40), world))
        assert main(["probe", "check", "--add", str(folder), "--out", str(tmp_path / "out")]) == 0
    rows = check.read(tmp_path / "out" / check.VERDICTS)
    assert [row.world for row in rows] == [""] * 4 + ["reflection=0,mistaken=0"] * 4
    assert (tmp_path / "out" / check.TABLE).read_text().rstrip() in capsys.readouterr().out
    (tmp_path / "own").mkdir()
    report.write(tmp_path / "own", report_of(*random_answers(1), world=None))
    assert main(["probe", "check", "--add", str(tmp_path / "own"), "--out", str(tmp_path / "out")]) == 2
    assert check.read(tmp_path / "out" / check.VERDICTS) == rows
