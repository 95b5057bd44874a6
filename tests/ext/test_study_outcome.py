"""`r3 study`: curves and figures at equal tokens, by hand."""

import json
import math

import numpy as np
import pytest

from r3_ext.settings.compose import ROOT
from r3_ext.study import command, figure, outcome, text
from r3_ext.study.design import read_design
from r3_ext.study.hypotheses import judge, values_of
from tests.ext.studied import rows

CURVE = (np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.4, 0.3]))


def test_a_curve_counts_the_tokens_of_all_steps_before_a_validation():
    tokens, accuracy = outcome.curve_of(rows(0.2, None, 0.4, 0.3))
    assert tokens.tolist() == [0, 200, 300] and accuracy.tolist() == [0.2, 0.4, 0.3]
    assert [len(column) for column in outcome.curve_of([{"step": 1}])] == [0, 0]


@pytest.mark.parametrize("tokens,accuracy", [(0, 0.2), (50, 0.3), (100, 0.4), (150, 0.35), (200, 0.3)])
def test_accuracy_between_validations_is_linear(tokens, accuracy):
    assert outcome.accuracy_at(CURVE, tokens) == pytest.approx(accuracy)


def test_a_curve_that_does_not_reach_the_budget_has_no_accuracy_there():
    assert math.isnan(outcome.accuracy_at(CURVE, 201)) and math.isnan(outcome.mean_accuracy(CURVE, 201))


def test_the_mean_accuracy_is_the_area_under_the_curve():
    assert outcome.mean_accuracy(CURVE, 100) == pytest.approx(0.3)
    assert outcome.mean_accuracy(CURVE, 200) == pytest.approx((0.3 + 0.35) / 2)
    assert outcome.mean_accuracy(CURVE, 150) == pytest.approx((0.3 * 100 + 0.375 * 50) / 150)


@pytest.mark.parametrize("accuracy,tokens", [(0.1, 0), (0.2, 0), (0.25, 25), (0.3, 50), (0.31, math.inf)])
def test_tokens_to_an_accuracy_are_those_after_which_it_is_held(accuracy, tokens):
    assert outcome.tokens_to(CURVE, accuracy) == pytest.approx(tokens)


def test_an_accuracy_that_is_touched_and_lost_counts_from_the_last_crossing():
    curve = (np.array([0.0, 100.0, 200.0, 300.0]), np.array([0.2, 0.5, 0.3, 0.5]))
    assert outcome.tokens_to(curve, 0.4) == pytest.approx(250)


def test_the_spread_over_seeds_is_a_t_interval_without_missing_values():
    found = outcome.spread([1.0, 2.0, 3.0, 4.0, 5.0, math.nan])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert found == {"mean": 3.0, "low": pytest.approx(3 - half), "high": pytest.approx(3 + half), "seeds": 5}
    assert outcome.spread([1.0, 2.0]) == {"mean": 1.5, "seeds": 2}
    assert math.isnan(outcome.spread([])["mean"])


def straight(end, start=0.2, budget=100.0):
    return np.array([0.0, budget]), np.array([start, end])


def test_arms_are_compared_seed_by_seed_and_by_the_tokens_to_the_baselines_accuracy():
    curves = {
        "grpo": {0: straight(0.3), 1: straight(0.4), 2: straight(0.5)},
        "r3": {0: straight(0.5), 1: straight(0.6), 2: straight(0.7)},
        "dapo": {0: straight(0.25), 1: straight(0.2), 2: straight(0.3)},
    }
    found = outcome.compare(curves, 100)
    assert found["r3"]["difference"]["grpo"]["mean"] == pytest.approx(0.2)
    assert found["r3"]["difference"]["grpo"]["low"] == pytest.approx(0.2), "every seed gains as much"
    assert found["dapo"]["difference"]["r3"]["mean"] == pytest.approx(-0.35)
    # From 0.2 to 0.6 on average: GRPO's 0.4 lies halfway.
    assert found["r3"]["speedup"]["mean"] == pytest.approx(2.0, rel=0.01)
    assert "speedup" not in found["grpo"], "to itself it says nothing"
    assert found["dapo"]["speedup"]["mean"] == 0, "it never gets there"
    assert "low" not in found["r3"]["speedup"], "of three pairs an end is one pair drawn many times"
    flat = outcome.compare({"grpo": {0: straight(0.1)}, "r3": curves["r3"]}, 100)["r3"]
    assert math.isnan(flat["speedup"]["mean"]), "what gains nothing cannot be reached sooner"
    alone = outcome.compare({"r3": curves["r3"]}, 100)["r3"]
    assert "speedup" not in alone and alone["difference"].keys() == {"r3"}, "nothing is made up without a baseline"


