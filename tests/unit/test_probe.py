"""`r3 probe` without a model: figures by hand, invariances, the rule of the verdicts, the check against a study."""

import itertools
import json
import math

import numpy as np
import pytest

from r3_ext.cli import main
from r3_ext.probe import ask, check, command, figure, quantities, report, verdicts
from r3_ext.probe.quantities import Plain, Reflected
from r3_ext.study.design import read_design

YES, NO = [0.2, 0.06, 0.3], [0.01, 0.0, 0.04]


def plain_of(correct: list[list[int]], cut: list[list[int]] | None = None, tokens: int | list = 10) -> Plain:
    correct_PA = np.array(correct, bool)
    cut_PA = np.zeros_like(correct_PA) if cut is None else np.array(cut, bool)
    return Plain(correct_PA, cut_PA, np.broadcast_to(tokens, correct_PA.shape).astype(float))


def reflected_of(asked: list[int], right: list[int], tokens: list[float]) -> Reflected:
    asked_P = np.array(asked, bool)
    return Reflected(asked_P, asked_P, np.array(right, float), np.array(tokens, float))


def random_answers(seed: int, problems: int = 12, n: int = 4) -> tuple[Plain, Reflected]:
    rng = np.random.default_rng(seed)
    correct_PA = rng.random((problems, 2 * n)) < rng.random((problems, 1)) ** 2
    cut_PA = ~correct_PA & (rng.random((problems, 2 * n)) < 0.5)
    plain = Plain(correct_PA, cut_PA, rng.integers(5, 60, (problems, 2 * n)).astype(float))
    hard_P = quantities.is_hard(correct_PA[:, :n], 0.25)
    right_P = np.where(hard_P, rng.integers(0, n + 1, problems), 0).astype(float)
    return plain, Reflected(hard_P, hard_P, right_P, np.where(hard_P, rng.integers(20, 200, problems), 0.0))


# figures


def test_wilson_by_hand():
    # z = 1.959964: 1 of 10 is the textbook's 0.0179 to 0.4042; 0 of 10 ends at z^2 / (10 + z^2).
    assert quantities.wilson(0.1, 10) == pytest.approx([0.1, 0.01788, 0.40415], abs=1e-5)
    assert quantities.wilson(0.0, 10) == pytest.approx([0, 0, 3.841459 / 13.841459], abs=1e-6)
    assert quantities.wilson(1.0, 10)[1:] == pytest.approx([10 / 13.841459, 1], abs=1e-6)


def test_groups_by_hand():
    # n = 2 of R W(cut) W(cut) W: the pairs are 3 with R, mixed, and 3 without, one of which has both that are cut off.
    # Each of these 3 leaves R to the other half.
    found = quantities.group_of(right=1, cut=2, n=2)
    assert found == pytest.approx(
        {"mixed": 1 / 2, "all_right": 0, "all_wrong": 1 / 2, "rankable": 1 / 6, "drawn_right": 1 / 2, "drawn_wrong": 0}
    )
    never, always = quantities.group_of(0, 4, 2), quantities.group_of(4, 0, 2)
    assert (never["all_wrong"], never["rankable"], never["drawn_right"]) == (1, 1, 0)
    assert (always["all_right"], always["drawn_wrong"], always["mixed"]) == (1, 0, 0)


@pytest.mark.parametrize(("right", "cut"), [(0, 0), (0, 6), (1, 3), (2, 1), (3, 3), (5, 1), (6, 0)])
def test_groups_equal_a_count_of_all_splits(right, cut):
    n = 3
    answers = ["right"] * right + ["cut"] * cut + ["wrong"] * (2 * n - right - cut)
    counts = dict.fromkeys(quantities.group_of(right, cut, n), 0)
    splits = list(itertools.combinations(range(2 * n), n))
    for chosen in splits:
        group = [answers[k] for k in chosen]
        history = [answers[k] for k in range(2 * n) if k not in chosen]
        hits = group.count("right")
        counts["mixed"] += 0 < hits < n
        counts["all_right"] += hits == n
        counts["all_wrong"] += hits == 0
        counts["rankable"] += hits == 0 and group.count("cut") >= 2
        counts["drawn_right"] += hits == 0 and "right" in history
        counts["drawn_wrong"] += hits == n and history.count("right") < n
    expected = {name: count / len(splits) for name, count in counts.items()}
    assert quantities.group_of(right, cut, n) == pytest.approx(expected)


