"""Gradients and weights that are not finite: counted, never saved, the run ended and the last good checkpoint named."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from recipe.common.trainer.finite import (
    ALARM,
    BROKEN,
    PATIENCE,
    SKIPPED,
    TAKEN,
    FiniteMixin,
    Finiteness,
    WatchedTrainingWorker,
    has_broken,
)
from verl.single_controller.base.decorator import MAGIC_ATTR
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker


@pytest.mark.parametrize(
    "value, broken", [(0.0, False), (1e38, False), (math.inf, True), (-math.inf, True), (math.nan, True)]
)
def test_one_weight_is_enough_and_frozen_ones_do_not_count(value, broken):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3).requires_grad_(False))
    module[1].weight.data[0, 0] = math.nan
    assert not has_broken(module)
    module[0].weight.data[2, 1] = value
    assert has_broken(module) is broken
    assert has_broken(module.to(torch.bfloat16)) is broken
    assert not has_broken(torch.nn.Module())


def test_the_worker_tells_steps_taken_and_skipped_and_is_called_as_verls(monkeypatch):
    def verls(self, data):
        return tu.get_tensordict({}, {"metrics": {"grad_norm": data}})

    monkeypatch.setattr(TrainingWorker, "train_mini_batch", verls)
    worker = object.__new__(WatchedTrainingWorker)
    worker._broken = 1
    metrics = tu.get(worker.train_mini_batch([1.0, math.nan, math.inf]), key="metrics")
    assert {name: metrics[name] for name in (TAKEN, SKIPPED, BROKEN)} == {TAKEN: [1], SKIPPED: [2], BROKEN: [1]}
    monkeypatch.undo()
    attributes = [getattr(cls.train_mini_batch, MAGIC_ATTR) for cls in (TrainingWorker, WatchedTrainingWorker)]
    assert [each["blocking"] for each in attributes] == [False, False]


def of_step(finite: Finiteness, step: int, taken: int, skipped: int, broken: int = 0, role: str = "actor") -> dict:
    finite.note(role, {f"{role}/{TAKEN}": taken, f"{role}/{SKIPPED}": skipped, f"{role}/{BROKEN}": broken})
    return finite.close(step)


def test_single_bad_steps_are_counted_and_no_reason_to_end():
    finite = Finiteness(proven=-1)
    metrics = {"actor/optimizer_steps": 2, "actor/skipped_steps": 0, ALARM: 0}
    assert of_step(finite, 1, 2, 0) == metrics and finite.proven == 0
    metrics = {"actor/optimizer_steps": 1, "actor/skipped_steps": 1, ALARM: 1}
    assert of_step(finite, 2, 1, 1) == metrics and finite.proven == 1
    for step in range(3, 20):
        of_step(finite, step, 0, 2) if step % PATIENCE else of_step(finite, step, 2, 0)
    assert finite.fault is None


def test_after_patience_steps_without_a_finite_gradient_the_run_ends_and_the_step_before_the_last_update_is_good():
    finite = Finiteness(proven=-1)
    for step in range(1, 5):
        of_step(finite, step, 2, 0)
    for step in range(5, 5 + PATIENCE):
        assert finite.fault is None
        of_step(finite, step, 0, 2)
    assert "no gradient of the actor was finite in 3 steps up to step 7" in finite.fault
    assert finite.proven == 3, "the weights of step 4 gave no finite gradient"


def test_gradients_that_come_and_go_end_it_too_and_are_not_blamed_on_the_learning_rate():
    finite = Finiteness(proven=-1)
    for step, skipped in enumerate([1, 1, 0, 1, 1], start=1):
        assert of_step(finite, step, 2 - skipped, skipped)[ALARM] == skipped and finite.fault is None and finite.is_good
    of_step(finite, 6, 1, 1)
    assert finite.fault == "gradients of the actor were not finite in each of 3 steps up to step 6"
    assert "attn_implementation" in finite.mend and finite.proven == 5


def test_broken_weights_end_it_at_once_and_critic_and_actor_count_alike():
    finite = Finiteness(proven=-1)
    of_step(finite, 6, 2, 0, broken=1, role="critic")
    assert "weights of the critic are not finite after step 6" in finite.fault and finite.proven == 5


def test_several_updates_of_a_step_are_summed_and_verl_averages_none_of_it():
    finite, metrics = Finiteness(proven=-1), {f"actor/{TAKEN}": 1.0, f"actor/{SKIPPED}": 1.0, f"actor/{BROKEN}": 0.0}
    for _ in range(2):
        left = dict(metrics)
        finite.note("actor", left)
        assert left == {}
    assert finite.close(1)["actor/skipped_steps"] == 2


class Verls:
    """verl's loop, with the gradients that it is given."""

    def __init__(self, folder: Path, gradients: list[list[float]], broken_at: int | None = None, freq: int = 1):
        trainer = {"default_local_dir": str(folder), "save_freq": freq, "test_freq": 1, "resume_mode": "auto"}
        self.config = OmegaConf.create({"trainer": trainer})
        self.gradients, self.broken_at, self.folder = gradients, broken_at, folder
        self.total_training_steps, self.validated, self.logged = len(gradients), [], []
        self._load_checkpoint()

    def _load_checkpoint(self):
        self.global_steps = 0

    def _update_actor(self, batch, metrics):
        norms = self.gradients[self.global_steps - 1]
        taken = sum(map(math.isfinite, norms))
        broken = self.broken_at is not None and self.global_steps >= self.broken_at
        metrics |= {f"actor/{TAKEN}": taken, f"actor/{SKIPPED}": len(norms) - taken, f"actor/{BROKEN}": int(broken)}
        return batch

    def step(self, metrics, timing_raw):
        return self._update_actor(SimpleNamespace(), metrics)

    def _save_checkpoint(self):
        saved = self.folder / f"global_step_{self.global_steps}"
        (saved / "actor").mkdir(parents=True)
        (saved / "data.pt").touch()
        (self.folder / "latest_checkpointed_iteration.txt").write_text(str(self.global_steps))

    def on_step_begin(self):
        pass

    def fit(self, agent_loop_manager):
        for step in range(1, len(self.gradients) + 1):
            self.global_steps = step
            self.on_step_begin()
            metrics = {}
            self.step(metrics, {})
            if self.global_steps % self.config.trainer.save_freq == 0:
                self._save_checkpoint()
            if self.config.trainer.test_freq > 0:
                self.validated.append(self.global_steps)
            self.logged.append(metrics)


