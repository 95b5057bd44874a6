"""A session that cannot go on ends by itself: it has no rows, and why is told. Else verl would wait for its group."""

import asyncio
from types import SimpleNamespace

import pytest

from recipe.hgpo import agent_loop
from recipe.hgpo.agent_loop import SessionAgentLoop
from recipe.hgpo.config.hgpo_config import SessionConfig
from recipe.hgpo.environments.pool import EnvironmentPool, Limits
from verl.workers.rollout.replica import TokenOutput


class Letters:
    """A tokenizer for which a letter is a token."""

    eos_token_id = 0

    def apply_chat_template(self, messages, **_):
        return [*messages[-1]["content"].encode()]

    def decode(self, ids, **_):
        return bytes(ids).decode()


@pytest.fixture
def told(monkeypatch) -> dict[str, str]:
    """By session, why it was left out."""
    reasons: dict[str, str] = {}

    async def tell(name, why):
        reasons[name] = why

    monkeypatch.setattr(agent_loop.queue, "tell_failed", tell)
    return reasons


def rows(monkeypatch, task, answer: bytes = b"go on", **settings):
    """The rows of a session of two turns at most, on a server that always gives that answer."""

    async def generate(**_):
        return TokenOutput(token_ids=[*answer], log_probs=[0.0] * len(answer))

    loop = object.__new__(SessionAgentLoop)  # verl's constructor wants a worker around it
    loop.settings = SessionConfig(**settings)
    loop.max_turns, loop.prompt_length, loop.response_length = 2, 1000, 20
    loop.rollout_config = SimpleNamespace(calculate_log_probs=True)
    loop.apply_chat_template_kwargs, loop.tokenizer = {}, Letters()
    loop.server_manager = SimpleNamespace(generate=generate)
    columns = {"uid": "u", "session_id": 0, "raw_prompt": [{"role": "user", "content": "Go on."}]}
    if task is not None:
        columns["task"] = task

    async def run():
        pool = EnvironmentPool(Limits())
        monkeypatch.setattr(agent_loop, "pool", lambda *limits: pool)
        try:
            return await loop.run({}, **columns)
        finally:
            pool.close()

    return asyncio.run(run())


def test_a_session_has_a_row_a_turn(monkeypatch, told):
    found = rows(monkeypatch, {"world": "hostile:Fair"})
    assert [bytes(row.response_ids) for row in found] == [b"go on"] * 2 and not told
    assert [row.response_mask for row in found] == [[1] * 5] * 2
    assert [row.extra_fields["turn"]["end"] for row in found] == ["", "last_turn"]
    assert [row.reward_score for row in found] == [10.0] * 2, "0.5 a turn, times 10"


@pytest.mark.parametrize(
    ("task", "answer", "settings", "why"),
    [
        (None, b"go on", {}, "the column task must hold a task with its `world`, got None; mend the rows"),
        ({"world": "hostile:Fair", "more": object()}, b"go on", {}, "the column task: Object of type object"),
        ({"world": "hostile:Fair"}, b"go on", {"state_key": "state"}, "this world does not tell its state"),
        ({"world": "hostile:Fair"}, b"", {}, "the rollout server gave turn 0 no token"),
        ({"world": "hostile:Raises"}, b"go on", {}, "the floor gave way; mend the adapter"),
    ],
)
def test_a_session_that_cannot_go_on_has_no_rows_and_says_why(monkeypatch, told, task, answer, settings, why):
    assert rows(monkeypatch, task, answer, **settings) == []
    assert why in told["u_0"]
