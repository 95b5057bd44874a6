"""All-wrong groups that go on from a part of a stored right answer."""

import random

import numpy as np
import pytest
from collector import N, finish_step, read, write_group
from reflecting import make_planner

from recipe.common.metrics import group_ledger, series_metrics
from recipe.common.restart.agent_loop import AGENT_NAME, PREFIX, PREFIX_LOG_PROBS
from recipe.common.restart.cuts import ENDS, Cutter
from recipe.common.rows import PLAIN, REFLECTION, RESTART, groups_of, tags_of
from recipe.r3.history.store import Sample
from recipe.r3.replay.all_wrong import AllWrong
from recipe.r3.replay.ways import Tally, Ways, reflection_share
from recipe.r3.restarts import LEAST, MOST, NOTHING, Beginning, Restarter
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

STEP_END = 5
WRONG = ("wrong",) * N


@pytest.fixture
def restarter(history):
    ends = np.zeros(100, dtype=np.uint8)
    ends[STEP_END] = ENDS
    return Restarter(history, Cutter(ends, frozenset(), room=1, max_length=64, lowest=LEAST, highest=MOST), seed=0)


def keep(history, tokens, correct=True, log_probs=True, variant=PLAIN, query="q"):
    tokens = np.array(tokens, dtype=np.int32)
    values = -np.arange(len(tokens), dtype=np.float32) / 8 if log_probs else None
    score = float(correct)
    history.add([Sample(query, tokens, correct, score, False, 1, variant=variant, log_probs=values)], step=1)


ANSWER = [1, 2, STEP_END, 3, STEP_END, 4, 6, STEP_END, 7, 8, 9, 10]
"""Twelve tokens: of the ends of steps at 3, 5 and 8 two keep a quarter to a half."""


def test_it_keeps_a_quarter_to_a_half_of_a_right_answer_to_the_end_of_a_step(history, restarter):
    keep(history, ANSWER)
    cuts = set()
    for step in range(20):
        found = restarter.beginning("q", step)
        cuts.add(len(found.tokens))
        assert found.tokens.tolist() == ANSWER[: len(found.tokens)]
        assert found.log_probs.tolist() == [-i / 8 for i in range(len(found.tokens))]
    assert cuts == {3, 5} and restarter.can("q")


def test_the_choice_follows_from_seed_step_and_query(history, restarter):
    for first in range(20, 26):
        keep(history, [first, *ANSWER[1:]])
    again = Restarter(history, restarter.cutter, seed=0)
    chosen = [restarter.beginning("q", step).tokens.tolist() for step in range(10)]
    assert chosen == [again.beginning("q", step).tokens.tolist() for step in range(10)]
    other = Restarter(history, restarter.cutter, seed=1)
    assert chosen != [other.beginning("q", step).tokens.tolist() for step in range(10)]


@pytest.mark.parametrize(
    ("tokens", "fields"),
    [
        (ANSWER, {"correct": False}),
        (ANSWER, {"log_probs": False}),
        (ANSWER, {"variant": REFLECTION}),  # its prompt held an attempt
        (ANSWER, {"query": "another"}),
        ([1, 2, 3, 4, 6, 7], {}),
    ],
)
def test_nothing_to_go_on_from(history, restarter, tokens, fields):
    keep(history, tokens, **fields)
    assert restarter.beginning("q", 2) is None and not restarter.can("q")


def test_a_restarted_answer_may_be_gone_on_from_again(history, restarter):
    keep(history, ANSWER, variant=RESTART)
    assert restarter.can("q")


def test_a_known_hard_query_is_asked_from_there_and_an_unknown_one_by_reflection(tokenizer, history, restarter):
    planner = make_planner(tokenizer, history, min_attempts=1, rounds=None)
    planner.restarter = restarter
    keep(history, [1, 2, 3], correct=False, query="new")
    for wrong in range(30, 36):
        keep(history, [wrong, 2, 3], correct=False)
    keep(history, ANSWER)
    batch = prompts_of({"q": "one and one", "new": "two and two"})
    planner.name_agents(batch)
    found, metrics = planner.augment(batch, step=2)
    again = {str(query): at for at, query in enumerate(found["query_id"]) if at >= 2}
    assert metrics["reflection/prompts"] == 2 and set(again) == {"q", "new"}
    known, unknown = again["q"], again["new"]
    assert found["agent_name"][known] == AGENT_NAME and list(found["raw_prompt"][known]) == list(found["raw_prompt"][0])
    kept = len(found[PREFIX][known])
    assert kept in (3, 5) and found[PREFIX][known].tolist() == ANSWER[:kept]
    assert len(found[PREFIX_LOG_PROBS][known]) == kept
    assert found["agent_name"][unknown] == "r3_reflection" and len(found[PREFIX][unknown]) == 0
    assert all(len(found[PREFIX][at]) == 0 for at in range(2))


