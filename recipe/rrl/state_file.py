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
"""The file of the state buffer: its schema, and how a state is written into a row and read back.

states      a state to restart from                               (payloads: its tokens)
attempts    restarts of a state and how many were right, by step                    never evicted
revalued    what a later critic said of it, by step; older values stay as long as a checkpoint needs them
steps       how many states a step added and refused
live        a view: the states that can be drawn, with their tries and newest value
pins, meta  see `recipe.common.store.file`, which also tells how the file is opened and checked
"""

import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from recipe.common.store.codec import as_ids, checksum_of, digest_of, pack, unpack
from recipe.common.store.file import PINS_AND_META, Kind, StoreError

FAILED, RIGHT, REFERENCE = "failed", "right", "reference"
ORIGINS = (FAILED, RIGHT, REFERENCE)
"""A state's answer: an own wrong one, an own right one, the data set's."""

SCHEMA = """
CREATE TABLE states (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    query_id TEXT NOT NULL,
    origin TEXT NOT NULL,           -- failed | right | reference: the answer that it was cut from
    cut INTEGER NOT NULL,           -- its tokens
    length INTEGER NOT NULL,        -- tokens of that answer
    step INTEGER NOT NULL,          -- training step of that answer
    aim REAL,                       -- share of the answer that a steered cut aimed at; NULL of other cuts
    value REAL,                     -- of the critic when it was taken: V(s_c), NULL if not asked
    start_value REAL,               -- V(s_0) then
    added INTEGER NOT NULL,         -- training step that it joined
    evicted INTEGER,                -- training step that evicted it, NULL while it can be drawn
    abandoned INTEGER NOT NULL,     -- 1: written after a checkpoint that training went back to
    bytes INTEGER NOT NULL,         -- of its payload
    digest BLOB NOT NULL,           -- XXH3-128 of its ids
    checksum INTEGER NOT NULL       -- CRC-32 of query_id to start_value and the payload
) STRICT;
CREATE INDEX states_live ON states (query_id, digest) WHERE evicted IS NULL;
CREATE INDEX states_evicted ON states (evicted, abandoned, added, bytes) WHERE evicted IS NOT NULL;
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY,         -- of the state
    tokens BLOB NOT NULL            -- int32, little endian, in zlib
) STRICT;
CREATE TABLE attempts (
    query_id TEXT NOT NULL,
    digest BLOB NOT NULL,           -- of the state's ids: what was learnt of it outlives it
    step INTEGER NOT NULL,
    aim REAL,                       -- of the state
    tries INTEGER NOT NULL,
    successes INTEGER NOT NULL,
    PRIMARY KEY (query_id, digest, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE revalued (
    state_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    value REAL NOT NULL,            -- V(s_c) by the critic of that step
    start_value REAL NOT NULL,      -- V(s_0) by the critic of that step
    PRIMARY KEY (state_id, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    added INTEGER NOT NULL,
    refused INTEGER NOT NULL        -- duplicates, and states that had left by their tries
) STRICT;
CREATE TRIGGER states_gone AFTER DELETE ON states BEGIN
    DELETE FROM revalued WHERE state_id = old.id;
END;
CREATE VIEW live AS
    SELECT *, coalesce(value_now - start_now, value - start_value, 0.0) AS gain FROM (
        SELECT id, query_id, origin, cut, length, step, aim, value, start_value,
            (SELECT r.value FROM revalued r WHERE r.state_id = id ORDER BY r.step DESC LIMIT 1) AS value_now,
            (SELECT r.start_value FROM revalued r WHERE r.state_id = id ORDER BY r.step DESC LIMIT 1) AS start_now,
            (SELECT coalesce(sum(a.tries), 0) FROM attempts a
                WHERE a.query_id = s.query_id AND a.digest = s.digest) AS tries,
            (SELECT coalesce(sum(a.successes), 0) FROM attempts a
                WHERE a.query_id = s.query_id AND a.digest = s.digest) AS successes,
            added, digest
        FROM states s WHERE evicted IS NULL
    );
"""
LISTED = (
    "id, query_id, origin, cut, length, step, aim, value, start_value, value_now, start_now, tries, successes, gain"
)
"""Of the view, the fields of `Listed`."""
COLUMNS = "query_id, origin, cut, length, step, aim, value, start_value"
"""Of a state, those that its checksum is of, beside its payload."""


