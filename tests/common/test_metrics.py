import pytest
from tagged import PADDING, REPLAYED_RIGHT, REPLAYED_WRONG, RIGHT, WRONG, make_meta, make_tag

from recipe.common.metrics import add_all_work, group_ledger, series_metrics
from recipe.common.queue import KVBatchMeta
from recipe.common.rows import REFLECTION, RESTART


def test_ledger_counts_each_group_once_and_every_way_out_of_death():
    batch = make_meta(
        {
            "mixed": [RIGHT, WRONG],
            "right": [RIGHT, RIGHT],
            "right-replay": [RIGHT, RIGHT, REPLAYED_WRONG],
            "wrong": [WRONG, WRONG],
            "wrong-ranked": [WRONG, WRONG],
            "wrong-both": [WRONG, WRONG, REPLAYED_RIGHT],
            "pad": [PADDING],
        }
    )
    ledger = group_ledger(batch, ranked={"wrong-ranked": [0.5, 0.0], "wrong-both": [0.5, 0.0]})
    assert {name: count for name, count in ledger.items() if not name.startswith("reflection/")} == {
        "groups/total": 6,
        "groups/mixed": 1,
        "groups/all_correct": 2,
        "groups/all_wrong": 3,
        "groups/rescued_by_replay": 2,
        "groups/ranked": 2,
        "groups/still_dead": 2,
        "groups/still_wrong": 1,
        "groups/no_signal": 2,
    }
    assert not any(count for name, count in ledger.items() if name.startswith("reflection/"))


@pytest.mark.parametrize(
    "rewards, is_ranked",
    [
        ([0.5, 0.25, 0.0], True),
        ([0.25, 0.25, 0.25], False),  # all three tied: still no contrast
        ([0.25, 0.25, 0.0], True),  # two rows ranked and tied, a finished one at 0
        ([0.25, 0.25, 0.25], False),  # and at their mean
        ([0.0, 0.0, 0.0], False),  # one row ranked: all earn 0
        ([], False),
    ],
)
def test_a_group_counts_as_ranked_only_when_its_rewards_differ(rewards, is_ranked):
    ledger = group_ledger(make_meta({"u": [WRONG] * 3}), ranked={"u": rewards} if rewards else {})
    assert (ledger["groups/ranked"], ledger["groups/still_dead"]) == (is_ranked, not is_ranked)


def test_dead_is_about_answers_and_no_signal_about_rewards():
    """With the length bonus an all-correct group is dead and trains, and a mixed one always does."""
    bonus = [make_tag(True, 1.9), make_tag(True, 1.5)]
    ledger = group_ledger(make_meta({"bonus": bonus, "equal": [RIGHT, RIGHT], "mixed": [RIGHT, WRONG]}), ranked={})
    assert (ledger["groups/all_correct"], ledger["groups/still_dead"], ledger["groups/no_signal"]) == (2, 2, 1)
    tied = make_meta({"tied": [WRONG] * 3, "replayed": [WRONG, WRONG, REPLAYED_RIGHT]})
    assert group_ledger(tied, ranked={"tied": [0.25] * 3})["groups/no_signal"] == 1


def test_reflection_groups_have_a_ledger_of_their_own():
    reflected = make_tag(False, variant=REFLECTION)
    rescuer = make_tag(True, variant=REFLECTION, replay_age=1)
    batch = make_meta({"plain": [RIGHT, WRONG], "dead": [reflected] * 2, "rescued": [reflected, reflected, rescuer]})
    ledger = group_ledger(batch, ranked={})
    assert ledger["groups/total"] == 1
    names = ("total", "mixed", "all_correct", "all_wrong", "rescued_by_replay", "ranked", "still_dead", "still_wrong")
    assert [ledger[f"reflection/groups/{name}"] for name in names] == [2, 0, 0, 2, 1, 0, 1, 1]


def test_fresh_replayed_and_reflection_series_do_not_mix():
    def tag(score, length, **changes):
        return make_tag(score > 0, score, response_len=length, **changes)

    batch = make_meta(
        {
            "plain": [tag(1.5, 10), tag(0.0, 30, truncated=True)],
            "replay": [tag(0.0, 50), tag(1.9, 5, replay_age=3), tag(0.0, 7, replay_age=1, truncated=True)],
            "reflection": [tag(1.0, 100, variant=REFLECTION), tag(0.0, 200, variant=REFLECTION)],
            "reflection-replay": [tag(1.1, 9, variant=REFLECTION, replay_age=2)],
            "pad": [PADDING],
        }
    )
    expected = {
        "trained": {"rows": 8, "tokens": 411},
        "fresh": {"rows": 3, "tokens": 90, "score/mean": 0.5, "acc/mean": 1 / 3, "truncated/mean": 1 / 3},
        "replay": {"rows": 3, "tokens": 21, "score/mean": 1.0, "acc/mean": 2 / 3, "truncated/mean": 1 / 3},
        "reflection": {"rows": 2, "tokens": 300, "score/mean": 0.5, "acc/mean": 0.5, "truncated/mean": 0.0},
    }
    prompts = {"fresh": 60, "replay": 60, "reflection": 40}
    lengths = {"fresh": 30.0, "replay": 7.0, "reflection": 150.0}
    flat = {f"{name}/{key}": value for name, values in expected.items() for key, value in values.items()}
    flat |= {f"{name}/response_length/mean": value for name, value in lengths.items()}
    flat |= {f"{name}/prompt_tokens": value for name, value in prompts.items()}
    flat |= {f"{name}/mixed_versions/mean": 0.0 for name in lengths}
    assert series_metrics(batch) == pytest.approx({**flat, "replay/age/mean": 2.0, "reflection/solved": 1})


