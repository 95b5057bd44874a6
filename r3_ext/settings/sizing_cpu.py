"""Sizes of the profile without a GPU, computed from the model's dimensions, as `sizing` computes those of GPUs.

Everything is fp32 here, and all processes share the main memory. What a model needs beyond the profile's values, which
are the tiny model's, a run takes by `overrides`; they depend on the model and on lengths alone, so that a later start
on another machine takes the same.
"""

from omegaconf import DictConfig, OmegaConf

from r3_ext.host.units import GIB
from r3_ext.settings.sizing import Architecture, micro_batch_tokens
from recipe.common.config.lengths import ACTOR, ROLLOUT, longest_row

TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
PACKED = "actor_rollout_ref.model.use_remove_padding"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
CACHE = f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"

MICRO_BATCH_GIB = 4.0
"""What a micro-batch may take. More tokens at a time save nothing on a CPU."""
LOGIT_BYTES, ENTROPY_BYTES = 21, 12
"""Per token and vocabulary entry, from the logits to their gradients, at the peak; and more with an entropy term."""
MASK_BYTES = 4
"""Per entry of sdpa's mask, of which every layer keeps one."""
SAMPLED_BYTES = 16
"""Per row and vocabulary entry while vLLM chooses a token."""
PROCESSES_GIB, RANK_GIB = 2.4, 1.2
"""The processes of a run beside the model's memory, and of each rank that trains or generates (measured)."""


def largest_weight(architecture: Architecture) -> int:
    """Bytes of the largest matrix: embeddings or MLP. 49,152 tokens x 576: 108 MiB."""
    widest = max(architecture.vocabulary, architecture.intermediate, architecture.heads * architecture.head_size)
    return 4 * architecture.hidden * widest


def bucket_megabytes(architecture: Architecture) -> int:
    """verl sends a weight as a whole, and one that is larger than the bucket not at all."""
    return -(-largest_weight(architecture) // 2**20)


def micro_batch_bytes(config: DictConfig, architecture: Architecture, tokens: int) -> int:
    """Memory of so many tokens in the update: all activations, since nothing is computed twice, logits and masks.

    Packed rows have one mask of all tokens, padded ones one each.
    """
    actor, packed = config.actor_rollout_ref.actor, config.actor_rollout_ref.model.use_remove_padding
    queries = architecture.heads * architecture.head_size
    layer = 4 * (6 * architecture.hidden + 8 * queries + 4 * architecture.intermediate)
    mask = MASK_BYTES * (tokens if packed else longest_row(config))
    logits = LOGIT_BYTES + (ENTROPY_BYTES if actor.entropy_coeff or actor.calculate_entropy else 0)
    return tokens * (architecture.layers * (layer + mask) + logits * architecture.vocabulary)


def fits(config: DictConfig, architecture: Architecture, tokens: int) -> bool:
    return micro_batch_bytes(config, architecture, tokens) <= MICRO_BATCH_GIB * GIB


def cache_bytes(config: DictConfig, architecture: Architecture) -> int:
    """Keys and values of the longest row, without which vLLM does not start."""
    return (config.actor_rollout_ref.rollout.max_model_len or longest_row(config)) * 2 * architecture.kv_bytes


def too_small(config: DictConfig, architecture: Architecture) -> dict[str, int]:
    """The least that the model needs, by setting, where that has less; one that is not set is left to vLLM."""
    least = {BUCKET: bucket_megabytes(architecture), CACHE: cache_bytes(config, architecture)}
    values = {key: OmegaConf.select(config, key) for key in least}
    return {key: least[key] for key, value in values.items() if isinstance(value, int) and value < least[key]}


def overrides(config: DictConfig, architecture: Architecture) -> list[str]:
    """What has to change of these settings for the model; nothing for the tiny one.

    Rows of a smaller micro-batch are packed: each padded to the longest, they would take several times as much.
    """
    found = too_small(config, architecture)
    tokens, least = micro_batch_tokens(config), longest_row(config)
    if config.actor_rollout_ref.actor.use_dynamic_bsz and not fits(config, architecture, tokens):
        sizes = (size for size in range(tokens // 64 * 64, least, -64) if fits(config, architecture, size))
        found |= {TOKENS: next(sizes, least), PACKED: True}
    return [f"{key}={value}" for key, value in found.items()]


def main_memory(config: DictConfig, architecture: Architecture, tokens: int, generating: int) -> dict[str, float]:
    """GiB that the model takes beside the processes of a run on one machine, by part.

    tokens: of a micro-batch.
    generating: ranks that generate only; where there are none, those that train do.
    """
    training, rollout = config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout
    has_reference = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    weights, sequences = 4 * architecture.parameters, rollout.max_num_seqs
    critic = 4 * 4 * architecture.critic_parameters if config.critic.enable else 0
    gathered = 4 * (2 * architecture.layer_parameters + architecture.embedding_parameters)
    cache = (OmegaConf.select(config, CACHE) or 0) + SAMPLED_BYTES * sequences * architecture.vocabulary
    prefill = 2 * architecture.layer_bytes * rollout.max_num_batched_tokens
    bucket = OmegaConf.select(config, BUCKET) * 2**20
    parts = {
        "weights, gradients and moments": weights * (5 if has_reference else 4) + critic,
        "gathered layers and their gradients": 2 * training * gathered,
        "micro-batch": training * micro_batch_bytes(config, architecture, tokens),
        "vLLM": (generating or training) * (weights / rollout.tensor_model_parallel_size + cache + prefill),
        # The ray engine of separate_async holds all weights at both ends.
        "weights on their way": bucket + 2 * weights * generating,
    }
    return {name: size / GIB for name, size in parts.items()}
