"""`r3 study`: figures at equal tokens by hand, arms that differ where they mean to, cells that are complete or not."""

import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import signal
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy import stats

from r3_ext import launch, run_folder
from r3_ext.cpu import warm_start
from r3_ext.launch import ROOT
from r3_ext.study import arms, command, figure, outcome, record, text
from r3_ext.study.design import choices, read_design
from r3_ext.study.hypotheses import LEVEL, interval, judge, values_of
from r3_ext.summary import summarise

CURVE = (np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.4, 0.3]))


def rows(*validations):
    """Rows of a metrics.jsonl: 100 generated tokens per training step, and these accuracies from step 0 on."""
    found = []
    for step, accuracy in enumerate(validations):
        row = {"step": step}
        if step:
            row |= {"training/global_step": step, "generated/tokens": 100, "timing_s/step": 1.0, "training/epoch": 0}
            row["critic/score/mean"] = 0.5
            row |= {"groups/total": 5, "groups/mixed": 1, "groups/all_correct": 3, "groups/all_wrong": 1}
            row |= {
                "groups/rescued_by_replay": 2,
                "groups/ranked": 1,
                "groups/still_dead": 1,
                "groups/still_wrong": 0,
                "replay/rows": 2,
            }
            row |= {"reflection/prompts": 1, "reflection/solved": 1, "reflection/tokens": 7}
        if accuracy is not None:
            row["val-core/arithmetic/acc/mean@4"] = accuracy
        found.append(row)
    return found


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
    assert found["grpo"]["speedup"]["mean"] == pytest.approx(1.0)
    assert found["dapo"]["speedup"]["mean"] == 0, "it never gets there"
    assert found["r3"]["speedup"]["low"] <= found["r3"]["speedup"]["mean"] <= found["r3"]["speedup"]["high"]
    flat = outcome.compare({"grpo": {0: straight(0.1)}, "r3": curves["r3"]}, 100)["r3"]
    assert math.isnan(flat["speedup"]["mean"]), "what gains nothing cannot be reached sooner"
    alone = outcome.compare({"r3": curves["r3"]}, 100)["r3"]
    assert "speedup" not in alone and alone["difference"].keys() == {"r3"}, "nothing is made up without a baseline"


@functools.cache
def r3_settings(overrides):
    """algorithm.r3 in a cell of the embedded profile with these overrides."""
    config = launch.compose_config(["+profile=embedded", "+method=r3", *arms.EMBEDDED, *overrides])
    return OmegaConf.to_container(config, resolve=True)["algorithm"]["r3"]


@pytest.mark.parametrize(
    ("name", "than"),
    [
        *((name, "r3") for name in ("k_4", "alpha_2", "tau_0.5", "p_0.05", "own_prompt", "whole", "contrast")),
        ("both", "whole"),
        ("failures", "whole"),
    ],
)
def test_a_setting_is_tried_alone(name, than):
    full, tried = (r3_settings(arms.ARMS[one].overrides) for one in (than, name))
    changed = [
        (part, key) for part in arms.MECHANISMS.values() for key in full[part] if full[part][key] != tried[part][key]
    ]
    assert len(changed) == 1


def test_arms_differ_from_the_full_method_in_their_mechanism_alone():
    def flat(overrides):
        r3 = r3_settings(overrides)
        return {**{name: r3[name]["enable"] for name in arms.MECHANISMS.values()}, **r3["replay"]}

    full = flat(arms.ARMS["r3"].overrides)
    assert all(full[name] for name in arms.MECHANISMS.values())
    for name, key in arms.MECHANISMS.items():
        others = [other for other in arms.MECHANISMS.values() if other != key]
        only, without = flat(arms.ARMS[name].overrides), flat(arms.ARMS[f"no_{name}"].overrides)
        assert only[key] and not any(only[other] for other in others)
        assert not without[key] and all(without[other] for other in others)
    control = flat(arms.ARMS["wrong_content"].overrides)
    assert {key for key in control if control[key] != flat(arms.ARMS["ccr"].overrides)[key]} == {"other_queries"}


def cell(folder, validations, code=0):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(*validations)))
    summary = summarise(rows(*validations), batch_size=16, n=4, seconds_total=1.0) | {"exit_code": code, "updates": 4}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_cell_is_complete_when_it_ended_well_behind_the_budget(tmp_path):
    cell(tmp_path / "done", (0.1, None, 0.2))
    cell(tmp_path / "failed", (0.1, None, 0.2), code=1)
    cell(tmp_path / "short", (0.1, 0.2))
    cell(tmp_path / "no validation at the end", (0.1, None, None))
    complete = {path.name for path in tmp_path.iterdir() if command.is_complete(path, 200)}
    assert complete == {"done"} and not command.is_complete(tmp_path / "absent", 200)


DAMAGED = [
    *(("summary.json", text) for text in ("{", "[]", "{}", "5", '{"exit_code": 0}', "[" * 100_000)),
    *(
        ("metrics.jsonl", text)
        for text in ("5\n", '{"val-core/a/acc/mean@1": "x"}\n', '{"val-core/a/acc/mean@1": NaN}\n')
    ),
]


@pytest.mark.parametrize("name,text", DAMAGED)
def test_a_damaged_cell_is_not_complete_and_named_in_the_summary(name, text, tmp_path, capsys):
    for seed in range(2):
        cell(tmp_path / "grpo" / f"seed_{seed}", (0.2, None, 0.4))
    (tmp_path / "grpo" / "seed_backup").mkdir()
    damaged = tmp_path / "grpo" / "seed_1"
    (damaged / name).write_text(text)
    assert not command.is_complete(damaged, 200)
    (tmp_path / "study.json").write_text(json.dumps({"tokens": 200}))
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"left out: {damaged / name} is not what a run writes" in out
    assert f"left out: {tmp_path}/grpo/seed_backup is not the folder of a seed" in out
    assert set(command.record.read_curves(tmp_path)["grpo"]) == {0}


