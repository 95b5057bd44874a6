"""The trainer of RRL-style replay for the steps of a rehearsal."""

from r3_ext.rehearse.trainer import NAME, RehearsedMixin
from recipe.rrl.rrl_trainer import RRLTrainer
from verl.trainer.ppo.v1.trainer_base import register_trainer


@register_trainer(NAME)
class RehearsedRRL(RehearsedMixin, RRLTrainer):
    pass
