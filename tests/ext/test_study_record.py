"""The record of a study's plan: what is committed gives the verdicts that are committed, and a plan has one for all."""

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from r3_ext.record.summary import summarise
from r3_ext.settings.compose import ROOT
from r3_ext.study import arms, cells, command, record
from r3_ext.study.design import read_design
from r3_ext.study.outcome import mean_accuracy
from r3_ext.study.plan import PLAN, read_plan
from tests.ext.studied import rows

RESULTS = ROOT / "examples" / "results"
PLANS = ROOT / "examples" / "studies"
PLANNED = sorted(path.stem for path in PLANS.glob("*.yaml") if (RESULTS / path.stem).exists())


def told(capsys) -> str:
    return " ".join(capsys.readouterr().out.split())


def straight(end):
    return np.array([0.0, 100.0]), np.array([0.2, end])


@pytest.mark.parametrize("name", PLANNED)
def test_the_committed_record_gives_the_committed_verdicts(name, tmp_path, capsys):
    """What the texts say of a study must follow from the files beside it, on any machine."""
    out, plan = tmp_path / name, PLANS / f"{name}.yaml"
    shutil.copytree(RESULTS / name, out)
    (out / "verdicts.json").unlink()
    assert command.main(["--plan", str(plan), "--summarise", "--out", str(out)]) == 0
    for file in ("verdicts.json", "curves.csv", "ledger.csv", "plan.yaml"):
        assert (out / file).read_text() == (RESULTS / name / file).read_text(), file
    page = (out / "results.md").read_text()
    begun = {arm.rpartition("/")[0] for arm in record.read_curves(RESULTS / name)}
    planned = {one.folder for one in read_design(plan).experiments}
    assert begun == planned or (begun < planned and "not complete" in (RESULTS / name / "README.md").read_text())
    alone = {one.folder for one in read_design(plan).experiments if len(one.arms) == 1}
    assert all((f"![Every world of every arm]({folder}/dots.png)" in page) is (folder not in alone) for folder in begun)


@pytest.mark.parametrize("name", ["hgpo_worlds"])
def test_the_readme_has_a_row_for_each_verdict(name):
    text = (RESULTS / name / "README.md").read_text()
    verdicts = json.loads((RESULTS / name / "verdicts.json").read_text())
    assert verdicts
    for key, found in verdicts.items():
        ends = (f"{found[f'{of}low']:+.3f} to {found[f'{of}high']:+.3f}" for of in ("", "corrected_"))
        assert f"| {found['estimate']:+.3f} | {' | '.join(ends)} | {found['verdict']} |" in text, key


def test_the_docs_say_what_asking_again_found_as_the_record_does():
    text, ledger = (ROOT / "docs" / "data-and-rewards.md").read_text(), record.read_ledger(RESULTS / "candidates")
    for name, worlds in (("facts, made for reflection", "facts"), ("sorting, where nothing is built in", "sorting")):
        cells = ledger[f"{worlds}/r3"].values()
        asked, found, tokens, generated, mixed, groups = (
            sum(cell[column] for cell in cells)
            for column in (
                *("reflection_prompts", "reflection_solved", "reflection_tokens"),
                *("generated_tokens", "groups_mixed", "groups_total"),
            )
        )
        shares = (
            f"{100 * part / whole:.0f} %" for part, whole in ((found, asked), (tokens, generated), (mixed, groups))
        )
        assert f"| {name} | {asked} | {' | '.join(shares)} |" in text


def test_the_rates_are_told_as_the_record_has_them():
    name = "rivals_rates"
    design = read_design(PLANS / f"{name}.yaml")
    curves, text = command.recorded_curves(RESULTS / name, design), (RESULTS / name / "README.md").read_text()
    found = {
        arm: [
            [mean_accuracy(curve, one.tokens) for curve in curves[f"{one.folder}/{arm}"].values()]
            for one in design.experiments
        ]
        for arm in design.experiments[0].arms
    }
    for arm, at in found.items():
        pairs = (", ".join(f"{value:.3f}" for value in of) for of in at)
        assert f"| `{arm}` | {' | '.join(pairs)} | {np.mean(at):.3f} |" in text
    means = np.mean([*found.values()], axis=(0, 2))
    assert f"| mean | {' | '.join(f'{mean:.3f}' for mean in means)} | |" in text


