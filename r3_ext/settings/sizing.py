"""Memory and batch sizes of the GPU profiles, computed from the model's dimensions: `python -m r3_ext.settings.sizing`.

Nothing here is measured. The terms are those of `Architecture` and `Plan`; what they leave out (allocator waste, NCCL
buffers, CUDA graphs, CUDA context) is the flat `OVERHEAD_GIB`.
"""

import re
from dataclasses import dataclass, replace

from omegaconf import DictConfig

from r3_ext.host.units import GIB
from r3_ext.recipes import recipe_of_config
from r3_ext.settings.compose import OWN_CONFIG, base_overrides, compose_config
from recipe.common.config.lengths import longest_row

USABLE_GIB = {80: 79.0, 40: 39.0, 24: 22.5}
"""Memory that nvidia-smi shows for cards sold with so many GB, rounded down (24: L4 and A10, the smallest)."""
OVERHEAD_GIB = 3.0
LOGIT_BYTES = 10
"""Per token and vocabulary entry: bf16 logits (2), fp32 log-softmax kept for the backward pass (4), bf16 gradients of
the rows (2) and of the whole (2)."""
FUSED_ROWS = 512
"""Rows whose logits verl's fused log-probs hold at a time (`FusedLinearForPPO`), computed again for the gradient."""
FUSED_LOGIT_BYTES = 29
"""Per entry of these logits, at the peak of the backward pass, with an entropy term in the loss (21 without)."""
MASK_BYTES = 5
"""Per entry of sdpa's mask: bool (1), as the bf16 that is added to the scores (2), and a copy of that (2) whose rows
have a length that torch's memory-efficient attention takes, a multiple of 8."""


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a decoder with grouped-query attention and a gated MLP (Qwen2, Llama)."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_size: int
    tied: bool = False
    """Whether input and output embeddings are one matrix."""
    attention_bias: bool = True

    @classmethod
    def from_config(cls, config: dict) -> "Architecture":
        """From the content of a model's config.json."""
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=config.get("attention_bias", config.get("model_type") == "qwen2"),
        )

    @property
    def layer_parameters(self) -> int:
        """q, k, v and o, their biases, three MLP matrices, two norms."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.hidden * (2 * queries + 2 * keys)
        bias = queries + 2 * keys if self.attention_bias else 0
        return attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All layers, the embeddings and the last norm."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.hidden

    @property
    def critic_parameters(self) -> int:
        """The same with one output a token in place of the vocabulary's."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden + 2 * self.hidden

    @property
    def checkpointed_bytes(self) -> int:
        """Activations kept per token with gradient checkpointing: the bf16 input of every layer."""
        return 2 * self.layers * self.hidden

    @property
    def layer_bytes(self) -> int:
        """bf16 activations per token of the layer being recomputed: four of the MLP's width, ten of the model's."""
        return 2 * (4 * self.intermediate + 10 * self.hidden)

    @property
    def kv_bytes(self) -> int:
        """Cache per token: keys and values of every layer, bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


@dataclass(frozen=True)
class Plan:
    """What one GPU holds, in GiB, in the two phases of a step.

    update:  weights (4 P / N) + gradients (4 P / N) + moments (8 P / N) + gathered + activations + logits + overhead
    rollout: weights (4 P / N) + moments (8 P / N) + vLLM's share (gpu_memory_utilization x memory) + overhead

    for P parameters on N GPUs, fp32 master weights and Adam. With `offload_policy` the P / N terms are main memory. A
    critic is a second model with weights and moments; of gradients, which go after each update, there is one set.
    """

    memory: float
    weights: float
    gradients: float
    moments: float
    gathered: float
    """bf16 weights of two layers and the embeddings, unsharded while they compute."""
    activations: float
    """Micro-batch tokens x (checkpointed_bytes + layer_bytes), and the tokens x tokens mask of sdpa (`MASK_BYTES`)."""
    logits: float
    """See `logit_bytes`."""
    vllm: float
    vllm_weights: float
    """bf16 weights, 2 P / tensor parallel size."""
    cache_tokens: int
    """Tokens in the cache of one replica: what vLLM's share leaves after weights and overhead, over `kv_bytes`."""
    main_memory: float
    """16 P / N per rank with offload_policy, and the fp32 weights that rank 0 loads at the start, a model at a time."""
    replicas: int
    rows: int
    """Rows per step: prompts x n, and the reflection groups on top at their cap."""
    tokens: int
    """Response tokens per step at most: rows x data.max_response_length."""
    optimizer_steps: int
    checkpoint: float
    """Weights and two moments, 12 P bytes, of actor and critic, over all ranks."""

    @property
    def update(self) -> float:
        parts = (self.weights, self.gradients, self.moments, self.gathered, self.activations, self.logits)
        return sum(parts) + OVERHEAD_GIB

    @property
    def rollout(self) -> float:
        return self.weights + self.moments + self.vllm + OVERHEAD_GIB

    @property
    def fits(self) -> bool:
        return max(self.update, self.rollout) <= self.memory and self.cache_tokens > 0


