"""Every configuration file composes, is valid, and differs from its neighbours where it means to.

`python -m tests.ext.test_presets` prints the current differences of the profile embedded, to be pasted below.
"""

import math
import os
import re
import subprocess

import pytest
from omegaconf import OmegaConf

from r3_ext.doctor.finding import OK, WARN
from r3_ext.doctor.settings import check_config
from r3_ext.doctor.speed import check_attention, check_log_probs
from r3_ext.recipes import R3
from r3_ext.settings import sizing
from r3_ext.settings.compose import choices, compose_config, flat
from recipe.common.rivals.rl_zvp import RLZVPMixin
from recipe.common.trainer.baseline import BaselineMixin, BaselineTrainer
from recipe.common.trainer.finite import FiniteMixin
from recipe.common.trainer.measured import LedgerMixin, MeasuredMixin
from recipe.common.trainer.stop import StoppableMixin
from tests.ext.presets import DEFAULT, PROFILES, preset
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

METHODS = [
    *("dapo", "gigpo", "grpo", "grpo_extra", "hgpo", "hgpo_release", "ngrpo"),
    *("ppo", "r3", "r3_paper", "rl_zvp", "rrl"),
]
WORLDS = ["embedded_textworld", "gpu_8x80gb_7b_textworld", "textworld"]
MODES = ["colocate_async", "embedded_separate_async", "separate_async"]

EMBEDDED_DIFFERS = [
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype",
    "actor_rollout_ref.actor.fsdp_config.strategy",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.use_torch_compile",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.model.external_lib",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.use_fused_kernels",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_cls",
    "actor_rollout_ref.rollout.free_cache_engine",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.max_num_batched_tokens",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.val_kwargs.do_sample",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "actor_rollout_ref.rollout.val_kwargs.temperature",
    "actor_rollout_ref.rollout.val_kwargs.top_p",
    "data.dataloader_num_workers",
    "data.filter_overlong_prompts",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.train_batch_size",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.num_cpus",
    "ray_kwargs.ray_init.num_gpus",
    "ray_kwargs.ray_init.object_store_memory",
    "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES",
    "ray_kwargs.ray_init.runtime_env.env_vars.VLLM_USE_V2_MODEL_RUNNER",
    "reward.num_workers",
    "reward.reward_kwargs.grader_workers",
    "reward.reward_kwargs.length_bonus_max_tokens",
    "trainer.device",
    "trainer.logger",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.n_gpus_per_node",
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.v1.sampler.sampler_kwargs.poll_interval",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
]

GPU_PROFILES_DIFFER = {
    "gpu_1x24gb": [
        "actor_rollout_ref.actor.fsdp_config.offload_policy",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.rollout.agent.num_workers",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "actor_rollout_ref.rollout.max_model_len",
        "actor_rollout_ref.rollout.max_num_seqs",
        "data.max_prompt_length",
        "data.max_response_length",
        "data.train_batch_size",
        "reward.num_workers",
        "trainer.n_gpus_per_node",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    ],
    "gpu_1x80gb": [
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.rollout.agent.num_workers",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "actor_rollout_ref.rollout.max_num_seqs",
        "data.train_batch_size",
        "reward.num_workers",
        "trainer.n_gpus_per_node",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    ],
    "gpu_2x8x80gb": ["trainer.nnodes"],
    "gpu_4x80gb": [
        "actor_rollout_ref.rollout.max_num_seqs",
        "trainer.n_gpus_per_node",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    ],
    "gpu_8x40gb": ["actor_rollout_ref.rollout.gpu_memory_utilization"],
    "gpu_8x80gb_7b": [
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "trainer.max_actor_ckpt_to_keep",
    ],
}


def differences(profile: str, other: str) -> list[str]:
    """Keys whose value differs between two profiles, or that only one of them has; a section without keys is no key."""
    trees = (flat(OmegaConf.to_container(preset(name), resolve=False)) for name in (profile, other))
    left, right = ({key: value for key, value in tree.items() if value != {}} for tree in trees)
    return sorted(key for key in left.keys() | right.keys() if left.get(key, "absent") != right.get(key, "absent"))


