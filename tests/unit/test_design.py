"""Plans of studies: what a file may hold, which cells follow from it, and what its record says of each hypothesis."""

import json
import shutil

import pytest
import yaml

from r3_ext.launch import ROOT
from r3_ext.study import command
from r3_ext.study.design import read_design

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
        (("hypothesis",), {}, "must have the entries about, experiments and hypotheses only"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_with_the_entry(path, value, message, tmp_path):
    file = written(tmp_path, changed(path, value))
    with pytest.raises(ValueError) as error:
        read_design(file)
    assert message in str(error.value) and str(error.value).startswith(f"{file}: ")


def test_a_speedup_compares_two_arms(tmp_path):
    plan = changed(("hypotheses", "gain", "measure"), "speedup")
    assert read_design(written(tmp_path, plan)).hypotheses[0].measure == "speedup"
    plan["hypotheses"]["gain"]["contrast"] = {"main/r3": 1}
    with pytest.raises(ValueError, match="must name two arms, as the measure is a speed-up"):
        read_design(written(tmp_path, plan))


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
    assert (more.out, more.arms, more.seeds, more.world) == (tmp_path / "main", ("dapo",), (0, 1), "")
    told = command.cell_command(neutral, "embedded", "r3", 2)
    assert told[told.index("--world") + 1] == "mistaken=0,seed=2" and told[told.index("--until-tokens") + 1] == "50"
    assert told[-1] == "data.seed=1" and neutral.out == tmp_path / "neutral"
    args.only = ["mian"]
    with pytest.raises(ValueError, match="--only mian: .* has the experiments main, more, neutral"):
        command.studies_of(args, read_design(args.plan))


def record(folder, **arms):
    folder.mkdir()
    lines = ["arm,seed,generated_tokens,accuracy"]
    for arm, ends in arms.items():
        for seed, end in enumerate(ends):
            lines += [f"{arm},{seed},0,0.2", f"{arm},{seed},100,{end}"]
    (folder / "curves.csv").write_text("\n".join(lines) + "\n")
    (folder / "study.json").write_text(json.dumps({"tokens": 100, "profile": "embedded", "overrides": []}))


def test_the_record_says_of_each_hypothesis_whether_it_is_held(tmp_path, capsys):
    file, out = written(tmp_path), tmp_path / "out"
    out.mkdir()
    record(out / "main", grpo=[0.40, 0.50, 0.45], r3=[0.60, 0.72, 0.65])
    assert command.main(["--plan", str(file), "--out", str(out), "--summarise"]) == 0
    verdicts = json.loads((out / "verdicts.json").read_text())
    assert verdicts["gain"]["verdict"] == "held" and verdicts["gain"]["estimate"] == pytest.approx(0.20667, abs=1e-5)
    assert verdicts["less"] is None, "its second experiment has not begun"
    said = capsys.readouterr().out
    assert "no data yet" in said and "held" in said and (out / "main" / "dots.png").exists()
    page = (out / "results.md").read_text()
    assert "| main | R^3 ends above GRPO | above 0 | 3 | +0.207 |" in page and "| R^3, all three | 3 | 0.657 ±" in page
    shutil.rmtree(out / "main")
    assert command.main(["--plan", str(file), "--out", str(out), "--summarise"]) == 2
    assert "holds no experiment of" in capsys.readouterr().out
