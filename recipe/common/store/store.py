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
"""What every store does: hold its file, write in the background, pin checkpoints and go back to one.

A write is one transaction, all of it or nothing; every reader waits for it. A checkpoint pins its step: `pin` writes
one row, whatever the size of the file. A row evicted later stays in the file as long as a pinned step needs it, so
`restore` brings that step's state back exactly.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

from recipe.common.store import lock, pins
from recipe.common.store.file import Kind


class Store:
    """A store in the file `path`, created when absent, which no other trainer may use meanwhile.

    Raises:
        StoreError: not of this kind, another schema version, damaged, not writable, or in use.
    """

    kind: ClassVar[Kind]

    def __init__(self, path: str):
        self.path = path
        self.write_seconds = 0.0
        """Of the last transaction in the background."""
        self.wait_seconds = 0.0
        """Since the last write began, spent waiting for it."""
        with self.kind.explained(path):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._lock = lock.Lock(path, self.kind)
        try:
            self.exclusive = lock.network_file_system(path) is not None
            self._db = self.kind.open_for_writing(path, self.exclusive)
        except BaseException:
            self._lock.release()
            raise
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.kind.name)
        self._pending: Future | None = None
        self._measure()

    # writing

    def _in_background(self, write: Callable[..., None], *values) -> None:
        """Have `write(*values)` done in one transaction, after the one before it."""
        self.flush()
        self.wait_seconds = 0.0
        self._pending = self._writer.submit(self._write, write, values)

    def _write(self, write: Callable[..., None], values: tuple) -> None:
        begin = time.monotonic()
        with self._transaction():
            write(*values)
        self._measure()
        self.write_seconds = time.monotonic() - begin

    def flush(self) -> None:
        """Wait for the last write; raises StoreError when it failed."""
        if self._pending is None:
            return
        begin, pending, self._pending = time.monotonic(), self._pending, None
        try:
            pending.result()
        finally:
            self.wait_seconds += time.monotonic() - begin

    @contextmanager
    def _transaction(self):
        """All of it or nothing."""
        with self.kind.explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                yield

    # checkpoints

    def pin(self, step: int) -> None:
        """Make the present state, that after training step `step`, one that `restore` can bring back."""
        self.flush()
        with self.kind.explained(self.path):
            self._db.execute("INSERT OR IGNORE INTO pins VALUES (?)", (step,))

    def unpin(self, gone: Callable[[int], bool]) -> None:
        """Give up the pinned steps for which `gone(step)`, and the evicted rows that only they need."""
        self.flush()
        with self._transaction():
            for step in self.pinned():
                if gone(step):
                    pins.unpin(self._db, self.kind, step)
        self.spare_bytes = pins.spare_bytes(self._db, self.kind)

    def pinned(self) -> list[int]:
        """Steps that can be restored, in order."""
        self.flush()
        return pins.pinned(self._db)

    def restore(self, step: int, identity: dict[str, str] | None = None, may_skip: bool = False) -> list[str]:
        """Bring back the state after training step `step`, 0 for the state before the first; returns what to tell.

        Rows written later stay in the file as abandoned: never drawn, but still there to read.

        Args:
            identity: tokenizer, model and limits of this run; compared with those the rows were stored under.
            may_skip: the checkpoint of `step` is of a run without a store, so that the state before it, which may be
                empty, is that after it.

        Raises:
            StoreError: that state is not in the file, or its tokens are of another tokenizer.
        """
        self.flush()
        identity = identity or {}
        with self.kind.explained(self.path):
            told = pins.compare(self._db, self.kind, identity, self.path)
            last = pins.last_step(self._db, self.kind)
            if may_skip and last < step:
                told.append(f"goes on as after step {last}: the checkpoint is of step {step} and of a run without one")
            else:
                pins.check_restorable(self._db, self.kind, step, self.path)
        with self._transaction():
            pins.go_back(self._db, self.kind, step)
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", sorted(identity.items()))
        self._measure()
        rows, spare = self.kind.rows, "evicted IS NOT NULL AND abandoned"
        [(abandoned,)] = self._db.execute(f"SELECT count(*) FROM {rows} WHERE {spare}")
        return [*told, f"{self.size()} {rows}, {abandoned} abandoned ones, restored to step {step}"]

    # the whole

    def _measure(self) -> None:
        with self.kind.explained(self.path):
            self.live_bytes = pins.live_bytes(self._db, self.kind)
            self.spare_bytes = pins.spare_bytes(self._db, self.kind)

    def meta(self) -> dict[str, str]:
        """Tokenizer, model and limits that the rows were stored under; empty before the first run."""
        return dict(self._db.execute("SELECT key, value FROM meta"))

    def size(self) -> int:
        """Number of rows that can be drawn."""
        self.flush()
        with self.kind.explained(self.path):
            return self._db.execute(f"SELECT count(*) FROM {self.kind.rows} WHERE evicted IS NULL").fetchone()[0]

    def close(self) -> None:
        """Wait for the last write and let go of the file."""
        try:
            self.flush()
        finally:
            self._writer.shutdown()
            self._db.close()
            self._lock.release()
