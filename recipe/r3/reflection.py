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
"""In-Context Self-Reflection: hard queries are asked again with a stored wrong attempt and an instruction to reflect.

`ReflectionPlanner` (trainer process) picks the hard queries of a batch and builds their prompts;
`ReflectionAgentLoop` (rollout worker) generates from them. A reflection prompt forms a group of its own beside the
plain one.
"""

import random
from collections.abc import Callable
from typing import Any

from tensordict import TensorDict

from recipe.common.queue import set_column
from recipe.common.restart.agent_loop import HOOKS as RESTART_HOOKS
from recipe.common.rows import PLAIN, REFLECTION, reflection_uid
from recipe.r3.config.r3_config import ReflectionConfig
from recipe.r3.history.store import History, Sample, Transfer
from recipe.r3.replay.all_wrong import AllWrong
from recipe.r3.replay.ways import Ways
from recipe.r3.restarts import NOTHING, Restarter
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

AGENT_NAME = "r3_reflection"
CUT_MARK = "\n[...]\n"
HOOKS = {
    "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": {
        "run": ("sampling_params", "priority", "kwargs"),
        "_cap_text_prompt_length": ("prompt_ids",),
        **RESTART_HOOKS["verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop"],
    },
}
"""Methods of verl's that the rollout worker extends (recipe/common/verl_hooks.py)."""


