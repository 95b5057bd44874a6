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
"""The state buffer: states to restart from, with what became of the restarts, in a file of its own.

A training step writes in the background, each call in one transaction; every reader waits for it. States are stored
and drawn in an order that depends on their content alone.

A state leaves by what its restarts showed, never by age, for old states are what the method is for:

    mastered    after `easy_after` tries at least the share `easy` was right
    hopeless    after `hopeless_after` tries none was right
    over a cap  the lowest gain V(s_c) - V(s_0) by the newest critic that was asked, 0 where none was; among equal ones
                the most tried. `max_per_query` holds for a query and origin, `max_states` for all together

The raw value would empty the buffer of the hard problems first. What was tried is kept by content, so a state that left
by its tries is refused when it comes again, unless it is the start of its problem, and one that left over a cap comes
back with its tries.

A checkpoint pins its step, as in `recipe.common.store`: `restore` brings states, tries and values of it back.
"""

import math
import random
import sqlite3
from collections.abc import Container, Iterable

import numpy as np

from recipe.common.store import pins
from recipe.common.store.codec import as_ids, checksum_of, digest_of
from recipe.common.store.file import Kind
from recipe.common.store.store import Store
from recipe.rrl.cuts import drawn
from recipe.rrl.state_file import (
    COLUMNS,
    FAILED,
    LISTED,
    ORIGINS,
    REFERENCE,
    RIGHT,
    STATES,
    Listed,
    State,
    StatesError,
    check,
    load,
    rows_of,
)

__all__ = ["FAILED", "ORIGINS", "REFERENCE", "RIGHT", "Listed", "State", "StateBuffer", "StatesError"]
DONE = "((tries >= ? AND successes >= ? * tries) OR (tries >= ? AND successes = 0))"
"""Mastered or hopeless, after (`easy_after`, `easy`, `hopeless_after`)."""


