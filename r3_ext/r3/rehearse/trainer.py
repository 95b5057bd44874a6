"""R^3's trainer for the steps of a rehearsal, among them those with all mechanisms off, which is verl's GRPO."""

from dataclasses import replace

from omegaconf import DictConfig
from tensordict import TensorDict

from r3_ext.rehearse.steps import GRPO, HELD, WORST
from r3_ext.rehearse.trainer import NAME, EndlessMixin, RehearsedMixin
from recipe.r3.r3_trainer import R3Trainer
from recipe.r3.reflection import AGENT_NAME, ReflectionAgentLoop, ReflectionPlanner
from verl.experimental.agent_loop.agent_loop import register
from verl.trainer.ppo.v1.trainer_base import register_trainer

ENDLESS_REFLECTION = "r3_endless_reflection"


@register(ENDLESS_REFLECTION)
class EndlessReflectionAgentLoop(EndlessMixin, ReflectionAgentLoop):
    pass


@register_trainer(NAME)
class RehearsedR3(RehearsedMixin, R3Trainer):
    def __init__(self, config: DictConfig):
        super().__init__(config)
        self._mechanisms = self.r3

    def _endless_agent(self, agent: str) -> str:
        return ENDLESS_REFLECTION if agent == AGENT_NAME else super()._endless_agent(agent)

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
            return super()._next_train_batch(num_prompts)
        finally:
            self.planner = planner

    def prepare_step(self) -> dict:
        self.planned = {}
        return super().prepare_step()
