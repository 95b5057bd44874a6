"""The kit for a machine with a GPU and no network: what goes along, in which parts, and what a run of it writes."""

import json
import subprocess
import sys

import pytest

from r3_ext.recipes import rules_of
from r3_ext.settings.compose import compose_config
from tests.gpu.kit import tables, training
from tests.gpu.kit.__main__ import ROOT, STAGES, Stage, run, unpack
from tests.gpu.kit.build import carried, name_of, pack, requirements


def test_what_is_asked_for_is_what_training_on_a_gpu_takes_without_torch_and_vllm():
    names = {name_of(line) for line in requirements()}
    assert {"verl", "ray", "transferqueue", "transformers", "math-verify", "pytest"} <= names
    assert not {"torch", "vllm", "wandb", "r3-recipe"} & names


def test_what_is_there_stays_and_another_version_goes_along():
    there = ["NumPy==2.5.2", "tokenizers==0.23.2", "pandas"]
    resolved = ["numpy==2.5.2", "tokenizers==0.22.2", "pandas==3.0.0", "verl==0.9.1"]
    assert carried(resolved, there) == ["tokenizers==0.22.2", "verl==0.9.1"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "kit"
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "module.py").write_text("VALUE = 1\n")
    (folder / "about.json").write_text("{}")
    return folder


def test_parts_that_come_one_at_a_time_are_kept_until_all_are_there(folder, tmp_path):
    parts = pack(folder, tmp_path / "parts", part_bytes=150)
    assert len(parts) > 1 and all(part.stat().st_size <= 150 for part in parts)
    names, work = [part.name for part in parts], tmp_path / "work"
    for number, part in enumerate(parts, 1):
        one = tmp_path / f"call{number}"
        one.mkdir()
        part.rename(one / part.name)
        assert unpack(one, work) == names[number:]
    assert (work / "kit" / "site" / "module.py").read_text() == "VALUE = 1\n"
    assert unpack(tmp_path / "nothing", work) == [], "it is unpacked once"


def test_without_any_part_it_says_which_one_comes_first(tmp_path):
    (tmp_path / "kit").mkdir()
    assert unpack(tmp_path / "kit", tmp_path / "work") == [f"{tmp_path / 'kit'}/kit.1of..."]


@pytest.mark.slow
def test_a_stage_leaves_what_it_found_where_it_fails_or_the_time_is_up(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "found.py").write_text(
        "import sys, time\nopen(sys.argv[2], 'w').write('{\"seen\": 1}')\nif 'cuda' in sys.argv:\n    time.sleep(60)\n"
        "sys.exit('too large')\n"
    )
    monkeypatch.setattr("tests.gpu.kit.__main__.ROOT", tmp_path)
    stage = Stage("found", "found", least_s=1)
    failed, late = (run(stage, tmp_path / "work", device, 8) for device in ("cpu", "cuda"))
    assert (failed["ok"], failed["why"], failed["figures"]) == (False, "exit code 1", {"seen": 1})
    assert "too large" in failed["log_ends"]
    assert (late["ok"], late["why"], late["figures"]) == (False, "the time was up", {"seen": 1})
    assert run(stage, tmp_path / "work", "cpu", 0.5)["why"] == "not begun: 0 s were left, it takes at least 1"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("method, more", [("grpo", []), ("r3", training.REFLECTS), ("r3", training.OFF)])
def test_the_settings_of_its_runs_keep_the_rules_and_train_in_bf16(device, method, more):
    config = compose_config([*training.settings_of(method, device), "actor_rollout_ref.model.path=model", *more])
    assert not [broken.told for broken in rules_of(config)]
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (rollout.name, rollout.dtype) == ("hf", "bfloat16")
    model = config.actor_rollout_ref.model
    assert model.use_remove_padding and model.use_fused_kernels and model.enable_gradient_checkpointing
    mixed = actor.fsdp_config.get("mixed_precision") or {}
    assert mixed.get("param_dtype", "bf16") == "bf16", "verl's default"


def test_every_stage_is_a_module_with_the_same_arguments():
    for stage in STAGES:
        assert (ROOT / f"{stage.module.replace('.', '/')}.py").is_file()


def test_the_tables_are_made_of_what_passed(tmp_path, capsys, monkeypatch):
    stages = {
        "attention": {"ok": True, "figures": {"recipe": {"704": {"not_finite": 0, "ms": 1.5}}, "cudnn": {}}},
        "memory": {"ok": False, "why": "exit code 1", "figures": {}},
    }
    machine = {"device": "a GPU", "torch": "2.11.0", "commit": "0123456789"}
    (tmp_path / "gpu_kit.json").write_text(json.dumps({"machine": machine, "stages": stages}))
    monkeypatch.setattr(sys, "argv", ["tables", str(tmp_path / "gpu_kit.json")])
    tables.main()
    printed = capsys.readouterr().out
    assert "| 704 |  | 0 |  | 1.5 |" in printed and "memory: exit code 1" in printed


def test_what_runs_before_the_packages_are_there_needs_pythons_library_alone():
    command = [sys.executable, "-S", "-I", str(ROOT / "tests" / "gpu" / "kit" / "__main__.py"), "--help"]
    assert "gpu_kit.json" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
