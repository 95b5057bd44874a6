"""summary.json and the console lines, from rows of metrics.jsonl."""

import io
import json

import pytest
from rich.console import Console

from r3_ext.record.console import RunDisplay, closing_table, found_by, group_rows, lists_table, step_line
from r3_ext.record.summary import THROWN_AWAY, over_starts, read_metrics, summarise, validation_lists


def row(step, score, **extra):
    """A training row of R^3 with 2 groups of 4: one mixed, one all wrong."""
    ledger = {"total": 2, "mixed": 1, "all_correct": 0, "all_wrong": 1, "rescued_by_replay": 1, "ranked": 0}
    return {
        "step": step,
        "training/global_step": step,
        "training/epoch": (step - 1) // 2,
        "fresh/score/mean": score,
        "fresh/rows": 8,
        "generated/tokens": 150,
        "fresh/acc/mean": 0.25,
        "fresh/truncated/mean": 0.5,
        "replay/rows": 1,
        "reflection/rows": 4,
        "reflection/prompts": 1,
        "reflection/solved": 1,
        "response_length/mean": 12.5,
        "actor/grad_norm": 0.3,
        "timing_s/step": float(step),
        "groups/still_dead": 0,
        "groups/still_wrong": 0,
        **{f"groups/{name}": count for name, count in ledger.items()},
        **extra,
    }


def test_counts_add_up_over_steps_and_kinds_of_rows():
    validation = {"step": 0, "val-core/aime/acc/mean@4": 0.2, "val-core/math/acc/mean@4": 0.4}
    rows = [validation, row(1, 0.5), row(2, 0.7), row(3, 0.9, **{"val-core/aime/acc/mean@4": 0.5})]
    summary = summarise(rows, batch_size=2, n=4, seconds_total=60.0)
    assert (summary["steps"], summary["epochs"], summary["prompts"]) == (3, 2, 6)
    assert summary["generated_tokens"] == 3 * 150
    assert summary["trained_rows"] == 3 * (8 + 1 + 4)
    assert summary["groups"]["rescued_by_replay"] == 3 and summary["groups"]["still_dead"] == 0
    assert summary["reflection"] == {"prompts": 3, "solved": 3, "prompt_tokens": 0, "by": {}}
    assert summary["trained_tokens"] is None and summary["groups"]["split"] is None, "not logged is not zero"
    logged = [row(1, 0.5, **{"trained/tokens": 160, "groups/split": 0, "groups/no_signal": 1})] * 2
    counted = summarise(logged, batch_size=2, n=4, seconds_total=60.0)
    assert counted["trained_tokens"] == 320
    assert (counted["groups"]["split"], counted["groups"]["no_signal"]) == (0, 2)
    assert (summary["reward"]["first"], summary["reward"]["last"]) == (0.5, 0.9)
    assert summary["val"] == {"first": pytest.approx(0.3), "last": 0.5}
    assert summary["seconds"] == {"total": 60.0, "per_step_median": 2.0}


def test_the_table_says_what_the_sentences_of_a_run_say():
    """A group that replay rescued and ranking ranked is rescued once, and groups that were thrown away were dead."""
    groups = {"all_wrong": 4, "all_correct": 0, "mixed": 0, "total": 4, "rescued_by_replay": 2, "ranked": 2}
    groups |= {"still_dead": 1, "still_wrong": 1}
    logged = {f"groups/{name}": number for name, number in groups.items()}
    summary = summarise([row(1, 0.5, **logged, **{THROWN_AWAY: 3})], batch_size=4, n=4, seconds_total=1.0)
    rows = dict(group_rows(summary))
    assert rows["dead groups rescued"] == "2 by replay, 1 by ranking alone; 1 still dead, 1 of them all wrong"
    assert rows["dead groups thrown away"] == "3"
    assert "dead groups thrown away" not in dict(group_rows(summarise([row(1, 0.5)], 4, 4, 1.0)))


