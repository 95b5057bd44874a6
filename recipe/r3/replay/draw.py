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
"""Which stored answers join which dead groups of a batch: seeded, and the same whatever order the rows came in."""

import random
from collections.abc import Callable, Iterable, Sequence

import torch

from recipe.common.outcome import dead_outcome
from recipe.common.prompts import Prompts
from recipe.common.rows import PLAIN, REFLECTION, RESTART, RowTag, groups_of
from recipe.r3.config.r3_config import ANY_PROMPT, ReplayConfig
from recipe.r3.history.store import History, Sample
from recipe.r3.replay.rows import Replay

RIGHT = "correct", ANY_PROMPT
"""Outcomes of `replay.outcome` that are for all-wrong groups alone."""


class Replayer:
    """Draws from the history for the groups of a batch.

    Args:
        config: `algorithm.r3.replay`.
        seed: of every choice; the step and the number of the batch in it go into it, too.
        max_response_length: stored responses of more tokens are passed over.
        decode: text of token ids, special tokens left out; for `replay.reflected_unless`.
    """

    def __init__(
        self,
        history: History,
        config: ReplayConfig,
        seed: int,
        max_response_length: int,
        decode: Callable[[list[int]], str],
    ):
        self.history = history
        self.config = config
        self.seed = seed
        self.max_response_length = max_response_length
        self.decode = decode
        self.prompts: Prompts | None = None
        """Of the training set, where answers to any query are replayed."""
        self.passed_over = 0
        """Answers of this step that `replay.reflected_unless` kept from being drawn."""
        self._step, self._batch = -1, 0

    def begin(self, step: int) -> None:
        """A batch of a training step is there; verl's separate mode has several batches in a step."""
        self._batch = self._batch + 1 if self._step == step else 0
        self._step = step
        if self._batch == 0:
            self.passed_over = 0

    def replays(self, keys: Sequence[str], tags: Sequence[RowTag], new: Iterable[Sample]) -> list[Replay]:
        """Samples of the opposite outcome for every dead group of the batch that began last.

        Args:
            new: what this batch will add to the history; answers that reflection found are drawn from it.
        """
        if not self.config.enable:
            return []
        rng = random.Random(f"{self.seed}/replay/{self._step}" + (f"/{self._batch}" if self._batch else ""))
        replays = []
        # Ordered by query id: uids are random, and drawing in their order would make equal runs differ.
        groups = groups_of(keys, tags).values()
        for positions in sorted(groups, key=lambda positions: (tags[positions[0]].group, tags[positions[0]].variant)):
            outcome = dead_outcome([tags[position] for position in positions])
            if tags[positions[0]].variant == RESTART:
                continue  # it begins where a right answer does
            if outcome is None or self.config.outcome not in ("both", *(("wrong",) if outcome else RIGHT)):
                continue
            if samples := self._draw(tags[positions[0]], not outcome, rng, new):
                replays.append(Replay(positions, samples))
        return replays

    def is_known(self, query_id: str) -> bool:
        """Whether the history holds a right answer that could be replayed under the plain prompt of a query."""
        tag, before = RowTag(group=query_id), self.passed_over
        known = self.config.enable and bool(self._draw(tag, True, random.Random(0), ()))
        self.passed_over = before
        return known

    def _draw(self, tag: RowTag, correct: bool, rng: random.Random, new: Iterable[Sample]) -> list[Sample]:
        """At most k samples of that outcome for the group of this tag: stored ones, and where they are too few, right
        ones among the new that reflection found."""
        config = self.config
        # Another answer to a reflection prompt would speak of the attempt that its own prompt showed.
        is_plain = tag.variant == PLAIN
        accepts = self._fits_plain_prompt if is_plain and config.reflected_unless else None
        of_any = config.outcome == ANY_PROMPT
        own = self._restarted(tag, rng, new) if is_plain and correct else []
        samples = own + self.history.draw(
            None if of_any else tag.group,
            correct,
            config.k - len(own),
            rng,
            variants=(PLAIN, REFLECTION, RESTART) if is_plain and not of_any else (PLAIN,),
            max_length=self.max_response_length,
            min_version=-1 if config.max_age is None else self._step - 1 - config.max_age,
            accepts=self._has_prompt if of_any else accepts,
        )
        if not (config.same_step and is_plain and correct and len(samples) < config.k):
            return samples
        found = [s for s in new if s.variant == REFLECTION and s.correct and s.query_id == tag.group]
        found = sorted(filter(accepts, found), key=lambda sample: sample.tokens.tolist())  # they arrive in any order
        return samples + rng.sample(found, min(config.k - len(samples), len(found)))

    def _restarted(self, tag: RowTag, rng: random.Random, new: Iterable[Sample]) -> list[Sample]:
        """Right answers of this step that go on from a part of a stored one, before those that are stored."""
        found = [s for s in new if s.variant == RESTART and s.correct and s.query_id == tag.group]
        found = sorted(found, key=lambda sample: sample.tokens.tolist())
        return rng.sample(found, min(self.config.k, len(found)))

    def _has_prompt(self, sample: Sample) -> bool:
        return self.prompts is not None and sample.query_id in self.prompts

    def prompt_of(self, sample: Sample) -> torch.Tensor | None:
        """(P,) ids of the prompt that a sample is replayed under; None: that of the group which it joins."""
        return self.prompts[sample.query_id] if self.prompts is not None else None

    def _fits_plain_prompt(self, sample: Sample) -> bool:
        """Whether the text of an answer born under reflection speaks of nothing that only its own prompt showed."""
        speaks = sample.variant == REFLECTION and self.speaks_of_attempt(sample)
        self.passed_over += speaks
        return not speaks

    def drawable(self, samples: Iterable[Sample]) -> set[str]:
        """Queries to which reflection found a right answer that may be replayed under the plain prompt."""
        found = (sample for sample in samples if sample.variant == REFLECTION and sample.correct)
        return {sample.query_id for sample in found if not self.speaks_of_attempt(sample)}

    def speaks_of_attempt(self, sample: Sample) -> bool:
        return self.config.speaks_of_attempt(self.decode(sample.tokens.tolist()))

    def metrics(self, samples: Iterable[Sample]) -> dict[str, float]:
        """Of a batch whose new answers are `samples`."""
        found = [sample for sample in samples if sample.variant == REFLECTION and sample.correct]
        if self.config.reflected_unless and found:
            return {"reflection/speaks_of_attempt/mean": sum(map(self.speaks_of_attempt, found)) / len(found)}
        return {}
