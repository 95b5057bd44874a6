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
"""The file of the sample buffer: its schema.

samples     one stored response: what it is                   (payloads: its tokens and log-probs)
statistics  attempts, successes, truncated per query, prompt variant and step       never evicted
replays     which stored response a step replayed
pins, meta  see `recipe.common.store.file`, which also tells how the file is opened and checked
"""

from recipe.common.store.file import PINS_AND_META, Kind, StoreError

SCHEMA_VERSION = 6
SCHEMA = """
CREATE TABLE samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- plain | reflection
    correct INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    score REAL NOT NULL,            -- reward of the reward manager, ranking rewards excluded
    length INTEGER NOT NULL,        -- response tokens
    entropy REAL,                   -- mean of -log_prob over the tokens; NULL if not recorded
    step INTEGER NOT NULL,          -- training step that it joined, 0 for imported ones
    version INTEGER NOT NULL,       -- training step whose weights were current when it was taken up, mostly step - 1
    versions INTEGER NOT NULL,      -- weights from then to its end: over 1 where rollouts go on over weight syncs
    evicted INTEGER,                -- training step that evicted it, NULL while it can be drawn
    abandoned INTEGER NOT NULL,     -- 1: written after a checkpoint that training went back to
    bytes INTEGER NOT NULL,         -- of its payload
    digest BLOB NOT NULL,           -- XXH3-128 of the ids, seeded; equal responses of a query are stored once
    checksum INTEGER NOT NULL       -- CRC-32 of query_id to versions and the payload, see codec.py
) STRICT;
CREATE INDEX samples_live ON samples (query_id, variant, correct, step, digest, bytes) WHERE evicted IS NULL;
CREATE INDEX samples_evicted ON samples (evicted, abandoned, step, bytes) WHERE evicted IS NOT NULL;
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY,         -- of the sample
    tokens BLOB NOT NULL,           -- int32, little endian, in zlib
    log_probs BLOB                  -- float16, little endian, in zlib, of the policy that generated it; NULL if unknown
) STRICT;
CREATE TABLE statistics (
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,
    step INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    successes INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    PRIMARY KEY (query_id, variant, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE replays (
    sample_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    query_id TEXT NOT NULL,
    variant TEXT NOT NULL,          -- of the group it was replayed into
    sample_step INTEGER NOT NULL,   -- its version + 1: step - sample_step is its age
    times INTEGER NOT NULL,         -- groups of the step it was replayed into
    PRIMARY KEY (sample_id, step, variant)
) STRICT, WITHOUT ROWID;
"""


class HistoryError(StoreError):
    """The history cannot be used. The message names the file, the reason and the way out."""


HISTORY = Kind(
    name="history",
    key="algorithm.r3.history.path",
    error=HistoryError,
    version=SCHEMA_VERSION,
    schema=SCHEMA + PINS_AND_META,
    rows="samples",
    born="step",
    logs=("statistics", "replays"),
    from_older=(
        "; to take the samples along, `r3 history export` them with the version of this repository that wrote them "
        "(schema 5: commit cde174c), then `r3 history import` the parquet"
    ),
)
explained = HISTORY.explained
open_for_reading = HISTORY.open_for_reading
check_tables = HISTORY.check_tables