def test_an_all_wrong_group_is_asked_from_there_at_once(tokenizer, history, restarter):
    planner = make_planner(tokenizer, history)
    planner.restarter, planner.ways = restarter, Ways("restart", 0)
    keep(history, ANSWER)
    plain = prompts_of({"q": "one and one", "new": "two and two"})
    planner.name_agents(plain)
    rows = [{name: plain[name][at] for name in plain.keys()} for at in range(2)]
    wrong = [Sample(query, np.array([1], np.int32), False, 0.0, False, 2) for query in ("q", "new")]
    groups = {f"u{at}": AllWrong(row, sample) for at, (row, sample) in enumerate(zip(rows, wrong, strict=True))}
    batch = planner.again(groups, [str(name) for name in plain.keys()], step=2)
    assert [str(uid) for uid in batch["uid"]] == ["reflection-u0", "reflection-u1"]
    assert batch["agent_name"][0] == AGENT_NAME and batch["agent_name"][1] != AGENT_NAME
    assert [len(part) for part in batch[PREFIX]] in ([3, 0], [5, 0])


def prompts_of(questions):
    rows = [
        {"query_id": query, "uid": f"u{at}", "raw_prompt": [{"role": "user", "content": text}]}
        for at, (query, text) in enumerate(questions.items())
    ]
    return list_of_dict_to_tensordict(rows)


def step_with_restarts(buffer, outcomes):
    """A stored right answer, then an all-wrong group and its restarts; the batch."""
    buffer.ways = Ways("restart", 0)
    write_group("q", ("right", "wrong", "wrong"), step=1)
    finish_step(buffer.sample(1, "train", 1)[0])
    plain = write_group("q", WRONG, step=2)
    write_group("q", outcomes, step=2, variant=RESTART, of=plain)
    return buffer.sample(2, "train", 2)[0], plain


def test_a_right_restart_rescues_its_group_before_the_stored_answer(make_buffer, history):
    batch, plain = step_with_restarts(make_buffer(), ("wrong", "right", "wrong"))
    rows, tags = read(batch), tags_of(batch)
    [at] = [at for at, tag in enumerate(tags) if tag.is_replayed]
    assert batch.keys[at].startswith(plain) and rows[batch.keys[at]]["responses"][0] == 201  # of step 2, not of 1
    assert tags[at].replay_age == 0 and tags[at].stored_log_probs
    assert rows[batch.keys[at]]["response_mask"].all()  # in the plain group all of it is learned
    ledger = group_ledger(batch, {})
    assert (ledger["groups/rescued_by_replay"], ledger["restart/groups/mixed"]) == (1, 1)
    [sample] = history.draw("q", True, 9, random.Random(0), variants=(RESTART,))
    assert sample.tokens.tolist() == [201] * 3


def test_where_no_restart_is_right_the_stored_answer_rescues_as_ever_and_the_restarts_stay_alone(make_buffer):
    batch, plain = step_with_restarts(make_buffer(), WRONG)
    rows, tags = read(batch), tags_of(batch)
    replayed = [key for key, tag in zip(batch.keys, tags, strict=True) if tag.is_replayed]
    assert [key.startswith(plain) for key in replayed] == [True] and rows[replayed[0]]["responses"][0] == 100
    assert sorted(map(len, groups_of(batch.keys, tags).values())) == [N, N + 1]


def test_tokens_of_the_stored_part_count_as_generated_nowhere(make_buffer):
    batch, _ = step_with_restarts(make_buffer(), WRONG)
    metrics = series_metrics(batch)
    assert metrics["restart/tokens"] == sum(2 + session - 1 for session in range(N))
    assert metrics["fresh/tokens"] == sum(2 + session for session in range(N))


def test_a_masked_token_behind_the_stored_part_ends_the_run(make_buffer):
    buffer = make_buffer()
    buffer.ways = Ways("restart", 0)
    write_group("q", ("turns", *WRONG[1:]), step=1)
    with pytest.raises(ValueError, match="holds tokens that the model did not write"):
        buffer.sample(1, "train", 1)


def test_restarts_are_counted_by_themselves_and_do_not_decide_how_others_are_asked(make_buffer):
    buffer = make_buffer()
    step_with_restarts(buffer, ("wrong", "right", "wrong"))
    assert buffer.ways.found[RESTART] == Tally(1, 1, sum(1 + session for session in range(N)))
    assert reflection_share(buffer.ways.found) == 0.5
    metrics = buffer.ways.take_metrics()
    assert (metrics["reflection/by_restart/asked"], metrics["reflection/by_restart/found"]) == (1, 1)


def test_prompts_of_restarts_and_of_others_have_the_same_columns():
    columns = Beginning(np.ones(2, np.int32), np.zeros(2, np.float32)).columns()
    assert columns["agent_name"] == AGENT_NAME and set(NOTHING) == {PREFIX, PREFIX_LOG_PROBS} == set(columns) - {
        "agent_name"
    }
    assert all(columns[name].dtype == value.dtype for name, value in NOTHING.items())
