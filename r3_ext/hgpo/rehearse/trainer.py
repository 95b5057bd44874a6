"""HGPO's trainer for the steps of a rehearsal; in the worst one no session ends before its last turn."""

from r3_ext.hgpo.rehearse.endless import COMMANDS
from r3_ext.rehearse.trainer import NAME, EndlessMixin, RehearsedMixin
from recipe.hgpo.agent_loop import SessionAgentLoop
from recipe.hgpo.config.names import VALID
from recipe.hgpo.hgpo_trainer import HGPOTrainer
from verl.experimental.agent_loop.agent_loop import register
from verl.trainer.ppo.v1.trainer_base import register_trainer

ENDLESS_SESSION = "r3_endless_session"


@register(ENDLESS_SESSION)
class EndlessSessionAgentLoop(EndlessMixin, SessionAgentLoop):
    def _answer(self, ids: list[int]) -> tuple[str, str]:
        """A command: an answer that is none would be told "Nothing happens.", and the next prompt would be short."""
        return COMMANDS[0], VALID


@register_trainer(NAME)
class RehearsedHGPO(RehearsedMixin, HGPOTrainer):
    def _endless_agent(self, agent: str) -> str:
        return ENDLESS_SESSION
