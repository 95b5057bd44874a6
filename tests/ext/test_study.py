"""`r3 study`: figures at equal tokens by hand, arms that differ where they mean to, cells that are complete or not."""

import functools
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from omegaconf import OmegaConf

from r3_ext.record import folder as run_folder
from r3_ext.record.metrics_file import BudgetSpent, MetricsFile
from r3_ext.record.summary import summarise
from r3_ext.run import command as launch
from r3_ext.settings.compose import ROOT, compose_config
from r3_ext.study import arms, cells, command, figure, outcome, text
from r3_ext.study.design import read_design
from r3_ext.study.hypotheses import judge, values_of
from r3_ext.tiny import warm_start

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
    assert "speedup" not in found["grpo"], "to itself it says nothing"
    assert found["dapo"]["speedup"]["mean"] == 0, "it never gets there"
    assert "low" not in found["r3"]["speedup"], "of three pairs an end is one pair drawn many times"
    flat = outcome.compare({"grpo": {0: straight(0.1)}, "r3": curves["r3"]}, 100)["r3"]
    assert math.isnan(flat["speedup"]["mean"]), "what gains nothing cannot be reached sooner"
    alone = outcome.compare({"r3": curves["r3"]}, 100)["r3"]
    assert "speedup" not in alone and alone["difference"].keys() == {"r3"}, "nothing is made up without a baseline"


@functools.cache
def r3_settings(overrides):
    """algorithm.r3 in a cell of the embedded profile with these overrides."""
    config = compose_config(["+profile=embedded", "+method=r3", *arms.EMBEDDED, *overrides])
    return OmegaConf.to_container(config, resolve=True)["algorithm"]["r3"]


