"""Replay that ignores the prompt: right answers to any query, each under its own prompt."""

import datasets
import pytest
from collector import N, finish_step, read, write_group

from recipe.common.checks import Refused
from recipe.common.prompts import Prompts
from recipe.common.rows import tags_of
from recipe.r3.config.r3_rules import validate_r3_config
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

QUESTIONS = {"solved": "the sum of 12 and 12", "other": "the answer", "hard": "the sum of the two"}


@pytest.fixture
def prompts(tokenizer):
    rows = {"query_id": list(QUESTIONS), "prompt": [[{"role": "user", "content": text}] for text in QUESTIONS.values()]}
    return Prompts(datasets.Dataset.from_dict(rows), "prompt", tokenizer, {}, max_length=40)


def sample(buffer, step, **outcomes):
    for query, of_query in outcomes.items():
        write_group(query, of_query, step=step)
    batch, _ = buffer.sample(step, "train", len(outcomes))
    return batch


def replayed(batch):
    """(tag, row) of each replayed row."""
    rows = read(batch)
    return [(tag, rows[key]) for key, tag in zip(batch.keys, tags_of(batch), strict=True) if tag.is_replayed]


def test_prompts_are_tokenized_as_verls_rollout_worker_does_it(prompts, tokenizer):
    builder = create_continuous_token_builder(tokenizer, hf_model_type="any", chat_template_kwargs={})
    for query, text in QUESTIONS.items():
        assert prompts[query].tolist() == builder.build_initial_tokens([{"role": "user", "content": text}])


def test_a_prompt_over_the_limit_is_cut_from_the_left_as_verl_does(prompts, tokenizer):
    whole = prompts["hard"].tolist()
    rows = datasets.Dataset.from_dict(
        {"query_id": ["hard"], "prompt": [[{"role": "user", "content": QUESTIONS["hard"]}]]}
    )
    assert Prompts(rows, "prompt", tokenizer, {}, max_length=5)["hard"].tolist() == whole[-5:]


def test_an_all_wrong_group_gets_a_right_answer_to_another_query_under_that_ones_prompt(make_buffer, prompts):
    buffer = make_buffer(outcome="any_prompt")
    buffer.replayer.prompts = prompts
    finish_step(sample(buffer, 1, solved=("right", "wrong", "wrong")))
    [(tag, row)] = replayed(sample(buffer, 2, hard=("wrong",) * N))
    assert (tag.group, tag.correct) == ("hard", True)  # the group it joins, by which it trains
    assert row["prompts"].tolist() == prompts["solved"].tolist()
    assert row["input_ids"].tolist() == [*prompts["solved"].tolist(), *row["responses"].tolist()]
    assert tag.prompt_len == len(prompts["solved"]) and tag.seq_len == len(row["input_ids"]) == len(row["position_ids"])


def test_replay_of_the_own_query_finds_nothing_there(make_buffer):
    buffer = make_buffer()
    finish_step(sample(buffer, 1, solved=("right", "wrong", "wrong")))
    assert not replayed(sample(buffer, 2, hard=("wrong",) * N))


def test_answers_whose_prompt_is_not_in_the_data_are_passed_over(make_buffer, prompts):
    buffer = make_buffer(outcome="any_prompt")
    buffer.replayer.prompts = prompts
    finish_step(sample(buffer, 1, unknown=("right", "wrong", "wrong")))
    assert not replayed(sample(buffer, 2, hard=("wrong",) * N))


def test_every_stored_right_answer_has_its_turn(make_buffer, prompts):
    buffer = make_buffer(outcome="any_prompt")
    buffer.replayer.prompts = prompts
    finish_step(sample(buffer, 1, solved=("right",) * N, other=("right",) * N))
    found = set()
    for step in range(2, 14):
        batch = sample(buffer, step, hard=("wrong",) * N)
        found.update(tuple(row["input_ids"].tolist()) for _, row in replayed(batch))
        finish_step(batch)
    assert len(found) > N


def test_it_is_refused_with_reflection_and_both_ways_out_are_followed(with_settings):
    settings = {"algorithm.r3.replay.outcome": "any_prompt"}
    with pytest.raises(Refused, match="replay.outcome: any_prompt finds an answer for every dead group"):
        validate_r3_config(with_settings(settings))
    validate_r3_config(with_settings(settings | {"algorithm.r3.reflection.enable": False}))
