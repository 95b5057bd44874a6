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
"""Settings that R^3 had once: what is told of one that an old config still sets. Imports nothing, to be quick."""

SINCE = "0.2.0"
MOVED = {"seed": "data.seed", "correct_from": "reward.reward_kwargs.correct_from"}
"""Keys under algorithm.r3, and what to set in their place."""
GONE = {
    "warn_after_steps": "the alarms look at 20 steps",
    "rollout_deadline_s": "trainer.v1.trainer_mode=r3_colocate_async does not wait for slow answers",
    "weight_sync_timeout_s": "a weight sync may take 600 s",
    "rows_folder": "set the environment variable R3_ROWS_FOLDER",
    "history.restore": "a start from a checkpoint brings back exactly the history of then",
    "replay.epsilon": "eq. (3) adds 1e-6 to the denominator, as verl's GRPO does",
    "replay.selection": "stored answers are drawn uniformly, without replacement",
    "replay.max_replays": "set algorithm.r3.replay.max_age to bound how long an answer is replayed",
    "replay.reflection_groups": "dead groups of reflection prompts are rescued, as others are",
    "replay.other_queries": "the control experiment is finished; it was run at commit cde174c",
    "replay.reflected_to_plain": "set algorithm.r3.replay.reflected_unless=. to replay no reflected answer",
    "reflection.max_prompt_tokens": "set data.max_prompt_length, the budget of a reflection prompt",
    "reflection.cut": "the middle of a long attempt is left out",
    "reflection.give_up_after": "watch reflection/transfer/* and set algorithm.r3.reflection.enable=False",
    "ranking.scope": "truncated answers are ranked, as in Algorithm 1",
}
"""Keys under algorithm.r3 that ended, and what there is in their place."""
PREFIX = "algorithm.r3."


def told(key: str) -> str | None:
    """A sentence about a setting that is gone, by its full key; None of any other."""
    name = key.removeprefix(PREFIX)
    if name == key or name not in {**MOVED, **GONE}:
        return None
    instead = f"set {MOVED[name]}" if name in MOVED else GONE[name]
    return f"{key} is gone since {SINCE}: {instead}"