def test_the_figures_of_groups_are_unbiased():
    # p = 0.3, n = 2: all wrong 0.7^2; with a right one in the other two 0.7^2 (1 - 0.7^2).
    found = [quantities.group_of(right, 0, 2) for right in range(5)]
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
    found = quantities.reflection(plain, Reflected(hard_P, hard_P, again_P.astype(float), tokens_P), seed=0)
    assert found["gain"] == found["reach"] == [0, 0, 0] and found["solved"] == found["solved_again"]


def test_an_answer_that_is_cut_off_is_wrong_even_with_a_right_box():
    scores = type("Scores", (), {"query_ids": ["a"], "tokens_R": np.array([5.0, 9, 8, 8])})
    scores.correct_R = np.array([True, True, True, False])
    plain = ask.plain_answers(scores, limit=8)
    assert plain.correct_PA.tolist() == [[True, False, True, False]]
    assert plain.cut_PA.tolist() == [[False, True, False, False]] and plain.tokens_PA.max() == 8


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_problems_counts_for_no_value(seed):
    plain, reflected = random_answers(seed)
    order = np.random.default_rng(seed).permutation(len(plain.correct_PA))
    other = Plain(*(getattr(plain, name)[order] for name in ("correct_PA", "cut_PA", "tokens_PA")))
    theirs = Reflected(*(getattr(reflected, name)[order] for name in ("hard_P", "asked_P", "right_P", "tokens_P")))
    ours, shuffled = quantities.measure(plain, reflected, 0), quantities.measure(other, theirs, 0)
    assert {k: v[0] for k, v in ours.items()} == pytest.approx({k: v[0] for k, v in shuffled.items()})


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_answers_counts_for_no_figure_of_groups(seed):
    plain, _ = random_answers(seed)
    order = np.random.default_rng(seed).permutation(plain.correct_PA.shape[1])
    other = Plain(plain.correct_PA[:, order], plain.cut_PA[:, order], plain.tokens_PA)
    ours, theirs = quantities.groups(plain), quantities.groups(other)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("seed", range(5))
def test_every_share_is_one_and_lies_in_its_interval(seed):
    plain, reflected = random_answers(seed)
    figures = quantities.measure(plain, reflected, seed)
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
    figures = quantities.measure(plain, reflected, 0)
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
    return named | {"reflection/reach": YES} | {name.replace("__", "/"): value for name, value in changes.items()}


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
        ({"reflection__reach": NO, "drawn": YES, "drawn_with_reflection": NO}, 20, None, "on off unclear"),
        # What reflection finds is drawn by replay, where reflection is on.
        ({"drawn": NO}, 20, None, "on on unclear"),
        ({"hard": NO}, verdicts.LEAST - 1, None, "on off unclear"),
        ({"hard": YES}, verdicts.LEAST - 1, None, "on unclear unclear"),
    ],
)
def test_the_rule(changes, asked, seen, expected):
    found = verdicts.judge(figures_of(**changes), asked, seen)
    assert " ".join(found[name].verdict for name in verdicts.MECHANISMS) == expected


def test_the_overrides_are_those_of_what_is_decided_and_compose():
    found = verdicts.judge(figures_of(rankable=NO), 3, None)
    assert verdicts.overrides(found) == ["algorithm.r3.replay.enable=True", "algorithm.r3.ranking.enable=False"]
    from r3_ext.config import compose_config

    config = compose_config(["+profile=embedded", "+method=r3", *verdicts.overrides(found)])
    assert (config.algorithm.r3.replay.enable, config.algorithm.r3.ranking.enable) == (True, False)


@pytest.mark.parametrize(
    ("found", "expected"),
    [("on off off", "on"), ("off off off", "off"), ("off unclear off", "unclear"), ("unclear on off", "on")],
)
def test_r3_is_worth_it_where_a_part_is(found, expected):
    judged = [verdicts.Verdict(verdict, []) for verdict in found.split()]
    assert verdicts.overall(dict(zip(verdicts.MECHANISMS, judged, strict=True))) == expected