def test_no_file_is_left_out():
    groups = ("profile", "method", "mode", "world")
    assert [choices(group) for group in groups] == [PROFILES, METHODS, MODES, WORLDS]
    assert sorted(path.name for path in R3.folder.glob("*.yaml")) == ["r3.yaml", "r3_trainer.yaml"]


# Each method on a profile of either kind, and each profile with a method of each recipe. That all of them compose with
# each other, test_wheel.py shows.
PAIRS = {(profile, method) for profile in ("embedded", DEFAULT) for method in METHODS}
PAIRS |= {(profile, method) for profile in PROFILES for method in ("grpo", "r3", "hgpo", "rrl")}


@pytest.mark.parametrize(("profile", "method"), sorted(PAIRS))
def test_composes_and_is_valid(profile, method):
    config = preset(profile, method)
    findings = check_config(config) + check_log_probs(config)
    assert [finding for finding in findings if finding.level != OK] == []
    [attention] = check_attention(config)
    assert attention.level == (OK if profile == "embedded" else WARN)
    OmegaConf.resolve(config)
    assert config.reward.reward_manager.module.name == "R3RewardManager"


def test_embedded_differs_from_the_default_profile_in_these_keys_only():
    assert differences("embedded", DEFAULT) == EMBEDDED_DIFFERS


@pytest.mark.parametrize("profile", sorted(GPU_PROFILES_DIFFER))
def test_gpu_profiles_differ_in_sizes_only(profile):
    assert differences(profile, DEFAULT) == GPU_PROFILES_DIFFER[profile]


@pytest.mark.parametrize("profile", [name for name in PROFILES if name.startswith("gpu_")])
def test_gpu_profiles_fit_their_gpus_and_their_name(monkeypatch, profile):
    monkeypatch.setattr(sizing, "compose_config", lambda overrides: preset(profile))
    plan, _ = sizing.profile_plan(profile)
    assert plan.fits
    *gpus, _ = re.findall(r"\d+", profile.removesuffix("_7b"))
    assert plan.replicas == math.prod(map(int, gpus))
    assert plan.optimizer_steps == 2


def test_the_recipes_own_script_is_the_default_profile(tmp_path):
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DATA": "train.parquet", "VAL_DATA": "val.parquet"}
    script = ["bash", R3.folder.parent / "run_r3_deepscaler.sh", "data.seed=3"]
    said = subprocess.run(script, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (said[:2], said[-1]) == (["-m", "recipe.r3.main_r3"], "data.seed=3"), "what is given comes last"
    theirs, ours = (
        flat(OmegaConf.to_container(config, resolve=False))
        for config in (compose_config(said[2:-1]), preset(DEFAULT, "r3"))
    )
    assert {key for key in theirs.keys() | ours.keys() if theirs.get(key, "absent") != ours.get(key, "absent")} == {
        *("data.train_files", "data.val_files", "trainer.project_name", "trainer.experiment_name"),
    }


def test_every_replica_takes_its_rows_at_once_where_the_cache_lets_it():
    """All but the profiles of one GPU, which would need a larger cache for that."""
    for profile in [name for name in PROFILES if name.startswith(("gpu_4", "gpu_8"))]:
        plan = sizing.plan(preset(profile), sizing.ARCHITECTURES[preset(profile).actor_rollout_ref.model.path], 79.0)
        assert plan.rows / plan.replicas <= preset(profile).actor_rollout_ref.rollout.max_num_seqs, profile


def test_grpo_is_verls_own_trainer():
    config = preset(DEFAULT, "grpo")
    assert (config.trainer.v1.trainer_mode, config.algorithm.adv_estimator) == ("baseline", "grpo")
    # Verl's own but for what it measures, how it ends, and the watch over its workers and numbers; RL-ZVP has its name.
    mixins = BaselineMixin, RLZVPMixin, MeasuredMixin, FiniteMixin, StoppableMixin, LedgerMixin
    assert BaselineTrainer.__mro__[1:] == (*mixins, *PPOTrainerSync.__mro__)
    own = [
        name for cls in (BaselineTrainer, BaselineMixin) for name in vars(cls) if not name.startswith(("__", "_abc"))
    ]
    assert own == ["on_train_begin"]
    assert config.trainer.v1.sampler.custom_sampler == {"path": None, "name": None}
    assert not config.algorithm.filter_groups.enable


def test_dapo_is_grpo_with_dynamic_sampling_and_clip_higher():
    grpo, dapo = (flat(OmegaConf.to_container(preset(DEFAULT, name))) for name in ("grpo", "dapo"))
    assert {key: value for key, value in dapo.items() if grpo[key] != value} == {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    assert dapo["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        (
            "ngrpo",
            {
                "algorithm.adv_estimator": "ngrpo",
                "actor_rollout_ref.actor.clip_ratio_low": 0.16,
                "actor_rollout_ref.actor.clip_ratio_high": 0.24,
            },
        ),
        ("rl_zvp", {"algorithm.adv_estimator": "rl_zvp"}),
    ],
)
def test_a_rescue_by_the_advantage_is_grpo_but_for_its_formula(method, changed):
    grpo, other = (flat(OmegaConf.to_container(preset(DEFAULT, name))) for name in ("grpo", method))
    assert {key: value for key, value in other.items() if grpo[key] != value} == changed


