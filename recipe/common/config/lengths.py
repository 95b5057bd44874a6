# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Rules on lengths: verl compares them when the first long row arrives, or cuts an answer off without a word."""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from recipe.common.checks import Broken

ACTOR, ROLLOUT, REFERENCE = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
CONTEXTS = (f"{ROLLOUT}.max_model_len", f"{ROLLOUT}.engine_kwargs.vllm.max_model_len")
"""Either bounds prompt and answer together; the second one is what vLLM is given in the end."""


def longest_row(config: DictConfig) -> int:
    """Tokens of prompt and answer."""
    return config.data.max_prompt_length + config.data.max_response_length


def ulysses(part: DictConfig, engine: str = "fsdp_config") -> int:
    """GPUs that share a row: where both keys are set verl takes the outer one, unless it is 1."""
    outer, inner = part.get("ulysses_sequence_parallel_size", 1), OmegaConf.select(part, engine) or {}
    return outer if outer > 1 else inner.get("ulysses_sequence_parallel_size", 1)


def answers_end_by_themselves(config: DictConfig) -> Iterator[Broken]:
    """An answer that stops before data.max_response_length counts as one that the model ended: what stops it earlier
    would make cut-off answers finished ones."""
    data, rollout = config.data, config.actor_rollout_ref.rollout
    for name in ("prompt", "response"):
        own, asked = rollout[f"{name}_length"], data[f"max_{name}_length"]
        if own < asked:
            yield Broken(
                f"{ROLLOUT}.{name}_length: {own} is below data.max_{name}_length={asked}: verl would cut there",
                (f"{ROLLOUT}.{name}_length={asked}", f"data.max_{name}_length={own}"),
            )
    longest = longest_row(config)
    for key in CONTEXTS:
        limit = OmegaConf.select(config, key)
        if limit is not None and limit < longest:
            left = limit - data.max_prompt_length
            yield Broken(
                f"{key}: {limit} is below data.max_prompt_length={data.max_prompt_length} plus "
                f"data.max_response_length={data.max_response_length}: an answer to a long prompt would be cut off "
                "there and count as one that the model ended",
                (f"{key}={longest}", *([f"data.max_response_length={left}"] if left > 0 else [])),
            )


def rows_fit(config: DictConfig) -> Iterator[Broken]:
    """A micro-batch of dynamic size takes a whole row: so many tokens a GPU, times the GPUs that share it."""
    from verl.trainer.ppo.utils import need_reference_policy  # slow, and the rules' keys are asked for without it

    parts = config.actor_rollout_ref
    shared, limits = ulysses(parts.actor), {}
    if parts.actor.use_dynamic_bsz:
        limits[f"{ACTOR}.ppo_max_token_len_per_gpu"] = shared
    if parts.rollout.get("log_prob_use_dynamic_bsz"):
        limits[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] = shared
    if need_reference_policy(config) and parts.ref.get("log_prob_use_dynamic_bsz"):
        limits[f"{REFERENCE}.log_prob_max_token_len_per_gpu"] = ulysses(parts.ref)
    for key, gpus in limits.items():
        yield from row_fits(config, key, gpus)


def row_fits(config: DictConfig, key: str, gpus: int) -> Iterator[Broken]:
    """key: of a limit of tokens a GPU; gpus: how many of them share a row."""
    limit, longest = OmegaConf.select(config, key), longest_row(config)
    if limit is not None and limit * gpus < longest:
        times = f" times {gpus} GPUs that share a row" if gpus > 1 else ""
        yield Broken(
            f"{key}: {limit}{times} is below the {longest} tokens of data.max_prompt_length plus "
            "data.max_response_length: a row of full length would end the run",
            (f"{key}={-(-longest // gpus)}",),
        )


def micro_batches(config: DictConfig) -> Iterator[Broken]:
    """verl asks for each of these by another name than its full key, or in its workers only."""
    from verl.trainer.ppo.utils import need_reference_policy

    parts = config.actor_rollout_ref
    is_dynamic = parts.actor.use_dynamic_bsz
    if parts.rollout.log_prob_use_dynamic_bsz != is_dynamic:
        key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
        yield Broken(
            f"{key}: {parts.rollout.log_prob_use_dynamic_bsz} must be {ACTOR}.use_dynamic_bsz={is_dynamic}",
            (f"{key}={is_dynamic}",),
        )
    names = {ACTOR: "ppo_micro_batch_size", ROLLOUT: "log_prob_micro_batch_size"}
    names |= {REFERENCE: "log_prob_micro_batch_size"} if need_reference_policy(config) else {}
    for part, name in names.items() if not is_dynamic else ():
        if part == REFERENCE and parts.ref.log_prob_use_dynamic_bsz:
            continue
        if OmegaConf.select(config, f"{part}.{name}_per_gpu") is None:
            key = f"{part}.{name}_per_gpu"
            # verl refuses both at once.
            old = f" {part}.{name}=null" if OmegaConf.select(config, f"{part}.{name}") is not None else ""
            dynamic = f"{ACTOR}.use_dynamic_bsz=True {ROLLOUT}.log_prob_use_dynamic_bsz=True"
            dynamic += f" {REFERENCE}.log_prob_use_dynamic_bsz=True"
            yield Broken(f"{key}: must be set where {ACTOR}.use_dynamic_bsz is False", (f"{key}=1{old}", dynamic))
