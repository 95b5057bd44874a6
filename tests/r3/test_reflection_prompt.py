"""Reflection prompts: what they say, that they fit, and the rollout worker that answers them."""

import asyncio
import random

import hydra
import pytest
from omegaconf import OmegaConf
from reflecting import TEMPLATE, encode, make_planner

from recipe.common.rows import REFLECTION
from recipe.r3.reflection import AGENT_NAME, CUT_MARK, ReflectionAgentLoop, build_reflection_messages, shorten
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

HOSTILE_TEXTS = [
    r"Let \frac{a}{b} = {x} and f(x) = \{0, 1\}.",
    "What does {attempt} mean in {question}?",
    "{0} {} {{}} %s %(question)s {question!r}",
    "  leading and trailing space\n",
    r"\1 \g<0> $& 中文 é 🙂",
]


def make_build(tokenizer, template: str = TEMPLATE):
    """`build_reflection_messages` of (messages, attempt text or ids, budget) under the tokenizer."""

    def build(messages, attempt, budget):
        attempt_ids = encode(tokenizer, attempt) if isinstance(attempt, str) else attempt
        decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
        return build_reflection_messages(
            messages, attempt_ids, template, budget, lambda chat: len(prompt_ids(tokenizer, chat)), decode
        )

    return build


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
