"""`r3 doctor` on the machine: what is installed, memory, and GPUs."""

import mmap
import os
from collections import namedtuple

import pytest
from packaging.requirements import Requirement

from r3_ext.doctor import command, gpus, installation, machine, speed
from r3_ext.doctor.cluster import check_cluster
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding
from r3_ext.host.units import GIB
from r3_ext.run.environment import replace_read_only_home
from r3_ext.settings import choose
from r3_ext.settings.sizing import ARCHITECTURES
from tests.ext.doctored import levels, only

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_environment")]

Usage = namedtuple("Usage", "total used free")


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

    def test_nccl_between_trainer_and_rollout_needs_cupy(self, gpu_config, monkeypatch):
        assert installation.check_weight_sync(gpu_config) == []
        gpu_config.actor_rollout_ref.rollout.checkpoint_engine.backend = "nccl"
        monkeypatch.setattr(installation, "find_spec", lambda name: None)
        assert only(installation.check_weight_sync(gpu_config), FAIL).advice == "pip install cupy-cuda13x==14.0.1"
        monkeypatch.setattr(installation, "find_spec", lambda name: name)
        assert installation.check_weight_sync(gpu_config) == []

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
        (tmp_path / "Python.h").touch()
        monkeypatch.setattr(machine.sysconfig, "get_path", lambda *names: str(tmp_path))
        assert levels(machine.check_compiler(gpu_config)) == [OK]
        (tmp_path / "Python.h").unlink()
        finding = only(machine.check_compiler(gpu_config), FAIL)
        assert f"{tmp_path}/Python.h, which is not there" in finding.found and "-dev" in finding.advice

    def test_windows_cannot_hand_weights_over_on_a_gpu(self, config, gpu_config, monkeypatch):
        assert machine.check_windows(gpu_config) == []
        monkeypatch.setattr(machine.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
        assert levels(machine.check_windows(gpu_config)) == [WARN] and machine.check_windows(config) == []

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
        monkeypatch.setattr(machine, "main_memory", lambda: (3 * GIB, 16 * GIB))
        assert levels(machine.check_memory(config)) == [WARN]

    def test_the_processes_of_a_run_on_gpus_share_nothing(self, gpu_config, monkeypatch):
        # 3 + 2 agents + 2 of rewards + 3 of the GPU, the queue's controller and 2 units, 4 graders, CUDA and Ray.
        assert machine.processes_gib(gpu_config) == pytest.approx(10 + 0.3 * 7 + 3 + 1)
        for free, level in ((16, WARN), (17, OK)):
            monkeypatch.setattr(machine, "main_memory", lambda free=free: (free * GIB, 64 * GIB))
            monkeypatch.setattr(machine, "model_architecture", lambda config: None)
            assert levels(machine.check_memory(gpu_config)) == [level]
        monkeypatch.setattr(
            machine, "model_architecture", lambda config: ARCHITECTURES[config.actor_rollout_ref.model.path]
        )
        assert "about 23 needed" in only(machine.check_memory(gpu_config), WARN).found

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

    def test_a_head_node_without_gpus_may_say_that_its_cluster_has_them(self, gpu_config, monkeypatch):
        monkeypatch.setenv("R3_DEVICE", "gpu")
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        monkeypatch.setattr(gpus, "list_gpus", lambda: [])
        assert gpus.check_device(gpu_config) == []

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
        assert "16,384 x 16,384" in finding.found and "mask of 1.2 GiB" in finding.found
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