class Trainer(FiniteMixin, Verls):
    pass


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_*"))


def tracker(folder: Path) -> str:
    return (folder / "latest_checkpointed_iteration.txt").read_text()


GOOD, BAD = [0.5, 0.5], [math.nan, math.nan]


@pytest.mark.parametrize("last", [7, 12])
def test_a_run_whose_gradients_are_not_finite_any_more_goes_back_to_what_is_proven(tmp_path, last):
    trainer = Trainer(tmp_path, [GOOD] * 4 + [BAD] * (last - 4))
    with pytest.raises(FloatingPointError, match=r"up to step 7; the last good checkpoint is \S+global_step_3, from"):
        trainer.fit(None)
    assert saved(tmp_path) == [1, 2, 3, 4] and tracker(tmp_path) == "3"
    assert [row[ALARM] for row in trainer.logged] == [0, 0, 0, 0, 1, 1, 1], "the metrics of the last step are logged"
    assert trainer.validated == [1, 2, 3, 4, 5, 6], "there is nothing to measure at the end"


@pytest.mark.parametrize("last", [3, 9])
def test_broken_weights_are_never_saved(tmp_path, last):
    trainer = Trainer(tmp_path, [GOOD] * last, broken_at=3)
    with pytest.raises(
        FloatingPointError, match=r"not finite after step 3; the last good checkpoint is \S+global_step_2"
    ):
        trainer.fit(None)
    assert saved(tmp_path) == [1, 2] and tracker(tmp_path) == "2" and len(trainer.logged) == 3


def test_without_a_good_checkpoint_none_is_recommended(tmp_path):
    trainer = Trainer(tmp_path, [GOOD] + [BAD] * 5)
    with pytest.raises(FloatingPointError, match="no checkpoint from before is there: begin anew with a lower"):
        trainer.fit(None)
    assert saved(tmp_path) == [1], "written before anybody could know"


def test_a_run_that_loses_a_part_of_every_step_goes_on_from_its_last_checkpoint_with_another_attention(tmp_path):
    trainer = Trainer(tmp_path, [GOOD] * 2 + [[0.5, math.nan]] * 5)
    ends = r"up to step 5; the last good checkpoint is \S+global_step_4, .* with another \S+attn_implementation"
    with pytest.raises(FloatingPointError, match=ends):
        trainer.fit(None)
    assert saved(tmp_path) == [1, 2, 3, 4] and [row[ALARM] for row in trainer.logged] == [0, 0, 1, 1, 1]


def test_a_last_step_without_a_gradient_is_saved(tmp_path):
    trainer = Trainer(tmp_path, [GOOD, BAD, GOOD, BAD])
    trainer.fit(None)
    assert saved(tmp_path) == [1, 3, 4]


def test_log_probs_that_are_not_finite_end_a_recipe_that_needs_them_and_the_step_before_is_no_good(tmp_path):
    trainer = Trainer(tmp_path, [GOOD] * 4)
    trainer.fit(None)
    logged = []
    trainer.global_steps, trainer.logger = 5, SimpleNamespace(log=lambda data, step: logged.append((step, data)))
    trainer._end_if_blind({"actor/entropy": 0.3})
    trainer._end_if_blind({})  # not computed in bypass mode
    with pytest.raises(FloatingPointError, match=r"not finite in step 5; the last good checkpoint is \S+global_step_3"):
        trainer._end_if_blind({"actor/entropy": math.nan})
    assert logged == [(5, {ALARM: 1})]
