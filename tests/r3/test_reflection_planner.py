"""Reflection prompts: who gets one."""

import uuid

import numpy as np
import pytest
import torch
from reflecting import encode, make_planner
from tensordict import NonTensorData, NonTensorStack

from recipe.common.rows import PLAIN, REFLECTION, is_reflection
from recipe.r3.config.r3_config import ReflectionConfig
from recipe.r3.history.store import Sample, Transfer
from recipe.r3.reflection import AGENT_NAME
from recipe.r3.replay.all_wrong import AllWrong
from recipe.r3.replay.ways import Ways
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn


def make_batch(tokenizer, queries: list[str], **columns):
    """A training batch as verl's dataset, collate function and `_next_train_batch` build it."""
    rows = [
        {
            "data_source": "math",
            "query_id": query,
            "raw_prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Solve {query}."}],
            "reward_model": {"style": "rule", "ground_truth": f"gold-{query}"},
            "extra_info": {"index": row, "solution": f"gold-{query}"},
            "index": row,
            "tools_kwargs": {},
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
            **columns,
        }
        for row, query in enumerate(queries)
    ]
    batch = collate_fn(rows)
    batch["uid"] = np.array([str(uuid.uuid4()) for _ in queries], dtype=object)
    batch = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(batch, "global_steps", 7)
    return batch


def worker_rows(batch) -> list[dict]:
    """The rows as AgentLoopWorkerTQ reads them; anything else in the batch raises KeyError."""
    read = {
        torch.Tensor: lambda value, row: value[row],
        NonTensorStack: lambda value, row: value[row].data,
        NonTensorData: lambda value, row: value.data,
    }
    return [{name: read[type(value)](value, row) for name, value in batch.items()} for row in range(len(batch))]


def remember(tokenizer, history, query: str, wrong: int, correct: int = 0, variant=PLAIN, step: int = 1) -> None:
    """Store attempts that read `wrong plain 0 of {query}` and so on, each with its end token."""
    samples = []
    for name, count in (("wrong", wrong), ("right", correct)):
        for number in range(count):
            ids = [*encode(tokenizer, f"{name} {variant} {number} of {query}"), tokenizer.eos_token_id]
            samples.append(Sample(query, np.array(ids), name == "right", 0.0, False, step=step, variant=variant))
    history.add(samples, step=step)


def reflected(batch, augmented) -> list[str]:
    """Query ids of the appended rows."""
    return [row["query_id"] for row in worker_rows(augmented)[len(batch) :]]


def test_a_hard_query_gets_a_second_row_with_a_wrong_attempt_without_its_end_token(tokenizer, history):
    remember(tokenizer, history, "hard", wrong=5, correct=1)
    remember(tokenizer, history, "easy", wrong=2, correct=4)
    augmented, metrics = make_planner(tokenizer, history).augment(make_batch(tokenizer, ["easy", "hard"]), step=2)
    rows = worker_rows(augmented)
    assert [row["agent_name"] for row in rows] == ["single_turn_agent", "single_turn_agent", AGENT_NAME]
    system, question = rows[2]["raw_prompt"]
    assert system == {"role": "system", "content": "Be brief."}
    assert question["content"] in [f"Q: Solve hard.\nA: wrong plain {n} of hard\nTry again." for n in range(5)]
    assert metrics == {
        "reflection/hard_queries": 1,
        "reflection/prompts": 1,
        "reflection/skipped_over_budget": 0,
        "reflection/skipped_no_attempt": 0,
        "reflection/transfer/queries": 0,
    }


def test_a_cut_off_attempt_is_not_said_to_have_a_wrong_answer(tokenizer, history):
    for query, truncated in (("cut", True), ("ended", False)):
        ids = np.array(encode(tokenizer, "so far"))
        history.add([Sample(query, ids, False, 0.0, truncated, step=1)] * 4, step=1)
    planner = make_planner(tokenizer, history, template_cut_off="{question} was cut off: {attempt}")
    batch = make_batch(tokenizer, ["cut", "ended"])
    augmented, _ = planner.augment(batch, step=2)
    asked = {row["query_id"]: row["raw_prompt"][-1]["content"] for row in worker_rows(augmented)[len(batch) :]}
    assert asked == {"cut": "Solve cut. was cut off: so far", "ended": "Q: Solve ended.\nA: so far\nTry again."}


def test_the_published_wordings_say_what_is_true_of_either_kind():
    config = ReflectionConfig()
    assert "cut off" in config.template_cut_off and "cut off" not in config.template
    assert not any("final answer is wrong" in text for text in (config.template, config.template_cut_off))


