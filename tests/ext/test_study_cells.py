"""`r3 study`: cells that are complete or not, of this study or of others."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import nullcontext

import pytest

from r3_ext.record import folder as run_folder
from r3_ext.record.metrics_file import BudgetSpent, MetricsFile
from r3_ext.record.summary import summarise
from r3_ext.study import arms, cells, command
from r3_ext.tiny import warm_start
from tests.ext.studied import rows


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
    row = (tmp_path / "ledger.csv").read_text().splitlines()[1]
    assert row == "grpo,0,2,200,14,80,10,2,6,2,4,2,2,0,4,2,2,0,0,4,132,1,"
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
        run_folder.append(a_run(folder, saved=True), "end", seconds=1.0, exit_code=75)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    assert command.main([*GRPO, "--out", str(tmp_path)]) == 75
    assert "grpo seed 0 was saved on SIGTERM: call the same command again" in capsys.readouterr().out
    assert cells.goes_on(folder)
    run_folder.append(folder, "start", folder=str(folder), files={}, arguments=ARGUMENTS)
    run_folder.append(folder, "end", seconds=1.0, exit_code=1)
    assert not cells.goes_on(folder), "a failed cell starts anew"


@pytest.mark.usefixtures("cells_without_python")
@pytest.mark.parametrize("code", [0, 143])
def test_sigterm_in_the_last_step_of_a_cell_or_before_its_first_ends_the_study_too(code, tmp_path, capsys, monkeypatch):
    trained = []

    def train(args, profile, arm, seed):
        trained.append(seed)
        return ["sh", "-c", f"trap 'exit {code}' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"]

    monkeypatch.setattr(cells, "cell_command", train)
    arguments = ["--arms", "grpo", "--seeds", "0", "1", "--tokens", "200", "--profile", "embedded"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 75
    assert f"SIGTERM came, and grpo seed 0 ended with exit code {code}: call the same" in capsys.readouterr().out
    assert trained == [0]


@pytest.mark.usefixtures("cells_without_python")
def test_a_cell_that_goes_on_has_no_validation_that_the_others_have_not(tmp_path, monkeypatch):
    writes = ["sh", "-c", 'echo "$@" > $0/given', str(tmp_path)]
    monkeypatch.setattr(cells, "cell_command", lambda *cell: writes)
    command.main([*GRPO, "--out", str(tmp_path)])
    folder, given = tmp_path / "grpo" / "seed_0", tmp_path / "given"
    assert given.read_text().split() == []
    run_folder.append(a_run(folder), "end", seconds=1.0, exit_code=75)
    command.main([*GRPO, "--out", str(tmp_path)])
    assert given.read_text().split() == [] and not folder.exists(), "before its first step it saved nothing"
    run_folder.append(a_run(folder, saved=True), "end", seconds=1.0, exit_code=75)
    command.main([*GRPO, "--out", str(tmp_path)])
    assert given.read_text().split() == ["trainer.val_before_train=False"] and folder.exists()


GRPO = ["--arms", "grpo", "--seeds", "0", "--tokens", "200", "--profile", "embedded"]

ARGUMENTS = {"options": {}, "sources": {}, "overrides": []}


def a_run(folder, saved=False):
    (folder / "checkpoints" / "global_step_1" if saved else folder).mkdir(parents=True)
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


def test_sigterm_that_comes_while_a_cell_is_being_started_ends_it(tmp_path, monkeypatch):
    begin = subprocess.Popen

    def interrupted(*args, **kwargs):
        cell = begin(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)  # between the start and its return
        return cell

    monkeypatch.setattr(cells.subprocess, "Popen", interrupted)
    with open(tmp_path / "log", "wb") as log:
        assert cells.run_cell(["sleep", "60"], None, log) == (-signal.SIGTERM, True)
