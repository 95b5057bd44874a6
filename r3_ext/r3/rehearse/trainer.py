"""R^3's trainer for the steps of a rehearsal, in every process of it (VERL_USE_EXTERNAL_MODULES).

It trains as R^3 does. Added is a line in phases.jsonl when a phase of a step begins, rollouts without an end in the
worst step and the one whose groups it is given, and steps with all mechanisms off, which is verl's GRPO.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from tensordict import NonTensorData, NonTensorStack, TensorDict

from r3_ext.r3.rehearse.steps import GRPO, HELD, PHASES, WORST
from recipe.common.queue import KVBatchMeta
from recipe.r3.r3_trainer import R3Trainer
from recipe.r3.reflection import AGENT_NAME, ReflectionAgentLoop, ReflectionPlanner
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.trainer_base import register_trainer

ENDLESS, ENDLESS_REFLECTION = "r3_endless", "r3_endless_reflection"


class EndlessMixin:
    """Responses that end at the limit only."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        return await super().run({**sampling_params, "min_tokens": self.response_length}, priority=priority, **kwargs)


@register(ENDLESS)
class EndlessAgentLoop(EndlessMixin, SingleTurnAgentLoop):
    pass


@register(ENDLESS_REFLECTION)
class EndlessReflectionAgentLoop(EndlessMixin, ReflectionAgentLoop):
    pass


@register_trainer("rehearse")
class RehearseTrainer(R3Trainer):
    """`config.rehearse`: `kinds`, one per step (steps.py), and `folder`."""

    def __init__(self, config: DictConfig):
        with open_dict(config):
            rehearse = config.pop("rehearse")
            config.trainer.v1.trainer_mode = "r3"
        self.kinds, self.phases = list(rehearse.kinds), Path(rehearse.folder) / PHASES
        self.global_steps = 0
        self._begin("start")
        super().__init__(config)
        self._mechanisms = self.r3

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

    def on_step_begin(self) -> None:
        super().on_step_begin()
        on = self._mechanisms
        off = {name: replace(getattr(on, name), enable=False) for name in ("replay", "reflection", "ranking")}
        self.r3 = replace(on, **off) if self._kind == GRPO else on
        self.replay_buffer.replayer.config = self.r3.replay
        self._ask_in_step()

    def _ask_sooner(self, planner: ReflectionPlanner) -> None:
        super()._ask_sooner(planner)
        buffer = self.replay_buffer
        self._sooner = buffer.asker, buffer.holder, buffer.ways
        if buffer.asker:
            submit = buffer.asker.submit
            buffer.asker.submit = lambda batch: submit(self._endless(batch))

    def _ask_in_step(self) -> None:
        """All-wrong groups are asked sooner, but not in a step of GRPO. The worst step asks by the longer prompt, as if
        the history knew nothing: what it asks at once then comes on top of the time of a rollout."""
        if self.planner is None:
            return
        buffer, (asker, holder, ways) = self.replay_buffer, self._sooner
        buffer.asker, buffer.holder = (None, None) if self._kind == GRPO else (asker, holder)
        buffer.ways = self.planner.ways = None if self._kind in (GRPO, HELD, WORST) else ways
        if asker:
            asker.is_known = (lambda _: False) if self._kind == WORST else buffer.replayer.is_known

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        planner, self.planner = self.planner, self.planner if self.r3.reflection.enable else None
        self.replay_buffer.reflection_groups = 0
        try:
            batch = super()._next_train_batch(num_prompts)
        finally:
            self.planner = planner
        return self._endless(batch)

    def _endless(self, batch: TensorDict) -> TensorDict:
        if self._kind in (HELD, WORST):
            agents = list(batch["agent_name"]) if "agent_name" in batch else [""] * len(batch)
            endless = [ENDLESS_REFLECTION if agent == AGENT_NAME else ENDLESS for agent in agents]
            batch["agent_name"] = NonTensorStack.from_list([NonTensorData(name) for name in endless])
        return batch

    def prepare_step(self) -> dict:
        self._begin("rollout")
        self.planned = {}
        return super().prepare_step()

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("old log-probs")
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("reference")
        return super()._compute_ref_log_prob(batch, metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._begin("advantage")
        return super()._compute_advantage(batch, metrics)

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
