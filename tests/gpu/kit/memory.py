"""The memory and the time of the log-prob pass and of the update, of the model and the micro-batch of the profile
gpu_1x80gb, beside what `r3_ext.settings.sizing` computes: verl's engine, random weights, no trainer around it."""

import dataclasses
import shutil
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from r3_ext.settings import sizing
from r3_ext.settings.compose import base_overrides, compose_config
from tests.gpu.engine import engine_of, packed, process_group, weighted_sum
from tests.gpu.shapes import DISTILL, SMALL, Shapes
from verl.utils.device import get_torch_device

from .report import Report, arguments

PROFILE = "gpu_1x80gb"
# All tokens of a micro-batch, in rows of different lengths.
WHOLE = Shapes(
    *(0, 0, DISTILL.hidden, DISTILL.layers, DISTILL.heads, DISTILL.kv_heads, DISTILL.intermediate, DISTILL.vocabulary),
    lengths=(6000, 5000, 3000, 2000, 384),
)
PARTS = ("weights", "gradients", "moments", "gathered", "activations", "logits", "update")


def save(shapes: Shapes, folder, device: str) -> None:
    """Made where it is quick, and saved in bf16."""
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
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)


class Meter:
    """Seconds and the most memory of what is done within; on the CPU the most since the process began."""

    def __init__(self, report: Report, device: str):
        self.report, self.on_gpu = report, device == "cuda"

    def __call__(self, name: str, work, tokens: int | None = None) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        work()
        if self.on_gpu:
            torch.cuda.synchronize()
        found = {"seconds": time.perf_counter() - begin}
        if tokens:
            found["tokens_per_s"] = tokens / found["seconds"]
        device = get_torch_device()
        found |= {"peak_gib": device.max_memory_allocated() / 2**30, "held_gib": device.memory_allocated() / 2**30}
        self.report.add({name: found})


def main() -> None:
    args = arguments(__doc__)
    shapes, folder = (WHOLE if args.device == "cuda" else SMALL), args.work / "model"
    report, tokens = Report(args.out), sum(shapes.lengths)
    config = compose_config(base_overrides(PROFILE, "r3"))
    planned = sizing.plan(config, DISTILL, sizing.USABLE_GIB[80])
    report.add({"computed_gib": {name: getattr(planned, name) for name in PARTS}, "tokens": tokens})
    report.add({"overhead_gib": sizing.OVERHEAD_GIB, "shapes": dataclasses.asdict(shapes)})
    assert args.device == "cpu" or tokens == sizing.micro_batch_tokens(config), "the micro-batch is the profile's"
    shutil.rmtree(folder, ignore_errors=True)
    save(shapes, folder, args.device)
    if args.device == "cuda":
        torch.cuda.empty_cache()
    meter = Meter(report, args.device)
    with process_group(), engine_of(folder, torch.bfloat16, fused=True) as engine:
        meter("loaded", lambda: None)

        def log_probs() -> None:
            with engine.eval_mode():
                engine.infer_batch(packed(shapes, True))

        def update() -> None:
            with engine.train_mode():
                engine.optimizer_zero_grad()
                engine.forward_backward_batch(packed(shapes, True), weighted_sum)
                norm = engine.optimizer_step()
            report.add({"grad_norm": norm})

        for turn in ("first", "second"):
            meter(f"log_probs_{turn}", log_probs, tokens)
            meter(f"update_{turn}", update, tokens)
        # Its gradients are numbers at this length: `attention`. What does doing without it take?
        torch.backends.cuda.enable_cudnn_sdp(True)
        for turn in ("first", "second"):
            meter(f"update_with_cudnn_{turn}", update, tokens)
    report.limit("1 / gradient norm", 1 / max(report.figures["grad_norm"], 1e-9), 1e6)
    if args.device == "cuda":
        # The flat overhead stands for what torch does not allocate, and for waste.
        report.limit("peak of the update, GiB", report.figures["update_second"]["peak_gib"], planned.update)
    report.end()


if __name__ == "__main__":
    main()
