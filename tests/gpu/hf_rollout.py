"""A rollout for verl's v1 trainer without vLLM: per rank a Ray actor that generates with a Hugging Face model.

`actor_rollout_ref.rollout.name=hf`, with this module among VERL_USE_EXTERNAL_MODULES: `overrides` says both. Requests
that wait are generated together, in one padded batch. For tests with small models: the scores of all tokens of a batch
are kept (rows x tokens x vocabulary, fp32), and nothing is freed while the actor trains.
"""

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3_ext.recipes import recipe_of
from r3_ext.settings.compose import PLATFORM, quoted
from recipe.common.config.verl_rules import MODULES
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_name, get_resource_name, get_visible_devices_keyword
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "hf"
GATHER_S = 0.05
"""How long a first request waits for others."""
AS_ON_GPUS = [
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16",
    "actor_rollout_ref.rollout.dtype=bfloat16",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.model.use_fused_kernels=True",
    "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch",
    # Several micro-batches, and of no round length.
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2500",
]
"""Training as in the GPU profiles, for the tiny model: the profile embedded has single precision and padded rows."""
REFLECTS = ["algorithm.r3.reflection.threshold=1.0", "algorithm.r3.reflection.min_attempts=1"]
"""Reflection from the second epoch on, for a model that nearly always fails."""


def overrides(method: str, on_gpu: bool) -> list[str]:
    """What a run's settings need besides their profile to generate with it."""
    modules = (*(() if on_gpu else (PLATFORM,)), *recipe_of(method).modules, __name__)
    return [
        f"actor_rollout_ref.rollout.name={NAME}",
        # The profile embedded loads its watch over vLLM's weights here.
        "actor_rollout_ref.model.external_lib=null",
        f"{MODULES}={quoted(','.join(modules))}",
    ]


class HFServer:
    """One replica."""

    def __init__(self, path: str, config: Any, devices: str):
        os.environ[get_visible_devices_keyword()] = devices
        self.config, self.version = config, None
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, config.dtype))
        self.model = model.to(get_device_name()).eval()
        self.weights = dict(self.model.named_parameters(remove_duplicate=False))
        self.waiting: list[tuple[list[int], dict, asyncio.Future]] = []
        self.working: asyncio.Task | None = None

    async def ready(self) -> None:
        pass

    async def generate(self, prompt_ids: list[int], sampling_params: dict, request_id: str, **_) -> TokenOutput:
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), sampling_params, done))
        if self.working is None or self.working.done():
            self.working = asyncio.create_task(self._work())
        return await done

    async def _work(self) -> None:
        await asyncio.sleep(GATHER_S)
        while self.waiting:
            params = self.waiting[0][1]
            batch, rest = [], []
            for request in self.waiting:
                takes = request[1] == params and len(batch) < self.config.max_num_seqs
                (batch if takes else rest).append(request)
            self.waiting = rest
            work = asyncio.to_thread(self._generate, [prompt for prompt, _, _ in batch], params)
            [outputs] = await asyncio.gather(work, return_exceptions=True)
            for number, (_, _, done) in enumerate(batch):
                if isinstance(outputs, BaseException):
                    done.set_exception(outputs)
                else:
                    done.set_result(outputs[number])

    def _generate(self, prompts: list[list[int]], params: dict) -> list[TokenOutput]:
        config, width, pad = self.config, max(map(len, prompts)), self.tokenizer.pad_token_id
        missing = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor([[pad] * n + prompt for n, prompt in zip(missing, prompts, strict=True)])
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in missing])
        limits = [min(config.response_length, config.max_model_len - len(prompt)) for prompt in prompts]
        with torch.inference_mode():
            found = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=max(limits),
                pad_token_id=pad,
                eos_token_id=self.tokenizer.eos_token_id,
                return_dict_in_generate=True,
                output_scores=True,
                **sampling(params),
            )
            tokens_BT = found.sequences[:, width:]
            chosen = zip(found.scores, tokens_BT.T, strict=True)
            log_probs = [scores.log_softmax(-1).gather(-1, token[:, None])[:, 0] for scores, token in chosen]
            rows = zip(tokens_BT.tolist(), torch.stack(log_probs, dim=1).tolist(), limits, strict=True)
        return [self._output(tokens[:limit], log_probs[:limit]) for tokens, log_probs, limit in rows]

    def _output(self, tokens: list[int], log_probs: list[float]) -> TokenOutput:
        eos = self.tokenizer.eos_token_id
        length = tokens.index(eos) + 1 if eos in tokens else len(tokens)
        return TokenOutput(
            token_ids=tokens[:length],
            log_probs=log_probs[:length],
            stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )

    async def load(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """Between the steps, when nothing is generated."""
        assert self.working is None or self.working.done(), "weights change while answers are generated"
        with torch.no_grad():
            for name, value in weights.items():
                self.weights[name].copy_(value)
        self.version = step


def sampling(params: dict) -> dict:
    """transformers' names for what verl asks of vLLM."""
    if not params.get("temperature", 1.0):
        return {"do_sample": False}
    top_k = max(params.get("top_k", -1), 0)  # -1 and 0 mean all tokens
    kept = {name: params[name] for name in ("temperature", "top_p") if name in params}
    return {"do_sample": True, "top_k": top_k, **kept}


class HFReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        def where(_worker) -> tuple[str, str]:
            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids()[get_resource_name()][0]

        node, devices = await self.workers[0].__ray_call__.remote(where)
        server = ray.remote(HFServer).options(
            name=server_name(self.replica_rank),
            runtime_env={"env_vars": {variable: "1" for variable in get_platform().ray_noset_envvars()}},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_concurrency=self.max_concurrency,
        )
        self._server_handle = server.remote(self.model_config.path, self.config, devices)
        self.servers, self._server_address = [self._server_handle], server_name(self.replica_rank)
        await self._server_handle.ready.remote()

    # The model stays where it is, and keeps no cache between batches.
    async def sleep(self) -> None:
        pass

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = resume_generation = sleep

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        pass


def server_name(rank: int) -> str:
    return f"hf_server_{rank}"


class HFAdapter(BaseRollout):
    """The end of it that is part of verl's worker."""

    def __init__(self, config, model_config, device_mesh, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self.name = server_name(int(os.environ["RANK"]))  # tensor_model_parallel_size is 1: a replica per rank

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **_
    ) -> None:
        taken = {name: value.detach().to("cpu", copy=True) for name, value in weights}
        await ray.get_actor(self.name).load.remote(taken, global_steps)


base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.HFAdapter"
RolloutReplicaRegistry.register(NAME, lambda: HFReplica)
