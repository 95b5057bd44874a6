import json
import mmap
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from packaging.requirements import Requirement

from r3_ext import cli
from r3_ext.data import problems as data
from r3_ext.data.write import SCHEMA, to_row, write_rows
from r3_ext.doctor import (
    command,
    data_files,
    gpus,
    installation,
    machine,
    model_files,
    prompts,
    settings,
    speed,
    storage,
)
from r3_ext.doctor.cluster import check_cluster
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding
from r3_ext.doctor.network import check_network
from r3_ext.host.units import GIB, human
from r3_ext.run.environment import replace_read_only_home
from r3_ext.settings import choose
from r3_ext.settings.compose import choices, compose_config
from r3_ext.tiny import tiny_model

pytestmark = pytest.mark.slow

Usage = namedtuple("Usage", "total used free")
MODEL_CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "R3_PROFILE", "R3_DEVICE", "DATA", "VAL_DATA", "MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def composed():
    return {name: compose_config([f"+profile={name}", "+method=r3"]) for name in ("embedded", "gpu_1x80gb")}


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_model.train_tokenizer(["What is 1 + 1?"], vocabulary=512).save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path, tokenizer_files):
    """A folder that looks like a model."""
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_files, folder)
    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def train_file(tmp_path):
    return write(tmp_path / "train.parquet", 32)


@pytest.fixture
def config(composed, model, train_file, tmp_path):
    """The profile embedded with everything in place."""
    paths = {
        "data": {"train_files": str(train_file), "val_files": str(write(tmp_path / "val.parquet", 4))},
        "actor_rollout_ref": {"model": {"path": str(model)}},
        "trainer": {"default_local_dir": str(tmp_path / "checkpoints")},
    }
    return OmegaConf.merge(composed["embedded"], paths)


@pytest.fixture
def gpu_config(composed):
    return composed["gpu_1x80gb"].copy()


def rows(number: int) -> list[dict]:
    problems = [data.Problem(f"What is {index} + 1?", str(index + 1), "test", index) for index in range(number)]
    return [to_row(problem, "test", "train") for problem in problems]


def write(path, number: int):
    write_rows(path, rows(number))
    return path


