"""The model's files, its architecture and its tokenizer."""

from __future__ import annotations

import json
import logging
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, not_set
from r3_ext.host.text import first_line, short
from recipe.common.config.lengths import longest_row

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from r3_ext.settings import sizing

VERL_DEFAULT_PATHS = (
    "~/models/deepseek-llm-7b-chat",
    "~/data/rlhf/gsm8k/train.parquet",
    "~/data/rlhf/gsm8k/test.parquet",
)
"""What verl's config holds where nothing was set."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


SENTENCE = "How many are 12 and 34?"
"""Spaces, and nothing that a tokenizer tidies up."""


@lru_cache
def model_file(model: str, name: str) -> tuple[Path | None, str]:
    """(path of `name` in a local folder or on the hub, "") or (None, why not)."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        path = folder / name
        return (path, "") if path.is_file() else (None, f"{folder} has no {name}")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or folder.exists():
        return None, f"{model} is neither a folder nor a name on the Hugging Face hub"
    from huggingface_hub import hf_hub_download

    from r3_ext.host import hub

    hub.go_offline_if_unreachable()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports each of its attempts
    try:
        return Path(hf_hub_download(model, name)), ""
    except (OSError, ValueError) as error:  # all errors of the hub's client and of the network below it
        return None, f"{model}: {hub.why_not(error)}"


def model_path(config: DictConfig) -> str:
    return config.actor_rollout_ref.model.path


@lru_cache
def read_model_config(model: str) -> tuple[dict | None, str]:
    """(content of config.json, "") or (None, why not)."""
    path, reason = model_file(model, "config.json")
    if path is None:
        return None, reason
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        return None, f"{path} is not JSON: {error}"
    sizes = ("vocab_size", "max_position_embeddings")
    if not isinstance(content, dict) or not all(isinstance(content.get(key, 0), int) for key in sizes):
        return None, f"{path} is not the configuration of a model: {str(content)[:60]}"
    return content, ""


def model_architecture(config: DictConfig) -> sizing.Architecture | None:
    """`sizing.Architecture` of the model, or None when its config.json is not there or has other names."""
    from r3_ext.settings import sizing

    content, _ = (None, "") if model_path(config) in VERL_DEFAULT_PATHS else read_model_config(model_path(config))
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if content is None or not all(isinstance(content.get(key), int) for key in keys):
        return None
    return sizing.Architecture.from_config(content)


def check_model(config: DictConfig) -> list[Finding]:
    model = model_path(config)
    if model in VERL_DEFAULT_PATHS:
        return [not_set("model", "actor_rollout_ref.model.path")]
    content, reason = read_model_config(model)
    if content is None:
        advice = "set actor_rollout_ref.model.path to a folder with a model, or download it first: hf download NAME"
        return [Finding(FAIL, "model", reason, advice)]
    architecture = model_architecture(config)
    size = f", {architecture.parameters / 1e6:,.1f} M parameters" if architecture else ""
    findings = [Finding(OK, "model", f"{model}: {content.get('model_type')}{size}")]
    findings += missing_weights(Path(model).expanduser())
    limit = content.get("max_position_embeddings")
    wanted = longest_row(config)
    if limit is not None and limit < wanted:
        advice = "lower data.max_prompt_length or data.max_response_length"
        findings.append(Finding(FAIL, "model", f"{limit} positions, prompt plus response need {wanted}", advice))
    return findings


def missing_weights(folder: Path) -> list[Finding]:
    """Weight files that a local model folder lacks; hub models are downloaded when the run starts."""
    if not folder.is_dir():
        return []
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{index} does not name weight files ({error!r})"
        return [Finding(FAIL, "model", found, "download or copy the model again")]
    absent = sorted(name for name in shards if not (folder / name).is_file())
    if absent:
        found = f"{len(absent)} of {len(shards)} weight files missing: {absent[0]}"
        return [Finding(FAIL, "model", found, "download or copy the model again")]
    if not shards and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        return [Finding(FAIL, "model", f"no weights (*.safetensors) in {folder}", "download or copy the model again")]
    return []


@lru_cache
def load_tokenizer(path: str, trust_remote_code: bool, chat_template: str | None):
    """The tokenizer, or the reason why there is none as text."""
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        # transformers would make an empty tokenizer of the model's kind without a word.
        return f"{path} has none of {', '.join(TOKENIZER_FILES)}"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # what the library tokenizers raises for a damaged file has no class of its own
        return f"{path}: {first_line(error)}"
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def tokenizer_of(config: DictConfig):
    """The tokenizer, or text that says why not, or None where the model is not set or not readable."""
    model = config.actor_rollout_ref.model
    path = model.tokenizer_path or model.path
    if path in VERL_DEFAULT_PATHS or (path == model.path and read_model_config(path)[0] is None):
        return None
    return load_tokenizer(str(Path(path).expanduser()), model.trust_remote_code, model.custom_chat_template)


def check_tokenizer(config: DictConfig) -> list[Finding]:
    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        return []
    if isinstance(tokenizer, str):
        advice = "copy the tokenizer files beside the model, or set actor_rollout_ref.model.tokenizer_path"
        return [Finding(FAIL, "tokenizer", tokenizer, advice)]
    if tokenizer.chat_template is None:
        advice = "use a chat or instruction-tuned model, or set actor_rollout_ref.model.custom_chat_template"
        return [Finding(FAIL, "tokenizer", "no chat template", advice)]
    embeddings = (read_model_config(model_path(config))[0] or {}).get("vocab_size")
    if embeddings is not None and embeddings < len(tokenizer):
        found = f"{len(tokenizer):,} tokens, but the model has {embeddings:,} embeddings"
        return [Finding(FAIL, "tokenizer", found, "use the tokenizer that belongs to the model")]
    return [Finding(OK, "tokenizer", f"{len(tokenizer):,} tokens, with a chat template"), *round_trip(tokenizer)]


def round_trip(tokenizer) -> list[Finding]:
    """What becomes of a text that is made tokens and text again, as every prompt and answer is."""
    back = tokenizer.decode(tokenizer(SENTENCE, add_special_tokens=False)["input_ids"])
    if back.strip() == SENTENCE:
        return []
    found = f"{SENTENCE!r} comes back from its tokens as {short(back)}"
    if "".join(back.split()) != "".join(SENTENCE.split()):
        return [Finding(WARN, "tokenizer", found, "prompts and answers are read without what is missing")]
    # transformers 5 makes a tokenizer of Llama's kind of it, whatever its file says (transformers issue 45488).
    advice = (
        'write "tokenizer_class": "PreTrainedTokenizerFast" in the tokenizer_config.json of a copy of the model, or of '
        "its tokenizer files in a folder that actor_rollout_ref.model.tokenizer_path names"
    )
    return [Finding(FAIL, "tokenizer", found, advice)]
