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

With `sparing` it also finds out whether: where neither finds much, the tokens go to other problems.
"""

import json
import random
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recipe.common.outcome import dead_outcome
from recipe.common.rows import PLAIN, REFLECTION, RESTART, RowTag, groups_of, is_reflection, plain_uid
from recipe.r3.config.r3_config import ADAPTIVE, RESTARTS, SPARING

WAYS = (REFLECTION, PLAIN)
"""Of asking a group that nothing stored can rescue. Restarts have a right answer to go on from."""
FLOOR = 0.1
"""Least share of either way: what finds nothing now may do so later."""
WORTH = 0.25
"""Share of the mixed groups that plain prompts give for a token, below which asking again is in vain: a rescued group
may be worth more than a mixed one, but not so much."""
ENOUGH = 12
"""Mixed groups that plain prompts would have given for the tokens, before what asking again found for them is judged.
From twice as many on all counts are halved, so that what is found lately counts. A number of groups would not do: of 20
that are asked where 1 of 20 is mixed nothing is found one time of three, though asking pays as well."""
EVERY = 8
"""One step of so many asks while others rest, for the same reason as FLOOR."""
FILE = "ways.json"
"""In a checkpoint: the tallies so far."""


@dataclass
class Tally:
    """What one way found."""

    asked: float = 0
    """All-wrong groups."""
    found: float = 0
    """Those of them with a right answer then, that may be replayed into them."""
    tokens: float = 0
    """Generated for all of them."""

    def add(self, other: "Tally") -> None:
        self.asked += other.asked
        self.found += other.found
        self.tokens += other.tokens

    def halve(self) -> None:
        self.asked, self.found, self.tokens = self.asked / 2, self.found / 2, self.tokens / 2


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


def as_they_came(keys: Sequence[str], tags: Sequence[RowTag]) -> Tally:
    """Of the plain groups that a batch generated: how many, those of them with right and wrong answers, tokens."""
    came = Tally()
    for uid, positions in groups_of(keys, tags).items():
        rows = [tags[position] for position in positions]
        if not is_reflection(uid) and not rows[0].waited:
            came.add(Tally(1, int(dead_outcome(rows) is None), sum(row.generated_len for row in rows)))
    return came


def further(keys: Sequence[str], tags: Sequence[RowTag], found: dict[str, Tally]) -> Tally:
    """Of the groups that were asked again: how many, those that `found` counts, tokens. One that was planned for a
    group that came out mixed cost its tokens, too. One whose own group is elsewhere is left out.
    """
    groups, all_ = groups_of(keys, tags), Tally(found=sum(tally.found for tally in found.values()))
    for uid, positions in groups.items():
        if is_reflection(uid) and plain_uid(uid) in groups:
            all_.add(Tally(1, 0, sum(tags[position].generated_len for position in positions)))
    return all_


def expected(again: Tally, came: Tally) -> float:
    """Mixed groups that plain prompts would have given for the tokens of asking again.

    50 mixed groups for 8,000 tokens, and 3,200 for asking again: 20.
    """
    return again.tokens * came.found / came.tokens if came.tokens else 0.0


def in_vain(again: Tally, came: Tally) -> bool:
    """Whether asking again has found less than WORTH times what was to be expected of plain prompts.

    4 of 30 groups where 20 were to be expected: 0.2.
    """
    return expected(again, came) >= ENOUGH and again.found < WORTH * expected(again, came)


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
    """Chooses the way of each group, and the steps that ask none.

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
    again: Tally = field(default_factory=Tally)
    """Lately, by all ways together."""
    came: Tally = field(default_factory=Tally)
    """Plain groups in the same steps."""
    decided: tuple[int, bool] = (-1, False)
    """A step and whether it rests: it may have several batches."""

    def rests(self, step: int) -> bool:
        """Whether `step` asks no group again."""
        if step != self.decided[0]:
            is_resting = self.ask == SPARING and step % EVERY != 0 and in_vain(self.again, self.came)
            self.decided = step, is_resting
        return self.decided[1]

    def resting(self, step: int) -> dict[str, float]:
        """What `rests` says, as a metric."""
        return {"reflection/rests": float(self.rests(step))} if self.ask == SPARING else {}

    def way(self, query_id: str, step: int) -> str:
        """Of an all-wrong group that `step` generated."""
        if self.ask not in (ADAPTIVE, SPARING, RESTARTS):
            return self.ask
        drawn = random.Random(f"{self.seed}/way/{step}/{query_id}").random()
        return REFLECTION if drawn < reflection_share(self.found) else PLAIN

    def see(self, keys: Sequence[str], tags: Sequence[RowTag], drawable: Container[str]) -> None:
        """Count what the further groups of a batch found; see `tallies`."""
        found = tallies(keys, tags, drawable)
        for way, tally in found.items():
            self.found[way].add(tally)
            self.fresh[way].add(tally)
        self.again.add(further(keys, tags, found))
        self.came.add(as_they_came(keys, tags))
        while expected(self.again, self.came) >= 2 * ENOUGH:
            self.again.halve()
            self.came.halve()

    def take_metrics(self) -> dict[str, float]:
        """Counts since the last call, and the share by which the next groups are asked."""
        metrics = {
            f"reflection/by_{way}/{name}": count
            for way, tally in self.fresh.items()
            if way in WAYS or self.ask == RESTARTS
            for name, count in asdict(tally).items()
        }
        self.fresh = {way: Tally() for way in (*WAYS, RESTART)}
        is_shared = self.ask in (ADAPTIVE, SPARING, RESTARTS)
        return metrics | ({"reflection/by_reflection/share": reflection_share(self.found)} if is_shared else {})

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        kept = self.found | {"again": self.again, "came": self.came}
        (checkpoint / FILE).write_text(json.dumps({name: asdict(tally) for name, tally in kept.items()}) + "\n")

    def load(self, checkpoint: Path) -> None:
        if (file := checkpoint / FILE).exists():
            kept = {name: Tally(**tally) for name, tally in json.loads(file.read_text()).items()}
            self.again, self.came = kept.pop("again", Tally()), kept.pop("came", Tally())
            self.found |= kept