def as_json(path, content: list[dict]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def only(findings: list[Finding], level: str) -> Finding:
    """The one finding of that level."""
    (finding,) = [finding for finding in findings if finding.level == level]
    return finding


def test_everything_in_place_passes_every_check(config, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    # What this machine has installed and free is not the subject.
    left_out = (installation.check_packages, machine.check_memory, machine.check_shared_memory, storage.check_disk)
    left_out += (check_network,)
    monkeypatch.setattr(command, "CHECKS", [check for check in command.CHECKS if check not in left_out])
    findings = command.diagnose(config)
    assert [finding for finding in findings if finding.level != OK] == []
    assert {finding.check for finding in findings} >= {"config", "model", "tokenizer", "data", "prompts", "cores"}


def test_every_finding_that_is_not_ok_says_what_to_do(composed):
    findings = command.diagnose(composed["embedded"])
    assert all(bool(finding.advice) == (finding.level != OK) for finding in findings)
    # Nothing names a model or data: `r3 run` prepares them, so this is no failure.
    assert levels([f for f in findings if f.check in ("model", "data")]) == [WARN, WARN, WARN]


class TestInstallation:
    @pytest.fixture
    def installed(self, monkeypatch):
        versions = {installation.DISTRIBUTION: "0", "verl": "0.9.1", "torch": "2.13.0+cpu", "rich": "14.0"}
        pins = [Requirement(line) for line in ("verl==0.9.1", "torch==2.13.0+cpu", "rich>=13")]
        monkeypatch.setattr(installation, "installed_version", versions.get)
        monkeypatch.setattr(installation, "requirements", lambda extra: pins)
        return versions

    def test_versions_as_pinned(self, installed):
        assert levels(installation.package_findings("cpu")) == [OK]

    def test_another_verl_fails_and_another_rich_warns(self, installed):
        installed |= {"verl": "0.9.2", "rich": "12.0"}
        assert levels(installation.package_findings("cpu")) == [FAIL, WARN]

    def test_missing_package(self, installed):
        del installed["torch"]
        assert only(installation.package_findings("cpu"), FAIL) == Finding(
            FAIL, "packages", "missing: torch", "run examples/install.sh"
        )

    def test_cuda_build_of_torchvision_beside_a_cpu_torch(self, installed):
        installed |= {"torchvision": "0.28.0", "torchaudio": "2.13.0+cpu"}
        assert "torchvision" in only(installation.package_findings("cpu"), FAIL).advice
        assert levels(installation.package_findings("gpu")) == [OK]

    def test_project_not_installed(self, installed):
        del installed[installation.DISTRIBUTION]
        assert levels(installation.package_findings("cpu")) == [FAIL]

    def test_pins_come_from_the_extras(self, monkeypatch):
        lines = ['verl==0.9.1; extra == "cpu"', 'verl==0.9.1; extra == "gpu"', 'vllm==0.24.0; extra == "gpu"']
        monkeypatch.setattr(installation.metadata, "requires", lambda name: lines)
        assert [pin.name for pin in installation.requirements("cpu")] == ["verl"]
        assert [pin.name for pin in installation.requirements("gpu")] == ["verl", "vllm"]

    def test_not_linux(self, monkeypatch):
        monkeypatch.setattr(installation.platform, "system", lambda: "Darwin")
        assert levels(installation.check_python()) == [FAIL]

    def test_platform_must_match_the_profile(self, config, gpu_config, monkeypatch):
        monkeypatch.setenv("VERL_PLATFORM", "cpu")
        assert levels(installation.check_platform(config)) == [OK]
        assert levels(installation.check_platform(gpu_config)) == [FAIL]
        monkeypatch.delenv("VERL_PLATFORM")
        assert levels(installation.check_platform(config)) == [WARN]
        assert levels(installation.check_platform(gpu_config)) == [OK]


class TestMachine:
    def test_a_home_that_cannot_be_written_is_told_and_replaced_for_a_run(self, config, monkeypatch, tmp_path):
        assert machine.check_home(config) == []
        monkeypatch.setenv("HOME", str(tmp_path / "none"))
        assert only(machine.check_home(config), WARN).found.endswith("none cannot be written")
        said = []
        replace_read_only_home(tmp_path / "cache", said.append)
        assert os.environ["HOME"] == str(tmp_path / "cache" / "home") and len(said) == 1
        assert machine.check_home(config) == []

    def test_a_compiler_is_asked_for_where_something_is_compiled(self, config, gpu_config, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        for name in ("CC", "CXX", "TORCHDYNAMO_DISABLE"):
            monkeypatch.delenv(name, raising=False)
        assert machine.check_compiler(config) == []
        assert only(machine.check_compiler(gpu_config), FAIL).advice == "apt install gcc"
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
        assert "g++" in only(machine.check_compiler(config), FAIL).advice
        (tmp_path / "mine").touch(mode=0o755)
        monkeypatch.setenv("CC", "mine")
        assert levels(machine.check_compiler(gpu_config)) == [OK]

    @pytest.mark.parametrize("flags, level", [({"sse4_2"}, FAIL), ({"avx2"}, OK), ({"avx2", "avx512f"}, OK)])
    def test_instruction_set(self, config, monkeypatch, flags, level):
        monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
        assert levels(machine.check_instructions(config)) == [level]

    def test_gpu_runs_do_not_use_the_cpu_build(self, gpu_config):
        assert machine.check_instructions(gpu_config) == []

    def test_cores_cover_ranks_storage_units_and_controller(self, config):
        # 3 for the rank, 1 storage unit, 1 controller.
        config.ray_kwargs.ray_init.num_cpus = 5
        assert levels(machine.check_cores(config)) == [OK]
        config.ray_kwargs.ray_init.num_cpus = 4
        assert "num_cpus=5" in only(machine.check_cores(config), FAIL).advice
        config.trainer.n_gpus_per_node, config.ray_kwargs.ray_init.num_cpus = 2, 7
        assert levels(machine.check_cores(config)) == [FAIL]

    def test_of_a_cluster_the_nodes_are_asked_and_not_this_machine(self, config, gpu_config, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        checks = machine.check_cores, machine.check_memory
        assert [finding for check in checks for finding in check(config)] == []
        assert gpus.check_gpus(gpu_config) == []
        found = only(check_cluster(config), FAIL).found
        assert "ray_kwargs.ray_init.num_cpus, ray_kwargs.ray_init.num_gpus" in found, "ray.init refuses to be given any"

    def test_memory(self, config, monkeypatch):
        monkeypatch.setattr(machine, "main_memory", lambda: (12 * GIB, 16 * GIB))
        assert levels(machine.check_memory(config)) == [OK]
        monkeypatch.setattr(machine, "main_memory", lambda: (6 * GIB, 16 * GIB))
        assert levels(machine.check_memory(config)) == [WARN]

    @pytest.mark.parametrize("free, level", [(8 * GIB, OK), (GIB // 2, WARN), (2**24, FAIL)])
    def test_shared_memory(self, config, monkeypatch, free, level):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: Usage(0, 0, free))
        monkeypatch.setattr(machine, "abandoned_segments", lambda folder: [])
        assert levels(machine.check_shared_memory(config)) == [level]

    def test_only_unused_segments_count_as_abandoned(self, tmp_path):
        for name in ("psm_used", "psm_left", "verl_weights_left", "other"):
            (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
        with open(tmp_path / "psm_used", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            left = machine.abandoned_segments(tmp_path)
        assert [path.name for path in left] == ["psm_left", "verl_weights_left"]


class TestGPUs:
    @pytest.fixture
    def nvidia_smi(self, tmp_path, monkeypatch):
        """nvidia_smi(text) puts a program of that name and output on PATH."""

        def install(text: str) -> None:
            program = tmp_path / "nvidia-smi"
            program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\ncat <<END\n{text}\nEND\n')
            program.chmod(0o755)
            monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

        return install

    def test_reads_nvidia_smi(self, nvidia_smi):
        nvidia_smi("NVIDIA H100 80GB HBM3, 81559, 512, 580.65.06")
        assert gpus.list_gpus() == [gpus.GPU("NVIDIA H100 80GB HBM3", 81559 / 1024, 0.5, "580.65.06")]

    def test_memory_that_is_not_reported(self, nvidia_smi):
        nvidia_smi("NVIDIA GB10, [N/A], [N/A], 580.95.05")
        assert gpus.list_gpus()[0].total == 0

    def test_visible_devices_are_respected(self, nvidia_smi, monkeypatch, tmp_path):
        nvidia_smi("A, 1024, 0, 580.1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        gpus.list_gpus()
        assert (tmp_path / "arguments").read_text().endswith("-i 2,3\n")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert gpus.list_gpus() == []

    def check(self, config, monkeypatch, *found):
        monkeypatch.setattr(gpus, "list_gpus", lambda: list(found))
        return gpus.check_gpus(config)

    def test_too_few(self, gpu_config, monkeypatch):
        assert levels(self.check(gpu_config, monkeypatch)) == [FAIL]

    def test_gpus_that_generate_only_are_counted(self, gpu_config, monkeypatch):
        gpu_config.trainer.v1.trainer_mode = "r3_separate_async"
        gpu_config.actor_rollout_ref.rollout.update({"nnodes": 1, "n_gpus_per_node": 2})
        gpu = gpus.GPU("H100", 79.6, 0.0, "580.65.06")
        (finding,) = self.check(gpu_config, monkeypatch, gpu, gpu)
        assert finding.level == FAIL and "2 of actor_rollout_ref.rollout.n_gpus_per_node" in finding.found
        assert levels(self.check(gpu_config, monkeypatch, gpu, gpu, gpu))[0] == OK

    def test_enough_memory(self, gpu_config, model, monkeypatch):
        gpu_config.actor_rollout_ref.model.path = str(model)
        gpu = gpus.GPU("H100", 79.6, 0.0, "580.65.06")
        assert levels(self.check(gpu_config, monkeypatch, gpu)) == [OK, OK]

    def test_too_little_memory_old_driver_and_in_use(self, gpu_config, model, monkeypatch):
        gpu_config.actor_rollout_ref.model.path = str(model)
        gpu = gpus.GPU("T4", 1.0, 2.0, "535.104.05")
        assert levels(self.check(gpu_config, monkeypatch, gpu)) == [OK, FAIL, WARN, WARN]

    @pytest.mark.parametrize(
        "wanted, gpu_found, of_cpu, of_gpu, default",
        [
            ("", True, [], [], "gpu_1x80gb"),
            ("gpu", False, [FAIL], [FAIL], "embedded"),
            ("gpu", True, [WARN], [], "gpu_1x80gb"),
            ("cpu", True, [], [WARN], "embedded"),
            ("tpu", False, [FAIL], [FAIL], "embedded"),
        ],
    )
    def test_the_device_that_was_asked_for(
        self, config, gpu_config, monkeypatch, wanted, gpu_found, of_cpu, of_gpu, default
    ):
        monkeypatch.setenv("R3_DEVICE", wanted)
        for module in (gpus, choose):
            monkeypatch.setattr(module, "list_gpus", lambda: [gpus.GPU("H100", 79.6, 0.0, "580.1")] * gpu_found)
        assert levels(gpus.check_device(config)) == of_cpu and levels(gpus.check_device(gpu_config)) == of_gpu
        assert choose.default_profile() == default

    @pytest.mark.parametrize(
        "number, gib, profile",
        [
            (8, 79.6, "gpu_8x80gb"),
            (9, 139.8, "gpu_8x80gb"),
            (8, 40.0, "gpu_8x40gb"),
            (5, 79.6, "gpu_4x80gb"),
            (2, 79.6, "gpu_1x80gb"),
            (4, 40.0, "gpu_1x24gb"),
            (1, 23034 / 1024, "gpu_1x24gb"),  # an L4
        ],
    )
    def test_the_default_profile_is_the_largest_that_fits(self, number, gib, profile):
        assert choose.largest_profile(number, gib) == profile

    @pytest.mark.parametrize("gib", [15.0, 0.0])
    def test_no_profile_fits(self, gib):
        with pytest.raises(ValueError, match=rf"1 GPU of {gib:.0f} GiB.*gpu_1x24gb, .*gpu_8x80gb with --profile"):
            choose.largest_profile(1, gib)

    def test_not_asked_for(self, config):
        assert gpus.check_gpus(config) == []

    @pytest.fixture
    def versions(self, monkeypatch):
        versions = {}
        for module in (speed, choose):
            monkeypatch.setattr(module, "installed_version", versions.get)
        return versions

    def test_plain_attention_on_packed_rows_says_what_it_costs(self, gpu_config, versions):
        finding = only(speed.check_attention(gpu_config), WARN)
        assert "16,384 x 16,384" in finding.found and "mask of 0.8 GiB" in finding.found
        assert "kernels>=0.12,<0.13" in finding.advice
        versions["flash-attn"] = "2.8.3"
        assert only(speed.check_attention(gpu_config), WARN).advice.endswith("attn_implementation=flash_attention_2")
        gpu_config.actor_rollout_ref.model.use_remove_padding = False
        assert levels(speed.check_attention(gpu_config)) == [OK]

    def test_flash_attention_needs_one_of_two_packages(self, gpu_config, versions):
        gpu_config.actor_rollout_ref.model.override_config = {}  # verl's default
        assert "sdpa" in only(speed.check_attention(gpu_config), FAIL).advice
        versions["kernels"] = "0.12.3"
        assert speed.HUB_KERNEL in only(speed.check_attention(gpu_config), OK).found
        versions["flash-attn"] = "2.8.3"
        assert speed.HUB_KERNEL not in only(speed.check_attention(gpu_config), OK).found

    @pytest.mark.parametrize("version", ["0.17.2", "0.11.7"])
    def test_kernels_that_transformers_cannot_import_are_found(self, gpu_config, versions, version):
        versions["kernels"] = version
        assert f"kernels {version}" in only(speed.check_attention(gpu_config), FAIL).found
        assert choose.attention_override("gpu_1x80gb") == []

    def test_a_run_takes_the_attention_that_is_installed_and_no_other(self, versions):
        assert choose.attention_override("gpu_1x80gb") == []
        versions["kernels"] = "0.12.3"
        assert choose.attention_override("gpu_1x80gb") == [f"{speed.ATTENTION}=flash_attention_2"]
        assert choose.attention_override("embedded") == []

    def test_the_doctor_looks_at_the_attention_that_a_run_would_take(self, versions, tmp_path):
        versions["kernels"] = "0.12.3"
        found = {f.check: f for f in command.examine("gpu_1x80gb", "r3", [], tmp_path)}
        assert found["attention"].level == OK
        chosen = [f"{speed.ATTENTION}=sdpa"]
        found = {f.check: f for f in command.examine("gpu_1x80gb", "r3", chosen, tmp_path)}
        assert found["attention"].level == WARN, "who sets it is obeyed"

    def test_log_probs_that_are_not_fused_are_told(self, gpu_config, versions):
        assert levels(speed.check_log_probs(gpu_config)) == [OK]
        gpu_config.actor_rollout_ref.model.use_fused_kernels = False
        assert "in Python" in only(speed.check_log_probs(gpu_config), WARN).found
        versions["flash-attn"] = "2.8.3"
        assert "in Python" not in only(speed.check_log_probs(gpu_config), WARN).found


class TestOutput:
    def test_a_file_in_the_way(self, config, tmp_path):
        (tmp_path / "file").touch()
        config.trainer.default_local_dir = str(tmp_path / "file" / "checkpoints")
        assert "default_local_dir" in only(storage.check_output(config), FAIL).advice

    def test_says_from_where_it_resumes(self, config, tmp_path):
        assert "resumes" not in only(storage.check_output(config), OK).found
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("20")
        assert only(storage.check_output(config), OK).found.endswith("resumes after step 20")

    def test_says_what_a_network_file_system_means_for_the_history(self, config, monkeypatch):
        monkeypatch.setattr("recipe.r3.history.file.network_file_system", lambda path: "nfs4")
        assert "nobody can read it" in only(storage.check_output(config), WARN).advice

    def test_disk_counts_checkpoints_and_history(self, config, model, monkeypatch):
        parameters = model_files.model_architecture(config).parameters
        config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep = 1, 3
        history = 100 * 16 * 4 * 64 * 6
        needed = 3 * 12 * parameters + history
        for free, level in ((needed + GIB, OK), (needed - 1, FAIL)):
            monkeypatch.setattr(storage.shutil, "disk_usage", lambda path, free=free: Usage(0, 0, free))
            assert levels(storage.check_disk(config)) == [level]

    def test_optimizer_left_out_of_the_checkpoint(self, config):
        config.trainer.save_freq = 1
        parameters = model_files.model_architecture(config).parameters
        config.actor_rollout_ref.actor.checkpoint.save_contents = ["model"]
        assert f"takes {human(4 * parameters)}, all kept" in storage.check_disk(config)[0].found


class TestModel:
    def test_a_model(self, config):
        finding = only(model_files.check_model(config), OK)
        assert finding.found.endswith("qwen2, 0.1 M parameters")

    @pytest.mark.parametrize("path", ["/no/such/folder", "no such model"])
    def test_neither_folder_nor_hub_name(self, config, path):
        config.actor_rollout_ref.model.path = path
        assert "neither" in only(model_files.check_model(config), FAIL).found

    def test_not_on_the_hub(self, config, monkeypatch):
        def unreachable(model, name):
            raise FileNotFoundError(name)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
        for number, (is_there, why) in enumerate([(True, "gave FileNotFoundError"), (False, "cannot be reached")]):
            monkeypatch.setattr("r3_ext.host.hub.go_offline_if_unreachable", lambda is_there=is_there: is_there)
            config.actor_rollout_ref.model.path = f"nobody/nothing{number}"  # what is known of a name is kept
            assert why in only(model_files.check_model(config), FAIL).found
        assert model_files.check_tokenizer(config) == []  # one finding is enough

    def test_no_config(self, config, model):
        (model / "config.json").unlink()
        assert "has no config.json" in only(model_files.check_model(config), FAIL).found

    def test_broken_config(self, config, model):
        (model / "config.json").write_text("{")
        assert "not JSON" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["[]", '{"vocab_size": "many"}'])
    def test_a_config_that_is_not_one(self, config, model, content):
        (model / "config.json").write_text(content)
        assert "not the configuration of a model" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 5}'])
    def test_a_broken_index(self, config, model, content):
        (model / "model.safetensors.index.json").write_text(content)
        assert "does not name weight files" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["{", "[]", '{"model": 5}'])
    def test_a_broken_tokenizer(self, config, model, content):
        (model / "tokenizer.json").write_text(content)
        assert levels(model_files.check_tokenizer(config)) == [FAIL]
        assert prompts.check_prompts(config) == []

    def test_no_weights(self, config, model):
        (model / "model.safetensors").unlink()
        assert "no weights" in only(model_files.check_model(config), FAIL).found

    def test_missing_shard(self, config, model):
        shards = {"a": "model.safetensors", "b": "model-2.safetensors"}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        assert "1 of 2 weight files missing: model-2" in only(model_files.check_model(config), FAIL).found

    def test_too_few_positions(self, config):
        config.data.max_response_length = 4096
        assert "2048 positions" in only(model_files.check_model(config), FAIL).found

    def test_no_tokenizer(self, config, model):
        # transformers makes an empty Qwen2 tokenizer of a folder that has a config.json only.
        (model / "tokenizer.json").unlink()
        assert "has none of tokenizer.json" in only(model_files.check_tokenizer(config), FAIL).found
        assert prompts.check_prompts(config) == []

    def test_tokenizer_of_a_larger_model(self, config, model):
        (model / "config.json").write_text(json.dumps({**MODEL_CONFIG, "vocab_size": 100}))
        assert "the model has 100 embeddings" in only(model_files.check_tokenizer(config), FAIL).found

    def test_no_chat_template(self, config, model):
        (model / "chat_template.jinja").unlink()
        assert only(model_files.check_tokenizer(config), FAIL).found == "no chat template"
        config.actor_rollout_ref.model.custom_chat_template = "{{ messages[0].content }}"
        assert levels(model_files.check_tokenizer(config)) == [OK]


class TestData:
    def check(self, config, content, tmp_path):
        """Findings on training data with these rows."""
        config.data.train_files = as_json(tmp_path / "changed.json", content)
        return data_files.check_data(config)

    def test_json_works_too(self, config, tmp_path):
        assert levels(self.check(config, rows(16), tmp_path)) == [OK, OK]

    def test_several_files(self, config, train_file):
        config.data.train_files = [str(train_file), str(train_file)]
        assert levels(data_files.check_data(config)) == [OK, OK, OK]

    def test_missing_file(self, config):
        config.data.train_files = "/no/such/file.parquet"
        assert "does not exist" in only(data_files.check_data(config), FAIL).found

    def test_not_parquet(self, config, train_file):
        train_file.write_text("hello")
        assert levels(data_files.check_data(config)) == [FAIL, OK]

    def test_empty_parquet(self, config, train_file):
        pq.write_table(SCHEMA.empty_table(), train_file)
        assert "no rows" in only(data_files.check_data(config), FAIL).found

    @pytest.mark.parametrize("column", ["prompt", "reward_model", "data_source"])
    def test_missing_column(self, config, tmp_path, column):
        content = [{key: value for key, value in row.items() if key != column} for row in rows(16)]
        assert f"lacks {column}" in only(self.check(config, content, tmp_path), FAIL).found
        prompts.check_prompts(config)  # does not stumble over it

    def test_stock_verl_needs_no_query_id(self, config, tmp_path):
        config.trainer.v1.trainer_mode = "sync"
        content = [{key: value for key, value in row.items() if key != "query_id"} for row in rows(16)]
        assert levels(self.check(config, content, tmp_path)) == [OK, OK]

    def test_missing_extra_info_is_a_warning(self, config, tmp_path):
        content = [{key: value for key, value in row.items() if key != "extra_info"} for row in rows(16)]
        assert levels(self.check(config, content, tmp_path)) == [WARN, OK]

    @pytest.mark.parametrize("row", [0, 777, 1999])
    def test_any_row_is_named_with_its_column_and_those_that_follow_are_counted(self, config, tmp_path, row):
        content = rows(2000)
        for bad in {row, 1998}:
            content[bad]["reward_model"]["ground_truth"] = None
        finding = only(self.check(config, content, tmp_path), FAIL)
        more = {0: " (1 further row)", 777: " (1 further row)", 1999: " (1 further row)"}[row]
        first = min(row, 1998)
        assert finding.found == f"changed.json, row {first}: reward_model.ground_truth is None{more}"

    def test_several_accepted_answers(self, config, tmp_path):
        content = rows(16)
        for row in content:
            row["reward_model"]["ground_truth"] = ["1", "1.0"]
        assert levels(self.check(config, content, tmp_path)) == [OK, OK]
        content[3]["reward_model"]["ground_truth"] = "4"  # verl's dataset would make it the number 4
        assert "row 3: reward_model.ground_truth is a text" in only(self.check(config, content, tmp_path), FAIL).found

    @pytest.mark.parametrize(
        "reward, level",
        [
            ("{}", FAIL),
            ("{custom_reward_function: {path: mine.py}}", OK),
            ("{reward_manager: {source: register, name: naive}}", OK),
        ],
    )
    def test_a_group_of_values_is_for_a_reward_function(self, config, tmp_path, reward, level):
        config.merge_with({"reward": OmegaConf.create(reward)})
        content = rows(16)
        for row in content:
            row["reward_model"]["ground_truth"] = {"target": ["1", "one"]}
        finding = self.check(config, content, tmp_path)[0]
        assert finding.level == level
        assert level == OK or "reward_model.ground_truth is {'target': " in finding.found

    def test_without_query_id_ids_are_made(self, config, tmp_path):
        content = [{key: value for key, value in row.items() if key != "query_id"} for row in rows(16)]
        findings = self.check(config, content, tmp_path)
        assert levels(findings) == [OK] * 3 and "ids are made from prompt and answer" in findings[1].found

    def test_a_problem_may_occur_twice(self, config, tmp_path):
        assert levels(self.check(config, rows(16) + rows(4), tmp_path)) == [OK, OK]

    @pytest.mark.parametrize("in_two_files", [False, True])
    def test_an_id_of_two_problems(self, config, tmp_path, in_two_files):
        content = rows(32)
        content[20]["query_id"] = content[3]["query_id"]
        parts = [content[:16], content[16:]] if in_two_files else [content]
        config.data.train_files = [as_json(tmp_path / f"{n}.json", part) for n, part in enumerate(parts)]
        finding = only(data_files.check_data(config), FAIL)
        assert "stands for different prompts" in finding.found and "What is 3 + 1?" in finding.found
        assert "an id of its own" in finding.advice

    def test_fewer_rows_than_a_batch(self, config, tmp_path):
        assert "train_batch_size=16" in only(self.check(config, rows(15), tmp_path), FAIL).found
        config.data.train_max_samples = 8
        assert "8 training rows" in only(self.check(config, rows(32), tmp_path), FAIL).found

    def test_files_whose_types_cannot_be_put_together(self, config, tmp_path, train_file):
        table = pq.read_table(train_file)
        other = table.set_column(table.column_names.index("query_id"), "query_id", pa.array(range(len(table))))
        pq.write_table(other, tmp_path / "other.parquet")
        config.data.train_files = [str(train_file), str(tmp_path / "other.parquet")]
        assert "query_id" in only(data_files.check_data(config), FAIL).found

    def test_a_column_that_verls_dataset_cannot_hold(self, config, train_file):
        table = pq.read_table(train_file)
        maps = pa.array([[("a", 1)]] * len(table), pa.map_(pa.string(), pa.int64()))
        pq.write_table(table.append_column("extra", maps), train_file)
        assert "map<string, int64" in only(data_files.check_data(config), FAIL).found


class TestPrompts:
    def test_rendered_and_counted(self, config):
        train, reflection, val = prompts.check_prompts(config)
        assert train.found.startswith("train.parquet: 32 rendered, at most ")
        assert "for the past attempt" in reflection.found
        assert val.found.startswith("val.parquet: 4 rendered")

    def test_all_too_long(self, config):
        config.data.max_prompt_length = 4
        assert levels(prompts.check_prompts(config)) == [FAIL, WARN, FAIL]

    @pytest.mark.parametrize("filtered, advice", [(True, "left out"), (False, "from the left")])
    def test_one_too_long(self, config, tmp_path, filtered, advice):
        content = rows(16)
        content[3]["prompt"][0]["content"] += " really" * 600
        config.data.train_files = as_json(tmp_path / "long.json", content)
        config.data.filter_overlong_prompts = filtered
        finding = only(prompts.check_prompts(config), WARN)
        assert finding.found.endswith("1 over")
        assert advice in finding.advice

    def test_no_room_for_a_past_attempt(self, config):
        config.algorithm.r3.reflection.template += " and then" * 400
        assert "reflection leaves" in only(prompts.check_prompts(config), WARN).found
        config.algorithm.r3.reflection.enable = False
        assert levels(prompts.check_prompts(config)) == [OK, OK]

    @pytest.mark.parametrize("row", [0, 1001])
    def test_template_refuses_the_roles(self, config, tmp_path, row):
        content = rows(2000)
        content[row]["prompt"][0]["role"] = "wizard"
        config.data.train_files = as_json(tmp_path / "roles.json", content)
        assert "wizard" in only(prompts.check_prompts(config), FAIL).found


class TestConfig:
    def test_setting_of_the_recipe(self, config):
        config.algorithm.r3.replay.k = 0
        assert only(settings.check_config(config), FAIL).found.startswith("algorithm.r3.replay.k must be at least 1")

    def test_setting_of_verl(self, config):
        config.actor_rollout_ref.actor.loss_agg_mode = "mean"
        assert "loss_agg_mode" in only(settings.check_config(config), FAIL).found

    def test_recipe_rules_do_not_hold_for_stock_verl(self, config):
        config.trainer.v1.trainer_mode, config.algorithm.adv_estimator = "sync", "grpo"
        assert levels(settings.check_config(config)) == [OK]

    @pytest.mark.parametrize("method", ["r3", "grpo"])
    @pytest.mark.parametrize(
        ("key", "value", "told"),
        [
            ("actor_rollout_ref.actor.policy_loss.loss_mode", "gsppo", "gsppo"),
            ("reward.reward_manager.name", "naive", "add reward.reward_manager.source=register"),
            ("reward.reward_manager", {"source": "register", "name": "nosuch"}, "Unknown reward manager: nosuch"),
            ("reward.reward_manager.source", "registre", "must be register or importlib, got 'registre'"),
            ("reward.sandbox_fusion.url", "http://localhost", "source=register reward.reward_manager.name=naive"),
        ],
    )
    def test_names_that_nobody_knows_and_what_nobody_asks(self, config, method, key, value, told):
        if method == "grpo":
            config.trainer.v1.trainer_mode, config.algorithm.adv_estimator = "baseline", "grpo"
        OmegaConf.update(config, key, value)
        assert told in only(settings.check_config(config), FAIL).found

    def test_names_that_modules_of_the_users_own_may_bring_are_left_to_the_workers(self, config, tmp_path):
        function = tmp_path / "mine.py"
        function.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info): return 0.0\n")
        config.reward.reward_manager = {**config.reward.reward_manager, "source": "register", "name": "mine"}
        assert "Unknown reward manager" in only(settings.check_config(config), FAIL).found
        config.reward.custom_reward_function.path = str(function)
        assert levels(settings.check_config(config)) == [OK], "the file may register it"
        config.reward.custom_reward_function.path = None
        config.actor_rollout_ref.actor.policy_loss.loss_mode = "mine"
        environment = config.ray_kwargs.ray_init.runtime_env.env_vars
        environment.VERL_USE_EXTERNAL_MODULES = f"{environment.VERL_USE_EXTERNAL_MODULES},mine"
        assert levels(settings.check_config(config)) == [OK]

    def test_reward_settings_are_those_that_the_workers_will_build(self, config):
        config.reward.reward_kwargs.grader_timeout_s = -1
        finding = only(settings.check_config(config), FAIL)
        assert finding.found == "reward.reward_kwargs.grader_timeout_s must be > 0, got -1"
        # Another manager's settings are its own.
        config.reward.reward_manager.source, config.reward.reward_manager.name = "register", "dapo"
        assert FAIL not in levels(settings.check_config(config))

    @pytest.mark.parametrize(
        "override, found",
        [
            ("trainer.total_epochs=abc", "trainer.total_epochs must be a whole number of at least 1, got 'abc'"),
            ("trainer.total_epochs=0", "trainer.total_epochs must be a whole number of at least 1, got 0"),
            ("data.train_batch_size=2.5", "data.train_batch_size must be a whole number of at least 1, got 2.5"),
            ("trainer.n_gpus_per_node=null", "trainer.n_gpus_per_node must be a whole number of at least 1, got None"),
            ("trainer.save_freq=often", "trainer.save_freq must be a whole number (-1: never, or all), got 'often'"),
            ("trainer.total_training_steps=-4", "at least 1 or null, got -4"),
            ("data.shuffle=maybe", "data.shuffle must be true or false, got 'maybe'"),
            ("actor_rollout_ref.actor.optim.lr=fast", "actor_rollout_ref.actor.optim.lr must be a number > 0"),
            ("actor_rollout_ref.actor.entropy_coeff=[1]", "actor.entropy_coeff must be a number, got [1]"),
            ("actor_rollout_ref.rollout.top_p=1.5", "actor_rollout_ref.rollout.top_p must be in (0, 1], got 1.5"),
            ("trainer.experiment_name=${nothing}", "nothing"),
            ("trainer.experiment_name=5", "trainer.experiment_name must be a text or a list, got 5"),
            ("trainer.v1=null", "trainer.v1 must be a section with settings, got None"),
            ("reward.reward_manager=null", "reward.reward_manager must be a section with settings"),
            ("algorithm.r3.history=null", "algorithm.r3.history must be a section with settings"),
            ("++actor_rollout_ref=null", "actor_rollout_ref must be a section with settings"),
            ("actor_rollout_ref.rollout=5", "actor_rollout_ref.rollout must be a section with settings, got 5"),
            ("actor_rollout_ref.model=null", "actor_rollout_ref.model must be a section with settings"),
            ("~data", "more must be there, and an override has deleted it"),
            ("~actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n must be there, and an override has deleted"),
            ("data.train_files=5", "data.train_files must be a text or a list of texts, got 5"),
            ("data.val_files=[a,null]", "data.val_files must be a text or a list of texts, got ['a', None]"),
            ("data.prompt_key=5", "data.prompt_key must be a text"),
            ("trainer.logger=5", "trainer.logger must be a text or a list of texts, got 5"),
            ("trainer.resume_mode=nope", "trainer.resume_mode must be one of auto, disable, resume_path, got 'nope'"),
            *((f"{key}='~nosuchuser/a'", f"{key} must be a path that can be used (there") for key in settings.PATHS),
            *((f"{key}={'a' * 300}", f"{key} must be paths that can be used (File") for key in settings.FILES),
            *((f"{key}={value}", f"{key} must be a text") for key in settings.PATHS for value in ("null", "5", "[a]")),
        ],
    )
    def test_values_of_the_wrong_kind_are_the_only_findings(self, override, found):
        findings = command.diagnose(compose_config(["+profile=embedded", "+method=r3", override]))
        assert {(finding.level, finding.check) for finding in findings} == {(FAIL, "config")}
        assert sum(found in finding.found for finding in findings) == 1

    def test_no_value_of_ours_is_of_the_wrong_kind(self):
        """Each profile and each method; neither changes what the other sets."""
        profiles, methods = choices("profile"), choices("method")
        pairs = [(profile, "r3") for profile in profiles] + [("embedded", method) for method in methods]
        for profile, method in pairs:
            config = compose_config([f"+profile={profile}", f"+method={method}"])
            assert settings.wrong_values(config) == [], (profile, method)

    def test_verls_own_trainer_takes_the_settings_of_the_baselines(self):
        for method in ("grpo", "dapo"):
            config = compose_config(["+profile=embedded", f"+method={method}", "trainer.v1.trainer_mode=sync"])
            assert settings.wrong_values(config) == []

    def test_what_verl_takes_is_let_through(self):
        """Other engines have other settings; null where verl asks for it; texts where there are lists, and lists."""
        for overrides in (
            ["model_engine=megatron"],
            ["data.train_files=[a,b]", "trainer.logger=console", "trainer.resume_mode=resume_path"],
            ["reward.reward_kwargs=null", "algorithm.r3.replay.reflected_unless=null", "trainer.logger=[]"],
            ['algorithm.rollout_correction.rollout_is_threshold="0.5_5.0"'],
            ["skip.rollout_tq.steps=[1,2]", "skip.rollout_tq.enable=True", "+trainer.mine=5", "data.seed=null"],
        ):
            assert settings.wrong_values(compose_config(overrides)) == [], overrides

    def test_lengths(self, config):
        config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 570
        assert "576 tokens" in only(settings.check_config(config), FAIL).found
        config.actor_rollout_ref.rollout.max_model_len = 570
        assert len(settings.check_lengths(config)) == 2


class TestReport:
    FINDINGS = [
        Finding(OK, "python", "Python 3.11"),
        Finding(WARN, "memory", "6 of 16 GiB free, about 9 needed", "close other programs"),
        Finding(FAIL, "data", "a [long] path " * 20, "prepare the data again " * 10),
    ]

    @pytest.mark.parametrize("columns", ["80", "200"])
    def test_table_fits_the_terminal(self, capsys, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", columns)
        assert command.report(self.FINDINGS) is False
        output = capsys.readouterr().out
        assert max(map(len, output.splitlines())) <= 100
        assert "[long]" in output
        assert output.splitlines()[-1] == "1 failed, 1 warning, 1 ok"

    def test_a_warning_passes(self, capsys):
        assert command.report(self.FINDINGS[:2]) is True

    def test_json(self, capsys):
        assert command.report_json(self.FINDINGS) is False
        read = json.loads(capsys.readouterr().out)
        assert (read["ok"], len(read["findings"])) == (False, 3)
        assert read["findings"][1] == {
            "level": "warn",
            "check": "memory",
            "found": "6 of 16 GiB free, about 9 needed",
            "advice": "close other programs",
        }


class TestCommand:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        monkeypatch.setenv("VERL_PLATFORM", "")  # restored afterwards: the command sets it

    def test_configuration_that_does_not_compose(self, capsys):
        assert command.main(["--profile", "embedded", "--json", "algorithm.r3.repaly.k=2"]) == 1
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert finding["check"] == "config" and "repaly" in finding["found"]

    @pytest.mark.parametrize("argv", [["--profile", "nope"], ["--profile", "embedded", "--method", "nope"]])
    def test_an_unknown_name_is_told_with_the_known_ones(self, capsys, argv):
        assert command.main([*argv, "--json"]) == 1
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert "must be one of" in finding["found"] and "got 'nope'" in finding["found"]

    @pytest.mark.parametrize("variable", ["DATA", "VAL_DATA"])
    def test_the_files_that_a_run_would_take_are_checked(self, capsys, monkeypatch, tmp_path, variable):
        content = rows(300)
        content[250]["data_source"] = None
        monkeypatch.setenv(variable, as_json(tmp_path / "mine.json", content))
        argv = ["--profile", "embedded", "--json", "--cache", str(tmp_path / "cache")]
        assert command.main(argv) == 1
        failed = [f["found"] for f in json.loads(capsys.readouterr().out)["findings"] if f["level"] == FAIL]
        assert any("mine.json, row 250: data_source is None" in found for found in failed)

    def test_the_model_that_a_run_would_take_is_checked(self, capsys, monkeypatch, tmp_path, model):
        argv = ["--profile", "embedded", "--json", "--cache", str(tmp_path / "cache")]
        (model / "config.json").unlink()
        for path, found in ((model, "has no config.json"), (tmp_path / "none", "no such folder")):
            monkeypatch.setenv("MODEL", str(path))
            assert command.main(argv) == 1
            findings = json.loads(capsys.readouterr().out)["findings"]
            assert any(f["level"] == FAIL and found in f["found"] for f in findings)

    def test_overrides_reach_the_checks(self, capsys, monkeypatch):
        monkeypatch.setattr(command, "CHECKS", [settings.check_config])
        assert command.main(["data.train_batch_size=8", "--profile", "embedded", "--json"]) == 0
        assert "8 prompts" in json.loads(capsys.readouterr().out)["findings"][0]["found"]
        assert command.main(["algorithm.r3.replay.k=0", "--profile", "embedded"]) == 1

    def test_it_says_so_without_any_of_them(self):
        code = (
            "import sys\n"
            "sys.modules |= dict.fromkeys(('hydra', 'omegaconf', 'packaging', 'rich', 'ray', 'torch', 'verl'))\n"
            "from r3_ext.doctor import command\n"
            "command.installed_version = lambda name: None\n"
            "sys.exit(command.main([]))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "") and "missing: packaging, hydra-core" in done.stdout

    def test_packages_missing_that_the_doctor_itself_needs(self, capsys, monkeypatch):
        monkeypatch.setattr(command, "installed_version", lambda name: None)
        assert command.main([]) == 1
        assert "missing: packaging, hydra-core" in capsys.readouterr().out

    def test_command_line_is_dispatched_lazily(self):
        code = "import sys, r3_ext.cli; print([m for m in ('torch', 'hydra', 'rich', 'verl') if m in sys.modules])"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]"

    def test_arguments_of_a_subcommand_are_left_to_it(self, monkeypatch):
        monkeypatch.setattr(command, "main", lambda argv: len(argv))
        assert cli.main(["doctor", "--json", "+profile=embedded", "~data.seed"]) == 3

    @pytest.mark.parametrize("argv", [[], ["walk"]])
    def test_unknown_or_no_subcommand(self, argv, capsys):
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert "doctor" in capsys.readouterr().err
