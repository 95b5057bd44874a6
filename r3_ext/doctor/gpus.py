"""What nvidia-smi reports, against what the profile wants."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from r3_ext.doctor.finding import FAIL, OK, WARN, Finding, is_cpu
from r3_ext.doctor.model_files import model_architecture
from r3_ext.host.cluster import ADDRESS
from r3_ext.host.hardware import GPU, list_gpus
from recipe.common.modes import SEPARATE_ASYNC

if TYPE_CHECKING:
    from omegaconf import DictConfig

CUDA_13_DRIVER = 580
"""First NVIDIA driver series for CUDA 13, which the pinned torch and vLLM are built for."""


def check_device(config: DictConfig) -> list[Finding]:
    """R3_DEVICE decides what examples/install.sh installs: a run on something else would not be what was asked for."""
    wanted = os.environ.get("R3_DEVICE", "")
    if wanted not in ("", "cpu", "gpu"):
        return [Finding(FAIL, "device", f"R3_DEVICE={wanted}", "set it to cpu or gpu, or unset it")]
    if wanted == "gpu" and not list_gpus() and not os.environ.get(ADDRESS):  # the nodes of a cluster have them
        advice = "unset R3_DEVICE to train on the CPU, or go to a machine whose nvidia-smi lists a GPU"
        return [Finding(FAIL, "device", "R3_DEVICE=gpu, and no GPU is found", advice)]
    if wanted and wanted != ("cpu" if is_cpu(config) else "gpu"):
        advice = "choose a profile for that device, or unset R3_DEVICE"
        return [Finding(WARN, "device", f"R3_DEVICE={wanted}, trainer.device={config.trainer.device}", advice)]
    return []


def check_gpus(config: DictConfig) -> list[Finding]:
    if is_cpu(config) or os.environ.get(ADDRESS):  # the nodes of a cluster are asked themselves
        return []
    return gpu_findings(config, list_gpus(), config.trainer.n_gpus_per_node + generating_gpus(config))


def generating_gpus(config: DictConfig) -> int:
    """GPUs that generate only: verl's separate mode has some beside those that train."""
    if not config.trainer.v1.trainer_mode.endswith(SEPARATE_ASYNC):
        return 0
    return config.actor_rollout_ref.rollout.nnodes * config.actor_rollout_ref.rollout.n_gpus_per_node


def gpu_findings(config: DictConfig, gpus: list[GPU], wanted: int) -> list[Finding]:
    """Number, driver and memory of GPUs, of this machine or of all nodes."""
    if len(gpus) < wanted:
        advice = "choose another profile, trainer.n_gpus_per_node=N, or the profile embedded without a GPU"
        settings = f"trainer.n_gpus_per_node={config.trainer.n_gpus_per_node}"
        if generating := generating_gpus(config):
            settings += f" and {generating} of actor_rollout_ref.rollout.n_gpus_per_node"
        return [Finding(FAIL, "GPUs", f"{len(gpus)} found, {settings}", advice)]
    findings = [Finding(OK, "GPUs", f"{len(gpus)} x {gpus[0].name}, {gpus[0].total:.0f} GiB, driver {gpus[0].driver}")]
    if int(gpus[0].driver.split(".")[0]) < CUDA_13_DRIVER:
        advice = f"the pinned torch is built for CUDA 13: update the driver to {CUDA_13_DRIVER} or later"
        findings.append(Finding(FAIL, "GPUs", f"driver {gpus[0].driver}", advice))
    busy = [index for index, gpu in enumerate(gpus[:wanted]) if gpu.used > 1]
    if busy:
        found = f"memory in use on GPU {', '.join(map(str, busy))}"
        findings.append(Finding(WARN, "GPUs", found, "see nvidia-smi; set CUDA_VISIBLE_DEVICES to free ones"))
    return findings + gpu_memory(config, min(gpu.total for gpu in gpus))


def gpu_memory(config: DictConfig, memory: float) -> list[Finding]:
    """The computed need of `r3_ext.settings.sizing` against the smallest GPU."""
    from r3_ext.settings import sizing

    architecture = model_architecture(config)
    if architecture is None or memory == 0:
        return []
    plan = sizing.plan(config, architecture, memory)
    found = f"computed need {plan.update:.0f} GiB to update, {plan.rollout:.0f} to roll out, of {memory:.0f}"
    if plan.fits:
        return [Finding(OK, "GPU memory", found)]
    advice = (
        "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or rollout.gpu_memory_utilization, or choose a "
        "smaller profile (python -m r3_ext.settings.sizing)"
    )
    return [Finding(WARN, "GPU memory", found, advice)]