def test_what_asking_again_found_is_added_up_by_way():
    by = {f"reflection/by_{way}/{name}": 0 for way in ("reflection", "plain") for name in ("asked", "found", "tokens")}
    rows = [
        row(step, 0.5, **by | {"reflection/by_plain/asked": 2, "reflection/by_plain/tokens": 90}) for step in (1, 2)
    ]
    rows.append(row(3, 0.5, **by | {"reflection/by_plain/found": 1}))
    found = summarise(rows, batch_size=2, n=4, seconds_total=60.0)["reflection"]["by"]
    assert found == {"plain": {"asked": 4, "found": 1, "tokens": 180}}
    assert found_by(found["plain"]) == "4, found 1: 180 tokens each"
    assert found_by({"asked": 4, "found": 0, "tokens": 180}) == "4, found 0: nothing for 180 tokens"


def test_validation_is_ours_before_verls_and_its_errors_are_counted():
    """verl's `acc` of a function that returns numbers under verl's manager is their mean, not a share of right ones."""
    validation = {"step": 0, "val-core/mine/acc/mean@1": 6.5, "val/mine/pass@1": 0.25, "val/reward_errors": 3}
    summary = summarise([validation, row(1, 0.5, **{"val/reward_errors": 1, "reward/errors": 2})], 2, 4, 1.0)
    assert summary["val"]["first"] == 0.25
    assert (summary["val_reward_errors"], summary["reward_errors"]) == (4, 2)


def test_first_and_last_reward_are_means_over_a_tenth_of_the_steps():
    rows = [row(step, float(step)) for step in range(1, 21)]
    assert summarise(rows, 2, 4, 1.0)["reward"] == {"first": 1.5, "last": 19.5, "window_steps": 2}


def test_a_run_of_verls_own_trainer_has_no_ledger_and_its_tokens_follow_from_the_totals():
    step = {"step": 1, "training/global_step": 1, "training/epoch": 0, "critic/score/mean": 0.4}
    step.update({"response_length/mean": 10.0, "prompt_length/mean": 5.0, "perf/total_num_tokens": 120})
    step["timing_s/step"] = 1.0
    summary = summarise([step], batch_size=2, n=4, seconds_total=1.0)
    assert summary["groups"]["total"] is None
    assert (summary["generated_tokens"], summary["trained_rows"], summary["prompts"]) == (80, 8, 2)
    assert summary["reward"]["first"] == 0.4


def test_a_run_that_died_before_its_first_step_still_has_a_summary():
    summary = summarise([], 2, 4, 1.0)
    assert summary["steps"] == 0 and summary["reward"]["first"] is None and summary["val"]["last"] is None


def test_a_torn_last_line_is_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1}) + '\n{"step": 2, "x')
    assert read_metrics(file) == [{"step": 1}]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_step_lines_fit_the_terminal_and_keep_step_and_reward(width):
    line = step_line(row(7, 0.5), width)
    assert len(line) <= width and line.startswith("step    7  reward 0.500")


def test_answers_without_a_score_are_told():
    failed = {**row(7, 0.5), "reward/errors": 3}
    assert "no score 3" in step_line(failed, 60) and "no score" not in step_line(row(7, 0.5), 60)
    tables = []
    for rows in ([row(1, 0.5), failed], [row(1, 0.5)]):
        console = Console(file=io.StringIO(), width=120)
        console.print(closing_table(summarise(rows, 4, 2, 1.0) | over_starts([], [])))
        tables.append(console.file.getvalue())
    assert "3: the grader was late, or" in tables[0] and "without a score" not in tables[1]


# sessions