class StateBuffer(Store):
    """The state buffer in the file `path`, which no other trainer may use meanwhile.

    Args:
        path: created when absent.
        max_per_query: states of a query and origin.
        max_states: states that can be drawn. Evicted ones that a checkpoint needs are at most as many again: past
            that, the oldest checkpoints can no longer be restored with their states.
        easy, easy_after, hopeless_after: see above.

    Raises:
        StatesError: not a state buffer, another schema version, damaged, not writable, or in use.
    """

    kind = STATES

    def __init__(
        self,
        path: str,
        max_per_query: int,
        max_states: int,
        easy: float = 0.75,
        easy_after: int = 4,
        hopeless_after: int = 16,
    ):
        self.max_per_query = max_per_query
        self.max_states = max_states
        self._done = (easy_after, easy, hopeless_after)
        super().__init__(path)

    # writing

    def add(self, states: Iterable[State], step: int) -> None:
        """Take over states in training step `step`, but for those whose tokens the query has already, or that left by
        their tries.

        Raises:
            ValueError: a state that cannot be stored; nothing was.
        """
        states = list(states)
        for state in states:
            check(state)
            self.kind.check_id(state.query_id, self.path)
        self._in_background(self._add, states, step)

    def _add(self, states: list[State], step: int) -> None:
        grown, added = set(), 0
        for columns, digest, tokens in rows_of(states):
            if self._is_refused(columns[0], digest, cut=columns[2]):
                continue
            added += 1
            grown.add(columns[:2])
            cursor = self._db.execute(
                f"INSERT INTO states ({COLUMNS}, added, abandoned, bytes, digest, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
                (*columns, step, len(tokens), digest, checksum_of(columns, tokens)),
            )
            self._db.execute("INSERT INTO payloads VALUES (?, ?)", (cursor.lastrowid, tokens))
        self._db.execute(
            "INSERT INTO steps VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET added = added + excluded.added, "
            "refused = refused + excluded.refused",
            (step, added, len(states) - added),
        )
        self._keep_to_caps(sorted(grown), step)

    def _is_refused(self, query_id: str, digest: bytes, cut: int) -> bool:
        same = (query_id, digest)
        held = "SELECT 1 FROM states WHERE query_id = ? AND digest = ? AND evicted IS NULL"
        if self._db.execute(held, same).fetchone():
            return True
        if not cut:  # of a problem there is no other start
            return False
        sums = "SELECT sum(tries) AS tries, sum(successes) AS successes FROM attempts"
        done = f"SELECT 1 FROM ({sums} WHERE query_id = ? AND digest = ?) WHERE {DONE}"
        return self._db.execute(done, (*same, *self._done)).fetchone() is not None

    def _keep_to_caps(self, grown: list[tuple[str, str]], step: int) -> None:
        best_first = "ORDER BY gain DESC, tries, digest, query_id LIMIT -1 OFFSET ?"
        for bucket in grown:
            over = f"SELECT id, added FROM live WHERE query_id = ? AND origin = ? {best_first}"
            self._evict(over, (*bucket, self.max_per_query), step)
        self._evict(f"SELECT id, added FROM live {best_first}", (self.max_states,), step)
        pins.reclaim(self._db, self.kind, _spare_states, self.max_states)

    def _evict(self, chosen: str, values: tuple, step: int) -> None:
        pins.evict(self._db, self.kind, self._db.execute(chosen, values).fetchall(), step)

    def tried(self, restarts: Iterable[tuple[int, int, int]], step: int) -> None:
        """Count the (state id, tries, successes) of training step `step`; mastered and hopeless states leave.

        Those of a state that left the file since it was drawn are passed over.

        Raises:
            ValueError: more successes than tries.
        """
        restarts = list(restarts)
        for state_id, tries, successes in restarts:
            if not 0 <= successes <= tries:
                raise ValueError(f"state {state_id}: successes must be from 0 to its {tries} tries, got {successes}")
        self._in_background(self._tried, restarts, step)

    def _tried(self, restarts: list[tuple[int, int, int]], step: int) -> None:
        for state_id, tries, successes in restarts:
            self._db.execute(
                "INSERT INTO attempts SELECT query_id, digest, ?, aim, ?, ? FROM states WHERE id = ? "
                "ON CONFLICT DO UPDATE SET tries = tries + excluded.tries, successes = successes + excluded.successes",
                (step, tries, successes, state_id),
            )
        self._evict(f"SELECT id, added FROM live WHERE {DONE} ORDER BY id", self._done, step)

    def revalue(self, values: Iterable[tuple[int, float, float]], step: int) -> None:
        """Note the (state id, V(s_c), V(s_0)) of the critic after training step `step`.

        Those of a state that left the file are passed over.

        Raises:
            ValueError: a value that is not finite.
        """
        values = [(state_id, float(now), float(start)) for state_id, now, start in values]
        for state_id, *pair in values:
            if not all(map(math.isfinite, pair)):
                raise ValueError(f"state {state_id}: values must be finite, got {pair[0]} and {pair[1]}")
        self._in_background(self._revalue, values, step)

    def _revalue(self, values: list[tuple[int, float, float]], step: int) -> None:
        for state_id, now, start in values:
            self._db.execute(
                "INSERT OR REPLACE INTO revalued SELECT id, ?, ?, ? FROM states WHERE id = ?",
                (step, now, start, state_id),
            )
            _forget_values(self._db, "state_id = ?", (state_id,))

    # drawing

    def candidates(
        self, query_ids: Container[str] | None = None, origins: tuple[str, ...] = ORIGINS, max_cut: int | None = None
    ) -> list[Listed]:
        """The states that can be drawn, without their tokens, in an order that depends on their content alone.

        Args:
            query_ids: of these queries; None: of all.
            max_cut: states of more tokens, which leave too little room for the rest, are passed over. None: none are.
        """
        self.flush()
        marks = ", ".join("?" * len(origins))
        sql = f"SELECT {LISTED} FROM live WHERE origin IN ({marks}) AND cut <= ? ORDER BY query_id, digest"
        values = (*origins, max_cut if max_cut is not None else 1 << 62)
        with self.kind.explained(self.path):
            found = [Listed(*row) for row in self._db.execute(sql, values)]
        return [each for each in found if query_ids is None or each.query_id in query_ids]

    def load(self, chosen: Iterable[Listed]) -> list[State]:
        """The states with their tokens; raises StatesError when one is damaged."""
        self.flush()
        with self.kind.explained(self.path):
            return [load(self._db, listed, self.path) for listed in chosen]

    def draw(
        self,
        k: int,
        rng: random.Random,
        temperature: float,
        query_ids: Container[str] | None = None,
        origins: tuple[str, ...] = ORIGINS,
        max_cut: int | None = None,
    ) -> list[State]:
        """At most `k` states, no two of a query, by `cuts.draw_weights`; the same for equal buffers and generators.

        Args:
            temperature: of the weights; infinite: by tries alone.
            query_ids, origins, max_cut: as of `candidates`.

        Raises:
            StatesError: a chosen state is damaged.
        """
        found = self.candidates(query_ids, origins, max_cut)
        names, gains, tries = ([getattr(each, name) for each in found] for name in ("query_id", "gain", "tries"))
        return self.load(found[at] for at in drawn(names, gains, tries, k, rng, temperature))

    def aimed(self, query_id: str) -> list[tuple[float, int, int]]:
        """(aim, tries, successes) of the restarts from steered cuts, in order, for `cuts.steered`."""
        self.flush()
        sql = "SELECT aim, tries, successes FROM attempts WHERE query_id = ? AND aim IS NOT NULL ORDER BY step, digest"
        with self.kind.explained(self.path):
            return self._db.execute(sql, (query_id,)).fetchall()

    def ids_of(self, prefixes: Iterable[tuple[str, np.ndarray]]) -> list[int | None]:
        """The state of each (query id, token ids), whether it can be drawn still or not; None of one that the file does
        not have. What is under way when training goes back finds its state by content: ids may have changed."""
        self.flush()
        sql = "SELECT max(id) FROM states WHERE query_id = ? AND digest = ? AND NOT abandoned"
        with self.kind.explained(self.path):
            found = ((query_id, digest_of(as_ids(tokens), seed=0)) for query_id, tokens in prefixes)
            return [self._db.execute(sql, each).fetchone()[0] for each in found]

    # the whole

    def unpin(self, gone) -> None:
        """Give up the pinned steps for which `gone(step)`, and the states and values that only they need."""
        super().unpin(gone)
        with self._transaction():
            _forget_values(self._db)

    def metrics(self) -> dict[str, float]:
        """What can be drawn: states by origin, bytes of tokens, mean age and tries, share of the tries that was right;
        and how many states the last step that gave any added and refused."""
        self.flush()
        with self.kind.explained(self.path):
            counts = dict(self._db.execute("SELECT origin, count(*) FROM live GROUP BY origin"))
            sums = "SELECT count(*), sum(tries), sum(successes), avg(? - step) FROM live"
            number, tries, successes, age = self._db.execute(sums, (pins.last_step(self._db, self.kind),)).fetchone()
            last = self._db.execute("SELECT added, refused FROM steps ORDER BY step DESC LIMIT 1").fetchone()
        found = {f"states/{origin}": counts.get(origin, 0) for origin in ORIGINS}
        found |= dict(zip(("states/added", "states/refused"), last or (0, 0), strict=True))
        found["states/bytes"] = self.live_bytes
        if number:
            found |= {"states/age": age, "states/tries": tries / number}
        if tries:
            found["states/success_rate"] = successes / tries
        return found


def _spare_states(db: sqlite3.Connection, kind: Kind) -> int:
    return db.execute(f"SELECT count(*) FROM {kind.rows} WHERE evicted IS NOT NULL").fetchone()[0]


def _forget_values(db: sqlite3.Connection, which: str = "1", values: tuple = ()) -> None:
    """Delete values that a later one replaced before any step that is pinned."""
    after = "(SELECT min(r.step) FROM revalued r WHERE r.state_id = revalued.state_id AND r.step > revalued.step)"
    needed = f"EXISTS (SELECT 1 FROM pins WHERE pins.step >= revalued.step AND pins.step < {after})"
    db.execute(f"DELETE FROM revalued WHERE {which} AND {after} IS NOT NULL AND NOT {needed}", values)