def test_arms_are_compared_in_the_worlds_that_they_share():
    curves = {
        "grpo": {seed: straight(0.3) for seed in range(4)},
        "dapo": {seed: straight(0.5) for seed in (0, 1)} | {2: straight(0.9, budget=50.0)},
        "r3": {seed: straight(0.4) for seed in range(4)},
        "isr": {7: straight(0.9, budget=50.0)},
    }
    first, second = outcome.in_common(curves, 100)
    assert {arm: [*cells] for arm, cells in first.items()} == {"grpo": [0, 1, 2, 3], "r3": [0, 1, 2, 3]}
    assert {arm: [*cells] for arm, cells in second.items()} == {"grpo": [0, 1], "dapo": [0, 1], "r3": [0, 1]}
    assert outcome.in_common({"isr": curves["isr"]}, 100) == []
    crossing = {arm: {seed: straight(0.3) for seed in seeds} for arm, seeds in {"grpo": (1, 2), "r3": (2, 3)}.items()}
    assert [
        (list(found), list(found["r3"] if "r3" in found else found["grpo"]))
        for found in outcome.in_common(crossing, 100)
    ] == [
        (["grpo"], [1, 2]),
        (["r3"], [2, 3]),
        (["grpo", "r3"], [2]),
    ]


def test_the_seeds_of_a_table_are_told_in_short():
    assert text.seeds([0, 1, 3, 13, 14, 15, 20]) == "0, 1, 3, 13 to 15, 20"


@pytest.mark.parametrize("rows", [("0,0.3", "100,0.4", "0,0.2"), ("0,45",), ("0,-0.1",)])
def test_a_curve_that_no_cell_has_is_refused(rows, tmp_path, capsys):
    """Two records joined by hand may hold a cell twice."""
    (tmp_path / "study.json").write_text(json.dumps({"tokens": 100, "profile": "embedded", "overrides": []}))
    file = tmp_path / "curves.csv"
    file.write_text("\n".join(["arm,seed,generated_tokens,accuracy", *(f"r3,0,{row}" for row in rows)]) + "\n")
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 2
    told = f"error: {file}, line {len(rows) + 1}: tokens of a cell fall, or an accuracy is none"
    assert told in capsys.readouterr().out


def test_a_figure_shows_every_world_and_the_interval_of_those_that_reach_the_budget():
    curves = {
        "grpo": {0: straight(0.3), 1: straight(0.4), 2: straight(0.5)},
        "r3": {0: straight(0.5), 1: straight(0.6), 2: straight(0.8), 3: straight(0.9, budget=50.0)},
    }
    left, right = figure.dots(curves, 100).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["worlds 0 to 2", "GRPO", "R^3, all three"]
    grpo_bar, grpo_mean, grpo, _, _, r3 = [list(line.get_xdata()) for line in left.lines]
    assert grpo == pytest.approx([0.3, 0.4, 0.5]) and r3 == pytest.approx([0.5, 0.6, 0.8])
    assert grpo_mean == pytest.approx([0.4])
    assert grpo_bar == pytest.approx([0.4 - 4.302653 * 0.1 / math.sqrt(3), 0.4 + 4.302653 * 0.1 / math.sqrt(3)])
    assert right.lines[2].get_xdata() == pytest.approx([0.2, 0.2, 0.3]), "paired by world"
    (lines,) = figure.means(curves, 100).axes
    assert [line.get_ydata()[-1] for line in lines.lines] == pytest.approx([0.4, 1.9 / 3])
    assert figure.dots({"grpo": curves["grpo"]}, 100) is None, "one arm is no comparison"


