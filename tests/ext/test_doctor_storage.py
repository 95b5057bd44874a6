"""`r3 doctor` on where a run writes: the folder, its file system, and the disk."""

import errno
import os
from collections import namedtuple

import pytest

from r3_ext.doctor import model_files, storage
from r3_ext.doctor.finding import FAIL, OK, WARN
from r3_ext.host.units import GIB, human
from tests.ext.doctored import levels, only

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_environment")]

Usage = namedtuple("Usage", "total used free")


def test_a_file_in_the_way(config, tmp_path):
    (tmp_path / "file").touch()
    config.trainer.default_local_dir = str(tmp_path / "file" / "checkpoints")
    assert "default_local_dir" in only(storage.check_output(config), FAIL).advice


def test_says_from_where_it_resumes(config, tmp_path):
    assert "resumes" not in only(storage.check_output(config), OK).found
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("20")
    assert only(storage.check_output(config), OK).found.endswith("resumes after step 20")


def test_says_what_a_network_file_system_means_for_the_history(config, monkeypatch):
    monkeypatch.setattr("recipe.common.store.lock.network_file_system", lambda path: "nfs4")
    assert "nobody can read it" in only(storage.check_output(config), WARN).advice


def test_a_file_system_without_locks_is_said_before_the_history_is_opened(config, tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # Lustre without -o flock

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    said = only(storage.check_output(config), FAIL)
    assert "takes no locks (Function not implemented)" in said.found
    assert "algorithm.r3.history.path" in said.advice


def test_disk_counts_checkpoints_and_history(config, model, monkeypatch):
    parameters = model_files.model_architecture(config).parameters
    config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep = 1, 3
    history = 100 * 16 * 4 * 64 * 6
    needed = 3 * 12 * parameters + history
    for free, level in ((needed + GIB, OK), (needed - 1, FAIL)):
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda path, free=free: Usage(0, 0, free))
        assert levels(storage.check_disk(config)) == [level]


def test_optimizer_left_out_of_the_checkpoint(config):
    config.trainer.save_freq = 1
    parameters = model_files.model_architecture(config).parameters
    config.actor_rollout_ref.actor.checkpoint.save_contents = ["model"]
    assert f"takes {human(4 * parameters)}, all kept" in storage.check_disk(config)[0].found
