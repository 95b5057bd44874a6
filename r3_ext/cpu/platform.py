"""The platform "cpu" of verl: gloo, fsdp2 and vLLM's CPU backend, with Ray's "GPU" standing for a group of cores."""

import os
import resource
from contextlib import nullcontext
from types import ModuleType
from typing import Any, ContextManager, Optional

import psutil
import torch

from r3_ext.cpu.fork import environment as forks
from r3_ext.cpu.fork import vllm_distribution
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_base import PlatformBase


class CPUIndex(str):
    """The answer to "which device am I on?": torch takes it as a device, and in a device string it reads as an index.

    verl passes the same value to `tensor.to(...)` and into f"{device_name}:{index}". The integer 0 would mean cuda:0 in
    the first place, the string "cpu" would give "cpu:cpu" in the second.
    """

    def __format__(self, spec: str) -> str:
        return format("0", spec)


class CPUDevice(ModuleType):
    """`torch.cpu` plus the functions of `torch.cuda` that verl calls on any device; memory means the process's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    # verl restores the device's generator from a checkpoint; here that is torch's own.
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    def get_device_name(self) -> str:
        return "CPU"

    def empty_cache(self) -> None:
        pass

    def memory_allocated(self) -> int:
        return psutil.Process().memory_info().rss

    def memory_reserved(self) -> int:
        return self.memory_allocated()

    def max_memory_allocated(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def max_memory_reserved(self) -> int:
        return self.max_memory_allocated()

    def mem_get_info(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total


class PlatformCPU(PlatformBase):
    """What verl asks of a platform, answered for a machine without an accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPUDevice("r3_ext.cpu.device")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return CPUIndex("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: Optional[int] = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[Optional[int], Optional[int]]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> ContextManager[None]:
        return nullcontext()

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # verl's placement groups, accelerator ids and resource check know "GPU" and "NPU" only. The profile declares
        # as many of them to Ray as there are ranks.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        # False makes verl send weights to vLLM through POSIX shared memory.
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        # vLLM's CPU backend turns the executor "uni" into "mp" unless this is 0. "uni" runs the model inside the
        # engine's process: one process, 1 GB and several seconds of imports less per replica, and no shared-memory
        # queues that stay behind in /dev/shm.
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

    def cudart(self) -> None:
        return None


def _accept_doubled_backend() -> None:
    """verl names a process group's backend "cpu:gloo,<device>:<backend>", here "cpu:gloo,cpu:gloo", and torch refuses
    the second mention of a device."""
    original = torch.distributed.init_process_group

    def init_process_group(backend: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        if backend == "cpu:gloo,cpu:gloo":
            backend = "cpu:gloo"
        original(backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _pin_nothing() -> None:
    """FSDP2 keeps verl's reference policy in pinned memory, which takes an accelerator's driver. Nothing is copied to
    an accelerator here: memory stays as it is."""
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor


def activate() -> None:
    """Make this process one of the CPU platform. Called once per process, while verl is being imported."""
    platform_manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
    # The FSDP engines are registered for cuda and npu, the recipe's for NVIDIA's; nothing in them is specific to that.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    os.environ.setdefault("VERL_ENGINE_VENDOR", "nvidia")
    # For the processes that this one starts. Actor and vLLM take turns, small matrices gain nothing from a second
    # thread, and threads that wait spin: on a busy machine two of them make a step several times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _accept_doubled_backend()
    _pin_nothing()
    forks.use_for_spawned_processes()
    vllm_distribution.present()