def extra_prompts(config: DictConfig) -> int:
    """Most prompts of a step besides those of the data."""
    recipe = recipe_of_config(config)
    return recipe.extra_prompts(config) if recipe else 0


def plan(config: DictConfig, architecture: Architecture, memory: float) -> Plan:
    """The plan of a composed config on GPUs with `memory` GiB each."""
    actor, rollout, data = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.data
    parameters, gpus = architecture.parameters, config.trainer.n_gpus_per_node * config.trainer.nnodes
    trained = parameters + (architecture.critic_parameters if config.critic.enable else 0)
    on_gpu = 0 if actor.fsdp_config.offload_policy else trained / gpus / GIB
    tokens = micro_batch_tokens(config)
    has_mask = config.actor_rollout_ref.model.override_config.get("attn_implementation") == "sdpa"
    mask = MASK_BYTES * tokens**2 if has_mask else 0
    vllm, split = rollout.gpu_memory_utilization * memory, rollout.tensor_model_parallel_size
    vllm_weights = 2 * parameters / split / GIB
    rows = data.train_batch_size * rollout.n
    rows += extra_prompts(config) * rollout.n
    return Plan(
        memory=memory,
        weights=4 * on_gpu,
        gradients=0 if actor.fsdp_config.offload_policy else 4 * parameters / gpus / GIB,
        moments=8 * on_gpu,
        gathered=2 * (2 * architecture.layer_parameters + architecture.embedding_parameters) / GIB,
        activations=(tokens * (architecture.checkpointed_bytes + architecture.layer_bytes) + mask) / GIB,
        logits=logit_bytes(config, architecture) / GIB,
        vllm=vllm,
        vllm_weights=vllm_weights,
        cache_tokens=int((vllm - vllm_weights - OVERHEAD_GIB) * split * GIB / architecture.kv_bytes),
        main_memory=(4 * parameters + (16 * trained if actor.fsdp_config.offload_policy else 0)) / GIB,
        replicas=gpus // split,
        rows=rows,
        tokens=rows * data.max_response_length,
        optimizer_steps=data.train_batch_size // actor.ppo_mini_batch_size,
        checkpoint=12 * trained / GIB,
    )


def logit_bytes(config: DictConfig, architecture: Architecture) -> int:
    """Memory from the logits to their gradients, at its peak.

    Plain: all of a micro-batch, `LOGIT_BYTES` per entry. Fused: those of `FUSED_ROWS` rows, whatever the micro-batch,
    and the bf16 gradient of the output embeddings twice: what a chunk adds to it, and its sum.
    """
    tokens = micro_batch_tokens(config)
    if not config.actor_rollout_ref.model.use_fused_kernels:
        return tokens * architecture.vocabulary * LOGIT_BYTES
    chunk = min(FUSED_ROWS, tokens) * architecture.vocabulary * FUSED_LOGIT_BYTES
    return chunk + 2 * 2 * architecture.vocabulary * architecture.hidden