def test_a_figure_shows_each_contrast_with_both_intervals_its_bound_and_its_verdict():
    gain, half, *_ = read_design(ROOT / "examples" / "studies" / "worlds.yaml").hypotheses
    budgets, planned = {"main": 100}, {"main/grpo": (0, 1, 2), "main/r3": (0, 1, 2), "main/dapo": (0, 1, 2)}
    curves = {
        "main/grpo": {0: straight(0.3), 1: straight(0.4), 2: straight(0.5)},
        "main/r3": {0: straight(0.5), 1: straight(0.6), 2: straight(0.8)},
        "main/dapo": {0: straight(0.2), 1: straight(0.4)},
    }
    verdicts = judge((gain, half), curves, budgets, planned)
    rows = [(one, values_of(one, curves, budgets, planned), verdicts[one.name]) for one in (gain, half)]
    (axes,) = figure.contrasts(rows).axes
    bar, mean, worlds, bound, matters, thin, few_mean, few, few_bound, _ = [line.get_xdata() for line in axes.lines]
    assert list(worlds) == pytest.approx([0.2, 0.2, 0.3]) and list(mean) == pytest.approx([0.7 / 3])
    half_width = math.sqrt(1 / 300) / math.sqrt(3)  # sample std of these
    assert list(bar) == pytest.approx([0.7 / 3 - 4.302653 * half_width, 0.7 / 3 + 4.302653 * half_width])
    t_corrected = 6.205347  # 98.75 % point of t with 2 degrees of freedom: the first of two
    assert list(thin) == pytest.approx([0.7 / 3 - t_corrected * half_width, 0.7 / 3 + t_corrected * half_width])
    assert list(bound) == list(few_bound) == [0, 0] and list(matters) == [0.05, 0.05]
    heights = [round(float(y) - place, 2) for place, at in ((0, 2), (1, 7)) for y in axes.lines[at].get_ydata()]
    assert heights == [-0.22, 0.0, 0.22, -0.22, 0.0], "the same height is the same world"
    assert list(few) == pytest.approx([0.3, 0.2]), "two worlds are dots without an interval"
    assert [text.get_text() for text in axes.texts] == ["held\n3 of 3 worlds", "2 worlds"]


def test_a_table_shows_what_hangs_on_one_world():
    design = read_design(ROOT / "examples" / "studies" / "worlds.yaml")
    ends = {"main/grpo": (0.3, 0.4, 0.5), "main/r3": (0.25, 0.45, 0.8)}
    curves = {
        arm: {13 + place: straight(end, budget=60_000) for place, end in enumerate(of)} for arm, of in ends.items()
    }
    found = judge(design.hypotheses, curves, design.budgets, design.worlds)
    assert found["gain"].values == {13: pytest.approx(-0.05), 14: pytest.approx(0.05), 15: pytest.approx(0.3)}
    assert (
        "| R^3 ends above GRPO | 13: -0.05, 14: +0.05, 15: +0.30 | +0.100 | +0.050 | 2 of 3 | +0.000 to +0.175 |"
        in text.world_table(design, found)
    )


def test_two_arms_that_are_alike_have_a_speedup_interval_that_goes_below_one():
    rng = np.random.default_rng(3)
    pairs = [(straight(a), straight(b)) for a, b in zip(*rng.normal(0.6, 0.05, (2, 12)), strict=True)]
    found = outcome.speedup(pairs, 100)
    assert found["low"] < 1 < found["high"]
    same = outcome.speedup([(straight(0.6), straight(0.6))] * 6, 100)
    assert same == {key: pytest.approx(1.0, rel=0.01) for key in ("mean", "low", "high")}
