"""Prompts under the model's chat template, against the length limits."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from r3_ext.doctor.data_files import readable_data
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_r3
from r3_ext.doctor.model_files import tokenizer_of

if TYPE_CHECKING:
    from omegaconf import DictConfig


def prompt_lengths(config: DictConfig, tokenizer, prompts: list[list[dict]]) -> list[int]:
    """Tokens of each chat under the model's template, generation prompt included."""
    kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
    texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False, **kwargs) for p in prompts]
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def check_prompts(config: DictConfig) -> list[Finding]:
    """Some rows of each file, the longest and every order of roles among them, rendered and counted."""
    import jinja2

    tokenizer = tokenizer_of(config)
    if tokenizer is None or isinstance(tokenizer, str) or tokenizer.chat_template is None:
        return []
    findings, limit = [], config.data.max_prompt_length
    for key, data in readable_data(config):
        if not (prompts := data.sample):
            continue
        try:
            lengths = prompt_lengths(config, tokenizer, prompts)
        except (jinja2.TemplateError, ValueError) as error:
            advice = "the roles or the content do not suit the model's chat template"
            findings.append(Finding(FAIL, "prompts", f"{data.path.name}: {error}", advice))
            continue
        findings.append(length_finding(config, data.path.name, lengths, limit))
        if key == "data.train_files" and is_r3(config) and config.algorithm.r3.reflection.enable:
            findings += reflection_room(config, tokenizer, prompts)
    return findings


def length_finding(config: DictConfig, name: str, lengths: list[int], limit: int) -> Finding:
    over = sum(length > limit for length in lengths)
    found = f"{name}: {len(lengths)} rendered, at most {max(lengths)} of {limit} tokens"
    if over == 0:
        return Finding(OK, "prompts", found)
    found += f", {over} over"
    if over == len(lengths):
        return Finding(FAIL, "prompts", found, "raise data.max_prompt_length")
    if config.data.filter_overlong_prompts:
        return Finding(WARN, "prompts", found, "they are left out; raise data.max_prompt_length to keep them")
    advice = "verl cuts them from the left: set data.filter_overlong_prompts=True or raise data.max_prompt_length"
    return Finding(WARN, "prompts", found, advice)


def reflection_room(config: DictConfig, tokenizer, prompts: list[list[dict]]) -> list[Finding]:
    """Tokens that the budget of a reflection prompt leaves for the past attempt."""
    settings = config.algorithm.r3.reflection
    budget = config.data.max_prompt_length

    def without_attempt(prompt: list[dict]) -> list[dict]:
        template = max(settings.template, settings.template_cut_off, key=len)
        content = template.replace("{question}", prompt[-1]["content"]).replace("{attempt}", "")
        return [*prompt[:-1], {**prompt[-1], "content": content}]

    lengths = prompt_lengths(config, tokenizer, [without_attempt(prompt) for prompt in prompts])
    room = int(budget - statistics.median(lengths))
    found = f"reflection leaves {room} of {budget} prompt tokens for the past attempt (median)"
    if room < 64:
        advice = "raise data.max_prompt_length (and rollout.max_model_len), or algorithm.r3.reflection.enable=False"
        return [Finding(WARN, "prompts", found, advice)]
    return [Finding(OK, "prompts", found)]