def test_a_session_of_several_rows_counts_once_by_its_last_row():
    def turn(score, length, **changes):
        return make_tag(score > 0, score, response_len=length, **changes)

    rows = {"u_0_1": turn(10.0, 2), "u_0_0": turn(10.0, 4), "u_1_0": turn(0.0, 6, truncated=True, versions=2)}
    rows |= {f"u_2_{index}": turn(0.0, 3) for index in range(5)}
    metrics = series_metrics(KVBatchMeta(keys=[*rows], tags=[*rows.values()], partition_id="train"))
    means = {name: metrics[f"fresh/{name}/mean"] for name in ("score", "acc", "truncated", "mixed_versions")}
    assert means == pytest.approx({"score": 10 / 3, "acc": 1 / 3, "truncated": 1 / 3, "mixed_versions": 1 / 3})
    assert (metrics["fresh/rows"], metrics["fresh/tokens"], metrics["fresh/response_length/mean"]) == (8, 27, 27 / 8)


def test_changing_one_series_leaves_the_others_alone():
    plain, replayed, reflected = (make_tag(True), make_tag(True, replay_age=1), make_tag(True, variant=REFLECTION))
    before = series_metrics(make_meta({"a": [plain, replayed], "b": [reflected]}))
    after = series_metrics(make_meta({"a": [plain, make_tag(False, 9.0, replay_age=8)], "b": [reflected]}))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"replay/score/mean", "replay/acc/mean", "replay/age/mean"}


def test_an_empty_series_reports_no_means():
    metrics = series_metrics(make_meta({"a": [WRONG]}))
    assert metrics["replay/rows"] == metrics["reflection/rows"] == metrics["replay/tokens"] == 0
    assert not any(name.startswith("replay/") and name.endswith("/mean") for name in metrics)


def test_solved_counts_queries_not_answers():
    tags = [make_tag(True, variant=REFLECTION, group=query) for query in ("q1", "q1", "q2")]
    assert series_metrics(make_meta({"a": tags}))["reflection/solved"] == 2


def restarted(correct: bool, generated: int, prefix: int) -> dict:
    lengths = {"prompt_len": 5, "response_len": generated + prefix, "seq_len": 5 + generated + prefix}
    return make_tag(correct, variant=RESTART) | lengths | {"prefix_len": prefix}


def test_restarts_are_a_series_and_a_ledger_of_their_own_and_only_what_they_generated_counts():
    rows = {"plain": [RIGHT, WRONG], "restart-a": [restarted(True, 3, 7), restarted(False, 5, 7)]}
    batch = make_meta(rows)
    ledger, metrics = group_ledger(batch, {}), series_metrics(batch)
    assert (ledger["groups/total"], ledger["restart/groups/total"], ledger["restart/groups/mixed"]) == (1, 1, 1)
    assert ledger["reflection/groups/total"] == 0 == metrics["reflection/rows"]
    assert (metrics["restart/rows"], metrics["restart/tokens"], metrics["restart/acc/mean"]) == (2, 8, 0.5)
    assert metrics["restart/response_length/mean"] == 11
    assert metrics["trained/tokens"] == metrics["fresh/tokens"] + 8 and metrics["trained/rows"] == 4


def test_without_restarts_there_is_no_series_of_them():
    batch = make_meta({"plain": [RIGHT, WRONG]})
    assert not [name for name in (*group_ledger(batch, {}), *series_metrics(batch)) if name.startswith("restart")]


def test_the_work_of_a_step_is_that_of_all_rows():
    batch = KVBatchMeta(partition_id="train", keys=["a_0_0", "b_0_0"], tags=[{"seq_len": 30}, {"seq_len": 10}])
    metrics = {"perf/total_num_tokens": 30, "perf/throughput": 3.0}
    add_all_work(metrics, batch)
    assert metrics == {"perf/total_num_tokens": 40, "perf/throughput": 4.0}
