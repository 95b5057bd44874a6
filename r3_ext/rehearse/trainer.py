"""What a rehearsal adds to a recipe's trainer, in every process of it (VERL_USE_EXTERNAL_MODULES).

It trains as the recipe does. Added are a line in phases.jsonl when a phase of a step begins, and rollouts without an
end in the worst step.
"""

import json
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from tensordict import NonTensorData, NonTensorStack, TensorDict

from r3_ext.rehearse.steps import HELD, PHASES, WORST
from recipe.common.queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

NAME, ENDLESS = "rehearse", "r3_endless"
"""Of the trainer, and of the agent loop that answers of one turn have in the worst step."""


class EndlessMixin:
    """Responses that end at the limit only."""

    async def run(self, sampling_params: dict[str, Any], **kwargs):
        return await super().run({**sampling_params, "min_tokens": self.response_length}, **kwargs)


@register(ENDLESS)
class EndlessAgentLoop(EndlessMixin, SingleTurnAgentLoop):
    pass


class RehearsedMixin:
    """`config.rehearse`: `kinds`, one per step (steps.py), `folder`, and the `recipe` whose trainer this is."""

    def __init__(self, config: DictConfig):
        with open_dict(config):
            rehearse = config.pop("rehearse")
            config.trainer.v1.trainer_mode = rehearse.recipe
        self.kinds, self.phases = list(rehearse.kinds), Path(rehearse.folder) / PHASES
        self.global_steps = 0
        self._begin("start")
        super().__init__(config)

    def _begin(self, phase: str) -> None:
        """Note that a phase begins, and so that the one before it has ended."""
        kind = self.kinds[self.global_steps - 1] if 0 < self.global_steps <= len(self.kinds) else None
        line = {"t": time.time(), "step": self.global_steps, "kind": kind, "phase": phase}
        with open(self.phases, "a") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def _kind(self) -> str:
        return self.kinds[self.global_steps - 1]

    def fit(self, *args, **kwargs) -> None:
        super().fit(*args, **kwargs)
        self._begin("end")

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        return self._endless(super()._next_train_batch(num_prompts))

    def _endless(self, batch: TensorDict) -> TensorDict:
        if self._kind in (HELD, WORST):
            agents = list(batch["agent_name"]) if "agent_name" in batch else [""] * len(batch)
            endless = [NonTensorData(self._endless_agent(agent)) for agent in agents]
            batch["agent_name"] = NonTensorStack.from_list(endless)
        return batch

    def _endless_agent(self, agent: str) -> str:
        """The agent loop that plays in the place of this one, where nothing is to end before its limit."""
        return ENDLESS

    def prepare_step(self) -> dict:
        self._begin("rollout")
        return super().prepare_step()

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("old log-probs")
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("reference")
        return super()._compute_ref_log_prob(batch, metrics)

    def _compute_values(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("values")
        return super()._compute_values(batch, metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("advantage")
        return super()._compute_advantage(batch, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("critic's update")
        return super()._update_critic(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("update")
        return super()._update_actor(batch, metrics)

    def _save_checkpoint(self) -> None:
        if self._kind != WORST:  # verl saves and validates after the last step, which is this one, whatever is set
            self._begin("checkpoint")
            super()._save_checkpoint()

    def on_step_end(self) -> None:
        self._begin("weight sync")
        super().on_step_end()
        self._begin("metrics")

    def _validate(self) -> dict[str, float]:
        if self._kind == WORST:
            return {}
        self._begin("validation")
        metrics = super()._validate()
        self._begin("metrics")
        return metrics
