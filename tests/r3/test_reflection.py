"""Reflection prompts: what they say, that they fit, who gets one, and the rollout worker that answers them."""

import asyncio
import random
import uuid

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipe.common.rows import PLAIN, REFLECTION, is_reflection
from recipe.r3.config.r3_config import ReflectionConfig
from recipe.r3.history.store import History, Sample, Transfer
from recipe.r3.reflection import (
    AGENT_NAME,
    CUT_MARK,
    ReflectionAgentLoop,
    ReflectionPlanner,
    build_reflection_messages,
    shorten,
)
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

TEMPLATE = "Q: {question}\nA: {attempt}\nTry again."
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' + ('<think>' if thinking else '') -}}{%- endif -%}"
)
HOSTILE_TEXTS = [
    r"Let \frac{a}{b} = {x} and f(x) = \{0, 1\}.",
    "What does {attempt} mean in {question}?",
    "{0} {} {{}} %s %(question)s {question!r}",
    "  leading and trailing space\n",
    r"\1 \g<0> $& 中文 é 🙂",
]


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE with a few merges, so that text on both sides of a cut can join into one token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    specials = ["<|end|>", "<|user|>", "<|system|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet)
    bpe.train_from_iterator(["the answer is then 12 and the sum of the two [...] is the answer"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", chat_template=CHAT_TEMPLATE)


def make_build(tokenizer, template: str = TEMPLATE):
    """`build_reflection_messages` of (messages, attempt text or ids, budget) under the tokenizer."""

    def build(messages, attempt, budget):
        attempt_ids = encode(tokenizer, attempt) if isinstance(attempt, str) else attempt
        decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
        return build_reflection_messages(
            messages, attempt_ids, template, budget, lambda chat: len(prompt_ids(tokenizer, chat)), decode
        )

    return build


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def prompt_ids(tokenizer, messages: list[dict]) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def user(content: str) -> list[dict]:
    return [{"role": "user", "content": content}]


# what a prompt says


@pytest.mark.parametrize("attempt", HOSTILE_TEXTS)
@pytest.mark.parametrize("question", HOSTILE_TEXTS)
def test_question_and_attempt_enter_word_for_word(tokenizer, question, attempt):
    (message,) = make_build(tokenizer)(user(question), attempt, budget=1000)
    assert message == {"role": "user", "content": f"Q: {question}\nA: {attempt.strip()}\nTry again."}


@pytest.mark.parametrize("question", HOSTILE_TEXTS)
def test_the_template_may_name_the_attempt_first(tokenizer, question):
    build = make_build(tokenizer, template="{attempt} was wrong for {question}")
    assert build(user(question), "x {question} {attempt}", budget=1000) == user(
        f"x {{question}} {{attempt}} was wrong for {question}"
    )


def test_only_the_last_message_changes_and_the_input_is_left_alone(tokenizer):
    messages = [{"role": "system", "content": "Be {brief}."}, {"role": "user", "content": "1+1?", "name": "eve"}]
    first, last = make_build(tokenizer)(messages, "3", budget=1000)
    assert first == {"role": "system", "content": "Be {brief}."}
    assert last == {"role": "user", "content": "Q: 1+1?\nA: 3\nTry again.", "name": "eve"}
    assert messages[1]["content"] == "1+1?"


# that it fits


def random_text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices("the answer is 12 [.]\n中é🙂", k=length))


def test_the_budget_holds_for_any_attempt_and_question_stays_whole(tokenizer):
    rng, build = random.Random(0), make_build(tokenizer)
    for _ in range(60):
        question, attempt = random_text(rng, 30), random_text(rng, 300)
        budget = rng.randint(60, 400)
        messages = build(user(question), attempt, budget)
        shortest = user(f"Q: {question}\nA: {CUT_MARK.strip()}\nTry again.")
        if messages is None:
            assert len(prompt_ids(tokenizer, shortest)) > budget
        else:
            assert len(prompt_ids(tokenizer, messages)) <= budget
            assert messages[0]["content"].startswith(f"Q: {question}\nA: ")
            assert messages[0]["content"].endswith("\nTry again.")


def test_an_attempt_that_fits_exactly_is_kept_and_one_token_less_shortens_it(tokenizer):
    build, attempt = make_build(tokenizer), "x" * 200
    whole = user(f"Q: 1+1?\nA: {attempt}\nTry again.")
    size = len(prompt_ids(tokenizer, whole))
    assert build(user("1+1?"), attempt, budget=size) == whole
    shortened = build(user("1+1?"), attempt, budget=size - 1)
    assert CUT_MARK in shortened[0]["content"] and len(prompt_ids(tokenizer, shortened)) <= size - 1


def test_little_of_the_budget_is_left_unused(tokenizer):
    build, attempt = make_build(tokenizer), "1 2 3 4 5 6 7 8 9 " * 50
    for budget in range(100, 300):
        assert budget - len(prompt_ids(tokenizer, build(user("1+1?"), attempt, budget))) <= 12


def test_a_question_that_alone_exceeds_the_budget_gets_no_prompt(tokenizer):
    build, bare = make_build(tokenizer), user(f"Q: {'y' * 100}\nA: {CUT_MARK.strip()}\nTry again.")
    size = len(prompt_ids(tokenizer, bare))
    assert build(user("y" * 100), "x" * 50, budget=size - 1) is None
    assert build(user("y" * 100), "x" * 50, budget=size) == bare


def test_an_empty_attempt_is_fine(tokenizer):
    assert make_build(tokenizer)(user("1+1?"), [], budget=1000) == user("Q: 1+1?\nA: \nTry again.")
    assert make_build(tokenizer)(user("1+1?"), [], budget=5) is None


# how an attempt is shortened


@pytest.mark.parametrize(
    "kept, text",
    [
        (7, "1 2 3 4 5 6 "),
        (6, "1 2 3 4 5 6 "),
        (4, "1 2 [...] 5 6 "),
        (3, "1 [...] 5 6 "),
        (1, "[...] 6 "),
        (0, "[...] "),
    ],
)
def test_numbers_of_the_docstring_of_shorten(kept, text):
    shortened = shorten([1, 2, 3, 4, 5, 6], kept, lambda ids: "".join(f"{token} " for token in ids))
    assert shortened.split() == text.split()


# who gets a reflection prompt


@pytest.fixture
def history(tmp_path):
    history = History(str(tmp_path / "history.sqlite"), max_per_outcome=16)
    yield history
    history.close()


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


def make_planner(tokenizer, history, batch_size: int = 8, budget: int = 1000, seed: int = 0, **config):
    return ReflectionPlanner(
        ReflectionConfig(**{"template": TEMPLATE, "max_fraction": 1.0, **config}),
        history,
        tokenizer,
        template_kwargs={},
        default_agent="single_turn_agent",
        batch_size=batch_size,
        budget=budget,
        seed=seed,
    )


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


# the rollout worker


class EchoServer:
    """Answers every prompt with one fixed token and keeps what it was asked."""

    def __init__(self):
        self.prompts = []

    async def generate(self, prompt_ids, **_) -> TokenOutput:
        self.prompts.append(prompt_ids)
        return TokenOutput(token_ids=[5], log_probs=[-0.5])


def answer(tokenizer, messages: list[dict], prompt_length: int, chat_kwargs: dict):
    """Output of the reflection agent loop for a chat, and the prompt ids that reached the server."""

    async def run():
        server = EchoServer()
        config = {"actor_rollout_ref": {"rollout": {"prompt_length": prompt_length, "response_length": 8}}}
        loop = hydra.utils.instantiate(
            _agent_loop_registry[AGENT_NAME],
            trainer_config=DictConfigWrap(OmegaConf.create(config)),
            server_manager=server,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(OmegaConf.create({"apply_chat_template_kwargs": chat_kwargs})),
        )
        assert type(loop) is ReflectionAgentLoop
        return await loop.run({}, raw_prompt=messages), server.prompts

    return asyncio.run(run())


@pytest.mark.parametrize("chat_kwargs", [{}, {"thinking": True}])
def test_planner_and_worker_count_the_same_tokens(tokenizer, history, chat_kwargs):
    planner = make_planner(tokenizer, history)
    planner.template_kwargs = chat_kwargs
    messages = [{"role": "system", "content": "Be brief."}, *user(HOSTILE_TEXTS[4])]
    _, (prompt,) = answer(tokenizer, messages, prompt_length=1000, chat_kwargs=chat_kwargs)
    assert planner._count_tokens(messages) == len(prompt)


def test_the_worker_marks_its_answer_as_a_reflection(tokenizer):
    output, (prompt,) = answer(tokenizer, user("1+1?"), prompt_length=1000, chat_kwargs={})
    assert output.extra_fields["prompt_variant"] == REFLECTION
    assert output.prompt_ids == prompt == prompt_ids(tokenizer, user("1+1?")) and output.response_ids == [5]


def test_the_worker_refuses_a_prompt_over_budget_instead_of_cutting_the_question(tokenizer):
    size = len(prompt_ids(tokenizer, user("1+1?")))
    answer(tokenizer, user("1+1?"), prompt_length=size, chat_kwargs={})
    with pytest.raises(AssertionError, match=f"reflection prompt of {size} tokens is over budget"):
        answer(tokenizer, user("1+1?"), prompt_length=size - 1, chat_kwargs={})


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
