"""What a run takes where nobody chose: the profile, and the attention."""

import os
import re

from r3_ext.host.cluster import ADDRESS
from r3_ext.host.hardware import installed_version, list_gpus

ONE_NODE = re.compile(r"gpu_(\d+)x(\d+)gb")
"""Number and GB of the GPUs of a profile that a machine may get unasked: one node, and the smallest model."""
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
FLASH, PLAIN = "flash_attention_2", "sdpa"
KERNELS = "kernels>=0.12,<0.13"
"""What the pinned transformers asks for; with 0.17 its import fails."""
HUB_KERNEL = "kernels-community/flash-attn2"
"""What transformers takes for flash_attention_2 from the Hugging Face hub where flash-attn is missing."""
WAYS = f'pip install "{KERNELS}" ({HUB_KERNEL} comes from the hub), or compile flash-attn (examples/install.sh)'


def attention_override(profile: str) -> list[str]:
    """What a run on this machine begins with, before its own overrides: flash_attention_2 where it is installed."""
    return [f"{ATTENTION}={FLASH}"] if profile != "embedded" and flash_package() else []


def flash_package() -> str | None:
    """The installed package that flash_attention_2 comes from; flash-attn goes before kernels."""
    if installed_version("flash-attn"):
        return "flash-attn"
    return "kernels" if installed_version("kernels") and not kernels_fault() else None


def kernels_fault() -> str | None:
    """Why transformers cannot use the installed kernels, or None."""
    from packaging.requirements import Requirement

    version = installed_version("kernels")
    fits = version is None or Requirement(KERNELS).specifier.contains(version, prereleases=True)
    return None if fits else f"kernels {version}, transformers needs {KERNELS}"


def default_profile() -> str:
    """The largest profile that this machine's GPUs allow; R3_DEVICE=cpu says that they are not to be used.

    Raises:
        ValueError: no profile fits the GPUs, or the run is one of a cluster, of which this machine says nothing.
    """
    wanted = os.environ.get("R3_DEVICE", "")
    if wanted != "cpu" and (gpus := list_gpus()):
        return largest_profile(len(gpus), min(gpu.total for gpu in gpus))
    if os.environ.get(ADDRESS) and wanted != "cpu":
        raise ValueError(
            f"{ADDRESS} is set and this machine has no GPU, which says nothing of the cluster's nodes: name the "
            "profile with --profile or R3_PROFILE (gpu_2x8x80gb, for one)"
        )
    return "embedded"


def largest_profile(gpus: int, memory: float) -> str:
    """The profile with the most GPU memory that so many GPUs of `memory` GiB each hold.

    8 of 40 GiB take gpu_8x40gb, 2 of 80 take gpu_1x80gb.

    Raises:
        ValueError: none fits.
    """
    from r3_ext.settings.sizing import USABLE_GIB, gpu_profiles  # imports hydra, which the doctor may not find

    memory = round(memory, 1)
    sizes = {name: tuple(map(int, found.groups())) for name in gpu_profiles() if (found := ONE_NODE.fullmatch(name))}
    fitting = [name for name, (number, size) in sizes.items() if number <= gpus and USABLE_GIB[size] <= memory]
    if not fitting:
        raise ValueError(
            f"this machine has {gpus} GPU{'s' if gpus > 1 else ''} of {memory:.0f} GiB, for which there is no profile: "
            f"name the nearest of {', '.join(sizes)} with --profile and change what does not fit, or take --profile "
            "embedded, which needs no GPU"
        )
    return max(fitting, key=lambda name: sizes[name][0] * sizes[name][1])
