"""A study of methods that train on sessions: budgets count turns, and a seed is a world of games."""

import json

import pytest

from r3_ext.settings.compose import ROOT, base_overrides, compose_config
from r3_ext.study import arms, cells, command, outcome, record
from r3_ext.study.design import read_design

PLAN = ROOT / "examples" / "studies" / "hgpo_worlds.yaml"
ON_SESSIONS = ["grpo_sessions", "gigpo", "hgpo", "hgpo_release"]


def rows_of(*accuracies: float) -> list[dict]:
    """A validation before each step, and one behind the last: 400 turns and 2,000 tokens a step."""
    ledger = {"total": 8, "mixed": 4, "all_correct": 3, "all_wrong": 1, "still_dead": 4, "still_wrong": 1}
    groups = {f"groups/{name}": number for name, number in {**ledger, "rescued_by_replay": 0, "ranked": 0}.items()}
    step = {"training/epoch": 0, "timing_s/step": 1.0, "fresh/rows": 400, "generated/tokens": 2000, "replay/rows": 0}
    return [
        {"step": number, "val/textworld_level2/pass@1": accuracy}
        | ({"training/global_step": number, "fresh/score/mean": 5.0} | step | groups if number else {})
        for number, accuracy in enumerate(accuracies)
    ]


def cell(folder, rows, turns: int):
    from r3_ext.record.summary import summarise

    folder.mkdir(parents=True)
    summary = summarise(rows, 8, 8, 60.0, with_sessions=True) | {"exit_code": 0, "updates": len(rows) - 1}
    assert summary["sessions"]["turns"] == turns
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_budget_counts_turns_where_every_arm_trains_on_sessions():
    assert arms.unit_of(ON_SESSIONS) == "turns" and arms.unit_of(["grpo", "r3"]) == arms.unit_of([]) == "tokens"
    assert outcome.curve_of(rows_of(0.4, 0.5, 0.6), "turns")[0].tolist() == [0, 400, 800]
    assert outcome.curve_of(rows_of(0.4, 0.5, 0.6))[0].tolist() == [0, 2000, 4000]


@pytest.mark.parametrize("arm", ON_SESSIONS)
def test_arms_on_sessions_take_as_many_optimizer_steps_and_differ_in_the_method_alone(arm):
    args = command.parse(["--arms", arm, "--turns", "800"])
    own = base_overrides("embedded", arms.ARMS[arm].method)
    config = compose_config([*own, *cells.settings_of(args, "embedded", arm, 0)])
    other = compose_config([*base_overrides("embedded", "hgpo"), *cells.settings_of(args, "embedded", "hgpo", 0)])
    assert config.trainer.v1.trainer_mode == "hgpo" and config.data.train_max_samples == -1
    assert (config.algorithm.hgpo.rows_per_step is None) == (arm != "hgpo_release")
    config.algorithm.hgpo = other.algorithm.hgpo
    assert config == other


def test_the_arm_of_grpo_has_no_nested_groups():
    config = compose_config([*base_overrides("embedded", "hgpo"), *arms.ARMS["grpo_sessions"].overrides])
    assert (config.algorithm.hgpo.step_weight, config.algorithm.hgpo.episode_weight) == (0, 1)


@pytest.mark.parametrize("world", [[], ["--world", "textworld"]])
def test_a_seed_is_a_world_of_games_and_a_cell_ends_by_turns(world):
    args = command.parse(["--arms", "hgpo", "--turns", "800", *world])
    told = cells.cell_command(args, "embedded", "hgpo", 3)
    assert told[told.index("--world") + 1] == "textworld,seed=3"
    assert told[told.index("--until-turns") + 1] == "800" and "--until-tokens" not in told


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--arms", "hgpo"], "--arms hgpo: their budget counts turns, give --turns"),
        (["--arms", "r3", "--turns", "5"], "--arms r3: their budget counts tokens, give --tokens"),
        (["--arms", "hgpo", "grpo", "--turns", "5"], "their budget counts tokens, give --tokens"),
        (["--arms", "hgpo", "--turns", "5", "--tokens", "5"], "leave one of them out"),
        (["--plan", str(PLAN), "--turns", "5"], "--turns is what --plan says"),
    ],
)
def test_a_budget_of_the_wrong_kind_is_refused(argv, told, capsys):
    with pytest.raises(SystemExit):
        command.parse(argv)
    assert told in capsys.readouterr().err.replace("\n", " ")


def test_methods_on_sessions_and_on_answers_are_not_one_study(tmp_path, capsys):
    argv = ["--arms", "hgpo", "grpo", "--tokens", "5", "--profile", "embedded", "--out", str(tmp_path / "out")]
    assert command.main([*argv, "--world", "textworld"]) == 2
    assert "the budget of hgpo counts turns, that of grpo tokens: leave one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{arms: [hgpo], seeds: [1], tokens: 5}", "experiments.main must count its budget in turns"),
        ("{arms: [r3], seeds: [1], turns: 5}", "experiments.main must count its budget in tokens"),
        ("{arms: [hgpo], seeds: [1], turns: 5, tokens: 5}", "must have tokens or turns, not both"),
        ("{arms: [hgpo], seeds: [1], turns: 0}", "experiments.main.tokens must be whole numbers from 1"),
    ],
)
def test_an_experiment_names_the_budget_that_its_arms_have(entry, told, tmp_path):
    (tmp_path / "plan.yaml").write_text(f"experiments: {{main: {entry}}}")
    with pytest.raises(ValueError, match=told):
        read_design(tmp_path / "plan.yaml")


def test_the_plan_has_eight_worlds_of_its_own_that_every_check_takes(tmp_path):
    design = read_design(PLAN)
    args = command.parse(["--plan", str(PLAN), "--out", str(tmp_path), "--cache", str(tmp_path / "cache")])
    [study] = command.studies_of(args, design)
    command.check(study, "embedded")
    assert len(study.seeds) >= 8 and 0 not in study.seeds and study.tokens == 8000
    assert {one.family for one in design.hypotheses} == {"main", "end"}


def test_cells_become_a_record_tables_figures_and_verdicts_that_speak_of_turns(tmp_path, capsys):
    out = tmp_path / "out"
    ends = {"hgpo": 0.6, "gigpo": 0.5, "grpo_sessions": 0.4}
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.read_text().replace("8000", "800").replace(", 14, 15, 16, 17, 18", ""))
    for seed in (11, 12, 13):
        for arm, end in ends.items():
            cell(out / "main" / arm / f"seed_{seed}", rows_of(0.4, 0.4, end + (arm == "hgpo") * seed / 1000), 800)
    (out / "main" / "study.json").write_text('{"tokens": 800}')
    assert command.main(["--plan", str(plan), "--out", str(out), "--summarise"]) == 0
    said = capsys.readouterr().out + (out / "results.md").read_text()
    assert "at 800 turns" in said and "to GRPO over sessions" in said and "to HGPO" in said
    assert not [word for word in ("eplay", "eflect", "R^3", "ranked", "generated tokens;") if word in said]
    assert (out / "main" / "curves.csv").read_text().startswith("arm,seed,turns,accuracy\n")
    assert json.loads((out / "verdicts.json").read_text())["hgpo_ends_above_grpo"]["verdict"] == "held"
    assert {path.name for path in out.rglob("*.png")} == {"dots.png", "curves.png", "main.png", "end.png"}
    curves = record.read_curves(out)
    assert curves["main/hgpo"][11][0].tolist() == [0, 400, 800]
