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
"""What a row is called and what the trainer knows of it: no Ray, no TransferQueue, no config.

A row is one sequence that trains. verl names it by a key, `{uid}_{session}_{index}`, and a dict travels with it, its
tag. `RowKey` and `RowTag` are the two with types; nothing else takes keys or tags apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

PLAIN, REFLECTION, RESTART = "plain", "reflection", "restart"
"""Variants of a prompt: as the data set has it, with a past attempt in it, or with the beginning of an answer, from
which the row's own goes on."""
REFLECTION_UID = "reflection-"
"""How the uid of a reflection group begins, so that its prompt is known by its key in TransferQueue. The uid of the
plain group that it was asked for follows."""
RESTART_UID = "restart-"
"""The same of a restart group; what follows is new."""
REPLAY_MARK, RANK_MARK = "#replay", "#ranked"


class Origin(StrEnum):
    """Where the response of a row comes from. A recipe that adds rows of another kind adds a name here."""

    FRESH = "fresh"
    """Generated for the prompt that it stands under."""
    REPLAYED = "replayed"
    """Stored in an earlier step, or found under another prompt of this one."""
    PADDING = "padding"
    """verl's filler: it trains nothing."""


@dataclass(frozen=True)
class RowKey:
    """verl's key of a row: `3f2b_7_0` is row 0 of session 7 of the group 3f2b."""

    uid: str
    session: int
    index: int = 0
    """Row of its session: always 0 for answers of one turn."""

    def __str__(self) -> str:
        return f"{self.uid}_{self.session}_{self.index}"

    @classmethod
    def parse(cls, key: str) -> RowKey:
        uid, session, index = key.split("_")
        return cls(uid, int(session), int(index))


def uid_of(key: str) -> str:
    """The group of a row's key; a prompt's key is its uid."""
    return key.partition("_")[0]


def is_reflection(uid: str) -> bool:
    return uid.startswith(REFLECTION_UID)


def reflection_uid(uid: str) -> str:
    """Of the reflection group that is asked for a plain one."""
    return REFLECTION_UID + uid


def plain_uid(uid: str) -> str:
    """Of the plain group that a reflection group is asked for; that of a plain group is its own."""
    return uid.removeprefix(REFLECTION_UID)


@dataclass(frozen=True)
class TrainedUid:
    """The `uid` field of a row: the one thing of ours that verl hands to an advantage estimator and to a worker.

    So what an estimator must know of a row is written into it: `3f2b#replay` is a replayed row of the group 3f2b.
    """

    group: str
    is_replayed: bool = False
    is_ranked: bool = False
    """Whether the row's group has ranking rewards."""

    def __str__(self) -> str:
        return self.group + REPLAY_MARK * self.is_replayed + RANK_MARK * self.is_ranked

    @classmethod
    def parse(cls, text: str) -> TrainedUid:
        unranked = text.removesuffix(RANK_MARK)
        group = unranked.removesuffix(REPLAY_MARK)
        return cls(group, is_replayed=group != unranked, is_ranked=unranked != text)

    @property
    def is_rescued(self) -> bool:
        """Whether the row says that its group was rescued, so that its rows have to train together."""
        return self.is_replayed or self.is_ranked


