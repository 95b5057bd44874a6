"""`r3 report` and `r3 episodes` on runs that train on sessions of several turns."""

import json

import pytest

from r3_ext.report import episodes
from r3_ext.report import page as page_text
from r3_ext.report.command import write
from r3_ext.report.figures import all_sections
from r3_ext.report.opening import opening
from r3_ext.report.runs import Arm, load_run
from tests.ext.reported import HOSTILE, write_run
from tests.ext.test_report_html import Tags

SETTINGS = {"actor_rollout_ref": {"rollout": {"custom": {"session": {"memory": 2}}}}}
HGPO = SETTINGS | {"trainer": {"v1": {"trainer_mode": "hgpo"}, "total_epochs": 5}}


def row(step: int, accuracy: float | None = None, invalid: float = 0.1) -> dict:
    """8 groups of sessions, 4 of them dead, and 383 turns, of which nested groups tell something of 0.75."""
    ledger = {"total": 8, "mixed": 4, "all_correct": 3, "all_wrong": 1, "still_dead": 4, "still_wrong": 1}
    groups = {f"groups/{name}": number for name, number in {**ledger, "rescued_by_replay": 0, "ranked": 0}.items()}
    levels = {
        f"hgpo/level_{level}/{name}": value
        for level in (0, 1)
        for name, value in {"grouped": 0.9 - level / 2, "size": 8.0, "alone": 0.0}.items()
    }
    of_sessions = {"number": 64, "turns": 6.0, "inadmissible": invalid, "bad_format": 0.0, "environment_s": 1.0}
    validation = {} if accuracy is None else {"val/textworld_level2/pass@1": accuracy}
    sessions = {f"sessions/{name}": value for name, value in of_sessions.items()}
    turns = {"fresh/rows": 383, "fresh/acc/mean": 0.5, "fresh/score/mean": 5.0, "fresh/tokens": 2000, "replay/rows": 0}
    other = {"training/global_step": step, "timing_s/step": 80.0, "reflection/solved": 0, "generated/tokens": 2000}
    return {"step": step, "hgpo/turns_with_signal": 0.75} | groups | levels | sessions | validation | turns | other


def told(step: int, **of_turn) -> dict:
    turn = {"seen": "You are in the attic.\nYou can: go east; look", "said": "go east", "answer": "valid"}
    level = {"size": 8, "sessions": 5, "advantage": 0.612}
    turn |= {"reward": 10.0, "return": 9.5, "advantage": 0.44, "levels": [level, None]} | of_turn
    return {"step": step, "task": "Put the coin on the desk.", "sessions": [{"end": "won", "turns": [turn]}]}


def run_of(folder, rows, lines=(), config=HGPO):
    write_run(folder, rows, config)
    (folder / episodes.FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_an_episode_is_told_turn_by_turn_with_the_groups_of_each():
    alone, alike = {"size": 1, "sessions": 1, "advantage": None}, {"size": 2, "sessions": 1, "advantage": None}
    odd = told(5, answer="inadmissible", levels=[alone, alike, None])
    odd["sessions"] = [*told(5)["sessions"], *odd["sessions"]]
    assert episodes.lines_of(odd) == [
        "step 5: Put the coin on the desk.",
        "",
        "session 1: won after 1 turns, reward 10",
        "  0  You are in the attic.",
        "     You can: go east; look",
        "     > go east",
        "     reward 10, return 9.5, advantage +0.44; level 0: 8 turns of 5 sessions, +0.61",
        "",
        "session 2: won after 1 turns, reward 10",
        "  0  You are in the attic.",
        "     You can: go east; look",
        "     > go east   (inadmissible)",
        "     reward 10, return 9.5, advantage +0.44; level 0: alone; level 1: 2 turns of 1 session, all alike",
    ]


def test_of_a_step_that_was_trained_twice_the_later_is_read_and_damage_is_left_out(tmp_path):
    damaged = [{"step": 3}, [1], told(4, levels=None), told(6, **{"return": "x"}), {**told(7), "sessions": [[]]}]
    run_of(tmp_path / "run", [row(1)], [told(5, said="old"), *damaged, told(1), told(5, said="new")])
    found = episodes.read(tmp_path / "run")
    assert [*found] == [1, 5] and "     > new" in found[5]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        ([], 0, "step 5: Put"),
        (["--step", "1"], 0, "step 1: Put"),
        (["--step", "2"], 2, "--step must be one of 1, 5, got 2"),
    ],
)
def test_the_command_shows_the_last_step_or_one_that_there_is(tmp_path, capsys, argv, code, says):
    folder = run_of(tmp_path / "run", [row(1)], [told(1), told(5)])
    assert episodes.main([str(folder), *argv]) == code
    assert says in "".join(capsys.readouterr())


