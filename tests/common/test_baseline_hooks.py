"""The table of verl's methods that are extended names those that the baselines extend."""

import pytest
from extended import extended

from recipe.common.trainer.baseline import BaselineColocateAsync, BaselineSeparateAsync, BaselineTrainer
from recipe.common.verl_hooks import TRAINER_HOOKS


@pytest.mark.parametrize(
    "cls", [BaselineTrainer, BaselineColocateAsync, BaselineSeparateAsync], ids=lambda cls: cls.__name__
)
def test_every_method_that_is_extended_is_in_the_table(cls):
    assert extended(cls) <= {name for methods in TRAINER_HOOKS.values() for name in methods}
