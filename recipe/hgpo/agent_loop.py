# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The rollout worker of sessions: plays an episode of an environment, one row a turn.

Each turn has a prompt of its own (prompts.py), and its answer is one command. What a session earned is the score of
all of its rows, as verl's GRPO over sessions needs it; what each turn earned goes with its row (turns.py).
"""

import hashlib
import logging
import os
import re
import time
from functools import cache
from typing import Any

from recipe.common import queue
from recipe.common.outcome import is_cut_off
from recipe.hgpo.config.hgpo_config import SESSION, SessionConfig, load_session_config
from recipe.hgpo.config.names import AGENT_NAME, BAD_FORMAT, INADMISSIBLE, VALID
from recipe.hgpo.environments.base import NoState, clean, state_key
from recipe.hgpo.environments.pool import (
    CRASHED,
    HUNG,
    LIED,
    REFUSED,
    EnvironmentFailed,
    EnvironmentPool,
    Limits,
    Session,
)
from recipe.hgpo.prompts import NoRoom, fitted_prompt
from recipe.hgpo.turns import ENDED, FIELD, LAST_TURN, OUT_OF_ROOM, TRUNCATED, WON, Turn
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.workers.rollout.replica import TokenOutput

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))
SHOWN_CHARS = 100
"""Of an answer that was no command, in the memory of later turns."""
WAYS_OUT = {
    HUNG: f"raise {SESSION}.deadline_s where it is slow, else mend it",
    CRASHED: f"mend the adapter that the column task names, or raise {SESSION}.process_gib where its memory ran out",
    LIED: "mend the adapter that the column task names as its world",
    REFUSED: "mend the rows of data.train_files and data.val_files, or what they name",
}
"""By what an environment failed with."""


@cache
def pool(deadline_s: float, process_gib: float | None) -> EnvironmentPool:
    """That of this process."""
    memory_bytes = None if process_gib is None else int(process_gib * 2**30)
    return EnvironmentPool(Limits(deadline_s=deadline_s, memory_bytes=memory_bytes))


def command_in(answer: str, tag: str | None) -> str | None:
    """What an answer sends to the environment, or None: it has not the form that is asked for.

    tag `action`: "<action>go east</action>" is "go east", and text around it does not count; no tag, or two, is None.
    """
    if tag is None:
        return answer
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", answer, flags=re.DOTALL)
    return found[0] if len(found) == 1 else None


class NoToken(RuntimeError):
    """A turn without an answer: nobody knows what it would have been."""


@register(AGENT_NAME)
class SessionAgentLoop(AgentLoopBase):
    """An episode of the environment that the row's column `task` names."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.settings: SessionConfig = load_session_config(self.config)
        self.max_turns = self.rollout_config.multi_turn.max_assistant_turns
        self.prompt_length = self.rollout_config.prompt_length
        self.response_length = self.rollout_config.response_length

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> list[AgentLoopOutput]:
        """The rows of a session, by turns; none where its environment failed: nobody knows what its answers were worth.

        Then its group trains without it, and verl is told of no error: for one, its asynchronous modes would throw the
        whole group away.

        kwargs: the row's columns, `task` and `raw_prompt` among them. The last message of the latter says what to do.
        """
        name = f"{kwargs['uid']}_{kwargs['session_id']}"
        try:
            worlds = pool(self.settings.deadline_s, self.settings.process_gib)
            async with worlds.open(kwargs.get("task")) as session:
                return await self._play(session, sampling_params, list(kwargs["raw_prompt"]), name)
        except EnvironmentFailed as error:
            why = f"{error}; {WAYS_OUT[error.reason]}"
        except (NoRoom, NoState, NoToken) as error:
            why = str(error)
        logger.warning(f"session {name} is left out: {why}")
        await queue.tell_failed(name, why)
        return []

    async def _play(
        self, session: Session, sampling_params: dict[str, Any], messages: list[dict], name: str
    ) -> list[AgentLoopOutput]:
        outputs: list[AgentLoopOutput] = []
        turns: list[Turn] = []
        memory: list[tuple[str, str]] = []
        end = LAST_TURN
        while len(turns) < self.max_turns:
            seen = session.observation
            try:
                prompt_ids, shortened = self._prompt(messages, memory, session)
            except NoRoom:
                if not turns:
                    raise
                end = OUT_OF_ROOM
                break
            begin = time.monotonic()
            # One name for all turns of a session: its prompts begin alike, and a server keeps what it read.
            output: TokenOutput = await self.server_manager.generate(
                request_id=name, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
            if not output.token_ids:
                raise NoToken(f"the rollout server gave turn {len(turns)} no token: see its log")
            outputs.append(self._row(prompt_ids, output, time.monotonic() - begin))
            answer, kind = self._answer(outputs[-1].response_ids)
            before = session.seconds
            played = await session.step(answer)
            if kind == VALID and played.command is None:
                kind = INADMISSIBLE
            step = played.step
            turns.append(
                Turn(
                    state=_short(state_key(seen, self.settings.state_key)),
                    reward=step.reward * self.settings.reward_scale,
                    answer=kind,
                    environment_s=session.seconds - before,
                    shortened=shortened,
                )
            )
            memory.append((seen.text, played.command or clean(answer)[:SHOWN_CHARS]))
            if session.done:
                end = WON if step.won else ENDED
                break
        return _told(outputs, turns, end)

    def _prompt(self, messages: list[dict], memory: list[tuple[str, str]], session: Session) -> tuple[list[int], bool]:
        """Token ids of the prompt of the next turn, and whether something was left out of it."""
        kept = memory[len(memory) - self.settings.memory :] if len(memory) > self.settings.memory else memory
        seen, task = session.observation, messages[-1]["content"]
        fitted = fitted_prompt(
            task, kept, seen.text, seen.commands, lambda text: len(self._tokens(messages, text)), self.prompt_length
        )
        return self._tokens(messages, fitted.text), bool(fitted.turns_dropped or fitted.chars_cut)

    def _tokens(self, messages: list[dict], text: str) -> list[int]:
        return self.tokenizer.apply_chat_template(
            [*messages[:-1], {**messages[-1], "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.apply_chat_template_kwargs,
        )

    def _row(self, prompt_ids: list[int], output: TokenOutput, seconds: float) -> AgentLoopOutput:
        ids = output.token_ids[: self.response_length]
        log_probs = output.log_probs[: self.response_length] if output.log_probs else [0.0] * len(ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=log_probs if self.rollout_config.calculate_log_probs else None,
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields=dict(output.extra_fields),
        )

    def _answer(self, ids: list[int]) -> tuple[str, str]:
        """What goes to the environment, and what kind of answer it is; nothing goes there that was cut off."""
        is_whole = not is_cut_off(ids, self.response_length, self.tokenizer.eos_token_id)
        command = command_in(self.tokenizer.decode(ids, skip_special_tokens=True), self.settings.tag)
        return (command, VALID) if is_whole and command is not None else ("", BAD_FORMAT)


def _short(text: str) -> str:
    """A name for a text: the text itself stands in the prompt already."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _told(outputs: list[AgentLoopOutput], turns: list[Turn], end: str) -> list[AgentLoopOutput]:
    """The rows of a session with what its turns were and what it came to."""
    earned, is_won = sum(turn.reward for turn in turns), end == WON
    info = {"score": float(is_won), "acc": float(is_won), "truncated": float(end in TRUNCATED)}
    for number, (output, turn) in enumerate(zip(outputs, turns, strict=True), start=1):
        told = turn.to_field() | ({"end": end} if number == len(turns) else {})
        output.extra_fields.update({"turn_scores": [], "tool_rewards": [], FIELD: told, "reward_extra_info": info})
        output.reward_score, output.num_turns = earned, len(turns)
        output.metrics.tool_calls = turn.environment_s
    return outputs
