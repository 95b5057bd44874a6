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
"""Settings that R^3 had once: what is told of one that an old config still sets. Imports nothing, so that it is quick.

A key may be dropped from an old config where its value is what R^3 does without it; otherwise the run was another one.
"""

from typing import Any, NamedTuple

SINCE = "0.2.0"
ANY = object()
"""Any value: the key changed nothing of what is learned."""


class Gone(NamedTuple):
    was: Any
    """The value with which a run is the same without the key."""
    instead: str
    """What there is in its place."""


MOVED = {"seed": "data.seed", "correct_from": "reward.reward_kwargs.correct_from"}
"""Keys under algorithm.r3, and what to set in their place."""
PLACES = {
    "pkg://recipe.r3.reward_manager": "pkg://recipe.common.reward.manager",
    "pkg://recipe.r3.replay_buffer": "pkg://recipe.r3.replay.buffer",
}
"""Values that name a module by the place where it was."""
GONE = {
    "warn_after_steps": Gone(ANY, "the alarms look at 20 steps"),
    "rollout_deadline_s": Gone(None, "trainer.v1.trainer_mode=r3_colocate_async does not wait for slow answers"),
    "weight_sync_timeout_s": Gone(ANY, "a weight sync may take 600 s"),
    "rows_folder": Gone(ANY, "set the environment variable R3_ROWS_FOLDER"),
    "history.restore": Gone("all", "a start from a checkpoint brings back exactly the history of then"),
    "replay.epsilon": Gone(1e-6, "eq. (3) adds 1e-6 to the denominator, as verl's GRPO does"),
    "replay.selection": Gone("uniform", "stored answers are drawn uniformly, without replacement"),
    "replay.max_replays": Gone(None, "set algorithm.r3.replay.max_age to bound how long an answer is replayed"),
    "replay.reflection_groups": Gone(True, "dead groups of reflection prompts are rescued, as others are"),
    "replay.other_queries": Gone(False, "the control experiment is finished; it was run at commit cde174c"),
    "replay.reflected_to_plain": Gone(True, "set algorithm.r3.replay.reflected_unless=. to replay no reflected answer"),
    "reflection.max_prompt_tokens": Gone(None, "set data.max_prompt_length, the budget of a reflection prompt"),
    "reflection.cut": Gone("middle", "the middle of a long attempt is left out"),
    "reflection.give_up_after": Gone(None, "watch reflection/transfer/* and set algorithm.r3.reflection.enable=False"),
    "ranking.scope": Gone("truncated", "truncated answers are ranked, as in Algorithm 1"),
}
"""Keys under algorithm.r3 that ended."""
PREFIX = "algorithm.r3."


def told(key: str) -> str | None:
    """A sentence about a setting that is gone, by its full key; None of any other."""
    name = key.removeprefix(PREFIX)
    if name == key or name not in {**MOVED, **GONE}:
        return None
    instead = f"set {MOVED[name]}" if name in MOVED else GONE[name].instead
    return f"{key} is gone since {SINCE}: {instead}"


def renewed(settings: dict[str, Any]) -> dict[str, Any]:
    """Old settings by full key as they are called now, without those that changed nothing.

    {"algorithm.r3.seed": 3, "algorithm.r3.replay.epsilon": 1e-6, "algorithm.r3.ranking.scope": "failed"} gives
    {"data.seed": 3, "algorithm.r3.ranking.scope": "failed"}.
    """
    kept = {key: PLACES.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
    for name, key in MOVED.items():
        value = kept.pop(PREFIX + name, None)
        if value is not None and f"${{{key}}}" != value:
            followed = kept.get(key) == f"${{{PREFIX}{name}}}"
            kept[key] = value if followed else kept.get(key, value)
    for name, gone in GONE.items():
        if PREFIX + name in kept and gone.was in (ANY, kept[PREFIX + name]):
            del kept[PREFIX + name]
    return kept
