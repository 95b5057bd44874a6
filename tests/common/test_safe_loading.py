"""A checkpoint's content comes back as it was; one that names a program is refused before the program runs."""

import os
import random
from collections import OrderedDict

import numpy as np
import pytest
import torch

from recipe.common.trainer.safe_loading import VARIABLE, without_unpickling


class Program:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def load(file) -> dict:
    """As verl does."""
    return torch.load(file, weights_only=False)


def test_what_verl_stores_comes_back(tmp_path):
    rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    state = {"rng": rng, "lr_scheduler": {"last_epoch": 3, "_last_lr": [1e-6]}, "model": OrderedDict(w=torch.ones(2))}
    torch.save(state, tmp_path / "state.pt")
    with without_unpickling():
        loaded = load(tmp_path / "state.pt")
    assert loaded["lr_scheduler"] == state["lr_scheduler"] and loaded["rng"]["random"] == rng["random"]
    expected, actual = np.random.RandomState(), np.random.RandomState()
    expected.set_state(rng["numpy"])
    actual.set_state(loaded["rng"]["numpy"])
    assert np.array_equal(expected.rand(9), actual.rand(9))
    assert torch.equal(loaded["rng"]["cpu"], rng["cpu"]) and torch.equal(loaded["model"]["w"], torch.ones(2))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_program_is_not_run(tmp_path, zipped):
    file, made = tmp_path / "state.pt", tmp_path / "made"
    torch.save({"lr_scheduler": Program(made)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="mkdir"), without_unpickling():
        load(file)
    assert not made.exists()
    # Without it, and as long as nobody asked for it, the file does what it says.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        load(file)
    assert made.exists()


@pytest.mark.parametrize("before", [None, "0"])
def test_the_variable_is_as_it_was_afterwards(monkeypatch, before):
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with without_unpickling():
        assert os.environ[VARIABLE] == "1"
    assert os.environ.get(VARIABLE) == before