@dataclass(frozen=True)
class RowTag:
    """What the stages of a step know of a row. Lengths are in tokens."""

    group: str = ""
    """Query id: the same in every step that asks the problem. Empty for padding."""
    origin: Origin = Origin.FRESH
    variant: str = PLAIN
    """Of the group's prompt."""
    correct: bool = False
    truncated: bool = False
    """Whether the response hit the length limit."""
    score: float = 0.0
    """What it earns, before any ranking."""
    grade: float | None = None
    """Score before the length bonus: 1 or 0 unless a reward function grades. None: that of `correct`."""
    reward_error: bool = False
    """The grader was late or the reward function failed: nobody knows whether it is right, it counts as wrong."""
    waited: bool = False
    """Whether its group was generated a step ago and waited for what asking again would find."""
    again: bool = False
    """Whether it is one of the further answers to the plain prompt of an all-wrong group, which it joined."""
    versions: int = 1
    """How many steps' weights wrote it; of a session of several rows, wrote them."""
    replay_age: int | None = None
    """Of a replayed row: by how many steps older than those of this step the weights were that began it."""
    stored_log_probs: bool = False
    """Of a replayed row: whether its behaviour log-probs are known, and finite."""
    prompt_len: int = 0
    response_len: int = 0
    seq_len: int = 0
    prefix_len: int | None = None
    """Of a restart: tokens at the front of its response that it began at, which nobody generated in this step."""

    def to_tag(self) -> dict[str, Any]:
        """What goes into TransferQueue's tag beside verl's own entries; the lengths there are verl's."""
        return {name: value for name, value in asdict(self).items() if name not in LENGTHS and value is not None}

    @classmethod
    def from_tag(cls, tag: dict[str, Any]) -> RowTag:
        """Reads a tag of a row, ours or verl's padding."""
        if tag.get("is_padding", False):
            return cls(origin=Origin.PADDING, seq_len=tag.get("seq_len", 0))
        known: dict[str, Any] = {name: tag[name] for name in NAMES if name in tag}
        known["origin"] = Origin(tag.get("origin", Origin.FRESH))
        return cls(**known)

    @property
    def is_fresh(self) -> bool:
        return self.origin is Origin.FRESH

    @property
    def is_plain(self) -> bool:
        """Whether it is an answer to a plain prompt, as GRPO has it."""
        return self.is_fresh and self.variant == PLAIN and not self.again

    @property
    def is_replayed(self) -> bool:
        return self.origin is Origin.REPLAYED

    @property
    def is_restart(self) -> bool:
        return self.is_fresh and self.variant == RESTART

    @property
    def generated_len(self) -> int:
        return self.response_len - (self.prefix_len or 0)

    @property
    def level(self) -> float:
        """The grade that groups are compared by."""
        return float(self.correct) if self.grade is None else self.grade

    @property
    def taken_off(self) -> float:
        """At most 0: what a reward manager takes off the grade, such as dapo's penalty for long answers."""
        # A score is kept in single precision.
        is_noise = math.isclose(self.score, self.level, rel_tol=1e-6, abs_tol=1e-6)
        return 0.0 if is_noise else min(0.0, self.score - self.level)


LENGTHS = ("prompt_len", "response_len", "seq_len")
NAMES = tuple(field.name for field in fields(RowTag))


def tags_of(batch) -> list[RowTag]:
    """The tags of a batch (`KVBatchMeta`), a row each."""
    return [RowTag.from_tag(tag) for tag in batch.tags]


def groups_of(keys: Sequence[str], tags: Iterable[RowTag]) -> dict[str, list[int]]:
    """Positions of the rows of each group by its uid, in the order of the batch, padding left out."""
    groups = defaultdict(list)
    for position, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        if tag.origin is not Origin.PADDING:
            groups[uid_of(key)].append(position)
    return dict(groups)


def sessions_of(keys: Iterable[str]) -> dict[tuple[str, int], list[int]]:
    """Positions of the rows of each session, its uid and number, from its first row to its last: [a_0_1, a_0_0, a_1_0]
    gives [1, 0] and [2]."""
    sessions = defaultdict(list)
    for position, name in enumerate(map(RowKey.parse, keys)):
        sessions[name.uid, name.session].append((name.index, position))
    return {session: [position for _, position in sorted(rows)] for session, rows in sessions.items()}


def plain_keys(batch) -> list[str]:
    """Keys of the rows of a batch that were generated from plain prompts, further answers left out."""
    rows = zip(batch.keys, tags_of(batch), strict=True)
    return [key for key, tag in rows if tag.is_plain]


def versions_of(*tags: dict[str, Any]) -> int:
    """How many steps' weights wrote the fresh rows of a session, by verl's tags; 1 where no rollout server says so."""
    ends = [tag.get(f"{end}_global_steps") for tag in tags for end in ("min", "max")]
    known = [step for step in ends if step is not None]
    return max(known) - min(known) + 1 if len(known) == len(ends) else 1
