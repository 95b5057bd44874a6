"""Plans of studies: what a file may hold, which cells follow from it, and what its record says of each hypothesis."""

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import yaml

from r3_ext.settings.compose import ROOT
from r3_ext.study import cells, command
from r3_ext.study.design import choices, read_design

PLAN = {
    "about": "two experiments",
    "experiments": {
        "main": {"arms": ["grpo", "r3"], "seeds": [0, 1, 2], "tokens": 100},
        "more": {"arms": ["dapo"], "seeds": [0, 1], "tokens": 100, "folder": "main"},
        "neutral": {
            "arms": ["r3"],
            "seeds": [0, 1, 2],
            "tokens": 50,
            "world": "mistaken=0",
            "overrides": ["data.seed=1"],
        },
    },
    "hypotheses": {
        "gain": {
            "says": "R^3 ends above GRPO",
            "contrast": {"main/r3": 1, "main/grpo": -1},
            "measure": "accuracy",
            "claim": "above",
            "bound": 0,
            "matters": 0.05,
            "family": "main",
        },
        "less": {
            "says": "R^3 ends lower in neutral worlds",
            "contrast": {"main/r3": 1, "neutral/r3": -1},
            "measure": "accuracy",
            "claim": "above",
            "bound": 0,
            "matters": 0.05,
            "family": "dose",
        },
    },
}


def written(folder, plan=PLAN):
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan, sort_keys=False))
    return file


def changed(path, value):
    """PLAN with another value at `path`; None takes it away."""
    plan = json.loads(json.dumps(PLAN))
    *before, last = path
    entry = plan
    for key in before:
        entry = entry[key]
    entry.pop(last, None)
    if value is not None:
        entry[last] = value
    return plan


def test_the_committed_plans_can_be_read_and_name_arms_that_there_are():
    files = sorted((ROOT / "examples" / "studies").glob("*.yaml"))
    assert files and all(read_design(file).experiments for file in files)


