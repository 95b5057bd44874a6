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
"""The rollout worker of restarts: goes on from the tokens of a state.

The row is what one written from the start would be: the problem as prompt, and as response the state's tokens and
those that were generated, of which the mask has the latter alone.
"""

from collections.abc import Sequence
from typing import Any

from recipe.common.rows import RESTART
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

AGENT_NAME = "restart"
PREFIX = "prefix_ids"
"""Column of a prompt: token ids of the state that it begins at, int32; empty: at the start."""
PREFIX_LOG_PROBS = "prefix_log_probs"
"""Column of the log-probs that these were written with, float32, where somebody keeps answers with theirs."""
HOOKS = {
    "verl.experimental.agent_loop.single_turn_agent_loop.SingleTurnAgentLoop": {
        "run": ("sampling_params", "priority", "kwargs"),
        "ct_build_initial_tokens": ("messages", "tools", "images", "videos", "audios", "mm_inputs_out"),
    },
}
"""Methods of verl's that the rollout worker extends (recipe/common/verl_hooks.py)."""


@register(AGENT_NAME)
class RestartAgentLoop(SingleTurnAgentLoop):
    """An answer that begins with the tokens of a state."""

    async def ct_build_initial_tokens(self, *args, **kwargs) -> list[int]:
        # Behind verl's cut of long prompts, which goes from the left and would take the problem away.
        return [*await super().ct_build_initial_tokens(*args, **kwargs), *self.prefix]

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        self.prefix = [int(token) for token in kwargs[PREFIX]]
        cut = len(self.prefix)
        assert cut < self.response_length, f"a state of {cut} tokens with {self.response_length} for the answer"
        # All answers to a prompt share one dict. Without a budget the server would allow the suffix a whole answer.
        own = {**sampling_params, "max_tokens": self.response_length - cut}
        output = await super().run(own, priority=priority, **kwargs)
        return with_prefix(output, self.prefix, kwargs.get(PREFIX_LOG_PROBS))


def with_prefix(
    output: AgentLoopOutput, prefix: list[int], log_probs: Sequence[float] | None = None
) -> AgentLoopOutput:
    """The output whose prompt ends in the state's tokens, with these at the front of its response.

    prompt [q, a, b] and response [c] with prefix [a, b]: prompt [q], response [a, b, c], mask [0, 0, 1].

    log_probs: of the prefix; None: zeros, which are those of nothing.
    """
    cut, begin = len(prefix), len(output.prompt_ids) - len(prefix)
    assert output.prompt_ids[begin:] == prefix, "verl changed the tokens of a state"
    output.prompt_ids = output.prompt_ids[:begin]
    output.response_ids = prefix + output.response_ids
    output.response_mask = [0] * cut + output.response_mask
    if output.response_logprobs is not None:
        own = [0.0] * cut if log_probs is None else [float(value) for value in log_probs]
        output.response_logprobs = own + output.response_logprobs
    output.extra_fields["prompt_variant"], output.extra_fields["prefix_len"] = RESTART, cut
    return output
