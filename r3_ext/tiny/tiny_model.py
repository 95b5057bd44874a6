r"""A model of a million parameters and its tokenizer, built on the spot: nothing is downloaded.

The model has the Qwen2 architecture, the chat format follows DeepSeek-R1-Distill with ASCII markers:

    <|begin|><|User|>{problem}<|Assistant|><think>\n{thoughts}\n</think>\n\boxed{24}<|end|>
"""

import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

BEGIN, END, PAD, USER, ASSISTANT = SPECIALS = ["<|begin|>", "<|end|>", "<|pad|>", "<|User|>", "<|Assistant|>"]
THINK = ["<think>", "</think>"]
MAX_VOCABULARY = 2048
MAX_POSITIONS = 2048

# As in R1-Distill, the thoughts of earlier turns are cut and the answer starts inside <think>.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- message.content -}}
{%- elif message.role == 'user' -%}{{- '<|User|>' + message.content -}}
{%- elif message.role == 'assistant' -%}
{{- '<|Assistant|>' + message.content.split('</think>')[-1].lstrip() + eos_token -}}
{%- else -%}{{- raise_exception('role must be system, user or assistant, got ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\\n' -}}{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocabulary: int = MAX_VOCABULARY) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text in Unicode normal form C survives a round trip, and each digit is a token.

    transformers and vLLM load the tokenizer of a Qwen2 model as `Qwen2Tokenizer`, which takes vocabulary and merges
    from the file but brings its own normaliser and splitting: training uses the same, so that all loaders agree.
    """
    if not 512 <= vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"vocabulary must be in [512, {MAX_VOCABULARY}], got {vocabulary}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(THINK),
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(THINK)  # not special: graders and reflection prompts must see them
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        unk_token=PAD,  # never produced; without it Qwen2Tokenizer adds a token that the model has no embedding for
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=MAX_POSITIONS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,  # head size 32: the smallest that vLLM's CPU attention takes
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    # Initialisation draws from torch's global generator; the caller's stream is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    # Ten times what transformers begins with: then the facts are learned in half the steps.
    model.model.embed_tokens.weight.data.mul_(10)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, do_sample=True, **ids)
    return model


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def prompt_text(tokenizer: PreTrainedTokenizerFast, messages: list[dict]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


class Example(NamedTuple):
    prompt: list[int]
    answer: list[int]


def backward(model, examples: list[Example], rows: int = 2) -> float:
    """Gradients and value of the mean cross entropy of the answer tokens, `rows` examples of like length at a time."""
    examples = sorted(examples, key=lambda example: len(example.prompt) + len(example.answer))
    tokens, total = sum(len(example.answer) for example in examples), 0.0
    for begin in range(0, len(examples), rows):
        loss = answer_loss(model, examples[begin : begin + rows]) / tokens
        loss.backward()
        total += loss.item()
    return total


def answer_loss(model, examples: list[Example]) -> torch.Tensor:
    """Summed cross entropy of the answer tokens. Padding is on the right, where causal attention does not see it."""
    length = max(len(example.prompt) + len(example.answer) for example in examples)
    ids_BT = torch.zeros(len(examples), length, dtype=torch.long)
    is_answer_BT = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(examples):
        ids_BT[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        is_answer_BT[row, len(prompt) : len(prompt) + len(answer)] = True
    hidden_BTH = model.model(input_ids=ids_BT[:, :-1]).last_hidden_state
    predicts_BT = is_answer_BT[:, 1:]
    logits = model.lm_head(hidden_BTH[predicts_BT])
    return torch.nn.functional.cross_entropy(logits, ids_BT[:, 1:][predicts_BT], reduction="sum")


def train(model, next_batch: Callable[[float], list[Example]], steps: int) -> dict:
    """Supervised training for `steps` steps; `next_batch` is told the share of them that is over."""
    optimizers, losses, begin = _optimizers(model), [], time.monotonic()
    columns = TextColumn("warm start"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn()
    with _one_thread(), Progress(*columns) as progress:
        bar = progress.add_task("warm start", total=steps, loss="")
        for step in range(steps):
            share = step / steps
            factor = min(1.0, (step + 1) / 20) * (1 - 0.95 * share)
            losses.append(_step(model, optimizers, next_batch(share), factor))
            progress.update(bar, completed=step + 1, loss=f"loss {losses[-1]:.2f}")
    return {"steps": len(losses), "seconds": round(time.monotonic() - begin, 1), "loss": losses[-1]}


@contextmanager
def _one_thread():
    """With more, every small operation waits for the slowest core: on a busy machine that costs a factor of ten."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _Float32Muon(TorchFunctionMode):
    """Keeps Muon in float32: its cast to bfloat16 costs a factor of fifteen on CPUs without such arithmetic."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _optimizers(model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers: it learns the arithmetic in a tenth of the steps that AdamW needs."""
    names = dict(model.model.layers.named_parameters())
    matrices = [parameter for parameter in names.values() if parameter.ndim == 2]
    others = [*model.model.embed_tokens.parameters(), *model.model.norm.parameters()]
    others += [parameter for parameter in names.values() if parameter.ndim == 1]
    return [
        torch.optim.Muon(matrices, lr=0.05, momentum=0.7, weight_decay=0.01),
        torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _step(model, optimizers: list[torch.optim.Optimizer], examples: list[Example], factor: float) -> float:
    model.zero_grad(set_to_none=True)
    loss = backward(model, examples)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor
        with _Float32Muon():
            optimizer.step()
    return loss