def test_an_experiment_has_a_folder_of_its_own_unless_it_says_otherwise(tmp_path):
    design = read_design(written(tmp_path))
    assert [experiment.folder for experiment in design.experiments] == ["main", "main", "neutral"]
    assert design.budgets == {"main": 100, "neutral": 50}


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("experiments",), None, "experiments must hold at least one"),
        (("experiments", "main", "arms"), ["grop"], "experiments.main.arms must be of grpo"),
        (("experiments", "main", "arms"), "grpo", "experiments.main.arms must be a list, got 'grpo'"),
        (("experiments", "main", "seeds"), [-1], "experiments.main.seeds must be whole numbers from 0"),
        (("experiments", "main", "tokens"), 0, "experiments.main.tokens must be whole numbers from 1"),
        (("experiments", "main", "tokens"), None, "experiments.main must have tokens"),
        (("experiments", "main", "sedes"), [1], "experiments.main must have no other entries than name, arms"),
        (("experiments", "main", "folder"), "../out", "experiments.main.folder must be the name of a folder"),
        (("experiments", "more", "tokens"), 60, "experiments.main must have the settings of more, or another folder"),
        (("hypotheses", "gain", "contrast"), {"main/r4": 1}, "hypotheses.gain.contrast must name FOLDER/ARM"),
        (("hypotheses", "gain", "contrast"), {"main/r3": "x"}, "hypotheses.gain.contrast.main/r3 must be a number"),
        (("hypotheses", "gain", "contrast"), [], "hypotheses.gain.contrast must be weights by arm"),
        (("hypotheses", "gain", "measure"), "luck", "hypotheses.gain.measure must be one of"),
        (("hypotheses", "gain", "claim"), "over", "hypotheses.gain.claim must be above or below"),
        (("hypotheses", "gain", "bound"), "0", "hypotheses.gain.bound must be a number"),
        (("hypotheses", "gain", "family"), None, "hypotheses.gain must have family"),
        (("hypotheses", "gain"), 3, "hypotheses must be entries by name"),
        (
            ("hypotheses", "gain", "contrast"),
            {"main/r3": 1},
            "contrast must have weights that add up to 0",
        ),
        (("hypotheses", "gain", "contrast"), {"main/r3@101": 1}, "hypotheses.gain.contrast must name FOLDER/ARM"),
        (("hypotheses", "gain", "contrast"), {"main/r3@x": 1}, "hypotheses.gain.contrast must name FOLDER/ARM"),
        (("hypotheses", "gain", "bound"), float("nan"), "hypotheses.gain.bound must be a number"),
        (("hypotheses", "gain", "matters"), -1, "hypotheses.gain.matters must be at least 0"),
        (("hypotheses", "gain", "family"), ["a"], "hypotheses.gain.family must be a text"),
        (("experiments", "main", "seeds"), [0, 0], "experiments.main.seeds must be different numbers"),
        (("experiments", "main", "seeds"), [True], "experiments.main.seeds must be different numbers"),
        (("experiments", "main", "seeds"), [], "experiments.main.seeds must be whole numbers"),
        (("experiments", "main", "arms"), [], "experiments.main.arms must name at least one arm"),
        (("experiments", "main", "arms"), [["grpo"]], "experiments.main.arms must be different texts"),
        (("experiments", "main", "tokens"), True, "experiments.main.tokens must be whole numbers"),
        (("experiments", "main", "folder"), "..", "experiments.main.folder must be the name of a folder"),
        (("experiments", "neutral", "world"), "mistakn=0", "experiments.neutral.world: --world mistakn=0"),
        (("experiments", "neutral", "world"), "seed=1", "seed is given twice"),
        (("experiments", "neutral", "overrides"), [{"a": 1}], "experiments.neutral.overrides must be different texts"),
        (("experiments", "neutral", "tuned"), True, "tuning must be there for the experiments that are tuned"),
        (("tuning",), {"measure": "accuracy", "candidates": ["mian"]}, "tuning.candidates must name experiments"),
        (("tuning",), {"measure": "luck", "candidates": ["main"]}, "tuning.measure must be one of"),
        (("hypothesis",), {}, "must have the entries about, tuning, experiments, hypotheses only"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_with_the_entry(path, value, message, tmp_path):
    file = written(tmp_path, changed(path, value))
    with pytest.raises(ValueError) as error:
        read_design(file)
    assert message in str(error.value) and str(error.value).startswith(f"{file}: ")


def test_an_entry_that_would_replace_another_is_refused(tmp_path):
    file = written(tmp_path)
    file.write_text(file.read_text() + "  gain: {says: another}\n")
    with pytest.raises(ValueError, match="'gain' is there twice"):
        read_design(file)


def tuned():
    """PLAN whose neutral experiment is tuned by two candidates."""
    plan = changed(("experiments", "neutral", "tuned"), True)
    for name in ("slow", "fast"):
        plan["experiments"][name] = {
            "arms": ["grpo", "dapo"],
            "seeds": [8, 9],
            "tokens": 100,
            "overrides": [f"lr={name}"],
        }
    plan["experiments"]["neutral"]["arms"] = ["r3", "grpo", "dapo"]
    plan["tuning"] = {"measure": "accuracy", "candidates": ["slow", "fast"], "like": {"r3": "dapo"}}
    return plan


def test_an_arm_takes_the_candidate_with_the_best_mean_over_its_worlds_and_the_first_of_equals(tmp_path):
    design = read_design(written(tmp_path, tuned()))
    ends = {"slow/grpo": (0.5, 0.6), "fast/grpo": (0.4, 0.7), "slow/dapo": (0.9, 0.1), "fast/dapo": (0.5, 0.6)}
    curves = {at: {8: line(a), 9: line(b), 10: line(1.0)} for at, (a, b) in ends.items()}
    found = {arm: candidate.name for arm, candidate in choices(design, curves).items()}
    assert found == {"r3": "fast", "grpo": "slow", "dapo": "fast"}
    del curves["fast/dapo"][9]
    with pytest.raises(ValueError, match="r3 is tuned by the cells of dapo in fast, which are not all there"):
        choices(design, curves)


def line(end):
    return np.array([0.0, 100.0]), np.array([0.2, end])


def test_every_arm_that_is_tuned_is_tried(tmp_path):
    plan = tuned()
    plan["tuning"]["like"] = {}
    with pytest.raises(ValueError, match="tuning must try every arm that is tuned, or name one like it, got 'r3'"):
        read_design(written(tmp_path, plan))


def test_cells_follow_what_the_tuning_found(tmp_path):
    file, out = written(tmp_path, tuned()), tmp_path / "out"
    args = command.parse(["--plan", str(file), "--out", str(out), "--only", "neutral"])
    with pytest.raises(ValueError, match="train the experiments slow, fast first"):
        command.studies_of(args, read_design(file))
    out.mkdir()
    record(out / "slow", {8: 0.5, 9: 0.5}, "grpo", "dapo")
    record(out / "fast", {8: 0.5, 9: 0.6}, "grpo", "dapo")
    (study,) = command.studies_of(args, read_design(file))
    assert study.tuned["r3"] == ["lr=fast"]
    assert cells.cell_command(study, "embedded", "r3", 1)[-2:] == ["data.seed=1", "lr=fast"]
    assert command.plan_of(study, "embedded")["tuned"] == {arm: ["lr=fast"] for arm in ("r3", "grpo", "dapo")}


def test_one_command_tunes_first_and_trains_the_rest_as_it_found(tmp_path, monkeypatch, capsys):
    trained = {}

    def train(study, profile, console, python, env):
        trained[study.out.name] = study.tuned
        lines = [
            f"{arm},{seed},0,0.2\n{arm},{seed},{study.tokens},{0.6 if study.out.name == 'fast' else 0.5}\n"
            for arm in study.arms
            for seed in study.seeds
        ]
        (study.out / "curves.csv").write_text("arm,seed,generated_tokens,accuracy\n" + "".join(lines))
        return []

    monkeypatch.setattr(cells, "train", train)
    monkeypatch.setattr(cells, "shared_interpreter", lambda profile: nullcontext(("env", None)))
    plan = tuned()
    for experiment in plan["experiments"].values():
        experiment["overrides"] = []
    plan["experiments"]["slow"]["overrides"] = ["data.seed=1"]
    plan["experiments"]["fast"]["overrides"] = ["data.seed=2"]
    plan["experiments"] = {name: plan["experiments"][name] for name in ("neutral", "main", "more", "slow", "fast")}
    arguments = ["--plan", str(written(tmp_path, plan)), "--out", str(tmp_path / "out"), "--profile", "embedded"]
    assert command.main(arguments) == 1, "in this order neutral cannot be tuned"
    assert "failed: neutral, " in capsys.readouterr().out.replace("\n", " ") and "neutral" not in trained
    assert command.main(arguments) == 0, "and can when it is called again"
    assert trained["neutral"] == {arm: ["data.seed=2"] for arm in ("r3", "grpo", "dapo")} and not trained["main"]


def test_a_plan_that_changed_after_its_first_cell_is_refused(tmp_path, capsys):
    file, out = written(tmp_path), tmp_path / "out"
    out.mkdir()
    record(out / "main", {0: 0.4, 1: 0.5, 2: 0.45}, "grpo", "r3")
    arguments = ["--plan", str(file), "--out", str(out), "--summarise"]
    assert command.main(arguments) == 0 and (out / "plan.yaml").read_text() == file.read_text()
    written(tmp_path, changed(("hypotheses", "gain", "bound"), -1))
    assert command.main(arguments) == 2
    assert "follows another plan than" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("text", ["{", "- 1", "", "experiments: 3"])
def test_a_file_that_is_no_plan_is_refused(text, tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(text)
    assert command.main(["--plan", str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "error: " in capsys.readouterr().out and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "option", [["--arms", "grpo"], ["--tokens", "5"], ["--world", "stuck=0"], ["trainer.nnodes=1"]]
)
def test_what_a_plan_says_is_not_said_again(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--plan", str(written(tmp_path)), *option])
    assert "is what --plan says" in capsys.readouterr().err


def test_experiments_are_studies_of_their_own(tmp_path):
    args = command.parse(["--plan", str(written(tmp_path)), "--out", str(tmp_path), "--only", "neutral", "more"])
    more, neutral = command.studies_of(args, read_design(args.plan))
    assert (more.out, more.arms, more.seeds, more.world) == (tmp_path / "main", ("dapo",), [0, 1], "")
    told = cells.cell_command(neutral, "embedded", "r3", 2)
    assert told[told.index("--world") + 1] == "mistaken=0,seed=2" and told[told.index("--until-tokens") + 1] == "50"
    assert told[-1] == "data.seed=1" and neutral.out == tmp_path / "neutral"
    args.only = ["mian"]
    with pytest.raises(ValueError, match="--only mian: .* has the experiments main, more, neutral"):
        command.studies_of(args, read_design(args.plan))


def test_a_machine_may_take_some_worlds_of_a_plan(tmp_path, capsys):
    plan = ["--plan", str(written(tmp_path)), "--out", str(tmp_path / "out")]
    args = command.parse([*plan, "--seeds", "1", "2", "7"])
    design = read_design(args.plan)
    whole = command.studies_of(command.parse(plan), design)
    found = {(study.out.name, study.arms): study.seeds for study in command.studies_of(args, design)}
    assert found == {
        (study.out.name, study.arms): left for study in whole if (left := [s for s in study.seeds if s in (1, 2)])
    }
    assert found and any(set(study.seeds) - {1, 2} for study in whole)
    assert command.main([*plan, "--seeds", "7", "8"]) == 2
    assert "--seeds 7 8: none of them is a world of this plan" in capsys.readouterr().out


def record(folder, ends, *arms):
    """A study whose arms reach these accuracies, by world."""
    folder.mkdir()
    lines = ["arm,seed,generated_tokens,accuracy"]
    for arm in arms:
        for seed, end in ends[arm].items() if arm in ends else ends.items():
            lines += [f"{arm},{seed},0,0.2", f"{arm},{seed},100,{end}"]
    (folder / "curves.csv").write_text("\n".join(lines) + "\n")
    (folder / "study.json").write_text(json.dumps({"tokens": 100, "profile": "embedded", "overrides": []}))


def test_the_record_says_of_each_hypothesis_whether_it_is_held(tmp_path, capsys):
    file, out = written(tmp_path), tmp_path / "out"
    out.mkdir()
    ends = {"grpo": {0: 0.40, 1: 0.50, 2: 0.45, 7: 0.9}, "r3": {0: 0.60, 1: 0.72, 2: 0.65, 7: 0.1}}
    record(out / "main", ends, "grpo", "r3")
    assert command.main(["--plan", str(file), "--out", str(out), "--summarise"]) == 0
    verdicts = json.loads((out / "verdicts.json").read_text())
    assert verdicts["gain"]["verdict"] == "held" and verdicts["gain"]["estimate"] == pytest.approx(0.20667, abs=1e-5)
    assert verdicts["less"] is None, "its second experiment has not begun"
    said = capsys.readouterr().out
    assert "fewer than 3" in " ".join(said.split()) and "held" in said and (out / "main" / "dots.png").exists()
    page = (out / "results.md").read_text()
    assert (
        "| main | R^3 ends above GRPO | above 0 | 3 of 3 | +0.207 |" in page
        and "Worlds 0 to 2, 7:" in page
        and "| R^3, all three | 0.517 ±" in page
    ), "a world that is not planned is shown and not judged"
    assert "(main/dots.png)" in page
    shutil.rmtree(out / "main")
    record(out / "main", ends, "r3")
    assert command.main(["--plan", str(file), "--out", str(out), "--summarise"]) == 0
    page = (out / "results.md").read_text()
    assert "| R^3, all three | 0.517 ±" in page and "dots.png" not in page, "of an arm alone there is no figure"
    shutil.rmtree(out / "main")
    (out / "curves.csv").unlink()
    assert command.main(["--plan", str(file), "--out", str(out), "--summarise"]) == 2
    assert "holds no experiment of" in capsys.readouterr().out