def test_a_study_is_summarised_from_its_complete_cells_without_training(tmp_path, capsys):
    for seed, end in enumerate((0.3, 0.4, 0.5)):
        cell(tmp_path / "grpo" / f"seed_{seed}", (0.2, None, end))
        cell(tmp_path / "r3" / f"seed_{seed}", (0.2, None, end + 0.1))
    cell(tmp_path / "dapo" / "seed_0", (0.2, 0.3))
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 2
    (tmp_path / "study.json").write_text(json.dumps({"tokens": 200, "profile": "embedded", "overrides": []}))
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["arms"].keys() == {"grpo", "r3"}
    assert results["arms"]["r3"]["difference"]["grpo"]["mean"] == pytest.approx(0.1)
    assert (tmp_path / "curves.csv").read_text().splitlines()[1] == "grpo,0,0,0.2"
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r3", "3", "0.50", "±", "0.25"] in [line[:5] for line in lines]
    # Three cells of two steps: groups, dead, met replay, ranking, left dead, rows replayed, reflections, solved.
    assert ["r3", "30", "24", "12", "6", "6", "12", "6", "6"] in lines
    assert (tmp_path / "ledger.csv").read_text().splitlines()[1] == "grpo,0,2,200,14,10,2,6,2,4,2,2,0,4,2,2,4,132,1,"
    assert {path.name for path in tmp_path.glob("*.png")} == {"dots.png", "curves.png"}


@pytest.fixture
def cells_without_python(monkeypatch):
    """Cells are what `cell_command` says, started by `env`."""
    monkeypatch.setattr(command, "shared_interpreter", lambda profile: nullcontext(("env", None)))


@pytest.fixture
def cells_of_nothing(cells_without_python, monkeypatch):
    """Cells that end at once and leave nothing."""
    monkeypatch.setattr(command, "cell_command", lambda *args: ["true"])


@pytest.mark.usefixtures("cells_without_python")
def test_cells_of_the_record_need_no_run_folder_and_are_not_trained_again(tmp_path, capsys, monkeypatch):
    arguments = ["--arms", "grpo", "--seeds", "0", "1", "2", "--tokens", "200", "--profile", "embedded"]
    plan = command.plan_of(command.parse(arguments), "embedded")
    (tmp_path / "study.json").write_text(json.dumps(plan))
    for seed in range(2):
        cell(tmp_path / "grpo" / f"seed_{seed}", (0.2, None, 1 / 3 + 0.1 * seed))
    command.main(["--summarise", "--out", str(tmp_path)])
    record = [(tmp_path / name).read_text() for name in ("curves.csv", "ledger.csv", "results.json")]
    shutil.rmtree(tmp_path / "grpo")
    command.main(["--summarise", "--out", str(tmp_path)])
    assert [(tmp_path / name).read_text() for name in ("curves.csv", "ledger.csv", "results.json")] == record

    trained = []

    def train(args, profile, arm, seed):
        trained.append((arm, seed))
        return ["true"]

    monkeypatch.setattr(command, "cell_command", train)
    assert command.main([*arguments, "--out", str(tmp_path)]) == 1, "it left no cell"
    assert trained == [("grpo", 2)] and "failed: grpo seed 2, see " in capsys.readouterr().out
    assert [(tmp_path / name).read_text() for name in ("curves.csv", "ledger.csv", "results.json")] == record