@register(AGENT_NAME)
class ReflectionAgentLoop(SingleTurnAgentLoop):
    """The reflection rollout worker: one answer to a reflection prompt, marked as such for reward and history."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        output = await super().run(sampling_params, priority=priority, **kwargs)
        output.extra_fields["prompt_variant"] = REFLECTION
        return output

    def _cap_text_prompt_length(self, prompt_ids: list[int]) -> list[int]:
        # verl cuts long prompts from the left, which would remove the question; the planner's budget rules that out.
        assert len(prompt_ids) <= self.prompt_length, f"reflection prompt of {len(prompt_ids)} tokens is over budget"
        return prompt_ids


def build_reflection_messages(
    messages: list[dict],
    attempt_ids: list[int],
    template: str,
    budget: int,
    count_tokens: Callable[[list[dict]], int],
    decode: Callable[[list[int]], str],
) -> list[dict] | None:
    """The chat of a reflection prompt of at most `budget` tokens, or None when not even an empty attempt fits.

    The template replaces the last message's content: {question} becomes that content, word for word, and {attempt}
    the decoded attempt. Only the attempt is shortened: its middle goes.

    Args:
        messages: the plain prompt, a chat whose last message is the user's question.
        attempt_ids: token ids of the wrong attempt.
        count_tokens: tokens of a chat under the model's template, generation prompt included.
        decode: text of token ids, special tokens left out.
    """

    def chat(attempt: str) -> list[dict]:
        # str.replace, not str.format: questions and attempts are full of LaTeX braces.
        before, after = template.split("{attempt}")
        question = messages[-1]["content"]
        content = before.replace("{question}", question) + attempt + after.replace("{question}", question)
        return [*messages[:-1], {**messages[-1], "content": content}]

    kept = len(attempt_ids)
    while True:
        candidate = chat(shorten(attempt_ids, kept, decode))
        excess = count_tokens(candidate) - budget
        if excess <= 0:
            return candidate
        if kept == 0:
            return None
        # Text around the cut may tokenise differently, so one pass can fall short by a token or two.
        kept = max(0, kept - excess)


def shorten(token_ids: list[int], kept: int, decode: Callable[[list[int]], str]) -> str:
    """Text of `token_ids` with at most `kept` of them: a mark stands for the middle.

    Tokens 1..6, kept 4: 1 2 ... 5 6.
    """
    if kept >= len(token_ids):
        return decode(token_ids).strip()
    if kept == 0:
        return CUT_MARK.strip()
    head = kept // 2
    tail = kept - head
    return (decode(token_ids[:head]) + CUT_MARK + decode(token_ids[len(token_ids) - tail :])).strip()


class ReflectionPlanner:
    """Appends the reflection prompts of a step to its batch.

    Args:
        config: `algorithm.r3.reflection`.
        history: where success rates and wrong attempts come from.
        tokenizer: the model's; its chat template is the one the rollout worker applies.
        template_kwargs: `data.apply_chat_template_kwargs`.
        default_agent: agent loop of plain prompts whose row names none.
        batch_size: `data.train_batch_size`, for the cap.
        budget: most tokens of a reflection prompt.
        seed: of the choice of attempts.
    """

    def __init__(
        self,
        config: ReflectionConfig,
        history: History,
        tokenizer,
        template_kwargs: dict,
        default_agent: str,
        batch_size: int,
        budget: int,
        seed: int,
    ):
        self.config = config
        self.history = history
        self.tokenizer = tokenizer
        self.template_kwargs = template_kwargs
        self.default_agent = default_agent
        self.cap = config.cap(batch_size)
        self.budget = budget
        self.seed = seed
        self.restarter: Restarter | None = None
        """Where all-wrong groups whose query has a stored right answer go on from a part of it."""
        self.ways: Ways | None = None
        """By which prompt all-wrong groups are asked again, where that is before the next visit."""

    def augment(
        self, batch: TensorDict, step: int, waiting: int = 0, held: dict[str, AllWrong] | None = None
    ) -> tuple[TensorDict, dict[str, float]]:
        """`batch` plus one row per reflection prompt of training step `step`, and the metrics of the choice.

        Args:
            waiting: reflection groups of earlier steps that are in flight still; with them, at most two steps' are.
            held: groups of the step before that wait for theirs; they are asked before others, and no query twice.
        """
        asked = {group.attempt.query_id for group in (held or {}).values()}
        again = self.again(held, [str(name) for name in batch.keys()], step) if held else None
        cap = max(0, min(self.cap, 2 * self.cap - waiting) - len(held or {}))
        query_ids = [str(query_id) for query_id in batch["query_id"]]
        variants = (PLAIN, REFLECTION) if self.config.count_reflected_attempts else (PLAIN,)
        rates = self.history.success_rates(query_ids, self.config.min_attempts, variants, self.config.rounds)
        hard = [row for row, query_id in enumerate(query_ids) if rates.get(query_id, 1.0) < self.config.threshold]
        open_ = [row for row in hard if query_ids[row] not in asked]
        transfers = self.history.transfer(query_ids)
        rng = random.Random(f"{self.seed}/reflection/{step}")
        rng.shuffle(open_)
        chosen, skipped = self._choose(batch, {row: query_ids[row] for row in open_}, cap, step, rng)
        metrics = {
            "reflection/hard_queries": len(hard),
            "reflection/prompts": len(chosen) + len(held or {}),
            **skipped,
            **transfer_metrics(list(transfers.values())),
        }
        batch = self._extend(batch, chosen) if chosen else batch
        return (batch if again is None else tu.concat_tensordict([batch, again])), metrics

    def _choose(
        self, batch: TensorDict, hard: dict[int, str], cap: int, step: int, rng: random.Random
    ) -> tuple[dict[int, dict[str, Any]], dict[str, float]]:
        """By row of at most `cap` hard queries, in their order, the columns in which they are asked again; and how many
        could not be."""
        chosen, over_budget, no_attempt = {}, 0, 0
        for row, query_id in hard.items():
            if len(chosen) == cap:
                break
            if self.restarter and (found := self.restarter.beginning(query_id, step)):
                chosen[row] = found.columns()
                continue
            attempts = self.history.draw(query_id, correct=False, k=1, rng=rng, variants=(PLAIN,))
            if not attempts:
                no_attempt += 1
                continue
            messages = self._messages(list(batch["raw_prompt"][row]), attempts[0])
            if messages is None:
                over_budget += 1
                continue
            chosen[row] = {"raw_prompt": messages, "agent_name": AGENT_NAME}
        skipped = {"reflection/skipped_over_budget": over_budget, "reflection/skipped_no_attempt": no_attempt}
        return chosen, skipped

    def fits(self, group: AllWrong) -> bool:
        """Whether there is a prompt by which a group is asked again."""
        return self._asked(group) is not None

    def _asked(self, group: AllWrong) -> dict[str, Any] | None:
        """What differs from the columns of its plain prompt; None where no prompt fits."""
        attempt = group.attempt
        if self.restarter and (found := self.restarter.beginning(attempt.query_id, attempt.step)):
            return found.columns()
        if self.ways and self.ways.way(attempt.query_id, attempt.step) == PLAIN:
            return {"agent_name": self.default_agent}  # TransferQueue does not keep what its row named
        messages = self._messages(list(group.row["raw_prompt"]), attempt)
        return None if messages is None else {"raw_prompt": messages, "agent_name": AGENT_NAME}

    def _messages(self, messages: list[dict], attempt: Sample) -> list[dict] | None:
        template = self.config.template_cut_off if attempt.truncated else self.config.template
        attempt_ids = attempt.tokens.tolist()
        return build_reflection_messages(messages, attempt_ids, template, self.budget, self._count_tokens, self._decode)

    def _count_tokens(self, messages: list[dict]) -> int:
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.template_kwargs
        )
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def name_agents(self, batch: TensorDict) -> None:
        """Name the rollout worker of every row. verl re-issues prompts that were in flight at a checkpoint with the
        columns that all of them have."""
        if "agent_name" not in batch:
            set_column(batch, "agent_name", [self.default_agent] * len(batch))
        for name, nothing in NOTHING.items() if self.restarter else ():
            if name not in batch:
                set_column(batch, name, [nothing] * len(batch))

    def _extend(self, batch: TensorDict, chosen: dict[int, dict[str, Any]]) -> TensorDict:
        """`batch` with a copy of each chosen row under a fresh uid, with these columns in place of its own."""
        self.name_agents(batch)
        extra = tu.index_select_tensor_dict(batch, list(chosen))
        set_column(batch, "agent_name", list(batch["agent_name"]))
        for name in dict.fromkeys(name for columns in chosen.values() for name in columns):
            own = list(extra[name])
            set_column(extra, name, [columns.get(name, old) for columns, old in zip(chosen.values(), own, strict=True)])
        set_column(extra, "uid", [reflection_uid(str(batch["uid"][row])) for row in chosen])
        return tu.concat_tensordict([batch, extra])

    def again(self, groups: dict[str, AllWrong], columns: list[str], step: int) -> TensorDict | None:
        """The prompts by which groups of a batch that is being generated are asked again; None where none fits.

        columns: of the batch.
        """
        rows = []
        for uid, group in groups.items():
            if (asked := self._asked(group)) is not None:
                own = {"raw_prompt": list(group.row["raw_prompt"]), "uid": reflection_uid(uid)}
                own |= (NOTHING if self.restarter else {}) | asked
                rows.append({name: group.row[name] for name in columns if name not in own} | own)
        if not rows:
            return None
        batch = list_of_dict_to_tensordict(rows)
        for name in NOTHING if self.restarter else ():  # arrays of several lengths
            set_column(batch, name, [row[name] for row in rows])
        tu.assign_non_tensor_data(batch, "global_steps", step)
        return batch


def transfer_metrics(transfers: list[Transfer]) -> dict[str, float]:
    """Success share of plain prompts before the first reflection on their query and since, where both are known.

    One query with 0 of 8 before and 2 of 4 after: before 0, after 0.5, queries 1. Queries weigh alike.
    """
    known = [t for t in transfers if t.attempts_before and t.attempts_after]
    metrics = {"reflection/transfer/queries": len(known)}
    if known:
        shares = [(t.successes_before / t.attempts_before, t.successes_after / t.attempts_after) for t in known]
        before, after = (sum(column) / len(known) for column in zip(*shares, strict=True))
        metrics.update({"reflection/transfer/before": before, "reflection/transfer/after": after})
    return metrics