def add_attempts(tokenizer, history, step: int, *attempts: tuple[str, bool]) -> None:
    """One attempt per (variant, correct) at the query `hard`."""
    samples = [
        Sample("hard", np.array(encode(tokenizer, f"{step} {n}")), correct, 0.0, False, step=step, variant=variant)
        for n, (variant, correct) in enumerate(attempts)
    ]
    history.add(samples, step=step)


def test_transfer_compares_the_plain_prompt_up_to_the_first_reflection_and_since(tokenizer, history):
    wrong, right = (PLAIN, False), (PLAIN, True)
    add_attempts(tokenizer, history, 1, wrong, wrong, wrong, wrong)
    add_attempts(tokenizer, history, 2, wrong, wrong, wrong, right, (REFLECTION, True), (REFLECTION, False))
    add_attempts(tokenizer, history, 3, right, wrong)
    add_attempts(tokenizer, history, 4, right, right)
    assert history.transfer(["hard", "never reflected on"]) == {"hard": Transfer(8, 1, 4, 3)}
    batch = make_batch(tokenizer, ["hard", "never reflected on"])
    _, metrics = make_planner(tokenizer, history).augment(batch, step=5)
    transfer = {key.rpartition("/")[2]: value for key, value in metrics.items() if "/transfer/" in key}
    assert transfer == {"queries": 1, "before": 1 / 8, "after": 3 / 4}


def test_a_reflection_row_keeps_every_other_field_and_the_plain_rows_stay(tokenizer, history):
    remember(tokenizer, history, "hard", wrong=4)
    batch = make_batch(tokenizer, ["easy", "hard"])
    before = worker_rows(batch)
    augmented, _ = make_planner(tokenizer, history).augment(batch, step=2)
    *plain, extra = worker_rows(augmented)
    assert [{**row, "agent_name": None} for row in plain] == [{**row, "agent_name": None} for row in before]
    changed = {name for name in extra if extra[name] != plain[1][name]}
    assert changed == {"uid", "raw_prompt", "agent_name"}
    assert augmented["global_steps"] == 7


def test_an_agent_loop_named_by_the_dataset_stays_for_plain_rows(tokenizer, history):
    remember(tokenizer, history, "hard", wrong=4)
    batch = make_batch(tokenizer, ["easy", "hard"], agent_name="tool_agent")
    augmented, _ = make_planner(tokenizer, history).augment(batch, step=2)
    assert [row["agent_name"] for row in worker_rows(augmented)] == ["tool_agent", "tool_agent", AGENT_NAME]


def test_every_uid_is_fresh_and_fit_for_a_transfer_queue_key(tokenizer, history):
    queries = [f"q{number}" for number in range(6)]
    for query in queries:
        remember(tokenizer, history, query, wrong=4)
    augmented, _ = make_planner(tokenizer, history).augment(make_batch(tokenizer, queries), step=2)
    uids = [row["uid"] for row in worker_rows(augmented)]
    assert len(set(uids)) == 12 and not any("_" in uid for uid in uids)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_batch_can_be_dealt_out_to_rollout_workers(tokenizer, history, workers):
    remember(tokenizer, history, "hard", wrong=4)
    batch = make_batch(tokenizer, ["easy", "hard", "easy too", "easy three"])
    augmented, _ = make_planner(tokenizer, history).augment(batch, step=2)
    dealt = [row for chunk in augmented.chunk(workers) for row in worker_rows(chunk)]
    assert dealt == worker_rows(augmented)


def test_nothing_changes_when_no_query_is_hard(tokenizer, history):
    remember(tokenizer, history, "easy", wrong=1, correct=3)
    batch = make_batch(tokenizer, ["easy", "never seen"])
    augmented, metrics = make_planner(tokenizer, history).augment(batch, step=2)
    assert augmented is batch and len(batch) == 2 and "agent_name" not in batch
    assert set(metrics.values()) == {0}


@pytest.mark.parametrize("wrong, correct, hard", [(3, 1, False), (4, 1, True), (4, 0, True), (0, 4, False)])
def test_hard_means_strictly_below_the_threshold(tokenizer, history, wrong, correct, hard):
    remember(tokenizer, history, "q", wrong, correct)  # threshold 0.25: one in four is not hard, one in five is
    _, metrics = make_planner(tokenizer, history, threshold=0.25).augment(make_batch(tokenizer, ["q"]), step=2)
    assert metrics["reflection/prompts"] == hard


