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
"""What the trainer knows of a turn, and what it tells of sessions: pure functions, no Ray, no TransferQueue."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recipe.common.rows import RowKey
from recipe.hgpo.config.hgpo_config import KEY, SESSION
from recipe.hgpo.config.names import BAD_FORMAT, INADMISSIBLE, VALID
from recipe.hgpo.core_algos import ABSENT

FIELD = "turn"
"""Where a row's `extra_fields` hold what is told of its turn."""
WON, ENDED, LAST_TURN, OUT_OF_ROOM = "won", "ended", "last_turn", "out_of_room"
"""How a session ended: won; ended by the environment otherwise; at the limit of turns; or with a prompt too long."""
TRUNCATED = LAST_TURN, OUT_OF_ROOM


@dataclass(frozen=True)
class Turn:
    """One row: a prompt and the command that answers it."""

    state: str
    """What the nested groups compare."""
    reward: float
    """What the environment gave for this turn."""
    answer: str = VALID
    end: str = ""
    """How the session ended; of its last turn alone."""
    environment_s: float = 0.0
    """Seconds that the environment took for it."""
    shortened: bool = False
    """Whether something was left out of the prompt to make it fit."""
    uid: str = ""
    session: int = 0
    index: int = 0
    """Turn of its session, from 0."""

    def to_field(self) -> dict[str, Any]:
        """What goes into `extra_fields`; whose turn it is stands in the row's key."""
        return {name: value for name, value in asdict(self).items() if name not in ("uid", "session", "index")}

    @classmethod
    def of(cls, key: str, extra_fields: dict[str, Any]) -> "Turn":
        """
        Raises:
            ValueError: the row is no turn of a session.
        """
        if FIELD not in extra_fields:
            raise ValueError(
                f"row {key} is no turn of a session: data.train_files must name an agent loop that gives one row a "
                "turn in the column agent_name, as recipe/hgpo/agent_loop.py does"
            )
        name = RowKey.parse(key)
        return cls(**extra_fields[FIELD], uid=name.uid, session=name.session, index=name.index)

    @property
    def trajectory(self) -> tuple[str, int]:
        return self.uid, self.session


def session_metrics(turns: Sequence[Turn], expected: int | None = None) -> dict[str, float]:
    """Means over sessions, `sessions/`; shares of answers and of prompts are of turns.

    Args:
        expected: sessions that were asked for; those without a row failed in their environment.
    """
    sessions = defaultdict(list)
    for turn in turns:
        sessions[turn.trajectory].append(turn)
    lasts = [max(rows, key=lambda turn: turn.index) for rows in sessions.values()]
    answers = Counter(turn.answer for turn in turns)
    figures: dict[str, float] = {"sessions/number": len(sessions)}
    if expected is not None:
        figures["sessions/failed"] = expected - len(sessions)
    if not turns:
        return figures
    return figures | {
        "sessions/success": float(np.mean([turn.end == WON for turn in lasts])),
        "sessions/return": float(np.mean([sum(turn.reward for turn in rows) for rows in sessions.values()])),
        "sessions/turns": len(turns) / len(sessions),
        "sessions/truncated": float(np.mean([turn.end in TRUNCATED for turn in lasts])),
        "sessions/out_of_room": float(np.mean([turn.end == OUT_OF_ROOM for turn in lasts])),
        "sessions/environment_s": sum(turn.environment_s for turn in turns) / len(sessions),
        "sessions/bad_format": answers[BAD_FORMAT] / len(turns),
        "sessions/inadmissible": answers[INADMISSIBLE] / len(turns),
        "sessions/shortened_prompts": float(np.mean([turn.shortened for turn in turns])),
    }


def no_command(figures: Mapping[str, float]) -> str | None:
    """A sentence where no answer of a step was a command that counts: what is asked for and what is read differ.

    Args:
        figures: of `session_metrics`.
    """
    if figures.get("sessions/bad_format", 0) + figures.get("sessions/inadmissible", 0) < 1:
        return None
    return (
        f"no answer of this step was a command that its world allows. {SESSION}.tag says where the command stands: "
        "action, where the prompts ask for <action>...</action>; null, where the whole answer is the command. "
        f"{KEY}.episodes shows what the model wrote"
    )


def level_metrics(groups: np.ndarray, trajectory: Sequence) -> dict[str, float]:
    """Of each level of nested groups, `hgpo/level_K/`: the share of all turns that are in a group of two or more
    (`grouped`), the mean size of such groups (`size`), and the share of them that one trajectory fills (`alone`).

    Args:
        groups: (B, K + 1), see `core_algos.context_groups`.
        trajectory: (B,) of each row.
    """
    metrics: dict[str, float] = {}
    for level in range(groups.shape[1]):
        members = defaultdict(list)
        for group, name in zip(groups[:, level], trajectory, strict=True):
            if group != ABSENT:
                members[group].append(name)
        several = [names for names in members.values() if len(names) > 1]
        prefix = f"hgpo/level_{level}"
        metrics[f"{prefix}/grouped"] = sum(map(len, several)) / max(1, len(groups))
        if several:
            metrics[f"{prefix}/size"] = float(np.mean([len(names) for names in several]))
            metrics[f"{prefix}/alone"] = float(np.mean([len(set(names)) == 1 for names in several]))
    return metrics