class StatesError(StoreError):
    """The state buffer cannot be used. The message names the file, the reason and the way out."""


STATES = Kind(
    name="state buffer",
    key="algorithm.rrl.states.path",
    error=StatesError,
    version=1,
    schema=SCHEMA + PINS_AND_META,
    rows="states",
    born="added",
    logs=("attempts", "revalued", "steps"),
)


@dataclass(frozen=True)
class State:
    """A prompt and the first tokens of an answer to it, from which the policy can start again."""

    query_id: str
    tokens: np.ndarray
    """(c,) int32 ids of the prefix; none: the prompt alone."""
    origin: str
    """One of `ORIGINS`."""
    length: int
    """Tokens of the answer that it was cut from."""
    step: int
    """Training step of that answer."""
    value: float | None = None
    """V(s_c) when it was taken; None: no critic was asked."""
    start_value: float | None = None
    """V(s_0) then; None where `value` is."""
    aim: float | None = None
    """Share of the answer that a steered cut aimed at; None of other cuts."""
    id: int | None = None
    """Its row in the file, once drawn."""
    value_now: float | None = None
    """V(s_c) by the newest critic that was asked again; None: none was."""
    start_now: float | None = None
    tries: int = 0
    """Restarts from it."""
    successes: int = 0
    """Those whose answer was right."""


@dataclass(frozen=True)
class Listed:
    """A state of the buffer without its tokens; fields as those of `State`."""

    id: int
    query_id: str
    origin: str
    cut: int
    """Its tokens."""
    length: int
    step: int
    aim: float | None
    value: float | None
    start_value: float | None
    value_now: float | None
    start_now: float | None
    tries: int
    successes: int
    gain: float
    """V(s_c) - V(s_0) by the newest critic that was asked; 0 where none was."""


def check(state: State) -> None:
    """Raise ValueError unless the state can be stored."""
    named = f"state of query {state.query_id[:20]}"
    if state.origin not in ORIGINS:
        raise ValueError(f"{named}: origin must be one of {', '.join(ORIGINS)}, got {state.origin!r}")
    if not len(state.tokens) < state.length:
        raise ValueError(
            f"{named}: a prefix must have fewer tokens than the {state.length} of its answer, got {len(state.tokens)}"
        )
    if (state.value is None) != (state.start_value is None):
        given = f"{state.value} and {state.start_value}"
        raise ValueError(f"{named}: value and start_value must both be given or neither, got {given}")
    for value in (state.value, state.start_value, state.aim):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{named}: value, start_value and aim must be finite, got {value}")


def rows_of(states: Iterable[State]) -> Iterator[tuple[tuple, bytes, bytes]]:
    """(columns, digest, tokens as stored) of the states, in an order that depends on their content alone."""
    rows = []
    for state in states:
        ids = as_ids(state.tokens)
        given = (None if value is None else float(value) + 0.0 for value in (state.aim, state.value, state.start_value))
        columns = (str(state.query_id), str(state.origin), len(ids), int(state.length), int(state.step), *given)
        rows.append((columns, digest_of(ids, seed=0), ids))
    rows.sort(key=lambda row: (row[0][0], row[1], repr(row[0])))
    return ((columns, digest, pack(ids)) for columns, digest, ids in rows)


def load(db: sqlite3.Connection, listed: Listed, path: str) -> State:
    """The state with its tokens; raises StatesError unless its checksum fits."""
    *columns, checksum, tokens = db.execute(
        f"SELECT {COLUMNS}, checksum, tokens FROM states LEFT JOIN payloads USING (id) WHERE id = ?", (listed.id,)
    ).fetchone()
    if tokens is None or checksum != checksum_of(tuple(columns), tokens):
        raise STATES.damaged(path, listed.id, listed.query_id)
    query_id, origin, _, length, step, aim, value, start_value = columns
    return State(
        query_id=query_id,
        tokens=unpack(tokens, "<i4"),
        origin=origin,
        length=length,
        step=step,
        value=value,
        start_value=start_value,
        aim=aim,
        id=listed.id,
        value_now=listed.value_now,
        start_now=listed.start_now,
        tries=listed.tries,
        successes=listed.successes,
    )