def test_grpo_with_further_answers_is_r3_without_what_is_r3s():
    r3, other = (flat(OmegaConf.to_container(preset(DEFAULT, name))) for name in ("r3", "grpo_extra"))
    assert {key: value for key, value in other.items() if r3[key] != value} == {
        "algorithm.r3.replay.enable": False,
        "algorithm.r3.ranking.enable": False,
        "algorithm.r3.reflection.ask": "plain",
        "algorithm.r3.reflection.min_attempts": 1000000,
        "algorithm.r3.reflection.rounds": None,
    }


def test_the_literal_reading_of_the_paper_differs_in_these_settings_only():
    """The rows of the recipe's table in which `r3_paper` and `r3` differ."""
    r3, paper = (flat(OmegaConf.to_container(preset(DEFAULT, name))) for name in ("r3", "r3_paper"))
    changed = {key.removeprefix("algorithm.r3."): paper[key] for key in r3 if r3[key] != paper[key]}
    assert changed == {
        "history.max_per_outcome": 1000000,
        "replay.correction": "current",
        "replay.outcome": "both",
        "replay.trains": "all",
        "replay.reflected_unless": None,
        "replay.same_step": False,
        "reflection.when": "next_visit",
        "reflection.min_attempts": 1,
        "reflection.rounds": None,
        "reflection.count_reflected_attempts": True,
        "reflection.max_fraction": 1.0,
        "ranking.finished_reward": "zero",
        "ranking.norm_by_std": True,
    }
    table = (R3.folder.parent / "README.md").read_text()
    assert all(f"| `{key}` |" in table for key in changed)


def test_methods_share_everything_but_the_method():
    r3, grpo = (flat(OmegaConf.to_container(preset(DEFAULT, name))) for name in ("r3", "grpo"))
    assert {key for key in r3 if r3[key] != grpo.get(key) and not key.startswith("algorithm.r3.")} == {
        "algorithm.adv_estimator",
        "trainer.v1.trainer_mode",
        "trainer.v1.sampler.custom_sampler.path",
        "trainer.v1.sampler.custom_sampler.name",
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES",
    }
    assert not [key for key in grpo if key not in r3 or key.startswith("algorithm.r3")]


if __name__ == "__main__":
    for name in differences("embedded", DEFAULT):
        print(f'    "{name}",')
