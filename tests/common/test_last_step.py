"""The first of a run's limits is its last step, so that verl saves and validates it."""

import pytest
from omegaconf import OmegaConf

from recipe.common.trainer.stop import StoppableMixin, last_step


@pytest.mark.parametrize(
    "epochs, steps, last", [(1, None, 2), (1, 5, 2), (3, 5, 5), (3, 6, 6), (3, None, 6), (100, 1, 1), (1, 2, 2)]
)
def test_the_first_limit_ends_the_run(epochs, steps, last):
    """Two steps an epoch."""
    trainer = OmegaConf.create({"total_epochs": epochs, "total_training_steps": steps})
    assert last_step(trainer, 2) == last

    class Verls:
        def _init_dataloader(self):
            self.steps_per_epoch = 2
            self.total_training_steps = steps or 2 * epochs

    class Trainer(StoppableMixin, Verls):
        config = OmegaConf.create({"trainer": trainer})

    verls = Trainer()
    verls._init_dataloader()
    assert verls.total_training_steps == last