def test_the_record_of_a_plan_is_that_of_its_experiments_and_back(tmp_path):
    plan = PLANS / "same_rate.yaml"
    (tmp_path / "main").mkdir()
    curves = {"grpo": {31: straight(0.4), 30: straight(0.3)}, "r3": {30: straight(0.5)}}
    counts = dict.fromkeys(record.COUNTS, 2) | {record.COMMIT: "abc"}
    record.write(tmp_path / "main", curves, {"r3": {30: counts}}, tuple(arms.ARMS))
    record.pack(tmp_path, ["main", "absent"])
    assert (tmp_path / "curves.csv").read_text().splitlines()[1] == "main/grpo,30,0,0.2"
    before = [(tmp_path / "main" / name).read_text() for name in (record.CURVES, record.LEDGER)]
    shutil.rmtree(tmp_path / "main")
    record.pack(tmp_path, ["main", "absent"])
    assert command.recorded_curves(tmp_path, read_design(plan)).keys() == {"main/grpo", "main/r3"}, "it stays"
    record.unpack(tmp_path, {"main": 100, "absent": 100}, PLAN)
    assert [(tmp_path / "main" / name).read_text() for name in (record.CURVES, record.LEDGER)] == before
    assert read_plan(tmp_path / "main")["tokens"] == 100 and not (tmp_path / "absent").exists()


def test_cells_of_a_version_that_did_not_count_prompts_have_no_column_for_it(tmp_path):
    metrics = rows(0.1, None, 0.2)
    summary = summarise(metrics, batch_size=16, n=4, seconds_total=1.0) | {"updates": 4}
    now = record.ledger_of(summary, metrics, "abc")
    metrics[-1].pop("generated/prompt_tokens")
    before = record.ledger_of(summary, metrics, "abc")
    assert now == before | {"prompt_tokens": 80}
    record.write(tmp_path, {}, {"grpo": {1: before, 2: now}}, ("grpo",))
    assert "prompt_tokens" not in (tmp_path / record.LEDGER).read_text()
    assert record.read_ledger(tmp_path)["grpo"] == {1: before, 2: before}


def test_restarts_and_those_of_them_that_were_right_are_counted_over_the_steps():
    metrics = rows(0.1, None, 0.2)
    summary = summarise(metrics, batch_size=16, n=4, seconds_total=1.0) | {"updates": 4}
    assert [record.ledger_of(summary, metrics, "")[name] for name in ("restart_rows", "restart_right")] == [0, 0]
    metrics[-2] |= {"restart/rows": 8, "restart/acc/mean": 0.25}
    metrics[-1] |= {"restart/rows": 12, "restart/acc/mean": 0.75}
    assert [record.ledger_of(summary, metrics, "")[name] for name in ("restart_rows", "restart_right")] == [20, 11]


def test_a_plan_goes_on_elsewhere_from_its_record_alone(tmp_path, monkeypatch, capsys):
    """From a committed record, say: what it has is not trained again, and what is trained joins it."""
    out, plan, trained = tmp_path / "out", PLANS / "hgpo_worlds.yaml", []
    curve, counts = (np.array([0.0, 9000.0]), np.array([0.2, 0.5])), dict.fromkeys(record.COUNTS, 2)
    known = {f"main/{arm}": {11: curve} for arm in ("hgpo", "gigpo", "grpo_sessions")}
    out.mkdir()
    record.write(out, known, {arm: {11: counts | {record.COMMIT: "abc"}} for arm in known}, tuple(known))

    def train(args, profile, arm, seed):
        trained.append((arm, seed))
        return ["true"]

    monkeypatch.setattr(cells, "shared_interpreter", lambda profile: nullcontext(("env", None)))
    monkeypatch.setattr(cells, "cell_command", train)
    arguments = ["--plan", str(plan), "--out", str(out), "--seeds", "11", "12", "--profile", "embedded"]
    assert command.main(arguments) == 2
    assert f"curves.csv is a record without its plan: put its {command.KEPT} beside it" in told(capsys)
    shutil.copyfile(plan, out / command.KEPT)
    assert command.main(arguments) == 1, "a cell of nothing is not complete"
    assert "main: 3 cells are taken from" in told(capsys)
    assert trained == [("hgpo", 12), ("gigpo", 12), ("grpo_sessions", 12)]
    assert record.read_curves(out).keys() == known.keys() and record.read_curves(out / "main")["hgpo"].keys() == {11}


def test_a_plan_does_not_take_the_folder_of_a_study_without_one(tmp_path, capsys):
    command.check_plan(tmp_path, command.plan_of(command.parse([]), "embedded"))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert command.main(["--plan", str(PLANS / "worlds.yaml"), "--out", str(tmp_path), "--summarise"]) == 2
    assert "holds a study without a plan; take another --out" in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == before
