"""R^3 beyond the presets: a configuration of one's own, verl's example, and a task that is no mathematics."""

import re

import pytest
from hydra import compose, initialize_config_dir

from r3_ext.recipes import R3, rules_of
from r3_ext.settings.compose import base_overrides, compose_config
from recipe.r3.config.r3_rules import validate_r3_config


def test_the_second_reflection_wording_is_for_any_task():
    other = compose_config(["+reflection=any_task"]).algorithm.r3.reflection
    first = compose_config([]).algorithm.r3.reflection
    for name in ("template", "template_cut_off"):
        assert other[name].count("{question}") == other[name].count("{attempt}") == 1
        assert first[name] != other[name]
        assert not re.search(r"problem|answer|box|solution|step", other[name])
    assert {key for key in first if first[key] != other[key]} == {"template", "template_cut_off"}


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
@pytest.mark.parametrize("method", ["r3", "rrl"])
def test_another_engine_under_a_profile_is_told_and_what_chose_it(method, engine):
    """The profile's strategy is FSDP's, which stays."""
    config = compose_config([*base_overrides("gpu_8x80gb", method), f"model_engine={engine}"])
    told = next(rules_of(config))
    assert told.told.endswith(f"trains with fsdp or fsdp2, got '{engine}'")
    assert told.out[0] == "model_engine" and not told.ways


VERL_EXAMPLE = """
data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=512 data.max_prompt_length=1024
data.max_response_length=1024 data.filter_overlong_prompts=True data.truncation=error algorithm.use_kl_in_reward=False
actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=3000 actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.enforce_eager=False
actor_rollout_ref.rollout.free_cache_engine=True actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096 actor_rollout_ref.rollout.n=5
actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=4096
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.ref.fsdp_config.param_offload=True
actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8192
trainer.critic_warmup=0 trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5
trainer.total_epochs=15
"""
"""Settings of verl 0.9.0's examples/grpo_trainer/run_qwen3_4b_fsdp.sh, all but the estimator."""


def test_verls_own_example_becomes_r3_by_its_entry_point_and_estimator():
    config = compose_config(VERL_EXAMPLE.split())
    validate_r3_config(config)
    with pytest.raises(ValueError, match="algorithm.adv_estimator: must be r3"):
        validate_r3_config(compose_config([*VERL_EXAMPLE.split(), "algorithm.adv_estimator=grpo"]))


def test_a_config_of_ones_own_becomes_r3_by_one_line_of_its_defaults(tmp_path):
    text = """
hydra:
  searchpath: [pkg://verl.trainer.config, pkg://recipe.r3.config, pkg://recipe.common.config]
defaults: [ppo_trainer, r3, _self_]
data: {train_batch_size: 32}
actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    with initialize_config_dir(str(tmp_path), version_base=None):
        config = compose("mine")
    validate_r3_config(config)
    with initialize_config_dir(str(R3.folder), version_base=None):
        ours = compose("r3_trainer", ["data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=8"])
    assert config == ours
