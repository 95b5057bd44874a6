"""Which step a start goes on from, whatever a crash left of verl's tracker file."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.common.trainer.resume import resume_step


def trainer(folder: Path, mode: str = "auto", path: str | None = None):
    return OmegaConf.create({"default_local_dir": str(folder), "resume_mode": mode, "resume_from_path": path})


def save(folder: Path, step: int, complete: bool = True) -> Path:
    checkpoint = folder / f"global_step_{step}"
    (checkpoint / "actor").mkdir(parents=True)
    if complete:
        (checkpoint / "data.pt").touch()
    return checkpoint


def tracker(folder: Path) -> Path:
    return folder / "latest_checkpointed_iteration.txt"


def test_the_tracker_decides_and_without_one_or_when_disabled_it_is_a_start_from_scratch(tmp_path):
    assert resume_step(trainer(tmp_path)) == -1
    save(tmp_path, 4)
    tracker(tmp_path).write_text("4")
    assert resume_step(trainer(tmp_path)) == 4
    assert resume_step(trainer(tmp_path, "disable")) == -1
    assert tracker(tmp_path).read_text() == "4"


@pytest.mark.parametrize("text", ["", "\0\0"])
def test_a_tracker_that_a_crash_cut_short_is_mended_from_the_newest_complete_checkpoint(tmp_path, text):
    save(tmp_path, 9)
    save(tmp_path, 10)
    save(tmp_path, 11, complete=False)
    tracker(tmp_path).write_text(text)
    assert resume_step(trainer(tmp_path)) == 10
    assert tracker(tmp_path).read_text() == "10"


def test_a_broken_tracker_without_any_checkpoint_is_refused_with_the_way_out(tmp_path):
    tracker(tmp_path).write_text("")
    with pytest.raises(ValueError, match="no complete checkpoint; delete the file"):
        resume_step(trainer(tmp_path))


def test_a_tracker_of_a_checkpoint_that_is_gone_gives_way_to_the_newest_complete_one(tmp_path):
    save(tmp_path, 8)
    tracker(tmp_path).write_text("10")
    assert resume_step(trainer(tmp_path)) == 8
    assert tracker(tmp_path).read_text() == "8"
    tracker(tmp_path).unlink()
    assert resume_step(trainer(tmp_path)) == 8


@pytest.mark.parametrize("named", ["nowhere/global_step_3", "typo", "global_step_4", "global_step_x", None, ""])
def test_a_named_checkpoint_that_is_not_there_is_refused(tmp_path, named):
    save(tmp_path, 4, complete=False)
    with pytest.raises(ValueError, match="no complete checkpoint there"):
        resume_step(trainer(tmp_path, "resume_path", named and str(tmp_path / named)))


def test_going_back_to_an_older_checkpoint_moves_the_tracker_back(tmp_path):
    """Training overwrites the later checkpoints: a crash meanwhile must not resume from a half-overwritten one."""
    older = save(tmp_path, 2)
    save(tmp_path, 6)
    tracker(tmp_path).write_text("6")
    assert resume_step(trainer(tmp_path, "resume_path", f"{older}/")) == 2
    assert tracker(tmp_path).read_text() == "2"


def test_a_checkpoint_of_another_folder_leaves_the_tracker_alone(tmp_path):
    elsewhere = save(tmp_path / "other", 3)
    assert resume_step(trainer(tmp_path / "mine", "resume_path", str(elsewhere))) == 3
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["r3_colocate_async", "baseline_separate_async", "colocate_async"])
def test_without_what_is_in_flight_there_is_nothing_to_go_on_from_in_an_asynchronous_mode(tmp_path, name):
    """verl writes data.pt, then the queue, then the tracker: the first checkpoint of a run, cut short in between."""
    asynchronous = trainer(tmp_path)
    asynchronous.v1 = {"trainer_mode": name}
    queue = save(tmp_path, 5) / "transfer_queue"
    queue.with_suffix(".tmp").mkdir()
    assert resume_step(asynchronous) == -1
    queue.with_suffix(".tmp").rename(queue)
    assert resume_step(asynchronous) == 5
    asynchronous.merge_with({"resume_mode": "resume_path", "resume_from_path": str(save(tmp_path, 6))})
    with pytest.raises(ValueError, match="transfer_queue and data.pt and actor"):
        resume_step(asynchronous)