def test_a_record_of_another_version_is_summarised_as_well(tmp_path, capsys):
    (tmp_path / "study.json").write_text(json.dumps({"tokens": 100, "profile": "embedded", "overrides": []}))
    record = "arm,seed,generated_tokens,accuracy\ngrpo,0,0,0.2\ngrpo,0,100,0.4\nof_another_version,0,0,0.2\n"
    (tmp_path / "curves.csv").write_text(record)
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "curves.csv").read_text() == record, "nothing is lost"
    assert "ledger" not in json.loads((tmp_path / "results.json").read_text())["arms"]["grpo"]
    assert ["grpo", "1", "0.40", "0.30", "+0.00", "1.00"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def test_a_figure_shows_every_world_and_the_interval_of_those_that_reach_the_budget():
    curves = {
        "grpo": {0: straight(0.3), 1: straight(0.4), 2: straight(0.5)},
        "r3": {0: straight(0.5), 1: straight(0.6), 2: straight(0.8), 3: straight(0.9, budget=50.0)},
    }
    left, right = figure.dots(curves, 100).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["GRPO (3)", "R^3, all three (3)"]
    grpo, grpo_bar, grpo_mean, r3, *_ = [line.get_xdata().tolist() for line in left.lines]
    assert grpo == pytest.approx([0.3, 0.4, 0.5]) and r3 == pytest.approx([0.5, 0.6, 0.8])
    assert grpo_mean == pytest.approx([0.4])
    assert grpo_bar == pytest.approx([0.4 - 4.302653 * 0.1 / math.sqrt(3), 0.4 + 4.302653 * 0.1 / math.sqrt(3)])
    assert right.lines[0].get_xdata() == pytest.approx([0.2, 0.2, 0.3]), "paired by world"
    (lines,) = figure.means(curves, 100).axes
    assert [line.get_ydata()[-1] for line in lines.lines] == pytest.approx([0.4, 1.9 / 3])
    assert figure.dots({"grpo": curves["grpo"]}, 100) is None, "one arm is no comparison"


def test_a_figure_shows_each_contrast_with_both_intervals_its_bound_and_its_verdict():
    gain, half, *_ = read_design(PLANS / "worlds.yaml").hypotheses
    budgets, planned = {"main": 100}, {"main/grpo": (0, 1, 2), "main/r3": (0, 1, 2), "main/dapo": (0, 1, 2)}
    curves = {
        "main/grpo": {0: straight(0.3), 1: straight(0.4), 2: straight(0.5)},
        "main/r3": {0: straight(0.5), 1: straight(0.6), 2: straight(0.8)},
        "main/dapo": {0: straight(0.2), 1: straight(0.4)},
    }
    verdicts = judge((gain, half), curves, budgets, planned)
    rows = [(one, list(values_of(one, curves, budgets, planned).values()), verdicts[one.name]) for one in (gain, half)]
    (axes,) = figure.contrasts(rows).axes
    worlds, bar, mean, bound, thin, few, few_mean, few_bound = [line.get_xdata() for line in axes.lines]
    assert list(worlds) == pytest.approx([0.2, 0.2, 0.3]) and list(mean) == pytest.approx([0.7 / 3])
    half_width = math.sqrt(1 / 300) / math.sqrt(3)  # sample std of these
    assert list(bar) == pytest.approx([0.7 / 3 - 4.302653 * half_width, 0.7 / 3 + 4.302653 * half_width])
    t_corrected = 6.205347  # 98.75 % point of t with 2 degrees of freedom: the first of two
    assert list(thin) == pytest.approx([0.7 / 3 - t_corrected * half_width, 0.7 / 3 + t_corrected * half_width])
    assert list(bound) == list(few_bound) == [0, 0]
    assert list(few) == pytest.approx([0.3, 0.2]), "two worlds are dots without an interval"
    assert [text.get_text() for text in axes.texts] == ["held\n3 of 3 worlds", "2 worlds"]


def test_a_table_shows_what_hangs_on_one_world():
    design = read_design(PLANS / "worlds.yaml")
    ends = {"main/grpo": (0.3, 0.4, 0.5), "main/r3": (0.25, 0.45, 0.8)}
    curves = {
        arm: {13 + place: straight(end, budget=60_000) for place, end in enumerate(of)} for arm, of in ends.items()
    }
    found = judge(design.hypotheses, curves, design.budgets, design.worlds)
    assert found["gain"].values == {13: pytest.approx(-0.05), 14: pytest.approx(0.05), 15: pytest.approx(0.3)}
    assert (
        "| R^3 ends above GRPO | 13: -0.05, 14: +0.05, 15: +0.30 | +0.100 | +0.050 | +0.000 to +0.175 |"
        in text.world_table(design, found)
    )


RESULTS = ROOT / "examples" / "results"
LOOKS = sorted(str(path.parent.relative_to(RESULTS)) for path in RESULTS.glob("rescue/*/study.json"))
PLANS = ROOT / "examples" / "studies"
PLANNED = sorted(path.stem for path in PLANS.glob("*.yaml") if (RESULTS / path.stem / "results.md").exists())


@pytest.mark.parametrize("name", LOOKS)
def test_the_committed_record_gives_the_committed_results(name, tmp_path, capsys):
    """What the texts say of a study must follow from the files beside it, on any machine."""
    out = tmp_path / name
    shutil.copytree(RESULTS / name, out)
    (out / "results.json").unlink()
    assert command.main(["--summarise", "--out", str(out)]) == 0
    for file in ("results.json", "curves.csv", "ledger.csv"):
        assert (out / file).read_text() == (RESULTS / name / file).read_text(), file


@pytest.mark.parametrize("name", PLANNED)
def test_the_committed_record_gives_the_committed_verdicts(name, tmp_path, capsys):
    out, plan = tmp_path / name, PLANS / f"{name}.yaml"
    shutil.copytree(RESULTS / name, out)
    made = [
        path.relative_to(out) for path in out.rglob("*") if path.name in ("results.json", "results.md", "verdicts.json")
    ]
    for file in made:
        (out / file).unlink()
    assert command.main(["--plan", str(plan), "--summarise", "--out", str(out)]) == 0
    for file in made:
        assert (out / file).read_text() == (RESULTS / name / file).read_text(), file


def share_all_wrong(cells):
    return share(cells, "groups_all_wrong", of="groups_total")


def share(cells, column, of):
    """Of the sums over the cells of an arm."""
    return sum(cell[column] for cell in cells.values()) / sum(cell[of] for cell in cells.values())


def percent(value):
    return f"{value * 100:.0f} %"


class Worlds:
    """The record of the study, and what the texts beside it say."""

    def __init__(self):
        self.design = read_design(PLANS / "worlds.yaml")
        self.curves = command.recorded_curves(RESULTS / "worlds", self.design)
        self.told = " ".join((RESULTS / "worlds" / "README.md").read_text().split())
        self.found = json.loads((RESULTS / "worlds" / "verdicts.json").read_text())

    def contrast(self, weights):
        """The worlds that have it, and it in each, at the end."""
        gain = next(hypothesis for hypothesis in self.design.hypotheses if hypothesis.name == "gain")
        asked = dataclasses.replace(gain, contrast=weights)
        values = values_of(asked, self.curves, self.design.budgets, self.design.worlds)
        return list(values), np.array(list(values.values()))

    def ends(self, arm):
        return {world: outcome.accuracy_at(curve, 60_000) for world, curve in self.curves[arm].items()}

    def gains(self, folder="main", arm="r3", to="grpo"):
        return self.contrast({f"{folder}/{arm}": 1, f"{folder}/{to}": -1})

    def interval(self, name, kind=""):
        return f"{self.found[name][kind + 'low']:+.2f} to {self.found[name][kind + 'high']:+.2f}"

    def error_of_interactions(self):
        """In a world, and its degrees of freedom: a main effect has the same error where the interactions are none."""
        main_effects = [one.contrast for one in self.design.hypotheses if one.name.startswith("effect_of_")]
        interactions = [
            self.contrast({arm: 0.25 * math.prod(np.sign(effect[arm]) for effect in among) for arm in among[0]})[1]
            for number in (2, 3)
            for among in itertools.combinations(main_effects, number)
        ]
        return math.sqrt(np.square(interactions).mean()), np.size(interactions)

    def interval_by_interactions(self, name, level):
        error, df = self.error_of_interactions()
        half = stats.t.ppf(1 - level / 2, df) * error / math.sqrt(self.found[name]["worlds"])
        return f"{self.found[name]['estimate'] - half:+.2f} to {self.found[name]['estimate'] + half:+.2f}"

    def with_interval(self, name):
        return f"{self.found[name]['estimate']:+.2f} ({self.interval(name)})"


@pytest.fixture(scope="module")
def worlds():
    return Worlds()


def said(values):
    return ", ".join(f"{value:+.2f}" for value in values)


def t_interval(values, level=LEVEL):
    return "{:+.2f} to {:+.2f}".format(*interval(np.asarray(values), level))


NUMBERS = dict(enumerate(("three", "four", "five", "six"), 3))


def test_the_texts_say_what_became_of_the_aims(worlds):
    found, told, of = worlds.found, worlds.told, worlds.interval
    cells = [
        sum(len(one.arms) * len(one.seeds) for one in worlds.design.experiments if one.tuned == tuned)
        for tuned in (False, True)
    ]
    assert "Every cell is there: {} of the tuning, {} of the comparison.".format(*cells) in told
    there = {
        f"{one.folder}/{arm}": set(one.seeds) - set(worlds.curves[f"{one.folder}/{arm}"])
        for one in worlds.design.experiments
        for arm in one.arms
    }
    assert not any(there.values())
    gain = f"{found['gain']['estimate']:.2f} above GRPO ({of('gain')}, corrected {of('gain', 'corrected_')})"
    seeds, values = worlds.gains()
    assert f"R^3 ends {gain}: not decided; in the median world {np.median(values):.2f}." in told
    average, half = (found[name]["estimate"] for name in ("gain_on_average", "half_the_tokens"))
    assert f"over the budget it is {average:.2f} above ({of('gain_on_average')})" in told
    assert f"the tokens {-half:.2f} below where GRPO ends ({of('half_the_tokens')})" in told
    assert f"It ends {found['gain_on_dapo']['estimate']:.2f} above DAPO ({of('gain_on_dapo')})" in told
    without = []
    for to in ("grpo", "dapo"):
        values_by_world = dict(zip(*worlds.gains(to=to), strict=True))
        largest = sorted(sorted(values_by_world, key=values_by_world.get)[-4:])
        without += [", ".join(map(str, largest)), np.mean([values_by_world[w] for w in seeds if w not in largest])]
    assert "without the four largest ({}) R^3 is {:+.2f} to GRPO, without {} {:+.2f} to DAPO.".format(*without) in told
    assert seeds == list(range(13, 25))
    halves = values[:6].mean(), values[6:].mean()
    assert "In worlds 13 to 18 it is {:+.2f} to GRPO, in 19 to 24 {:+.2f}.".format(*halves) in told


def test_the_texts_say_what_tuning_and_looks_gave(worlds):
    picked = choices(worlds.design, worlds.curves)
    assert {arm: of.name for arm, of in picked.items() if of.name != "tuning_4e-4"} == {"r3_paper": "tuning_2e-4"}
    assert "all but `r3_paper` (2e-4) keep 4e-4" in worlds.told
    tuned = [
        {
            arm: np.mean([of(curve, 60_000) for curve in worlds.curves[f"tuning_4e-4/{arm}"].values()])
            for arm in ("r3", "grpo")
        }
        for of in (outcome.accuracy_at, outcome.mean_accuracy)
    ]
    ends = tuned[0]["grpo"] - tuned[0]["r3"], tuned[1]["r3"] - tuned[1]["grpo"]
    assert "R^3 ends {:.2f} below GRPO in the tuning worlds and is {:.2f} above it".format(*ends) in worlds.told

    def ends_of(folder, arm):
        cells = record.read_curves(RESULTS / folder)[arm]
        return {seed: outcome.accuracy_at(curve, 60_000) for seed, curve in cells.items()}

    looks, of_none = (ends_of(f"rescue/same_step{kind}", "r3") for kind in ("", "_mistaken_0"))
    grpo = ends_of("worlds_b07baa2/main", "grpo") | ends_of("worlds/tuning_4e-4", "grpo")
    gains = [looks[seed] - grpo[seed] for seed in (1, 2, 100, 101)]
    neutral = ends_of("worlds_b07baa2/mistaken_0", "grpo")
    gains += [of_none[seed] - neutral[seed] for seed in (1, 2)]
    differences = "in default worlds {:+.2f}, {:+.2f}, {:+.2f} and {:+.2f} of Pass@1, "
    differences += "where nothing is mistaken {:+.2f} and {:+.2f}"
    assert differences.format(*gains) in worlds.told and sum(gain > 0 for gain in gains) == 4
    again = ends_of("worlds/tuning_4e-4", "r3")[100]
    assert f"100 had given {looks[100]:.2f}; its cell of the tuning gave {again:.2f}." in worlds.told


def test_the_texts_say_what_the_other_baselines_do(worlds):
    found, told, of = worlds.found, worlds.told, worlds.interval
    live, passes, paper = (found[name] for name in ("gain_on_live", "gain_on_2pass", "repairs"))
    assert {one["verdict"] for one in (live, passes, paper)} == {"not decided"} and paper["worlds"] == 6
    assert f"R^3 ends {live['estimate']:.2f} ({of('gain_on_live')}) above GRPO that leaves groups of equal" in told
    assert f"and {passes['estimate']:.2f} ({of('gain_on_2pass')}) above GRPO with two passes" in told
    without_17 = [np.mean([one["values"][world] for world in one["values"] if world != "17"]) for one in (live, passes)]
    assert "without world 17 that is {:.2f} and {:.2f}.".format(*without_17) in told
    corrected = f"{paper['estimate']:.2f} ({of('repairs')}, corrected {of('repairs', 'corrected_')})"
    assert f"It ends {corrected} above `r3_paper`, in each of the six;" in told and min(paper["values"].values()) > 0
    _, values = worlds.gains(arm="r3_paper")
    _, to_none = worlds.gains(arm="r3_paper", to="none")
    of_paper = f"{values.mean():+.2f} ({t_interval(values)}), and is {to_none.mean():+.2f} to R^3 with all three off"
    assert f"`r3_paper` is not told apart from GRPO, {of_paper}" in told
    cells = record.read_ledger(RESULTS / "worlds" / "main")["r3_paper"]
    reflected = percent(share(cells, "reflection_tokens", of="generated_tokens"))
    assert f"it generates {reflected} of its tokens under reflection" in told


def test_the_texts_say_what_the_factorial_shows(worlds):
    found, told, of = worlds.found, worlds.told, worlds.interval
    isr, ccr, serr = (found[f"effect_of_{name}"] for name in ("isr", "ccr", "serr"))
    assert [one["verdict"] for one in (isr, ccr, serr)] == ["held", "not decided", "not held"]
    assert f"it adds {isr['estimate']:.2f} ({of('effect_of_isr')}, corrected" in told
    assert f"corrected {of('effect_of_isr', 'corrected_')}), and in no world less than nothing" in told
    of_isr = list(isr["values"].values())
    assert min(of_isr) > 0 and f"standard deviation {np.std(of_isr, ddof=1):.2f})" in told
    error, df = worlds.error_of_interactions()
    assert f"as the error ({error:.2f} in a world, {df} degrees of freedom)" in told
    wide = [worlds.interval_by_interactions("effect_of_isr", level) for level in (LEVEL, LEVEL / 4)]
    assert "it is {}, corrected {}: by that error".format(*wide) in told
    assert f"Replay adds {ccr['estimate']:.2f} ({of('effect_of_ccr')}), not decided" in told
    needs = found["ccr_needs_isr"]
    assert f"with reflection no surer than without ({needs['estimate']:+.2f}, {of('ccr_needs_isr')})" in told
    assert needs["verdict"] == "not decided"
    assert f"Ranking adds {serr['estimate']:+.2f} ({of('effect_of_serr')}) and is not held" in told
    low, high = interval(np.array(list(serr["values"].values())), LEVEL / 4)
    assert low < 0 < 0.05 < high, "not decided at a fourth of the level"
    ranking, literal = found["ranking_helps"], found["literal_ranking_helps"]
    said_of_it = f"it adds {ranking['estimate']:.2f} ({of('ranking_helps')}) in six worlds, taken literally"
    assert f"{said_of_it} {literal['estimate']:.2f} ({of('literal_ranking_helps')}): not decided" in told
    assert ranking["worlds"] == 6 and {one["verdict"] for one in (ranking, literal)} == {"not decided"}


def test_the_texts_say_what_a_mechanism_does_alone_and_beside_the_others(worlds):
    _, values = worlds.gains(to="none")
    assert values.min() > 0 and len(values) == 6
    assert f"in each of the six: {said(values)}, mean {values.mean():.2f} ({t_interval(values)})" in worlds.told
    alone = [worlds.gains(arm=arm, to="none")[1] for arm in arms.MECHANISMS]
    each = [f"{values.mean():+.2f} ({t_interval(values)})" for values in alone]
    assert "none gains on it, and ranking loses: replay {}, reflection {}, ranking {}.".format(*each) in worlds.told
    beside = [worlds.gains(to=f"no_{arm}")[1] for arm in arms.MECHANISMS]
    assert alone[2].max() < 0 and "it ended below all three off in each of six" in worlds.told
    ranking = worlds.interval("effect_of_serr")
    assert f"it adds {ranking} over the others on and off, and alone it ended" in worlds.told
    each = [f"{values.mean():+.2f} ({t_interval(values)})" for values in beside]
    assert "Added to the other two they are {}, {} and {}.".format(*each) in worlds.told


def test_the_texts_say_which_part_of_a_rescue_works(worlds):
    names = ("fresh_rows_are_not_needed", "its_own_step_is_needed", "training_is_needed")
    told_of = [worlds.with_interval(name) for name in (*names, "failures_are_needed", "successes_are_needed")]
    parts = (
        "R^3 ends {} above R^3 that trains every row of a rescued group, {} above R^3 that replays what reflection "
        "finds from the next epoch on, and {} above R^3 whose replayed rows enter mean and std only. Where every row "
        "trains, failures and successes end {} above successes and {} above failures:"
    )
    assert parts.format(*told_of) in worlds.told
    verdicts = [worlds.found[name]["verdict"] for name in (*names, "failures_are_needed", "successes_are_needed")]
    assert verdicts == ["not decided"] * 5
    content = worlds.found["content_is_needed"]
    of_it = f"{worlds.interval('content_is_needed')}, corrected {worlds.interval('content_is_needed', 'corrected_')}"
    assert f"own answers ends {content['estimate']:+.2f} ({of_it}) above that of others' answers: held." in worlds.told
    assert content["verdict"] == "held" and min(content["values"].values()) > 0
    end = np.mean([*worlds.ends("main/wrong_content").values()])
    cells_of = record.read_ledger(RESULTS / "worlds" / "main")
    rescued = percent(share(cells_of["wrong_content"], "groups_rescued_by_replay", of="groups_all_wrong"))
    own = percent(share(cells_of["ccr"], "groups_rescued_by_replay", of="groups_all_wrong"))
    to_none = worlds.gains(arm="ccr", to="none")[1].mean()
    assert f"own answers rescue {own} and end {to_none:+.2f} to R^3 with all three off" in worlds.told
    began = np.mean([accuracies[0] for _, accuracies in worlds.curves["main/wrong_content"].values()])
    ends = f"Those end at {end:.2f}, where they began at {began:.2f}, with {rescued} of their all-wrong groups rescued"
    assert ends in worlds.told
    recipe = " ".join((ROOT / "recipe" / "r3" / "README.md").read_text().split())
    same = "ends {} above training every row, {} above replay from the next epoch on, {} above replayed rows that enter"
    assert same.format(*told_of) in recipe and f"replaying failures, too, is {told_of[3]} to right" in recipe
    assert f"end {content['estimate']:.2f} ({worlds.interval('content_is_needed')}) below a problem's own" in recipe


def test_the_texts_say_where_it_helps(worlds):
    found, told, of = worlds.found, worlds.told, worlds.interval
    many, none, worthless = (
        found[name] for name in ("gain_with_many_mistakes", "little_without_mistakes", "little_without_reflection")
    )
    assert [one["verdict"] for one in (many, none, worthless)] == ["held", "not decided", "held"]
    assert min(many["values"].values()) > 0 and {one["worlds"] for one in (many, none, worthless)} == {6}
    held = of("gain_with_many_mistakes"), of("gain_with_many_mistakes", "corrected_")
    each = f"{many['estimate']:+.2f} (six worlds, above GRPO in each)"
    assert f"R^3 is {each}: held, {held[0]}, corrected {held[1]}." in told
    r3, grpo = (worlds.curves[f"mistaken_0.4/{arm}"].values() for arm in ("r3", "grpo"))
    gaps = {
        tokens: np.mean([outcome.accuracy_at(curve, tokens) for curve in r3])
        - np.mean([outcome.accuracy_at(curve, tokens) for curve in grpo])
        for tokens in range(10_000, 70_000, 10_000)
    }
    assert max(gaps, key=gaps.get) == 40_000 and f"and 40,000 tokens show more ({gaps[40_000]:+.2f}) than 60,0" in told
    assert f"it is {none['estimate']:+.2f} (six; {of('little_without_mistakes')}): whether that" in told
    ends = [outcome.accuracy_at(curve, 60_000) for curve in worlds.curves["mistaken_0/grpo"].values()]
    assert f"GRPO reaches {np.mean(ends):.2f} there" in told
    below = sum(value < 0 for value in worthless["values"].values())
    of_it = f"(six; {of('little_without_reflection')}; below GRPO in {below})"
    assert f"it is {worthless['estimate']:+.2f} {of_it}, less than 0.1: held." in told
    ledgers = {
        kind: record.read_ledger(RESULTS / "worlds" / kind)
        for kind in ("main", "mistaken_0.4", "mistaken_0", "reflection_0")
    }
    asked_of = {
        kind: tuple(sum(cell[f"reflection_{name}"] for cell in ledger["r3"].values()) for name in ("solved", "prompts"))
        for kind, ledger in ledgers.items()
    }
    assert "made to undo mistakes ({} of {} solved)".format(*asked_of["mistaken_0.4"]) in told
    cells, (solved, asked) = ledgers["reflection_0"]["r3"], asked_of["reflection_0"]
    taken = percent(share(cells, "reflection_tokens", of="generated_tokens"))
    assert f"takes {taken} of its tokens and solves {solved} of {asked} problems" in told
    more = [found[f"{name}_the_source"] for name in ("mistakes_are", "reflection_is")]
    assert {one["verdict"] for one in more} == {"not decided"}
    assert f"with 0.4 mistaken than with none ({more[0]['estimate']:+.2f})" in told
    assert f"worth everything than nothing ({more[1]['estimate']:+.2f}) is not decided" in told

    shares = {kind: percent(share_all_wrong(ledger["grpo"])) for kind, ledger in ledgers.items()}
    assert f"groups {shares['mistaken_0.4']} are all wrong with 0.4 mistaken, {shares['main']} in default" in told
    assert f"{shares['mistaken_0']} with none; but {shares['reflection_0']} where reflection is worth nothing" in told
    of_worlds = np.array([share_all_wrong({world: cell}) for world, cell in ledgers["main"]["grpo"].items()])
    (seeds, gains), (again, to_none) = worlds.gains(), worlds.gains(to="none")
    assert [*ledgers["main"]["grpo"]] == seeds and seeds[:6] == again
    of_none = np.array([share_all_wrong({world: cell}) for world, cell in ledgers["main"]["none"].items()])
    pairs = ((of_worlds, gains), (of_worlds[:6], gains[:6]), (of_worlds[:6], to_none), (of_none, to_none))
    correlations = "(r = {:.2f}; in the first six {:.2f}), not surely with that over R^3 with all three off ({:.2f}, "
    correlations += "by the share of that arm {:+.2f})"
    assert correlations.format(*(np.corrcoef(*pair)[0, 1] for pair in pairs)) in told
    assert len(again) == 6


def test_the_texts_say_why_and_what_it_costs(worlds):
    of_grpo, of_r3 = (record.read_ledger(RESULTS / "worlds" / "main")[arm] for arm in ("grpo", "r3"))
    all_right = percent(share(of_grpo, "groups_all_correct", of="groups_total"))
    assert f"groups {all_right} are all right, and R^3 leaves such alone" in worlds.told
    rescued = percent(1 - share(of_r3, "groups_still_wrong", of="groups_all_wrong"))
    all_wrong = percent(share_all_wrong(of_r3))
    assert f"of R^3's own {all_wrong} are all wrong, and it rescues {rescued} of these" in worlds.told
    reflected = percent(share(of_r3, "reflection_tokens", of="generated_tokens"))
    updates = [np.mean([cell["updates"] for cell in cells.values()]) for cells in (of_r3, of_grpo)]
    assert (
        "{} of its tokens go to reflection, so that it has {:.0f} updates where GRPO has {:.0f}".format(
            reflected, *updates
        )
        in worlds.told
    )
    apart = {
        arm: [
            np.diff(tokens)[np.searchsorted(tokens, 60_000) - 1] for tokens, _ in worlds.curves[f"main/{arm}"].values()
        ]
        for arm in ("grpo", "r3", "dapo", "r3_paper")
    }
    means = {arm: np.mean(values) for arm, values in apart.items()}
    assert all(11_500 < means[arm] < 13_000 for arm in ("grpo", "r3")), "12,000 to 13,000"
    assert all(16_000 < means[arm] < 17_000 for arm in ("dapo", "r3_paper"))
    assert f"at most {max(apart['dapo']):,.0f} (DAPO)" in worlds.told and max(map(max, apart.values())) == max(
        apart["dapo"]
    )


def test_the_texts_say_what_longer_training_shows(worlds):
    found, told = worlds.found["plateau"], worlds.told
    assert found["verdict"] == "not decided" and sum(value > 0 for value in found["values"].values()) == 3
    assert (
        f"ends {found['estimate']:.2f} above GRPO ({worlds.interval('plateau')}): not decided, above in three" in told
    )
    arms = {arm: worlds.curves[f"plateau/{arm}"].values() for arm in ("grpo", "r3")}
    at = {
        tokens: {arm: np.mean([outcome.accuracy_at(curve, tokens) for curve in cells]) for arm, cells in arms.items()}
        for tokens in (60_000, 90_000, 180_000)
    }
    ends = [at[tokens][arm] for arm in arms for tokens in (90_000, 180_000)]
    assert "GRPO has {:.2f} at 90,000 tokens and {:.2f} at the end, R^3 {:.2f} and {:.2f}:".format(*ends) in told
    _, main = worlds.gains()
    differences = at[60_000]["r3"] - at[60_000]["grpo"], main[:4].mean()
    assert "these cells differ by {:+.2f}, those of the main comparison in the same four".format(*differences) in told
    assert "worlds by {1:+.2f}.".format(*differences) in told
    speedup = json.loads((RESULTS / "worlds/plateau/results.json").read_text())["arms"]["r3"]["speedup"]["mean"]
    assert f"speed-up of {speedup:.1f} in results.md" in told
    assert all(accuracies.max() > accuracies[-1] for _, accuracies in arms["grpo"])


def test_the_texts_say_how_much_is_chance(worlds):
    told = worlds.told
    again, by_chance = worlds.gains(arm="none")
    assert again == list(range(13, 19)) and f"It ends {said(by_chance)} above GRPO's cells of worlds 13 to 18" in told
    (_, at_13), (_, at_17) = (worlds.curves["main/grpo"][world] for world in (13, 17))
    assert f"from {at_13[0]:.2f} to {at_13.max():.2f} and lost it again" in told and at_13[-1] < 0.3
    assert f"those of validation ({at_17[0]:.2f} to {at_17[-1]:.2f})" in told
    alike = ("grpo", "grpo_live", "none", "grpo_2pass")
    ends = [np.mean([worlds.ends(f"main/{arm}")[world] for world in again]) for arm in alike]
    four = (
        "GRPO ends at {:.2f}, and three arms that are GRPO or nearly so at {:.2f} (groups of equal rewards left out), "
    )
    four += "{:.2f} (R^3 with all three off) and {:.2f} (two passes)"
    assert four.format(*ends) in told and min(ends) == ends[0]
    methods = {"r3": ("main/r3", "plateau/r3"), "grpo": ("main/grpo", "main/none", "plateau/grpo")}
    cells = {
        method: {world: [worlds.ends(arm)[world] for arm in of if world in worlds.ends(arm)] for world in range(13, 25)}
        for method, of in methods.items()
    }
    of_all = np.array([np.mean(cells["r3"][world]) - np.mean(cells["grpo"][world]) for world in range(13, 25)])
    assert f"R^3 is {of_all.mean():+.2f} ({t_interval(of_all)}) above GRPO." in told
    together = [ends for by_world in cells.values() for ends in by_world.values()]
    df = sum(len(ends) - 1 for ends in together)
    of_a_run = math.sqrt(sum(np.var(ends) * len(ends) for ends in together) / df)
    seeds, values = worlds.gains()
    spread = np.std(values, ddof=1)
    assert f"have a standard deviation of {of_a_run:.2f} ({df} degrees of freedom), differences of two then " in told
    of_two = f"{of_a_run * math.sqrt(2):.2f}; the difference of R^3 and GRPO has a standard deviation of {spread:.2f}"
    assert of_two in told

    def found_in(effect, worlds):
        away, edge = effect * math.sqrt(worlds) / spread, stats.t.ppf(0.975, worlds - 1)
        return stats.nct.sf(edge, worlds - 1, away) + stats.nct.cdf(-edge, worlds - 1, away)

    assert "Twelve worlds find an effect of 0.16 four times of five, six one of 0.25" in told
    assert found_in(0.16, 12) == pytest.approx(0.8, abs=0.02) and found_in(0.25, 6) == pytest.approx(0.8, abs=0.02)


def test_the_readme_says_what_the_study_found(worlds):
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"In {worlds.found['gain']['worlds']} worlds of" in readme
    both = f"{worlds.with_interval('gain')} above GRPO and {worlds.with_interval('gain_on_dapo')} above DAPO"
    assert both in readme
    effects = [worlds.with_interval(f"effect_of_{name}") for name in ("isr", "ccr", "serr")]
    wide = f"{effects[0][:-1]}; with a wider error {worlds.interval_by_interactions('effect_of_isr', LEVEL)})"
    assert f"reflection adds {wide}, replay {effects[1]}, ranking {effects[2]}" in readme
    kinds = ("gain_with_many_mistakes", "little_without_mistakes", "little_without_reflection")
    dose = [worlds.with_interval(name) for name in kinds]
    assert "it is {} above GRPO; with none {}; where reflection is worth nothing {}".format(*dose) in readme


@pytest.mark.usefixtures("cells_without_python")
def test_a_killed_cell_does_not_end_the_study(tmp_path, capsys, monkeypatch):
    def train(args, profile, arm, seed):
        cell(tmp_path / "whole", (0.2, None, 0.5))
        folder = tmp_path / arm / f"seed_{seed}"
        copy = f"mkdir -p {folder}; cp {tmp_path}/whole/metrics.jsonl {folder}/; rm -r {tmp_path}/whole"
        return ["sh", "-c", f"{copy}; kill -9 $$"]

    monkeypatch.setattr(command, "cell_command", train)
    arguments = ["--arms", "grpo", "--seeds", "0", "1", "--tokens", "200", "--profile", "embedded"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "seed 1  was killed" in out and "failed: grpo seed 1" in out


@pytest.mark.usefixtures("cells_without_python")
def test_sigterm_ends_the_study_with_its_cell_and_the_next_call_goes_on_with_it(tmp_path, capsys, monkeypatch):
    """The stand-in of a run keeps a record of its starts, and ends on SIGTERM as `r3 run` does."""
    folder = tmp_path / "grpo" / "seed_0"
    waits = "trap 'exit 75' TERM; while :; do sleep 0.1; done"
    monkeypatch.setattr(command, "cell_command", lambda *cell: ["sh", "-c", f"touch {tmp_path}/began; {waits}"])

    def terminate():
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        run_folder.append(a_run(folder), "end", seconds=1.0, exit_code=75)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    assert command.main([*GRPO, "--out", str(tmp_path)]) == 75
    assert "grpo seed 0 was saved on SIGTERM: call the same command again" in capsys.readouterr().out
    assert command.goes_on(folder)
    run_folder.append(folder, "start", folder=str(folder), files={}, arguments=ARGUMENTS)
    run_folder.append(folder, "end", seconds=1.0, exit_code=1)
    assert not command.goes_on(folder), "a failed cell starts anew"


def test_the_names_of_the_arms_stand_apart_from_what_is_said_of_them(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--help"])
    told = capsys.readouterr().out
    for arm in arms.ARMS:
        assert f"  {arm} " in told and command.describe(arm, 0, tmp_path).startswith(f"{arm} ")


def test_dapo_updates_as_often_as_the_others_on_the_embedded_profile_only():
    args = command.parse(["--tokens", "200"])

    def batches(arm: str, profile: str) -> list[str]:
        return [part for part in command.cell_command(args, profile, arm, 0) if "batch_size" in part]

    assert batches("dapo", "embedded") == ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    assert batches("r3", "embedded") == batches("dapo", "gpu_8x80gb") == []


GRPO = ["--arms", "grpo", "--seeds", "0", "--tokens", "200", "--profile", "embedded"]


ARGUMENTS = {"options": {}, "sources": {}, "overrides": []}


def a_run(folder):
    folder.mkdir(parents=True)
    run_folder.append(folder, "start", folder=str(folder), files={}, arguments=ARGUMENTS)
    return folder


@pytest.mark.usefixtures("cells_of_nothing")
@pytest.mark.parametrize("name", ["results.json", "grpo/run_0.log", "grpo/seed_0/starts.jsonl"])
def test_a_folder_of_others_stays_as_it_is(name, tmp_path, capsys):
    a_run(tmp_path / "grpo" / "seed_0")
    with open(tmp_path / name, "a") as file:
        file.write(" ")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert command.main([*GRPO, "--out", str(tmp_path)]) == 2
    assert "and no study, and stays as it is; take another --out" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("cells_of_nothing")
@pytest.mark.parametrize("is_training", [True, False])
def test_a_cell_that_another_study_trains_is_left_alone(is_training, tmp_path, capsys):
    command.check_plan(tmp_path, command.plan_of(command.parse(GRPO), "embedded"))
    folder, said = a_run(tmp_path / "grpo" / "seed_0"), tmp_path / "grpo" / "run_0.log"
    said.write_text("of the other")
    with run_folder.held(folder) if is_training else nullcontext():
        assert command.main([*GRPO, "--out", str(tmp_path)]) == 1
    assert folder.exists() == is_training == (said.read_text() == "of the other")
    assert ("is in use" in capsys.readouterr().out) == is_training


def test_cells_of_other_data_do_not_join_a_study_and_those_of_moved_data_do(tmp_path, monkeypatch):
    args = command.parse([])
    monkeypatch.chdir(tmp_path)
    files = {name: tmp_path / f"{name}.json" for name in ("DATA", "VAL_DATA")} | {"MODEL": tmp_path / "m/config.json"}
    (tmp_path / "m").mkdir()
    without = command.plan_of(args, "embedded")
    assert not {*files} & {*without}, "an older study goes on"
    for name, file in files.items():
        file.write_text("[]")
        monkeypatch.setenv(name, str((file.parent if name == "MODEL" else file).relative_to(tmp_path)))
    with_all = command.plan_of(args, "embedded")
    assert with_all["DATA"]["path"] == str(files["DATA"]) and with_all["MODEL"]["path"] == str(tmp_path / "m")
    command.check_plan(tmp_path / "out", with_all)
    with pytest.raises(ValueError, match="holds a study of other cells, DATA .*; VAL_DATA .*; MODEL .*, here None"):
        command.check_plan(tmp_path / "out", without)
    for name, file in files.items():
        file.write_text("[1]")
        with pytest.raises(ValueError, match=f"other cells, {name} [^;]*; take another --out"):
            command.check_plan(tmp_path / "out", command.plan_of(args, "embedded"))
        file.write_text("[]")
    monkeypatch.setenv("DATA", str(files["DATA"].rename(tmp_path / "moved.json")))
    command.check_plan(tmp_path / "out", command.plan_of(args, "embedded"))


@pytest.mark.usefixtures("cells_of_nothing")
@pytest.mark.parametrize("name", ["DATA", "VAL_DATA", "MODEL"])
def test_what_a_cell_could_not_read_is_refused_before_the_plan_is_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(name, "/nowhere.parquet")
    assert command.main([*GRPO, "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]) == 2
    assert "/nowhere.parquet: no such" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_another_plan_in_the_same_folder_is_refused(tmp_path):
    plan = command.plan_of(command.parse(["--tokens", "10"]), "embedded")
    command.check_plan(tmp_path, plan)
    command.check_plan(tmp_path, plan)
    with pytest.raises(ValueError, match="holds a study of other cells, tokens 10, here 20; take another --out"):
        command.check_plan(tmp_path, {**plan, "tokens": 20})


@pytest.mark.parametrize("changed", [(arms, "EMBEDDED", ()), (warm_start, "VERSION", 0)])
def test_cells_with_other_settings_or_another_tiny_model_do_not_join_a_study(tmp_path, monkeypatch, changed):
    args = command.parse([])
    command.check_plan(tmp_path, command.plan_of(args, "embedded"))
    on_gpus = command.plan_of(args, "gpu_8x80gb")
    monkeypatch.setattr(*changed)
    with pytest.raises(ValueError, match="take another --out"):
        command.check_plan(tmp_path, command.plan_of(args, "embedded"))
    assert command.plan_of(args, "gpu_8x80gb") == on_gpus


def test_a_seed_is_a_world_where_problems_are_generated(monkeypatch):
    def world(profile, *options):
        told = command.cell_command(command.parse([*options]), profile, "r3", 7)
        return told[told.index("--world") + 1] if "--world" in told else None

    for name in ("DATA", "MODEL"):
        monkeypatch.delenv(name, raising=False)
    assert world("embedded") == "seed=7" and world("gpu_8x80gb") is None
    assert world("embedded", "--world", "mistaken=0") == "mistaken=0,seed=7"
    assert world("embedded", "actor_rollout_ref.model.path=/m") is None
    monkeypatch.setenv("MODEL", "/m")
    assert world("embedded") is None


def test_two_arms_that_are_alike_have_a_speedup_interval_that_goes_below_one():
    rng = np.random.default_rng(3)
    pairs = [(straight(a), straight(b)) for a, b in zip(*rng.normal(0.6, 0.05, (2, 12)), strict=True)]
    found = outcome.speedup(pairs, 100)
    assert found["low"] < 1 < found["high"]
    same = outcome.speedup([(straight(0.6), straight(0.6))] * 3, 100)
    assert same == {key: pytest.approx(1.0, rel=0.01) for key in ("mean", "low", "high")}


def test_worlds_with_other_properties_are_another_study():
    plain, other = command.parse([]), command.parse(["--world", "mistaken=0"])
    assert command.plan_of(other, "embedded") == command.plan_of(plain, "embedded") | {"world": "mistaken=0"}


@pytest.mark.parametrize("profile,data", [("gpu_8x80gb", None), ("embedded", "train.parquet")])
def test_a_world_is_refused_where_nothing_is_generated(profile, data, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DATA", raising=False)
    if data:
        monkeypatch.setenv("DATA", data)
    for main, folder in ((launch.main, "--outputs"), (command.main, "--out")):
        assert main(["--world", "stuck=0", "--profile", profile, folder, str(tmp_path)]) == 2
        assert "error: --world concerns the problems" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_run_ends_at_the_first_validation_behind_its_budget(tmp_path):
    class Display:
        def row(self, row):
            pass

    file = launch.MetricsFile(tmp_path, 0, Display(), until_tokens=150)
    logged = [{"step": row.pop("step"), "data": row} for row in rows(0.2, 0.3, None, 0.4)]
    for number, line in enumerate(logged):
        with open(file.source, "a") as source:
            source.write(json.dumps(line) + "\n")
        if number < 3:  # 100 tokens with, 200 tokens without a validation
            file.poll()
    with pytest.raises(launch.BudgetSpent):
        file.poll()
    assert [row["step"] for row in map(json.loads, file.target.read_text().splitlines())] == [0, 1, 2, 3]