# the report


def report_of(plain: Plain, reflected: Reflected, world: str | None = "seed=1") -> dict:
    figures = quantities.measure(plain, reflected, 0)
    judged = verdicts.judge(figures, int(reflected.asked_P.sum()), None)
    about = {"model": {"path": "m"}, "profile": "embedded", "world": world, "overrides": ["a.b='c d'"]}
    about |= {"problems": len(plain.correct_PA), "group": plain.n, "limit": 64}
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
    assert report.command(found) == "r3 run --profile embedded --method grpo 'a.b='\"'\"'c d'\"'\"''"


def test_markers_of_the_picture_tell_every_verdict_apart():
    assert set(figure.FILL) == {"on", "off", "unclear"} and len(set(figure.FILL.values())) == 3
    assert set(figure.REACH) == set(verdicts.MECHANISMS)


# the command


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--profile embedded --samples 1", "--samples must be at least 2, got 1"),
        ("--profile embedded --samples 3", "algorithm.r3.reflection.min_attempts=4"),
        ("--profile embedded --problems 0", "--problems must be at least 1, got 0"),
        ("--profile embedded --seed -1", "--seed must be at least 0, got -1"),
        ("--profile embedded --max-tokens 0", "--max-tokens must be at least 1, got 0"),
        ("--profile embedded --max-tokens 65", "actor_rollout_ref.rollout.max_model_len=576"),
        ("--profile embedded --model m", "--data is missing"),
        ("--profile gpu_1x80gb --data d", "--model is missing"),
        ("--profile gpu_1x80gb", "--model is missing"),
        ("--profile gpu_1x80gb --model m --data d --world mistaken=0", "--world concerns the tiny model"),
        ("--profile embedded --world mistaken=2", "--world mistaken must be from 0 to 1"),
        ("--profile embedded --world seed=3", "seed is given twice"),
        ("--profile nope", "--profile must be one of"),
        ("--profile embedded algorithm.r3.repaly.k=1", "there is no setting algorithm.r3.repaly.k"),
        ("--profile embedded algorithm.r3.ranking.top_ratio=2", "algorithm.r3.ranking.top_ratio must be in (0, 1]"),
        ("--profile embedded reward.custom_reward_function.path=f.py", "grades answers with the recipe's grader"),
        ("--profile embedded --out others", "others holds mine.txt and no probe"),
        ("--profile embedded --out file", "is a file"),
        ("check --add others", "name folders of finished probes"),
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
    curves = curves_of({f"main/{arm}": {1: end, 2: 0.5} for arm, end in ends.items()})
    curves |= curves_of({"main/grpo": {1: 0.55}, "reflection_0/r3": {1: 0.4}, "reflection_0/grpo": {1: 0.5}})

    def effect(world, mechanism, seed=1):
        return check.effect(check.Row(world, seed, mechanism, "on"), design, curves)

    assert effect("", "replay") == pytest.approx(0.1) and effect("", "replay", 2) == pytest.approx(0)
    assert (effect("", "reflection"), effect("", "ranking")) == pytest.approx((0, 0))
    assert effect("", "r3") == pytest.approx(0.05) and effect("", "r3", 2) is None
    assert effect("reflection=0", "r3") == pytest.approx(-0.1) and effect("reflection=0", "replay") is None
    assert effect("reflection=0.0", "r3") == pytest.approx(-0.1)
    assert effect("mistaken=0", "r3") is None


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
    rows = [check.Row("reflection=0", seed, "r3", verdict) for seed, verdict in ((1, "on"), (2, "off"), (3, "unclear"))]
    assert "Right in" not in check.table(rows, design, {})
    ends = {"reflection_0/r3": {1: 0.6, 2: 0.6, 3: 0.4}, "reflection_0/grpo": {1: 0.5, 2: 0.5, 3: 0.5}}
    told = check.table(rows, design, curves_of(ends))
    assert "Right in 1 of 2 that training has tested" in told
    assert "| reflection=0 | 1 | r3 | on | +0.100 | yes |" in told
    assert "| reflection=0 | 2 | r3 | off | +0.100 | no |" in told
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