def session_row(step, success, **extra):
    """A training row of HGPO: 8 groups of sessions, 4 of them dead, and 383 turns."""
    ledger = {"total": 8, "mixed": 4, "all_correct": 3, "all_wrong": 1, "still_dead": 4, "still_wrong": 1}
    groups = {f"groups/{name}": number for name, number in {**ledger, "rescued_by_replay": 0, "ranked": 0}.items()}
    turns = {"fresh/rows": 383, "fresh/acc/mean": success, "fresh/score/mean": 10 * success, "replay/rows": 0}
    of_sessions = {"sessions/bad_format": 0.02, "sessions/inadmissible": 0.2, "hgpo/turns_with_signal": 0.75}
    other = {"training/global_step": step, "training/epoch": 0, "timing_s/step": 80.0, "response_length/mean": 5.0}
    return {"step": step, **groups, **turns, **of_sessions, **other, "fresh/truncated/mean": 0.3} | extra


def printed(*parts):
    console = Console(file=io.StringIO(), width=120)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def test_a_run_of_sessions_tells_of_sessions_and_turns_and_of_no_replay():
    rows = [session_row(1, 0.5, **{"sessions/failed": 2}), session_row(2, 0.7)]
    summary = summarise(rows, 8, 8, 1.0, with_sessions=True)
    assert summary["sessions"] == {"turns": 766, "failed": 2, "success": {"first": 0.5, "last": 0.7}}
    text = printed(closing_table(summary | over_starts([], []))) + step_line(rows[0], 120, with_sessions=True)
    assert "reward 5.000  failed 2  success 0.50  turns 383  invalid 0.22  dead 3+1  signal 0.75  80.0s" in text
    assert summarise([session_row(1, 0.5)], 8, 8, 1.0, with_sessions=True)["sessions"]["failed"] is None, "not counted"
    assert "turns played" in text and "2, as their environment did" in text
    assert not [word for word in ("replay", "rescue", "reflect", "rank", "R^3") if word in text]


def test_the_last_validation_is_told_by_list_with_its_interval_over_tasks():
    names = {"pass@1": 0.5, "pass@1/low": 0.3, "pass@1/high": 0.7, "problems": 8.0, "failed": 1.0}
    last = {f"val/[bold]easy\x1b/{name}": value for name, value in names.items()}
    lists = validation_lists([{"step": 0, "val/easy/pass@1": 0.1}, {"step": 5} | last, session_row(6, 0.5)])
    assert [*lists.values()] == [{"pass@1": 0.5, "low": 0.3, "high": 0.7, "problems": 8.0, "failed": 1.0}]
    text = printed(lists_table(lists))
    assert "0.300 to 0.700" in text and "[bold]easy" in text and "\x1b" not in text


def test_restarts_are_told_against_fresh_attempts_and_an_alarm_says_what_to_switch_off():
    one = row(1, 0.5) | {"restart/success": 0.1, "restart/fresh_success": 0.25, "alarm/restarts": 1}
    assert "restarts 0.10 (fresh 0.25)" in step_line(one, 200)
    ends = row(2, 0.5, **{"restart/compared": 12.0, "restart/success": 0.5, "restart/fresh_success": 0.25})
    summary = summarise([one | {"restart/compared": 4.0, "restart/rows": 4}, ends], 2, 4, 60.0)
    assert summary["restarts"] == {"compared": 16, "success": 0.4, "fresh_success": 0.25}
    assert summary["trained_rows"] == 2 * (8 + 1 + 4) + 4
    assert "16 compared: 0.400 right" in printed(closing_table(summary | over_starts([], [])))
    some = ends | {"restart/rows": 36, "restart/acc/mean": 0.25}
    told = summarise([one | {"restart/rows": 4, "restart/acc/mean": 1.0}, some], 2, 4, 60.0)
    assert (told["restarts"]["rows"], told["restarts"]["right"]) == (40, 0.325), "all that were made"
    assert "40: 0.325 right" in printed(closing_table(told | over_starts([], [])))
    console = Console(file=io.StringIO(), width=200)
    RunDisplay(console, "run", 1).row(one)
    assert "set algorithm.rrl.restarts.share=0, or another algorithm.rrl.states.origin" in console.file.getvalue()