def micro_batch_tokens(config: DictConfig) -> int:
    """Most tokens in a micro-batch of the update."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return actor.ppo_max_token_len_per_gpu
    return (actor.ppo_micro_batch_size_per_gpu or 1) * longest_row(config)


SMALL = Architecture(hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151936, head_size=128)
LARGE = Architecture(hidden=3584, layers=28, heads=28, kv_heads=4, intermediate=18944, vocabulary=152064, head_size=128)
ARCHITECTURES = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": SMALL,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": LARGE,
    "Qwen/Qwen2.5-1.5B-Instruct": replace(SMALL, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": LARGE,
}

ROWS = {
    "model parameters": lambda p, a: f"{a.parameters / 1e9:.2f} B",
    "GPU memory": lambda p, a: f"{p.memory:.1f}",
    "weights, fp32": lambda p, a: f"{p.weights:.1f}",
    "gradients, fp32": lambda p, a: f"{p.gradients:.1f}",
    "Adam's moments, fp32": lambda p, a: f"{p.moments:.1f}",
    "gathered layers, bf16": lambda p, a: f"{p.gathered:.1f}",
    "activations": lambda p, a: f"{p.activations:.1f}",
    "logits": lambda p, a: f"{p.logits:.1f}",
    "**update, in all**": lambda p, a: f"**{p.update:.1f}**",
    "vLLM's share": lambda p, a: f"{p.vllm:.1f}",
    "of it weights, bf16": lambda p, a: f"{p.vllm_weights:.1f}",
    "**rollout, in all**": lambda p, a: f"**{p.rollout:.1f}**",
    "main memory for the model": lambda p, a: f"{p.main_memory:.0f}",
    "checkpoint on disk": lambda p, a: f"{p.checkpoint:.0f}",
    "activations per token": lambda p, a: f"{a.checkpointed_bytes / 1024:.0f} KiB",
    "cache per token": lambda p, a: f"{a.kv_bytes / 1024:.0f} KiB",
    "cache tokens per replica": lambda p, a: f"{p.cache_tokens:,}",
    "replicas": lambda p, a: str(p.replicas),
    "generated rows per step, at most": lambda p, a: f"{p.rows:,}",
    "their response tokens, at most": lambda p, a: f"{p.tokens / 1e6:.1f} M",
    "optimizer steps per step": lambda p, a: str(p.optimizer_steps),
}
"""Lines of the table: name and text; without a unit it is GiB."""


def gpu_profiles() -> list[str]:
    """Names of the GPU profiles, the largest machine last."""
    names = (path.stem for path in (OWN_CONFIG / "profile").glob("gpu_*.yaml"))
    return sorted(names, key=lambda name: (name.count("_"), [int(n) for n in re.findall(r"\d+", name)]))


def profile_plan(profile: str, method: str = "r3") -> tuple[Plan, Architecture]:
    """Plan of a profile; the memory of a GPU is in its name."""
    config = compose_config(base_overrides(profile, method))
    architecture = ARCHITECTURES[config.actor_rollout_ref.model.path]
    memory = USABLE_GIB[int(re.search(r"x(\d+)gb", profile).group(1))]
    return plan(config, architecture, memory), architecture


def table(profiles: list[str]) -> str:
    """Markdown table, one column per profile."""
    plans = [profile_plan(profile) for profile in profiles]
    lines = ["| GiB per GPU unless said otherwise | " + " | ".join(profiles) + " |"]
    lines.append("|---" * (len(profiles) + 1) + "|")
    for name, text in ROWS.items():
        lines.append(f"| {name} | " + " | ".join(text(*pair) for pair in plans) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(gpu_profiles()))
