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
"""A few sessions of a step as a person can read them: what was seen and done, and what each turn was compared with.

The trainer appends them to the file `algorithm.hgpo.episodes`, a line of JSON a step:

    {"step": 5, "task": "Put the coin on the desk.", "sessions": [{"end": "won", "turns": [TURN, ...]}, ...]}

TURN has `seen`, `said` and `answer` (what kind of answer that was), `reward`, `return` (after the penalty, if any),
`advantage` (what was trained) and `levels`: of each level of nested groups null where the turn has none, else
{"size", "sessions", "advantage"} of its group, the advantage null where the group says nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipe.common import queue
from recipe.common.queue import KVBatchMeta
from recipe.hgpo.advantages import alike_tasks, earned, penalties, turns_of
from recipe.hgpo.config.hgpo_config import STDS, HGPOConfig
from recipe.hgpo.core_algos import ABSENT, context_groups, discounted_returns, level_advantages
from recipe.hgpo.prompts import last_seen
from recipe.hgpo.turns import Turn

MOST_SESSIONS = 2
MOST_CHARS = 600
"""Of a text that is written down."""
FIELDS = "prompts", "responses", "raw_prompt", "advantages", "response_mask"


@dataclass(frozen=True)
class Read:
    """Of one turn, what only its row has."""

    seen: str
    said: str
    advantage: float


def is_due(step: int, test_freq: int) -> bool:
    """In the first step, and as often as there is validation."""
    return step == 1 or (test_freq > 0 and step % test_freq == 0)


def write_down(batch: KVBatchMeta, hgpo: HGPOConfig, tokenizer, step: int, test_freq: int) -> None:
    """Append some sessions of a batch with final advantages to `algorithm.hgpo.episodes`, where the step is due."""
    if not is_due(step, test_freq):
        return
    kept, turns = turns_of(batch)
    keys = [batch.keys[at] for at in kept]
    if not turns:
        return
    group, sessions = chosen(turns)
    wanted = [key for key, turn in zip(keys, turns, strict=True) if turn in group and turn.session in sessions]
    rows = dict(zip(wanted, queue.read(batch.select_keys(wanted), FIELDS), strict=True))
    read = {key: _read(row, tokenizer) for key, row in rows.items()}
    task = str(next(iter(rows.values()))["raw_prompt"][-1]["content"])
    line = {"step": step, "task": task[:MOST_CHARS], "sessions": told(group, sessions, read, hgpo)}
    file = Path(hgpo.episodes)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as lines:
        lines.write(json.dumps(line) + "\n")


def chosen(turns: Sequence[Turn]) -> tuple[list[Turn], list[int]]:
    """The turns of one task, and the numbers of a few of its sessions: the best and the worst of the first task whose
    sessions did not all earn the same, else those of the first task.

    Args:
        turns: of a batch, at least one.
    """
    by_task, alike = earned(turns), alike_tasks(turns)
    uid = next((uid for uid in by_task if uid not in alike), turns[0].uid)
    ranked = sorted(by_task[uid], key=lambda number: (-by_task[uid][number], number))
    return [turn for turn in turns if turn.uid == uid], list(dict.fromkeys((ranked[0], ranked[-1])))[:MOST_SESSIONS]


def told(group: Sequence[Turn], sessions: Sequence[int], read: Mapping[str, Read], hgpo: HGPOConfig) -> list[dict]:
    """Sessions of a task as they are written down.

    Args:
        group: all turns of the task, whose nested groups they are.
        sessions: which of its sessions are told.
        read: of their turns, by the key of the row.
    """
    numbers, index = [turn.session for turn in group], [turn.index for turn in group]
    returns_B = discounted_returns([turn.reward for turn in group], numbers, index, hgpo.gamma)
    returns_B -= penalties(group, hgpo)
    groups = context_groups([turn.state for turn in group], [turn.uid for turn in group], numbers, index, hgpo.depth)
    advantages, speaks = level_advantages(returns_B, groups, hgpo.norm, ddof=STDS[hgpo.std])

    def level(row: int, at: int) -> dict | None:
        if groups[row, at] == ABSENT:
            return None
        members = np.flatnonzero(groups[:, at] == groups[row, at])
        advantage = float(advantages[row, at]) if speaks[row, at] else None
        return {"size": len(members), "sessions": len({numbers[member] for member in members}), "advantage": advantage}

    found = []
    for session in sessions:
        rows = sorted((row for row, number in enumerate(numbers) if number == session), key=lambda row: index[row])
        turns = []
        for row in rows:
            turn = group[row]
            own = read[f"{turn.uid}_{turn.session}_{turn.index}"]
            turns.append(
                {
                    **{"seen": own.seen[:MOST_CHARS], "said": own.said[:MOST_CHARS], "answer": turn.answer},
                    **{"reward": turn.reward, "return": float(returns_B[row]), "advantage": own.advantage},
                    "levels": [level(row, at) for at in range(hgpo.depth + 1)],
                }
            )
        found.append({"end": group[rows[-1]].end, "turns": turns})
    return found


def _read(row: dict, tokenizer) -> Read:
    trained = torch.as_tensor(row["response_mask"]).bool()
    advantages = torch.as_tensor(row["advantages"])[trained]
    texts = [tokenizer.decode(row[name], skip_special_tokens=True) for name in ("prompts", "responses")]
    return Read(last_seen(texts[0]), texts[1], float(advantages[0]) if len(advantages) else 0.0)