@pytest.mark.parametrize("rounds, hard", [(None, True), (2, True), (1, False)])
def test_a_query_that_became_easy_is_hard_by_its_old_rounds_alone(tokenizer, history, rounds, hard):
    remember(tokenizer, history, "q", wrong=8, step=1)
    remember(tokenizer, history, "q", wrong=2, correct=2, step=3)
    planner = make_planner(tokenizer, history, threshold=0.25, rounds=rounds)
    _, metrics = planner.augment(make_batch(tokenizer, ["q"]), step=4)
    assert metrics["reflection/prompts"] == hard


def test_a_query_with_too_few_attempts_is_not_hard_yet(tokenizer, history):
    remember(tokenizer, history, "q", wrong=5)
    batch = make_batch(tokenizer, ["q"])
    for min_attempts, prompts in ((6, 0), (5, 1)):
        _, metrics = make_planner(tokenizer, history, min_attempts=min_attempts).augment(batch, step=2)
        assert metrics["reflection/prompts"] == prompts


def test_attempts_under_reflection_count_only_on_request_and_are_never_shown(tokenizer, history):
    remember(tokenizer, history, "q", wrong=4)
    remember(tokenizer, history, "q", wrong=1, correct=3, variant=REFLECTION)
    batch = make_batch(tokenizer, ["q"])
    _, metrics = make_planner(tokenizer, history, count_reflected_attempts=True).augment(batch, step=2)
    assert metrics["reflection/prompts"] == 0  # 3 of 8
    for step in range(20):
        augmented, _ = make_planner(tokenizer, history).augment(make_batch(tokenizer, ["q"]), step)
        assert "wrong plain" in worker_rows(augmented)[-1]["raw_prompt"][-1]["content"]


@pytest.mark.parametrize("max_fraction, prompts", [(0.25, 2), (0.5, 4), (1.0, 8), (0.01, 1)])
def test_the_cap_is_a_share_of_the_batch_and_at_least_one(tokenizer, history, max_fraction, prompts):
    queries = [f"q{number}" for number in range(8)]
    for query in queries:
        remember(tokenizer, history, query, wrong=4)
    batch = make_batch(tokenizer, queries)
    augmented, metrics = make_planner(tokenizer, history, max_fraction=max_fraction).augment(batch, step=2)
    assert len(augmented) == 8 + prompts and metrics["reflection/prompts"] == prompts
    assert metrics["reflection/hard_queries"] == 8 and len(set(reflected(batch, augmented))) == prompts


def test_the_choice_depends_on_seed_and_step_alone(tokenizer, history):
    queries = [f"q{number}" for number in range(8)]
    for query in queries:
        remember(tokenizer, history, query, wrong=6)

    def prompts(seed: int, step: int) -> list[str]:
        planner = make_planner(tokenizer, history, seed=seed, max_fraction=0.25)
        augmented, _ = planner.augment(make_batch(tokenizer, queries), step)
        return [row["raw_prompt"][-1]["content"] for row in worker_rows(augmented)[8:]]

    assert prompts(0, 2) == prompts(0, 2)
    assert len({str(prompts(seed, step)) for seed in range(3) for step in range(3)}) > 5


def test_a_query_whose_prompt_is_over_budget_is_skipped_and_counted(tokenizer, history):
    remember(tokenizer, history, "short", wrong=4)
    remember(tokenizer, history, "long " * 50, wrong=4)
    batch = make_batch(tokenizer, ["long " * 50, "short"])
    augmented, metrics = make_planner(tokenizer, history, budget=100).augment(batch, step=2)
    assert reflected(batch, augmented) == ["short"]
    assert metrics["reflection/skipped_over_budget"] == 1 and metrics["reflection/prompts"] == 1


def test_a_hard_query_without_a_stored_wrong_attempt_is_skipped_and_counted(tokenizer, history):
    remember(tokenizer, history, "q", wrong=4, variant=REFLECTION)
    batch = make_batch(tokenizer, ["q"])
    augmented, metrics = make_planner(tokenizer, history, count_reflected_attempts=True).augment(batch, step=2)
    assert augmented is batch and metrics["reflection/skipped_no_attempt"] == 1


def test_the_gold_answer_never_enters_the_prompt(tokenizer, history):
    remember(tokenizer, history, "q", wrong=4)
    augmented, _ = make_planner(tokenizer, history).augment(make_batch(tokenizer, ["q"]), step=2)
    row = worker_rows(augmented)[-1]
    assert "gold" in str(row["reward_model"]) and "gold" not in str(row["raw_prompt"])


