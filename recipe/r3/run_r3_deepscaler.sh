#!/usr/bin/env bash
# R^3 on DeepScaleR, DeepSeek-R1-Distill-Qwen-1.5B, one node with 8 x 80 GB. Arguments are hydra overrides.
# With the package flash-attn, or kernels>=0.12,<0.13, add:
#   actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2
set -euo pipefail

MODEL=${MODEL:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
DATA=${DATA:?parquet file with the columns query_id, prompt, reward_model, data_source, extra_info}
VAL_DATA=${VAL_DATA:?parquet file of the same form}

python3 -m recipe.r3.main_r3 \
    data.train_files="$DATA" \
    data.val_files="$VAL_DATA" \
    data.train_batch_size=128 \
    data.max_prompt_length=4096 \
    data.max_response_length=8192 \
    data.filter_overlong_prompts=True \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.model.use_fused_kernels=True \
    actor_rollout_ref.model.fused_kernel_options.impl_backend=torch \
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.85 \
    actor_rollout_ref.rollout.max_model_len=12288 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.95 \
    actor_rollout_ref.rollout.val_kwargs.n=16 \
    '+ray_kwargs.ray_init.runtime_env.env_vars.VLLM_USE_V2_MODEL_RUNNER="0"' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.project_name=r3 \
    trainer.experiment_name=r3_deepscaler_1.5b \
    trainer.total_epochs=3 \
    trainer.save_freq=20 \
    trainer.test_freq=20 \
    trainer.max_actor_ckpt_to_keep=2 \
    trainer.logger='["console","file","tensorboard"]' \
    "$@"
