"""Fixtures of more than one file: what the doctor looks at, what a run is given, where it starts."""

import json
import shutil

import pytest
from omegaconf import OmegaConf

from r3_ext.data.write import write_rows
from r3_ext.host import hub
from r3_ext.run import changes
from r3_ext.settings import prepare
from r3_ext.settings.compose import compose_config
from r3_ext.tiny import tiny_model
from tests.ext.doctored import MODEL_CONFIG, rows
from tests.ext.given import MODEL, TRAIN, VAL
from tests.ext.histories import small

# what the doctor looks at


@pytest.fixture
def plain_environment(monkeypatch):
    """What the caller has set for a run of their own is not there."""
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "R3_PROFILE", "R3_DEVICE", "DATA", "VAL_DATA", "MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def composed():
    """Two profiles as they are shipped, by name."""
    return {name: compose_config([f"+profile={name}", "+method=r3"]) for name in ("embedded", "gpu_1x80gb")}


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_model.train_tokenizer(["What is 1 + 1?"], vocabulary=512).save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path, tokenizer_files):
    """A folder that looks like a model."""
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_files, folder)
    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def write(path, number: int):
    write_rows(path, rows(number))
    return path


@pytest.fixture
def train_file(tmp_path):
    return write(tmp_path / "train.parquet", 32)


@pytest.fixture
def config(composed, model, train_file, tmp_path):
    """The profile embedded with everything in place."""
    paths = {
        "data": {"train_files": str(train_file), "val_files": str(write(tmp_path / "val.parquet", 4))},
        "actor_rollout_ref": {"model": {"path": str(model)}},
        "trainer": {"default_local_dir": str(tmp_path / "checkpoints")},
    }
    return OmegaConf.merge(composed["embedded"], paths)


@pytest.fixture
def gpu_config(composed):
    return composed["gpu_1x80gb"].copy()


# what `r3 history` reads


@pytest.fixture
def run(tmp_path):
    """A run folder with the history of three steps."""
    small(tmp_path / "run" / "history.sqlite")
    return tmp_path / "run"


# where a run starts


@pytest.fixture
def here(tmp_path, monkeypatch):
    """In an empty folder, with nothing set that a start would take."""
    monkeypatch.chdir(tmp_path)
    for name in (*changes.SOURCES, "R3_PROFILE"):
        monkeypatch.delenv(name, raising=False)


# what a run is given


@pytest.fixture
def no_hub(monkeypatch):
    """Nothing here asks the hub: it is out of reach, and who asks gets that sentence."""
    for name in prepare.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **kwargs: (_ for _ in ()).throw(ConnectionError("no")))
    monkeypatch.setattr(hub, "go_offline_if_unreachable", lambda: False)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """prepared(profile, DATA=..., ...) gives the values of the overrides as a run's config holds them, and what is
    said."""

    def run(profile="gpu_1x80gb", overrides=(), tiny_model=None, build=True, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        said = []
        found = prepare.model_and_data(profile, tmp_path / "cache", tiny_model or {}, said.append, overrides, build)
        config = compose_config([*found, *overrides])
        keys = [item.partition("=")[0] for item in found]
        values = {TRAIN: config.data.train_files, VAL: config.data.val_files}
        values[MODEL] = config.actor_rollout_ref.model.path
        return {key: values[key] for key in keys}, said

    return run