def test_every_prompt_names_its_worker_so_that_reissued_ones_have_the_column_in_common(tokenizer, history):
    remember(tokenizer, history, "hard", wrong=4)
    planner = make_planner(tokenizer, history)
    batch = make_batch(tokenizer, ["easy", "hard"])
    planner.name_agents(batch)
    assert [row["agent_name"] for row in worker_rows(batch)] == ["single_turn_agent", "single_turn_agent"]
    own = make_batch(tokenizer, ["easy"], agent_name="tool_agent")
    planner.name_agents(own)
    assert [row["agent_name"] for row in worker_rows(own)] == ["tool_agent"]
    augmented, _ = planner.augment(batch, 1)
    reflections = [row for row in worker_rows(augmented) if row["agent_name"] == AGENT_NAME]
    assert reflections and all(is_reflection(row["uid"]) for row in reflections)
    assert not any(is_reflection(row["uid"]) for row in worker_rows(batch))


@pytest.mark.parametrize(("waiting", "asked"), [(0, 2), (2, 2), (3, 1), (4, 0), (9, 0)])
def test_fewer_are_asked_while_more_than_a_steps_worth_waits(tokenizer, history, waiting, asked):
    queries = [f"q{number}" for number in range(6)]
    for query in queries:
        remember(tokenizer, history, query, wrong=4)
    planner = make_planner(tokenizer, history, batch_size=8, max_fraction=0.25)
    assert planner.cap == 2
    _, metrics = planner.augment(make_batch(tokenizer, queries), 2, waiting)
    assert metrics["reflection/prompts"] == asked


@pytest.mark.parametrize("ask", ["reflection", "plain"])
def test_an_all_wrong_group_is_asked_by_the_way_that_is_chosen(tokenizer, history, ask):
    planner, batch = make_planner(tokenizer, history), make_batch(tokenizer, ["q1", "q2"])
    planner.ways = Ways(ask, 0)
    planner.name_agents(batch)
    columns = [str(name) for name in batch.keys()]
    # As TransferQueue has the rows: without the name of the agent.
    rows = [{name: value for name, value in row.items() if name != "agent_name"} for row in worker_rows(batch)]
    attempt = Sample("q1", np.array(encode(tokenizer, "it is 5")), False, 0.0, False, step=3)
    asked = worker_rows(planner.again({"u1": AllWrong(rows[0], attempt)}, columns, 7))
    ((row,), plain) = asked, rows[0]["raw_prompt"]
    assert (row["uid"], row["query_id"], row["global_steps"]) == ("reflection-u1", "q1", 7)
    shown = "it is 5" in row["raw_prompt"][-1]["content"]
    assert (shown, row["agent_name"]) == ((True, AGENT_NAME) if ask == "reflection" else (False, "single_turn_agent"))
    assert (list(row["raw_prompt"]) == list(plain)) is (ask == "plain")
    assert row.keys() == {*rows[0], "agent_name"}


def test_a_query_whose_group_waits_is_asked_for_that_group_alone(tokenizer, history):
    """It may be in the next batch, too: where an epoch ends, or where there are few problems."""
    for query in ("waits", "hard"):
        remember(tokenizer, history, query, wrong=4)
    planner, batch = make_planner(tokenizer, history), make_batch(tokenizer, ["waits", "hard"])
    planner.ways = Ways("reflection", 0)
    attempt = Sample("waits", np.array(encode(tokenizer, "it is 5")), False, 0.0, False, step=1)
    held = {"u1": AllWrong(worker_rows(make_batch(tokenizer, ["waits"]))[0], attempt)}
    augmented, metrics = planner.augment(batch, 2, held=held)
    assert sorted(reflected(batch, augmented)) == ["hard", "waits"]
    assert "reflection-u1" in {row["uid"] for row in worker_rows(augmented)}
    assert metrics["reflection/prompts"] == 2


def test_the_plain_prompt_always_fits(tokenizer, history):
    planner, batch = make_planner(tokenizer, history, budget=1), make_batch(tokenizer, ["q1"])
    group = AllWrong(worker_rows(batch)[0], Sample("q1", np.array([5]), False, 0.0, False, step=3))
    planner.ways = Ways("reflection", 0)
    assert not planner.fits(group)
    planner.ways = Ways("plain", 0)
    assert planner.fits(group)
