"""What the forks of a run share: the libraries that are loaded, and the environment in which they were."""

import importlib
import multiprocessing
import os
import sys

from r3_ext.cpu.fork import vllm_distribution

LIBRARIES = (
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "tensordict",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "datasets",
    "peft",
    "hydra",
    "fastapi",
    "openai",
    "math_verify",
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_model_runner",
)
"""What a run's processes import of other projects, and what does not import Ray."""

ENVIRONMENT = {
    # Actor and vLLM take turns, small matrices gain nothing from a second thread, and threads that wait spin: on a
    # busy machine two of them make a step several times as long.
    "OMP_NUM_THREADS": "1",
    # vLLM's sampler would be compiled: a step takes as long without, and needs no C++ compiler
    # (docs/development.md).
    "TORCHDYNAMO_DISABLE": "1",
    # What verl sets in the processes of a run, and vLLM in those that it spawns there.
    "TOKENIZERS_PARALLELISM": "true",
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_BATCH_INVARIANT": "0",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Given to a run from its start on, where the user has not set them, so that its processes agree with the server."""

READ_WHILE_LOADING = (
    *("HF_", "GOMP_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TOKENIZERS_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE", "TORCH_LOGS", "TRANSFORMERS_", "TRITON_", "VLLM_"),
)
"""How the names of the variables begin in which a fork and the server must agree."""

READ_LATER = {
    "PYTHONBREAKPOINT",  # Ray sets it
    "LD_PRELOAD",  # vLLM gives its engine another allocator, which no result depends on
    "VLLM_HOST_IP",  # a private network's; read when an engine opens its sockets
    "VLLM_SSM_CONV_STATE_LAYOUT",  # vLLM sets it where the processor has AMX; read when a state-space model is built
}

VARIABLE = "R3_FORKING_PYTHON"
"""Tells the processes of a run where the executable is."""


def use_for_spawned_processes() -> None:
    """Let multiprocessing start its processes as forks too, where this process's run has a server."""
    if executable := os.environ.get(VARIABLE):
        multiprocessing.set_executable(executable)


def environment() -> dict[str, str]:
    """This process's environment with what a run sets in its own."""
    return {**ENVIRONMENT, **os.environ}


def set_environment(wanted: dict[str, str]) -> None:
    """Touches what differs only: Ray and vLLM, to set a process's title, look for its place beside the variables that
    the process was started with."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


_loaded = False
"""Whether `load_libraries` was called here, or in the process that this one is a fork of."""


def load_libraries() -> None:
    global _loaded
    vllm_distribution.present()
    for name in LIBRARIES:
        importlib.import_module(name)
    _loaded = True


def torch_came_before() -> bool:
    """Whether somebody else loaded torch, in whatever environment that was. A fork of a server has it from there, and
    agrees with it in what torch read."""
    return "torch" in sys.modules and not _loaded
