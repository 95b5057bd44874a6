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
"""What a trainer keeps across checkpoints beside verl's files: a store in a file of its own, and parts in their folder.

A checkpoint pins the store's state of its step, and a start that goes on from it brings that state back.
"""

# pyright: reportAttributeAccessIssue=false
# The mixin is laid over a trainer of verl's, which has the attributes.

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from recipe.common.store.codec import tokenizer_fingerprint
from recipe.common.store.store import Store
from recipe.common.trainer.checkpoints import had_store, is_gone
from recipe.common.trainer.resume import checkpoint_of, resume_step
from recipe.common.trainer.safe_loading import without_unpickling

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


class Part(Protocol):
    """Something in a checkpoint's folder."""

    def save(self, checkpoint: Path) -> None: ...

    def load(self, checkpoint: Path) -> None:
        """Nothing where the checkpoint has none."""
        ...


class StoredMixin:
    """On a measured trainer."""

    def _store(self) -> Store | None:
        """None of a run that keeps none."""
        raise NotImplementedError

    def _keeps_store(self) -> bool:
        return self._store() is not None

    def _limits(self) -> dict[str, str]:
        """Settings that the store's content depends on, besides tokenizer and model."""
        return {}

    def _saved_beside(self) -> Sequence[Part]:
        """What a checkpoint holds of the recipe's beside verl's files and the store."""
        return ()

    def _load_beside(self, checkpoint: Path) -> None:
        for part in self._saved_beside():
            part.load(checkpoint)

    def _load_checkpoint(self) -> None:
        resume_step(self.config.trainer)
        may_skip = False
        with without_unpickling():
            super()._load_checkpoint()
            if self.global_steps:
                checkpoint = checkpoint_of(self.config.trainer, self.global_steps)
                may_skip = not had_store(checkpoint, self._name, self.config.trainer.resume_mode == "resume_path")
                self._load_beside(checkpoint)
        if (store := self._store()) is None:
            return
        model = str(self.config.actor_rollout_ref.model.path)
        identity = {"tokenizer": tokenizer_fingerprint(self.tokenizer), "model": model, **self._limits()}
        for line in store.restore(self.global_steps, identity, may_skip):
            logger.log(logging.WARNING if may_skip else logging.INFO, f"{store.kind.name} {store.path}: {line}")

    def _save_checkpoint(self) -> None:
        store = self._store()
        # Before the checkpoint: one whose state could not be written must not come into being.
        if self._may_save():
            if store is not None:
                store.pin(self.global_steps)
            for part in self._saved_beside():
                part.save(Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"))
        super()._save_checkpoint()
        if store is not None:
            pinned = store.pinned()
            store.unpin(lambda step: is_gone(self.config.trainer, step, pinned))