def test_a_folder_without_episodes_is_told_who_writes_them(tmp_path, capsys):
    assert episodes.main([str(tmp_path)]) == 2
    assert "runs of hgpo and gigpo write it in their first step" in capsys.readouterr().err


def test_text_of_games_and_models_is_text_in_the_terminal_and_on_the_page(tmp_path):
    hostile = told(5, seen=HOSTILE, said=HOSTILE, answer=HOSTILE)
    hostile |= {"task": HOSTILE}
    hostile["sessions"][0]["end"] = HOSTILE
    assert not [char for line in episodes.lines_of(hostile) for char in line if not char.isprintable()]
    folder = run_of(tmp_path / "run", [row(1, 0.5), row(2, 0.6)], [hostile])
    html = write([folder]).read_text()
    page = Tags(html)
    assert not page.tags & {"img", "script"} and "onerror=alert(1)" in page.text
    assert page_text.TITLE in page.text and "level 0: 8 turns of 5 sessions, +0.61" in page.text
    words = page.text.replace("r3 ", "")
    assert not [word for word in ("eplay", "eflect", "R^3", "R³", "anked", "escue") if word in words]
    figures = {file.stem for file in (folder / "figures").iterdir()}
    assert figures == {"sessions", "levels", "validation", "time", "tokens"}
    assert write([folder]).is_file(), "a page of sessions is known as ours"


@pytest.mark.parametrize(
    ("accuracies", "invalid", "advice"),
    [
        ((0.4, 0.6), 0.1, "Compare before you trust the gain: `r3 study --plan examples/studies/hgpo_worlds.yaml`"),
        ((0.4, 0.6), 0.4, "Look at the episodes below: 40\N{NO-BREAK SPACE}% of the last answers did nothing."),
        ((0.4, 0.3), 0.1, "Train anew with a lower learning rate"),
        ((0.4, 0.4), 0.1, "Train longer, `r3 resume"),
    ],
)
def test_the_opening_speaks_of_sessions_and_its_advice_follows_from_the_figures(tmp_path, accuracies, invalid, advice):
    rows = [row(step, accuracy, invalid) for step, accuracy in enumerate(accuracies, start=1)]
    run = load_run(run_of(tmp_path / "hgpo" / "run", rows))
    happened, learned, following = opening([Arm("hgpo", [run])])
    assert "2 steps (16 tasks)" in happened
    assert learned.replace("\N{NO-BREAK SPACE}", " ") == (
        "766 turns were played, and in 8 of 16 groups of sessions all won or all lost; 75 % of the last turns had an "
        "advantage."
    )
    assert following.startswith(advice)


def test_beside_a_run_of_answers_the_report_is_the_usual_one(tmp_path):
    runs = [
        load_run(run_of(tmp_path / name, [row(1, 0.5)], config=config)) for name, config in (("a", HGPO), ("b", None))
    ]
    for entry in runs[1].rows:
        del entry["sessions/number"]
    sections, _ = all_sections([Arm(run.folder.name, [run]) for run in runs], "step")
    assert "sessions" not in [section.key for section in sections]
