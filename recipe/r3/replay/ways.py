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
"""By which prompt an all-wrong group is asked again: the reflection prompt, or the plain one once more.

Which of them finds more depends on the model: where reflection solves 8 groups, further answers may solve 18. So
`reflection.ask=adaptive` lets the run find out. Either way right answers that are rare under the plain prompt weigh
more than their probability, because a group is asked again for having none.
"""

import json
import random
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recipe.common.outcome import dead_outcome
from recipe.common.rows import PLAIN, REFLECTION, RESTART, RowTag, groups_of, is_reflection, plain_uid
from recipe.r3.config.r3_config import ADAPTIVE, RESTARTS

WAYS = (REFLECTION, PLAIN)
"""Of asking a group that nothing stored can rescue. Restarts have a right answer to go on from."""
SHARED = ADAPTIVE, RESTARTS
"""Of `reflection.ask`: the run shares out its groups among the two."""
FLOOR = 0.1
"""Least share of either way: what finds nothing now may do so later."""
FILE = "ways.json"
"""In a checkpoint: the tallies so far."""


@dataclass
class Tally:
    """What one way found."""

    asked: int = 0
    """All-wrong groups."""
    found: int = 0
    """Those of them with a right answer then, that may be replayed into them."""
    tokens: int = 0
    """Generated for all of them."""

    def add(self, other: "Tally") -> None:
        self.asked += other.asked
        self.found += other.found
        self.tokens += other.tokens


def tallies(keys: Sequence[str], tags: Sequence[RowTag], drawable: Container[str]) -> dict[str, Tally]:
    """By way, of the all-wrong groups of a batch for which a further group is in it, before its rows join them.

    drawable: queries to which reflection found a right answer that may be replayed under the plain prompt.
    """
    groups = groups_of(keys, tags)
    found = {way: Tally() for way in (*WAYS, RESTART)}
    for uid, positions in groups.items():
        own = [tags[position] for position in groups.get(plain_uid(uid), ())] if is_reflection(uid) else []
        rows = [tags[position] for position in positions]
        if not own or own[0].group != rows[0].group or dead_outcome(own) is not False:
            continue
        way, is_right = rows[0].variant, any(row.correct for row in rows)
        is_found = is_right and (way != REFLECTION or rows[0].group in drawable)
        found[way].add(Tally(1, int(is_found), sum(row.generated_len for row in rows)))
    return found


def reflection_share(found: dict[str, Tally]) -> float:
    """Share of the groups that are asked with the reflection prompt: as the ways' groups found for a token, at least
    FLOOR of either.

    With one imagined group of each way that found half a group: 8 of 75 at 4,000 tokens each against 18 of 75 at the
    same: (8.5 / 76) / (8.5 / 76 + 18.5 / 76) = 0.315. Nothing known: 0.5.
    """
    found = {way: found[way] for way in WAYS}
    asked, tokens = (sum(getattr(tally, name) for tally in found.values()) for name in ("asked", "tokens"))
    length = tokens / asked if asked and tokens else 1.0
    rate = {way: (tally.found + 0.5) / (tally.tokens + length) for way, tally in found.items()}
    share = rate[REFLECTION] / sum(rate.values())
    return min(1 - FLOOR, max(FLOOR, share))


@dataclass
class Ways:
    """Chooses the way of each group.

    Args:
        ask: `reflection.ask`.
        seed: with the step and the query it decides, so that no order of arrival does.
    """

    ask: str
    seed: int
    found: dict[str, Tally] = field(default_factory=lambda: {way: Tally() for way in (*WAYS, RESTART)})
    """Of the run so far."""
    fresh: dict[str, Tally] = field(default_factory=lambda: {way: Tally() for way in (*WAYS, RESTART)})
    """Since the metrics were taken last."""

    def way(self, query_id: str, step: int) -> str:
        """Of an all-wrong group that `step` generated."""
        if self.ask not in SHARED:
            return self.ask
        drawn = random.Random(f"{self.seed}/way/{step}/{query_id}").random()
        return REFLECTION if drawn < reflection_share(self.found) else PLAIN

    def see(self, keys: Sequence[str], tags: Sequence[RowTag], drawable: Container[str]) -> None:
        """Count what the further groups of a batch found; see `tallies`."""
        for way, tally in tallies(keys, tags, drawable).items():
            self.found[way].add(tally)
            self.fresh[way].add(tally)

    def take_metrics(self) -> dict[str, float]:
        """Counts since the last call, and the share by which the next groups are asked."""
        metrics = {
            f"reflection/by_{way}/{name}": count
            for way, tally in self.fresh.items()
            if way in WAYS or self.ask == RESTARTS
            for name, count in asdict(tally).items()
        }
        self.fresh = {way: Tally() for way in (*WAYS, RESTART)}
        is_shared = self.ask in SHARED
        return metrics | ({"reflection/by_reflection/share": reflection_share(self.found)} if is_shared else {})

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / FILE).write_text(json.dumps({way: asdict(tally) for way, tally in self.found.items()}) + "\n")

    def load(self, checkpoint: Path) -> None:
        if (file := checkpoint / FILE).exists():
            self.found |= {way: Tally(**tally) for way, tally in json.loads(file.read_text()).items()}