@pytest.mark.parametrize(
    ("name", "than"),
    [
        *((name, "r3") for name in ("whole", "contrast", "next_epoch")),
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


def test_an_arm_that_has_ended_is_known_and_not_trained(tmp_path):
    assert arms.title("wrong_content") == "+CCR with answers to other problems"
    args = command.parse(["--arms", "wrong_content", "--seeds", "0", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="has ended: it can be trained at commit cde174c only"):
        cells.cell_command(args, "embedded", "wrong_content", 0)


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
    complete = {path.name for path in tmp_path.iterdir() if cells.is_complete(path, 200)}
    assert complete == {"done"} and not cells.is_complete(tmp_path / "absent", 200)


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
    assert not cells.is_complete(damaged, 200)
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
    (compared,) = results["comparisons"]
    assert compared["seeds"] == [0, 1, 2] and compared["arms"].keys() == {"grpo", "r3"}
    assert compared["arms"]["r3"]["difference"]["grpo"]["mean"] == pytest.approx(0.1)
    assert (tmp_path / "curves.csv").read_text().splitlines()[1] == "grpo,0,0,0.2"
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r3", "0.50", "±", "0.25"] in [line[:4] for line in lines]
    # Three cells of two steps: groups, dead, met replay, ranking, left dead, rows replayed, reflections, solved.
    assert ["r3", "30", "24", "12", "6", "6", "12", "6", "6"] in lines
    assert (tmp_path / "ledger.csv").read_text().splitlines()[1] == "grpo,0,2,200,14,10,2,6,2,4,2,2,0,4,2,2,4,132,1,"
    assert {path.name for path in tmp_path.glob("*.png")} == {"dots.png", "curves.png"}


@pytest.fixture
def cells_without_python(monkeypatch):
    """Cells are what `cell_command` says, started by `env`."""
    monkeypatch.setattr(cells, "shared_interpreter", lambda profile: nullcontext(("env", None)))


@pytest.fixture
def cells_of_nothing(cells_without_python, monkeypatch):
    """Cells that end at once and leave nothing."""
    monkeypatch.setattr(cells, "cell_command", lambda *args: ["true"])


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

    monkeypatch.setattr(cells, "cell_command", train)
    assert command.main([*arguments, "--out", str(tmp_path)]) == 1, "it left no cell"
    assert trained == [("grpo", 2)] and "failed: grpo seed 2, see " in capsys.readouterr().out
    assert [(tmp_path / name).read_text() for name in ("curves.csv", "ledger.csv", "results.json")] == record


def test_cells_that_another_machine_trained_join_the_record(tmp_path, capsys):
    for seed, machine in enumerate(("here", "there")):
        cell(tmp_path / machine / "grpo" / f"seed_{seed}", (0.2, None, 0.3 + 0.1 * seed))
        (tmp_path / machine / "study.json").write_text(json.dumps({"tokens": 200, "profile": "embedded"}))
        assert command.main(["--summarise", "--out", str(tmp_path / machine)]) == 0
    shutil.rmtree(tmp_path / "here" / "grpo")  # the record is all that is left of it
    subprocess.run(["cp", "-rn", f"{tmp_path}/there/.", tmp_path / "here"])
    assert command.main(["--summarise", "--out", str(tmp_path / "here")]) == 0
    assert set(command.record.read_curves(tmp_path / "here")["grpo"]) == {0, 1}


def test_a_record_of_another_version_is_summarised_as_well(tmp_path, capsys):
    (tmp_path / "study.json").write_text(json.dumps({"tokens": 100, "profile": "embedded", "overrides": []}))
    record = "arm,seed,generated_tokens,accuracy\ngrpo,0,0,0.2\ngrpo,0,100,0.4\nof_another_version,0,0,0.2\n"
    (tmp_path / "curves.csv").write_text(record)
    assert command.main(["--summarise", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "curves.csv").read_text() == record, "nothing is lost"
    (compared,) = json.loads((tmp_path / "results.json").read_text())["comparisons"]
    assert compared["seeds"] == [0] and "ledger" not in compared["arms"]["grpo"]
    assert ["grpo", "0.40", "0.30", "+0.00"] in [line.split() for line in capsys.readouterr().out.splitlines()]


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
        "| R^3 ends above GRPO | 13: -0.05, 14: +0.05, 15: +0.30 | +0.100 | +0.050 | +0.000 to +0.175 |"
        in text.world_table(design, found)
    )


@pytest.mark.usefixtures("cells_without_python")
def test_a_killed_cell_does_not_end_the_study(tmp_path, capsys, monkeypatch):
    def train(args, profile, arm, seed):
        cell(tmp_path / "whole", (0.2, None, 0.5))
        folder = tmp_path / arm / f"seed_{seed}"
        copy = f"mkdir -p {folder}; cp {tmp_path}/whole/metrics.jsonl {folder}/; rm -r {tmp_path}/whole"
        return ["sh", "-c", f"{copy}; kill -9 $$"]

    monkeypatch.setattr(cells, "cell_command", train)
    arguments = ["--arms", "grpo", "--seeds", "0", "1", "--tokens", "200", "--profile", "embedded"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "seed 1  was killed" in out and "failed: grpo seed 1" in out


@pytest.mark.usefixtures("cells_without_python")
def test_sigterm_ends_the_study_with_its_cell_and_the_next_call_goes_on_with_it(tmp_path, capsys, monkeypatch):
    """The stand-in of a run keeps a record of its starts, and ends on SIGTERM as `r3 run` does."""
    folder = tmp_path / "grpo" / "seed_0"
    waits = "trap 'exit 75' TERM; while :; do sleep 0.1; done"
    monkeypatch.setattr(cells, "cell_command", lambda *cell: ["sh", "-c", f"touch {tmp_path}/began; {waits}"])

    def terminate():
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        run_folder.append(a_run(folder), "end", seconds=1.0, exit_code=75)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    assert command.main([*GRPO, "--out", str(tmp_path)]) == 75
    assert "grpo seed 0 was saved on SIGTERM: call the same command again" in capsys.readouterr().out
    assert cells.goes_on(folder)
    run_folder.append(folder, "start", folder=str(folder), files={}, arguments=ARGUMENTS)
    run_folder.append(folder, "end", seconds=1.0, exit_code=1)
    assert not cells.goes_on(folder), "a failed cell starts anew"


def test_the_names_of_the_arms_stand_apart_from_what_is_said_of_them(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--help"])
    told = capsys.readouterr().out
    for arm in arms.ARMS:
        assert f"  {arm} " in told and cells.describe(arm, 0, tmp_path).startswith(f"{arm} ")


def test_dapo_updates_as_often_as_the_others_on_the_embedded_profile_only():
    args = command.parse(["--tokens", "200"])

    def batches(arm: str, profile: str) -> list[str]:
        return [part for part in cells.cell_command(args, profile, arm, 0) if "batch_size" in part]

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
        told = cells.cell_command(command.parse([*options]), profile, "r3", 7)
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
    same = outcome.speedup([(straight(0.6), straight(0.6))] * 6, 100)
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

    file = MetricsFile(tmp_path, 0, Display(), until_tokens=150)
    logged = [{"step": row.pop("step"), "data": row} for row in rows(0.2, 0.3, None, 0.4)]
    for number, line in enumerate(logged):
        with open(file.source, "a") as source:
            source.write(json.dumps(line) + "\n")
        if number < 3:  # 100 tokens with, 200 tokens without a validation
            file.poll()
    with pytest.raises(BudgetSpent):
        file.poll()
    assert [row["step"] for row in map(json.loads, file.target.read_text().splitlines())] == [0, 1, 2, 3]
