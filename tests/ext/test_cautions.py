"""What is said before the figures of a run on own rows, from its record of starts."""

import json
from contextlib import contextmanager
from datetime import datetime

import pytest

from r3_ext.record.cautions import what_it_shows
from r3_ext.record.folder import append, held
from r3_ext.report.run_facts import cautions, state_of
from r3_ext.report.runs import load_run
from r3_ext.run import command as launch
from tests.ext.opened import end, rows_of, run_of, said, start, step

# What a run on own rows shows


def shown(**arguments):
    return what_it_shows(start(**arguments)["arguments"])


def test_a_run_on_own_rows_says_what_it_does_not_show():
    text = shown(sources={"DATA": "rows.parquet"})
    assert text.startswith(
        "This run shows that your rows, their columns, the reward and R^3's mechanisms work together"
    )
    assert "taught beforehand to recall their answers" in text and text.count(". ") == 1
    assert text.endswith("says nothing about a real model and may fall while the reward rises.")
    assert "the training work together" in shown(
        sources={"DATA": "rows.parquet"}, options={"profile": "embedded", "method": "grpo"}
    )


@pytest.mark.parametrize(
    "own", [{"sources": {"DATA": "a", "VAL_DATA": "b"}}, {"sources": {"DATA": "a"}, "overrides": ["data.val_files=b"]}]
)
def test_problems_of_ones_own_to_validate_on_were_never_taught(own):
    assert "has never seen those that it is validated on" in shown(**own)
    assert "may fall" not in shown(**own)


@pytest.mark.parametrize("own", [{"sources": {"VAL_DATA": "b"}}, {"overrides": ["++data.train_files=[a]"]}])
def test_a_model_of_the_generated_arithmetic_knows_nothing_of_own_rows(own):
    assert "knows the arithmetic that is generated here and nothing else" in shown(**own)


@pytest.mark.parametrize("options", [{"method": "hgpo"}, {"method": "grpo", "world": "textworld,seed=1"}])
def test_a_player_of_generated_games_knows_nothing_of_own_tasks(options):
    text = shown(sources={"DATA": "a"}, options={"profile": "embedded"} | options)
    assert text.startswith("This run shows that your tasks, their environment and the training work together")
    assert "saw an expert play the games that are generated here and nothing else" in text


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"overrides": ["data.train_files_x=1", "~data.train_files"]},
        {"sources": {"DATA": "a", "VAL_DATA": "b", "MODEL": "c"}},
        {"sources": {"DATA": "a"}, "overrides": ["actor_rollout_ref.model.path=c"]},
        {"sources": {"DATA": "a"}, "options": {"profile": "gpu_8x80gb", "method": "r3"}},
        {"options": {"profile": "embedded", "method": "r3", "world": "seed=3"}},
    ],
)
def test_other_runs_need_no_such_words(arguments):
    assert shown(**arguments) == ""


def test_a_report_takes_it_from_the_last_start_and_says_it_once():
    own = [start(), end(75), start(sources={"DATA": "a"}), end()]
    runs = [run_of(rows_of([0.7, 0.6]), starts=own), run_of(rows_of([0.7, 0.6]), starts=own), run_of([], starts=[])]
    assert cautions(runs) == [shown(sources={"DATA": "a"})]
    assert "`MODEL`, `DATA` and `VAL_DATA`" in said(runs[0])[2], "its accuracy is no reason for other advice"


# The files and the console


def test_a_run_is_running_while_its_folder_is_held(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step(1)))
    kept = start()["arguments"] | {"sources": {"DATA": "a"}}
    append(tmp_path, "start", folder=str(tmp_path), files={}, arguments=kept)
    assert state_of(load_run(tmp_path)) == "was killed"
    with held(tmp_path):
        assert state_of(load_run(tmp_path)) == "is still running"
    append(tmp_path, "end", seconds=1.0, exit_code=0)
    assert state_of(load_run(tmp_path)) == "finished" and cautions([load_run(tmp_path)])


@pytest.mark.parametrize("damage", ["nonsense\n", '{"event": "end"}\n', "options"])
def test_a_damaged_record_of_starts_is_a_remark(tmp_path, damage):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step(1)))
    kept = {"options": ["profile"], "sources": {}, "overrides": []}
    line = {"event": "start", "when": datetime.now().isoformat(), "folder": "", "files": {}, "arguments": kept}
    (tmp_path / "starts.jsonl").write_text(json.dumps(line) + "\n" if damage == "options" else damage)
    run = load_run(tmp_path)
    assert run.starts == [] and "line 1: not a line of a run's record" in run.remarks[0]
    assert "was trained after 1 step" in said(run)[0]


class Reached(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("with_data", [True, False])
def test_a_run_says_it_before_anything_is_loaded(tmp_path, monkeypatch, capsys, with_data):
    problems = [{"problem": f"What is {number} plus {number}?", "answer": str(2 * number)} for number in range(200)]
    (tmp_path / "rows.json").write_text(json.dumps(problems))

    @contextmanager
    def interpreter(*_):
        raise Reached
        yield

    monkeypatch.setattr(launch, "interpreter", interpreter)
    for name in ("DATA", "VAL_DATA", "MODEL"):
        monkeypatch.setenv(name, "")  # what `settle` sets is undone afterwards
    monkeypatch.setenv("DATA", str(tmp_path / "rows.json") if with_data else "")
    options = ["--profile", "embedded", "--outputs", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    with pytest.raises(Reached):
        launch.main(options)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith("may fall while the reward rises.") is with_data
