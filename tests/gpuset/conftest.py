"""Tests of the package set for GPUs, in an environment that has it: `bash tests/run_tests.sh gpuset`.

There is no driver. torch and NVML answer for an H100, and a library that can do nothing stands for the driver's: what
looks for them at its import finds them.
"""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

NAME, CAPABILITY, BYTES = "NVIDIA H100 80GB HBM3", (9, 0), 85_017_493_504
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE"""
collect_ignore_glob = [] if os.environ.get("R3_GPUSET") else ["*"]


def pretend_torch() -> None:
    import torch

    properties = SimpleNamespace(
        name=NAME,
        total_memory=BYTES,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=132,
        warp_size=32,
        gcnArchName="",
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    torch.cuda.get_device_name = lambda device=None: NAME
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.mem_get_info = lambda device=None: (BYTES - 2**30, BYTES)


def pretend_nvml() -> None:
    """In vLLM's copy of it, before vLLM is imported and looks for a platform there."""
    for name, file in (("vllm.third_party", "__init__.py"), ("vllm.third_party.pynvml", "pynvml.py")):
        spec = importlib.util.spec_from_file_location(name, folder_of("vllm") / "third_party" / file)
        pynvml = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pynvml)
    pynvml.nvmlInit = pynvml.nvmlShutdown = lambda *_: None
    pynvml.nvmlDeviceGetCount = lambda: 1
    pynvml.nvmlDeviceGetHandleByIndex = lambda index: index
    pynvml.nvmlDeviceGetCudaComputeCapability = lambda handle: CAPABILITY
    pynvml.nvmlDeviceGetName = lambda handle: NAME
    pynvml.nvmlDeviceGetUUID = lambda handle: "GPU-0"
    pynvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=BYTES, free=BYTES - 2**30, used=2**30)


def folder_of(package: str) -> Path:
    """Without importing it."""
    return Path(next(iter(importlib.util.find_spec(package).submodule_search_locations)))


def pretend_driver(folder: Path) -> None:
    """A libcuda whose every function says that there is no device: what is linked with it finds it loaded, and what
    calls it gets an error; Triton looks for its file."""
    users = [*folder_of("vllm").glob("*.so"), folder_of("triton") / "backends" / "nvidia" / "driver.c"]
    names = {name.decode() for user in users for name in re.findall(rb"\bcu[A-Z]\w+", user.read_bytes())}
    source, library = folder / "libcuda.c", folder / "libcuda.so.1"
    texts = {"cuGetErrorName", "cuGetErrorString"}
    lines = [f"int {name}() {{ return {NO_DEVICE}; }}" for name in sorted(names - texts)]
    lines += [f'int {name}(int code, const char **text) {{ *text = "no device"; return 0; }}' for name in texts]
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def pytest_configure(config):
    """Before anything is imported that chooses a platform."""
    if os.environ.get("R3_GPUSET"):
        pretend_driver(Path(tempfile.mkdtemp(prefix="r3-driver-")))
        pretend_torch()
        pretend_nvml()
