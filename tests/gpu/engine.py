"""verl's FSDP engine on one device, as its actor workers make it, for a model with random weights.

T tokens of a packed micro-batch, V entries of the vocabulary.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tensordict import TensorDict
from torch.distributed import TCPStore
from transformers import Qwen2Config, Qwen2ForCausalLM

from recipe.common.trainer.engine import R3FSDP2Engine
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.utils.device import get_device_name
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry

from .shapes import Shapes

LOGIT_SCALE = 8
"""Random output embeddings times this: logits with a standard deviation of about 6 at the real width."""
MISFIT = -120.0
"""Score of every key in a head that fits none, as some of Qwen2.5's do: exp of the negative overflows, from 88.7."""


def save_model(shapes: Shapes, folder: Path) -> Path:
    """A Qwen2 model with untied embeddings, as those of the profiles are."""
    config = Qwen2Config(
        vocab_size=shapes.vocabulary,
        hidden_size=shapes.hidden,
        intermediate_size=shapes.intermediate,
        num_hidden_layers=shapes.layers,
        num_attention_heads=shapes.heads,
        num_key_value_heads=shapes.kv_heads,
        tie_word_embeddings=False,
        max_position_embeddings=16384,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.lm_head.weight.data.mul_(LOGIT_SCALE)
    model.save_pretrained(folder)
    return folder


def save_model_with_misfit(shapes: Shapes, folder: Path) -> Path:
    """The same, and the first head of the first layer gives every key a score of about MISFIT."""
    model = Qwen2ForCausalLM.from_pretrained(save_model(shapes, folder))
    size = shapes.hidden // shapes.heads
    attention, slowest = model.model.layers[0].self_attn, size // 2 - 1  # of the pairs that positions rotate
    half = (-MISFIT * size**0.5) ** 0.5
    with torch.no_grad():
        attention.q_proj.bias[slowest] = half
        attention.k_proj.bias[slowest] = -half
    model.save_pretrained(folder)
    return folder


@contextmanager
def process_group() -> Iterator[None]:
    """A group of this process alone; verl's engine asks for one."""
    backend = "cpu:gloo,cuda:nccl" if get_device_name() == "cuda" else "gloo"
    store = TCPStore("127.0.0.1", 0, world_size=1, is_master=True)  # port 0: any that is free
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def engine_of(folder: Path, dtype: torch.dtype, fused: bool, attention: str = "sdpa") -> Iterator[R3FSDP2Engine]:
    """verl's engine as the recipe registers it, in a process group. verl's fused forward is put on the model's class,
    and is gone afterwards."""
    forward = Qwen2ForCausalLM.forward
    name = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    on_gpu = get_device_name() == "cuda"
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=str(folder),
            load_tokenizer=False,
            use_remove_padding=True,
            use_fused_kernels=fused,
            fused_kernel_options={"impl_backend": "torch"},
            override_config={"attn_implementation": attention},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            mixed_precision={"param_dtype": name, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            # verl compiles its entropy on a GPU.
            use_torch_compile=on_gpu,
            use_no_sync_for_gradient_accumulation=False,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-6),
        checkpoint_config=CheckpointConfig(),
    )
    assert isinstance(engine, R3FSDP2Engine), type(engine)
    try:
        engine.initialize()
        devices = {parameter.device.type for parameter in engine.module.parameters()}
        assert devices == {get_device_name()}, devices
        yield engine
    finally:
        Qwen2ForCausalLM.forward = forward
        del engine
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()


def packed(
    shapes: Shapes, fused: bool, weights: list[torch.Tensor] | None = None, only: int | None = None
) -> TensorDict:
    """Rows of random tokens as verl hands them to its engine, all in one micro-batch.

    weights: per row, what each token's log-prob is multiplied with in `weighted_sum`; random where not given.
    only: the one row that is taken; None: all.
    """
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, shapes.vocabulary, (length,), generator=generator) for length in shapes.lengths]
    if weights is None:
        weights = [torch.randn(length, generator=generator) for length in shapes.lengths]
    fields = {
        "input_ids": ids,
        "position_ids": [torch.arange(length) for length in shapes.lengths],
        "loss_mask": [torch.ones(length, dtype=torch.long) for length in shapes.lengths],
        "weights": weights,
    }
    taken = slice(None) if only is None else slice(only, only + 1)
    nested = {name: torch.nested.as_nested_tensor(rows[taken], layout=torch.jagged) for name, rows in fields.items()}
    data = TensorDict(nested, batch_size=[len(ids[taken])])
    tu.assign_non_tensor(
        data,
        temperature=1.0,
        calculate_entropy=True,
        use_remove_padding=True,
        use_fused_kernels=fused,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=sum(shapes.lengths),
        pad_mode=DatasetPadMode.NO_PADDING,
    )
    return data


def weighted_sum(model_output: dict, data: TensorDict, dp_group=None) -> tuple[torch.Tensor, dict]:
    """A loss with a gradient of its own size for each token: the mean of weight x log-prob."""
    log_probs, weights = model_output["log_probs"].values(), data["weights"].values()
    return (log_probs * weights).mean(), {}


def log_probs_and_entropies(engine: R3FSDP2Engine, data: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """(T,) each, all rows one after another, in double precision on the CPU."""
    with engine.eval_mode():
        output = engine.infer_batch(data)["model_output"]
    return output["log_probs"].values().double().cpu(), output["entropy"].values().double().cpu()


def gradients(engine: R3FSDP2Engine, data: TensorDict) -> dict[str, torch.Tensor]:
    """The gradient of `weighted_sum` by every parameter, in single precision on the CPU."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(data, weighted_sum)
        return {name: value.grad.full_tensor().float().cpu() for name, value in engine.module.named_parameters()}
