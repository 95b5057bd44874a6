"""How many checkpoints are kept, whoever wrote them in which start, and what is said of another trainer's."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.common.trainer.checkpoints import check_loadable, had_store, is_gone, keep, sign, told_foreign, writer_of
from recipe.common.trainer.resume import resume_step


def trainer(folder: Path, **settings):
    return OmegaConf.create(
        {
            "default_local_dir": str(folder),
            "resume_mode": "auto",
            "resume_from_path": None,
            "v1": {"trainer_mode": "r3"},
            **settings,
        }
    )


def save(folder: Path, *steps: int, by: str | None = "r3", roles: tuple[str, ...] = ("actor",)) -> None:
    for step in steps:
        checkpoint = folder / f"global_step_{step}"
        for role in roles:
            (checkpoint / role).mkdir(parents=True, exist_ok=True)
        (checkpoint / "data.pt").touch()
        if by:
            sign(checkpoint, by)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))


def there(folder: Path, role: str = "actor") -> list[int]:
    return sorted(int(path.parent.name.removeprefix("global_step_")) for path in folder.glob(f"global_step_*/{role}"))


@pytest.mark.parametrize("most, left", [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])])
def test_those_of_earlier_starts_count(tmp_path, most, left):
    save(tmp_path, 1, 2, 3, 4, 5)
    keep(trainer(tmp_path, max_actor_ckpt_to_keep=most), 5)
    assert there(tmp_path) == left


def test_actor_and_critic_have_a_number_each_and_verls_old_switch_means_one(tmp_path):
    save(tmp_path, 1, 2, 3, roles=("actor", "critic"))
    keep(trainer(tmp_path, max_actor_ckpt_to_keep=2, max_critic_ckpt_to_keep=1), 3)
    assert (there(tmp_path), there(tmp_path, "critic")) == ([2, 3], [3])
    keep(trainer(tmp_path, remove_previous_ckpt_in_save=True), 3)
    assert there(tmp_path) == [3]


def test_what_others_wrote_and_what_a_start_went_back_from_stays(tmp_path):
    save(tmp_path, 1, 2, by=None)
    save(tmp_path, 3, 4, 5, 8, 9)
    keep(trainer(tmp_path, max_actor_ckpt_to_keep=2), 5)
    assert there(tmp_path) == [1, 2, 4, 5, 8, 9]


def test_a_checkpoint_of_another_trainer_is_told(tmp_path):
    assert told_foreign(trainer(tmp_path)) is None
    save(tmp_path, 4)
    assert told_foreign(trainer(tmp_path)) is None
    assert "global_step_4 was written by the trainer r3, and baseline goes on from it" in told_foreign(
        trainer(tmp_path, v1={"trainer_mode": "baseline"})
    )
    save(tmp_path, 6, by=None)
    assert "global_step_6 was written by verl's own trainer" in told_foreign(trainer(tmp_path))
    assert told_foreign(trainer(tmp_path, resume_mode="disable")) is None
    named = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "global_step_4")}
    assert told_foreign(trainer(tmp_path, **named)) is None


def config(folder: Path, critic: bool = False, strategy: str = "fsdp2", gpus: int = 2, **settings):
    there = trainer(folder, nnodes=2, n_gpus_per_node=gpus // 2, **settings)
    parts = {"actor_rollout_ref": {"actor": {"strategy": strategy}}, "critic": {"enable": critic}}
    return OmegaConf.create({**parts, "trainer": there})


def test_a_critic_is_not_looked_for_in_a_checkpoint_without_one(tmp_path):
    check_loadable(config(tmp_path, True))
    save(tmp_path, 4)
    check_loadable(config(tmp_path))
    check_loadable(config(tmp_path, True, resume_mode="disable"))
    with pytest.raises(ValueError, match="global_step_4 has no critic, which .*verl.model_merger merge"):
        check_loadable(config(tmp_path, True))
    save(tmp_path, 5, roles=("actor", "critic"))
    check_loadable(config(tmp_path, True))


def test_parts_of_other_ranks_or_another_fsdp_are_told_with_what_loads_them(tmp_path):
    save(tmp_path, 4)
    told = {"FSDP_version": 1, "world_size": 4}
    (tmp_path / "global_step_4" / "actor" / "fsdp_config.json").write_text(json.dumps(told))
    check_loadable(config(tmp_path, strategy="fsdp", gpus=4))
    check_loadable(config(tmp_path, strategy="fsdp2", gpus=2, resume_mode="disable"))
    with pytest.raises(ValueError, match="4 ranks under fsdp, and .* 4 under fsdp2: go on with .*=fsdp, or begin"):
        check_loadable(config(tmp_path, strategy="fsdp2", gpus=4))
    with pytest.raises(
        ValueError, match=r"go on with .*=fsdp and trainer.nnodes times n_gpus_per_node of 4, or .*merge"
    ):
        check_loadable(config(tmp_path, strategy="fsdp2", gpus=2))
    (tmp_path / "global_step_4" / "actor" / "fsdp_config.json").write_text('{"FSDP_version": null')
    check_loadable(config(tmp_path))


def test_a_signature_says_whether_a_store_belongs_to_the_checkpoint(tmp_path):
    def had(trainer, is_named=True):
        return had_store(tmp_path, trainer, is_named)

    sign(tmp_path, "r3", with_store=True)
    assert had("r3") and had("r3_colocate_async") and not had("rrl"), "that of another recipe is another store"
    sign(tmp_path, "rrl", with_store=False)
    assert not had("rrl"), "PPO, of the same trainer"
    (tmp_path / "trainer.json").write_text('{"trainer": "r3_colocate_async"}')
    assert had("r3") and not had("rrl"), "written before signatures told"
    (tmp_path / "trainer.json").unlink()
    assert not had("r3") and had("r3", is_named=False), "it may be of a version that did not sign"


def test_a_checkpoint_elsewhere_that_a_start_went_on_from_is_not_gone(tmp_path):
    save(tmp_path / "grpo", 4)
    named = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "grpo" / "global_step_4")}
    kept = trainer(tmp_path, max_actor_ckpt_to_keep=1)
    assert is_gone(kept, 4, [4, 5]) and not is_gone(trainer(tmp_path, max_actor_ckpt_to_keep=1, **named), 4, [4, 5])


def test_a_signature_says_who_wrote(tmp_path):
    sign(tmp_path / "global_step_1", "baseline_colocate_async")
    assert writer_of(tmp_path / "global_step_1") == "baseline_colocate_async"
    assert writer_of(tmp_path / "global_step_2") is None


def test_a_checkpoint_whose_critic_is_gone_is_none_to_go_on_from(tmp_path):
    save(tmp_path, 1, 2, roles=("actor", "critic"))
    for step in (1, 2):
        sign(tmp_path / f"global_step_{step}", "rrl", with_critic=True)
    assert resume_step(trainer(tmp_path)) == 2
    keep(trainer(tmp_path, max_critic_ckpt_to_keep=1), 2)
    assert (there(tmp_path), there(tmp_path, "critic")) == ([1, 2], [2])
    (tmp_path / "global_step_2" / "critic").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match="there is no complete checkpoint"):
        resume_step(trainer(tmp_path))
    (tmp_path / "gone").rename(tmp_path / "global_step_1" / "critic")
    assert resume_step(trainer(tmp_path)) == 1
    keep(trainer(tmp_path, max_actor_ckpt_to_keep=1), 2)
    assert there(tmp_path) == [2], "its critic does not keep an actor"
